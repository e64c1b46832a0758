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
            _ => {
                for offset in scale_offsets(format) {
                    let scale = random.float() * if random.below(20) == 0 { 1.0 } else { 0.01 };
                    block[*offset..offset + 2].copy_from_slice(&crate::half::f32_to_f16(scale).to_le_bytes());
                }
            }
        }
    }
    rows
}

/// Where a quantized block has half-precision numbers.
pub(crate) fn scale_offsets(format: Format) -> &'static [usize] {
    if format == Format::IQ4_XS { &[0] } else { format.layout().halves }
}

/// Panels of `n` rows.
pub(crate) fn panels_of(format: Format, n: usize, k: usize, rows: &[u8]) -> Vec<u8> {
    let (layout, row_bytes) = (format.layout(), format.row_bytes(k));
    let mut panels = vec![0xaa; n.div_ceil(PANEL) * PANEL * row_bytes];
    for (rows, panel) in rows.chunks(PANEL * row_bytes).zip(panels.chunks_exact_mut(PANEL * row_bytes)) {
        layout.pack_panel(rows, row_bytes, panel);
    }
    panels
}

#[test]
fn words_and_halves_cover_every_byte_of_a_block_once() {
    for format in Format::ALL {
        let layout = format.layout();
        let mut seen = vec![0; layout.bytes];
        layout.words.iter().for_each(|at| seen[*at..at + 4].iter_mut().for_each(|s| *s += 1));
        layout.halves.iter().for_each(|at| seen[*at..at + 2].iter_mut().for_each(|s| *s += 1));
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
            for row in 0..n.div_ceil(PANEL) * PANEL {
                for b in 0..3 {
                    let mut block = vec![0; layout.bytes];
                    let size = PANEL * format.row_bytes(k);
                    layout.gather(&panels[row / PANEL * size..][..size], 3, row % PANEL, b, &mut block);
                    let zeros = vec![0; layout.bytes];
                    let expected = if row < n {
                        &rows[row * format.row_bytes(k) + b * layout.bytes..][..layout.bytes]
                    } else {
                        &zeros
                    };
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

#[test]
fn blocks_stand_for_the_golden_values() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/dequant/");
    let mut checked = 0;
    for format in Format::ALL {
        if matches!(format, Format::F32 | Format::F16) {
            continue; // the identity, and `half`'s own tests
        }
        let data = std::fs::read(format!("{dir}{format:?}.bin")).unwrap();
        let layout = format.layout();
        let blocks = data.len() / (layout.bytes + 4 * layout.len);
        let (raw, golden) = data.split_at(blocks * layout.bytes);
        let mut values = vec![0.0; blocks * layout.len];
        format.dequantize(raw, &mut values);
        for (value, golden) in values.iter().zip(golden.chunks_exact(4)) {
            assert_eq!(value.to_bits().to_le_bytes(), golden, "{format:?}");
            checked += 1;
        }
    }
    assert_eq!(checked, 64 + 6 * 256 + 6 * 512);
}
