//! One pass over a row: the highest logit of each block, and whether a NaN is anywhere.
//!
//! In: a row. Out: block maxima, to everything that then needs to look into a few blocks only ([`super::topk`],
//! [`super::filter`], greedy picks).
//!
//! 1. `maxima[b]` is the highest value of `row[b·BLOCK ..]`, `BLOCK` long, the last block shorter.
//! 2. A NaN anywhere is reported; the maxima are then of no use.
//! 3. Maxima are exact, so their order of evaluation does not matter; only the sign of a zero may vary, and no caller looks at it.
//!
//! Cost: one read of the row. The loops are written over 16 lanes without branches, so that they vectorise.

/// Values per block.
pub(super) const BLOCK: usize = 64;
const LANES: usize = 16;

/// Fills `maxima` for a row. The highest logit, or `None` if the row holds a NaN.
pub(super) fn scan(row: &[f32], maxima: &mut Vec<f32>) -> Option<f32> {
    let (blocks, tail) = row.as_chunks::<BLOCK>();
    maxima.clear();
    maxima.resize(blocks.len(), 0.0);
    let mut nan = [0; LANES / 2];
    for (high, block) in maxima.iter_mut().zip(blocks) {
        *high = block_max(block, &mut nan);
    }
    if !tail.is_empty() {
        maxima.push(block_max(&padded(tail), &mut nan));
    }
    let (blocks, tail) = maxima.as_chunks::<BLOCK>();
    let mut unused = [0; LANES / 2];
    let high = blocks.iter().fold(block_max(&padded(tail), &mut unused), |high, block| {
        let other = block_max(block, &mut unused);
        if other > high { other } else { high }
    });
    // A zero gets a positive sign here, so that distances below it are never -0.
    nan.iter().all(|&mask| mask == 0).then_some(high + 0.0)
}

fn padded(tail: &[f32]) -> [f32; BLOCK] {
    let mut block = [f32::NEG_INFINITY; BLOCK];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// The highest value of a block; sets bits of `nan` if one is none. One compare tests two values: that is half the price.
#[inline(always)]
fn block_max(block: &[f32; BLOCK], nan: &mut [u32; LANES / 2]) -> f32 {
    let mut high = [f32::NEG_INFINITY; LANES];
    for group in block.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            high[lane] = if group[lane] > high[lane] { group[lane] } else { high[lane] };
        }
        for (lane, mask) in nan.iter_mut().enumerate() {
            *mask |= if group[lane].is_nan() | group[lane + LANES / 2].is_nan() { u32::MAX } else { 0 };
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            high[lane] = if high[lane + width] > high[lane] { high[lane + width] } else { high[lane] };
        }
        width /= 2;
    }
    high[0]
}

/// The lowest id that holds the highest logit. `high` and `maxima` are the scan's.
pub(super) fn first_of(row: &[f32], maxima: &[f32], high: f32) -> u32 {
    let block = maxima.iter().position(|&m| m == high).unwrap_or(0);
    let start = block * BLOCK;
    let inside = row[start..].iter().position(|&x| x == high).unwrap_or(0);
    (start + inside) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::twin::noise;

    #[test]
    fn maxima_are_those_of_a_plain_loop() {
        for n in [1, 2, 15, 16, 63, 64, 65, 127, 128, 1000, 4096 + 17] {
            let row = noise(n as u64, n, 3.0);
            let mut maxima = Vec::new();
            let high = scan(&row, &mut maxima);
            let plain: Vec<f32> =
                row.chunks(BLOCK).map(|b| b.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect();
            assert_eq!(maxima, plain, "{n}");
            assert_eq!(high, plain.iter().copied().reduce(f32::max));
            let best = high.expect("no NaN here");
            assert_eq!(
                first_of(&row, &maxima, best) as usize,
                row.iter().position(|&x| x == best).expect("it is there")
            );
        }
    }

    #[test]
    fn a_nan_is_seen_wherever_it_hides() {
        for n in [1, 63, 64, 65, 200] {
            for at in 0..n {
                let mut row = noise(5, n, 1.0);
                row[at] = if at % 2 == 0 { f32::NAN } else { -f32::NAN };
                assert_eq!(scan(&row, &mut Vec::new()), None, "{at} of {n}");
            }
        }
    }

    #[test]
    fn infinities_are_numbers() {
        let mut row = vec![f32::NEG_INFINITY; 100];
        assert_eq!(scan(&row, &mut Vec::new()), Some(f32::NEG_INFINITY));
        row[77] = f32::INFINITY;
        let mut maxima = Vec::new();
        assert_eq!(scan(&row, &mut maxima), Some(f32::INFINITY));
        assert_eq!(first_of(&row, &maxima, f32::INFINITY), 77);
    }

    #[test]
    fn the_highest_zero_is_positive() {
        for zeros in [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]] {
            assert_eq!(scan(&zeros, &mut Vec::new()).map(f32::to_bits), Some(0));
        }
    }
}
