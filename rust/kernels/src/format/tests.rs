//! Layouts: panels give back the file's bytes, and blocks stand for the values that other implementations give them.

use super::*;
use crate::act::tests::Random;
use crate::matmul::Panels;

/// Random blocks whose scales are sane halves: `row_bytes(k) · n` bytes.
pub(crate) fn random_rows(format: Format, n: usize, k: usize, random: &mut Random) -> Vec<u8> {
    let layout = format.layout();
    let mut rows: Vec<u8> = (0..n * format.row_bytes(k)).map(|_| random.next() as u8).collect();
    for block in rows.chunks_exact_mut(layout.bytes) {
        match format {
            Format::F32 => block.copy_from_slice(&random.float().to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&((random.float().to_bits() >> 16) as u16).to_le_bytes()),
            Format::F16 => block.copy_from_slice(&crate::half::f32_to_f16(random.float()).to_le_bytes()),
            _ => put_scales(format, block, || random.float() * if random.below(20) == 0 { 1.0 } else { 0.01 }),
        }
    }
    rows
}

/// Stores a scale, and perhaps a minimum, in a block of a file, each as near to what `next` gives as the format can say.
pub(crate) fn put_scales(format: Format, block: &mut [u8], mut next: impl FnMut() -> f32) {
    let halves: &[usize] = match format {
        Format::MXFP4 => {
            block[0] = (next().to_bits() >> 23) as u8 + 1;
            return;
        }
        Format::NVFP4 => {
            // Biased exponents count from 7 there, from 127 here.
            block[..4].iter_mut().for_each(|s| {
                *s = *s & 7 | ((next().to_bits() >> 20 & 0x7f8).clamp(121 << 3, 134 << 3) - (120 << 3)) as u8
            });
            return;
        }
        Format::IQ1_M => {
            // The upper four bits of four 16-bit numbers.
            let half = crate::half::f32_to_f16(next());
            (0..4).for_each(|i| block[49 + 2 * i] = block[49 + 2 * i] & 15 | ((half >> (4 * i)) as u8) << 4);
            return;
        }
        Format::IQ4_XS | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => &[0],
        Format::IQ3_XXS | Format::IQ3_S | Format::IQ1_S => &[0],
        Format::TQ1_0 => &[52],
        Format::TQ2_0 => &[64],
        _ => format.layout().halves,
    };
    for offset in halves {
        block[*offset..offset + 2].copy_from_slice(&crate::half::f32_to_f16(next()).to_le_bytes());
    }
}

/// Panels of `n` rows.
pub(crate) fn panels_of(format: Format, n: usize, k: usize, rows: &[u8]) -> Vec<u8> {
    let (layout, row_bytes) = (format.layout(), format.row_bytes(k));
    let size = PANEL * format.panel_row_bytes(k);
    let mut panels = vec![0xaa; n.div_ceil(PANEL) * size];
    for (rows, panel) in rows.chunks(PANEL * row_bytes).zip(panels.chunks_exact_mut(size)) {
        layout.pack_panel(rows, row_bytes, panel);
    }
    panels
}

#[test]
fn words_halves_and_single_bytes_cover_every_byte_of_a_block_once() {
    for format in Format::ALL {
        let layout = format.layout();
        let mut seen = vec![0; layout.panel_bytes];
        layout.words.iter().for_each(|at| seen[*at..at + 4].iter_mut().for_each(|s| *s += 1));
        layout.halves.iter().for_each(|at| seen[*at..at + 2].iter_mut().for_each(|s| *s += 1));
        layout.singles.iter().for_each(|at| seen[*at] += 1);
        assert!(seen.iter().all(|s| *s == 1), "{format:?}");
    }
}

#[test]
fn panels_give_back_the_blocks_and_missing_rows_are_zero() {
    let mut random = Random(1);
    for format in Format::ALL {
        let layout = format.layout();
        for n in [1, 15, 16, 21] {
            let k = 3 * layout.len;
            let rows = random_rows(format, n, k, &mut random);
            let panels = panels_of(format, n, k, &rows);
            let size = format.panel_row_bytes(k);
            let blocks = k / layout.panel_len;
            for row in 0..n.div_ceil(PANEL) * PANEL {
                let mut expected = vec![0; size];
                if row < n {
                    let file = rows[row * format.row_bytes(k)..].chunks_exact(layout.bytes);
                    for (block, expected) in file.zip(expected.chunks_exact_mut(size / 3)) {
                        expected.copy_from_slice(layout.panel_blocks(block, &mut [0xaa; MOST_BYTES]));
                    }
                }
                for (b, expected) in expected.chunks_exact(layout.panel_bytes).enumerate() {
                    let mut block = vec![0xaa; layout.panel_bytes];
                    layout.gather(
                        &panels[row / PANEL * PANEL * size..][..PANEL * size],
                        blocks,
                        row % PANEL,
                        b,
                        &mut block,
                    );
                    assert_eq!(block, expected, "{format:?} row {row} block {b}");
                }
            }
        }
    }
}

#[test]
fn zero_bytes_are_zero_weights() {
    for format in Format::ALL {
        let layout = format.layout();
        let mut values = vec![1.0; layout.len];
        format.dequantize(&vec![0; layout.bytes], &mut values);
        assert!(values.iter().all(|v| *v == 0.0), "{format:?}");
    }
}

#[test]
fn a_row_read_from_panels_equals_the_row_read_from_the_file() {
    let mut random = Random(2);
    for format in Format::ALL {
        let (n, k) = (19, 512);
        let rows = random_rows(format, n, k, &mut random);
        let panels = panels_of(format, n, k, &rows);
        let panels = Panels::new(format, n, k, &panels);
        for row in 0..n {
            let (mut from_panel, mut from_file) = (vec![0.0; k], vec![1.0; k]);
            panels.dequantize_row(row, &mut from_panel);
            format.dequantize(&rows[row * format.row_bytes(k)..][..format.row_bytes(k)], &mut from_file);
            assert!(from_panel.iter().zip(&from_file).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

/// `tools/make_dequant.py` says how the files are made, and how to compare more than the few blocks that are kept here.
#[test]
fn blocks_stand_for_the_golden_values() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/dequant/");
    let dir = std::env::var("QUOTH_DEQUANT").unwrap_or(dir.to_owned());
    for format in Format::ALL {
        if matches!(format, Format::F32 | Format::F16) {
            continue; // the identity, and `half`'s own tests
        }
        let data = std::fs::read(format!("{dir}/{format:?}.bin")).unwrap();
        let layout = format.layout();
        let blocks = data.len() / (layout.bytes + 4 * layout.len);
        assert!(blocks >= 2 && data.len() == blocks * (layout.bytes + 4 * layout.len), "{format:?}");
        let (raw, golden) = data.split_at(blocks * layout.bytes);
        let mut values = vec![0.0; blocks * layout.len];
        format.dequantize(raw, &mut values);
        for (i, (value, golden)) in values.iter().zip(golden.chunks_exact(4)).enumerate() {
            let golden = f32::from_le_bytes(golden.try_into().unwrap());
            let same = value.to_bits() == golden.to_bits() || value.is_nan() && golden.is_nan();
            assert!(same, "{format:?}, block {}, value {}: {value} {golden}", i / layout.len, i % layout.len);
        }
    }
}
