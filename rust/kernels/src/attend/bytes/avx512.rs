//! Weighted values in integers with AVX-512 VNNI: 16 columns in a register, the two panels of a block side by side.

use std::arch::x86_64::*;

use super::{BLOCK, CHUNK, MAX_TILE, PANEL, PANEL_BYTES, QUAD, QUAD_BYTES, QUADS, Tile, VALUE_PART};

/// # Safety
/// The CPU must have AVX-512 F, BW, VL and VNNI.
pub(crate) unsafe fn weigh(t: Tile<'_>) {
    t.check();
    // SAFETY: passed on; sizes were checked, and the rows given to each kernel are the tile's.
    unsafe {
        match t.rows {
            0 => {}
            1 => rows::<1, 4>(t),
            2 => rows::<2, 4>(t),
            3 => rows::<3, 2>(t),
            4 => rows::<4, 2>(t),
            5 => rows::<5, 2>(t),
            6 => rows::<6, 1>(t),
            7 => rows::<7, 1>(t),
            8 => rows::<8, 1>(t),
            9 => rows::<9, 1>(t),
            rows => unreachable!("no tile of {rows} rows"),
        }
    }
}

/// Few rows take `S` sums each in turn, so that a product need not wait for the one before.
///
/// # Safety
/// As [`weigh`]; the tile has `R` rows and the sizes that [`Tile::check`] checks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows<const R: usize, const S: usize>(t: Tile<'_>) {
    let stride = t.stride();
    // SAFETY: reads quads of the tile's panels, two of each block, and codes of its rows, and writes 32 columns of a block's results.
    unsafe {
        for block in 0..t.blocks {
            let values = t.values.as_ptr().add(2 * block * PANEL_BYTES);
            let codes = t.codes.as_ptr().add(block * BLOCK);
            let ahead = t.next.as_ptr().wrapping_add(2 * block * PANEL_BYTES);
            let mut sum = [[[_mm512_setzero_si512(); 2]; R]; S];
            for quad in (QUADS * t.panels.start..QUADS * t.panels.end).step_by(S) {
                for (s, sum) in sum.iter_mut().enumerate() {
                    let at = values.add((quad + s) * QUAD_BYTES);
                    let ahead = ahead.wrapping_add(2 * (quad + s) * QUAD_BYTES);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(QUAD_BYTES).cast());
                    let v = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(PANEL_BYTES).cast())];
                    for (r, sum) in sum.iter_mut().enumerate() {
                        let word = codes.add(r * CHUNK + (quad + s) * QUAD).cast::<i32>().read_unaligned();
                        let w = _mm512_set1_epi32(word);
                        sum[0] = _mm512_dpbusd_epi32(sum[0], w, v[0]);
                        sum[1] = _mm512_dpbusd_epi32(sum[1], w, v[1]);
                    }
                }
            }
            for r in 0..R {
                let factor = _mm512_set1_ps(t.factors[block * MAX_TILE + r]);
                for half in 0..2 {
                    let mut total = sum[0][r][half];
                    for sum in &sum[1..] {
                        total = _mm512_add_epi32(total, sum[r][half]);
                    }
                    let at = t.out.as_mut_ptr().add(r * stride + block * VALUE_PART + half * PANEL);
                    _mm512_storeu_ps(at, _mm512_mul_ps(factor, _mm512_cvtepi32_ps(total)));
                }
            }
        }
    }
}
