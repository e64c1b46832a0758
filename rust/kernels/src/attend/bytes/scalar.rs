//! Weighted values in integers as plain code: the specification.

use super::{BLOCK, CHUNK, MAX_TILE, PANEL, PANEL_BYTES, QUAD, QUAD_BYTES, Tile, VALUE_PART};

/// # Safety
/// None.
pub(crate) unsafe fn weigh(t: Tile<'_>) {
    t.check();
    let stride = t.stride();
    for (block, row) in (0..t.blocks).flat_map(|block| (0..t.rows).map(move |row| (block, row))) {
        let codes = &t.codes[block * BLOCK + row * CHUNK..][..CHUNK];
        let factor = t.factors[block * MAX_TILE + row];
        for column in 0..VALUE_PART {
            let panel = &t.values[(2 * block + column / PANEL) * PANEL_BYTES..][..PANEL_BYTES];
            let sum: i32 = (t.panels.start * PANEL..t.panels.end * PANEL)
                .map(|slot| {
                    let at = slot / QUAD * QUAD_BYTES + column % PANEL * QUAD + slot % QUAD;
                    i32::from(codes[slot]) * i32::from(panel[at] as i8)
                })
                .sum();
            t.out[row * stride + block * VALUE_PART + column] = factor * sum as f32;
        }
    }
}
