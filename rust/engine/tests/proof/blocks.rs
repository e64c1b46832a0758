//! Random weights in every format: blocks of random codes, whose scales and minimums are chosen so that values have a mean near 0 and
//! the standard deviation that is asked for.

use quoth_engine::gguf::GgmlType;
use quoth_kernels::Format;
use quoth_kernels::half::f32_to_f16;

use crate::dice::Dice;

/// The tensor type of a format.
pub(crate) fn ggml_type(format: Format) -> GgmlType {
    (0..64).find(|id| Format::from_ggml_id(*id) == Some(format)).and_then(GgmlType::from_id).unwrap()
}

/// Offset of what a block adds (`m`) or multiplies (`dmin`): both are minimums.
fn min_at(format: Format) -> Option<usize> {
    match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => Some(2),
        Format::Q2_K => Some(82),
        _ => None,
    }
}

/// Stores a scale in a block: `d`, or what the format has near it.
fn put_scale(format: Format, block: &mut [u8], d: f32) {
    let at = match format {
        Format::MXFP4 => {
            block[0] = (d.to_bits() >> 23) as u8 + 1;
            return;
        }
        Format::NVFP4 => {
            // Biased exponents count from 7 there, from 127 here; and levels are doubled.
            block[..4]
                .iter_mut()
                .for_each(|s| *s = *s & 7 | ((d.to_bits() >> 20 & 0x7f8).clamp(120 << 3, 133 << 3) - (119 << 3)) as u8);
            return;
        }
        Format::IQ1_M => {
            // The upper four bits of four 16-bit numbers.
            let half = f32_to_f16(d);
            (0..4).for_each(|i| block[49 + 2 * i] = block[49 + 2 * i] & 15 | ((half >> (4 * i)) as u8) << 4);
            return;
        }
        Format::Q2_K => 80,
        Format::Q3_K => 108,
        Format::Q6_K => 208,
        Format::TQ1_0 => 52,
        Format::TQ2_0 => 64,
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("floats have no scale"),
        _ => 0,
    };
    block[at..at + 2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
}

/// `n` weights of a standard deviation in a format: random codes, scales to fit.
pub(crate) fn random_blocks(format: Format, n: usize, std: f64, dice: &mut Dice) -> Vec<u8> {
    let layout = format.layout();
    let mut raw = Vec::with_capacity(n / layout.len * layout.bytes);
    for _ in 0..n / layout.len {
        let value = (std * dice.bell()) as f32;
        match format {
            Format::F32 => raw.extend(value.to_le_bytes()),
            Format::F16 => raw.extend(f32_to_f16(value).to_le_bytes()),
            Format::BF16 => raw.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
            _ => raw.extend(random_block(format, std, dice)),
        }
    }
    raw
}

fn random_block(format: Format, std: f64, dice: &mut Dice) -> Vec<u8> {
    let layout = format.layout();
    let min = min_at(format);
    let mut block: Vec<u8> = (0..layout.bytes).map(|_| dice.next() as u8).collect();
    if format == Format::Q8_0 {
        // Writers never make -128.
        block[2..].iter_mut().filter(|c| **c == 0x80).for_each(|c| *c = 0);
    }
    let expanded = |block: &mut Vec<u8>, d: f32, m: f32| {
        put_scale(format, block, d);
        if let Some(min) = min {
            block[min..min + 2].copy_from_slice(&f32_to_f16(m).to_le_bytes());
        }
        let mut values = vec![0.0; layout.len];
        format.dequantize(block, &mut values);
        values
    };
    let mean = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
    let codes = expanded(&mut block, 1.0, 0.0);
    let low = mean(&expanded(&mut block, 0.0, 1.0));
    let m = if min.is_some() && low != 0.0 { -mean(&codes) / low } else { 0.0 };
    let centred = expanded(&mut block, 1.0, m as f32);
    let spread = (centred.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / layout.len as f64).sqrt();
    // Either sign, so that code ranges which lean to one side do not add up over blocks.
    let sign = if min.is_none() && dice.below(2) == 0 { -1.0 } else { 1.0 };
    let d = sign * std / spread * (0.75 + 0.5 * dice.share());
    expanded(&mut block, d as f32, (m * d) as f32);
    block
}
