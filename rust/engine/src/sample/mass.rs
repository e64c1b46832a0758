//! Sums of weights, and the token at which a sum is reached.
//!
//! In: weights in ascending order of id. Out: their total to [`super::filter`]; the drawn place to [`super::pick`].
//!
//! 1. One order of additions: blocks of 256 in 16 lanes, folded by halves, blocks left to right. Nothing else decides it.
//! 2. The drawn place is the first whose running sum exceeds `u · total`, and its weight is above zero.
//! 3. Nothing is stored per token: the block that holds the place is weighed again.
//!
//! A running sum inside a block is added one by one, which may differ from the folded sum of that block by its last bits
//! (relative 256·2^-53). If it ends below the target, the last token with weight in that block is the place.

use super::exp::Curve;

/// Weights per partial sum.
const SPAN: usize = 256;
const LANES: usize = 16;

/// Partial sums of a sequence of weights.
#[derive(Debug, Default)]
pub(super) struct Mass {
    sums: Vec<f64>,
    total: f64,
}

/// Where weights come from, in ascending order of id.
pub(super) trait Weights {
    /// How many there are.
    fn len(&self) -> usize;
    /// The weights from `start` on, as many as `out` holds.
    fn load(&self, start: usize, out: &mut [f64]);
}

/// All logits of a row, weighed as they are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    pub(super) high: f32,
    pub(super) curve: Curve,
}

impl Weights for Row<'_> {
    fn len(&self) -> usize {
        self.logits.len()
    }

    #[inline(always)]
    fn load(&self, start: usize, out: &mut [f64]) {
        for (weight, &logit) in out.iter_mut().zip(&self.logits[start..]) {
            *weight = self.curve.weight(f64::from(self.high) - f64::from(logit));
        }
    }
}

impl Weights for [f64] {
    fn len(&self) -> usize {
        <[f64]>::len(self)
    }

    #[inline(always)]
    fn load(&self, start: usize, out: &mut [f64]) {
        let n = out.len();
        out.copy_from_slice(&self[start..start + n]);
    }
}

impl Mass {
    /// Adds up all weights; returns the total.
    #[inline]
    pub(super) fn sum<W: Weights + ?Sized>(&mut self, weights: &W) -> f64 {
        self.sums.clear();
        self.total = 0.0;
        let mut start = 0;
        while start < weights.len() {
            let mut span = [0.0; SPAN];
            let n = SPAN.min(weights.len() - start);
            if n == SPAN {
                weights.load(start, &mut span);
            } else {
                weights.load(start, &mut span[..n]);
            }
            let sum = fold(&span);
            self.sums.push(sum);
            self.total += sum;
            start += SPAN;
        }
        self.total
    }

    /// The place that `u` in [0, 1) falls on. The sums are those of the last [`Mass::sum`], of the same weights.
    pub(super) fn draw<W: Weights + ?Sized>(&self, weights: &W, u: f64) -> usize {
        let target = u * self.total;
        let (mut span, mut before, mut after) = (0, 0.0, 0.0);
        for (at, &sum) in self.sums.iter().enumerate() {
            if sum > 0.0 {
                // Kept also if none reaches the target, which only a target rounded up to the total can do.
                (span, before, after) = (at, after, after + sum);
                if after > target {
                    break;
                }
            }
        }
        let start = span * SPAN;
        let n = SPAN.min(weights.len() - start);
        let mut loaded = [0.0; SPAN];
        weights.load(start, &mut loaded[..n]);
        let mut place = start;
        for (at, &weight) in (start..).zip(&loaded[..n]) {
            if weight > 0.0 {
                place = at;
                before += weight;
                if before > target {
                    break;
                }
            }
        }
        place
    }
}

/// Kept out of line: inlined, the whole span is loaded into what registers there are before the first addition.
#[inline(never)]
fn fold(span: &[f64; SPAN]) -> f64 {
    let mut lanes = [0.0; LANES];
    for group in span.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lanes[lane] += group[lane];
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::uniform;

    /// Weights with many zeros, and whole blocks of them.
    fn weights(seed: u64, n: usize) -> Vec<f64> {
        let at = |i: usize| uniform(seed, i as u64);
        (0..n).map(|i| if i / 300 % 3 == 1 || at(i) < 0.3 { 0.0 } else { at(i).powi(8) }).collect()
    }

    #[test]
    fn the_drawn_place_is_where_a_plain_running_sum_exceeds_the_target() {
        for n in [1, 2, 255, 256, 257, 512, 3000] {
            let mut weights = weights(n as u64, n);
            weights[n - 1] += 1e-3;
            let mut mass = Mass::default();
            let total = mass.sum(weights.as_slice());
            assert!((total - weights.iter().sum::<f64>()).abs() <= total * 1e-13);
            for draw in 0..2000 {
                let u = uniform(99, draw);
                let place = mass.draw(weights.as_slice(), u);
                let before: f64 = weights[..place].iter().sum();
                assert!(weights[place] > 0.0);
                assert!(before <= u * total * (1.0 + 1e-12), "{n}, {u}");
                assert!(before + weights[place] >= u * total * (1.0 - 1e-12), "{n}, {u}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_draw_are_the_first_and_the_last_with_weight() {
        let mut weights = vec![0.0; 2000];
        (weights[300], weights[700], weights[1500]) = (1e-300, 1.0, 1e-17);
        let mut mass = Mass::default();
        mass.sum(weights.as_slice());
        assert_eq!(mass.draw(weights.as_slice(), 0.0), 300);
        assert_eq!(mass.draw(weights.as_slice(), 0.5), 700);
        // A target equal to the total, which only rounding makes.
        assert_eq!(mass.draw(weights.as_slice(), 1.0), 1500);
    }

    #[test]
    fn a_row_and_its_list_of_weights_have_the_same_sum_to_the_bit() {
        let logits = crate::sample::twin::noise(3, 2777, 4.0);
        let high = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let row = Row { logits: &logits, high, curve: Curve::new(0.7) };
        let list: Vec<f64> = logits.iter().map(|x| row.curve.weight(f64::from(high) - f64::from(*x))).collect();
        assert_eq!(Mass::default().sum(&row).to_bits(), Mass::default().sum(list.as_slice()).to_bits());
    }

    #[test]
    fn sums_have_these_bits_on_every_platform() {
        let sum_at = |temperature| {
            let logits = crate::sample::twin::noise(11, 3000, 9.0);
            let high = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            Mass::default().sum(&Row { logits: &logits, high, curve: Curve::new(temperature) }).to_bits()
        };
        let pinned = [0x4027_776b_ecc9_de2d, 0x4060_f45d_a00a_1a2b, 0x4064_fb54_c4c2_77c0, 0x4090_e9cb_44ef_ca75];
        assert_eq!([0.05, 0.8, 1.0, 7.0].map(sum_at), pinned);
    }
}
