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

/// Offsets of a block's scale and of what else is a half: whether that is added (`m`) or multiplied (`dmin`), both are minimums.
fn halves(format: Format) -> (usize, Option<usize>) {
    match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 | Format::IQ4_NL | Format::IQ4_XS => (0, None),
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => (0, Some(2)),
        Format::Q2_K => (80, Some(82)),
        Format::Q3_K => (108, None),
        Format::Q6_K => (208, None),
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("floats have no scale"),
    }
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
    let (scale, min) = halves(format);
    let mut block: Vec<u8> = (0..layout.bytes).map(|_| dice.next() as u8).collect();
    if format == Format::Q8_0 {
        // Writers never make -128.
        block[2..].iter_mut().filter(|c| **c == 0x80).for_each(|c| *c = 0);
    }
    let expanded = |block: &mut Vec<u8>, d: f32, m: f32| {
        block[scale..scale + 2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
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
