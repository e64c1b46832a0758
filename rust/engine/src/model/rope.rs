//! Rotary tables: cosines and sines of every position, computed once in f64 and rounded (N4).
//!
//! In: a [`RopeConfig`], divisors. Out: a row of cosines and one of sines a position, to the forward.
//!
//! Cost: `dims · 4` bytes a position, made in blocks of [`BLOCK`] positions when one is first needed.

use std::sync::OnceLock;

use super::config::{RopeConfig, RopeScaling};

/// Positions that are made at once.
const BLOCK: usize = 128;

/// See the module.
#[derive(Debug)]
pub(crate) struct RopeTable {
    /// Angle of one position step, a pair.
    steps: Vec<f64>,
    /// Factor of cosine and sine.
    magnitude: f64,
    blocks: Vec<OnceLock<Box<[f32]>>>,
}

impl RopeTable {
    /// A table for up to `n_ctx` positions. `factors`: divisors of the angles, one a pair.
    pub(crate) fn new(config: &RopeConfig, factors: Option<&[f32]>, n_ctx: usize) -> Self {
        let half = config.dims / 2;
        let span = config.span as f64;
        let plain = |i: usize| libm::pow(config.base, -2.0 * i as f64 / span);
        let (scaled, magnitude): (Vec<f64>, f64) = match config.scaling {
            RopeScaling::None => ((0..half).map(plain).collect(), 1.0),
            RopeScaling::Linear { factor } => ((0..half).map(|i| plain(i) / factor).collect(), 1.0),
            RopeScaling::Yarn { factor, original, attention } => {
                let (low, high) = yarn_bounds(config.base, span, original);
                let steps = (0..half).map(|i| {
                    // 1 keeps the angle as trained, 0 divides it.
                    let keep = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    plain(i) * keep + plain(i) / factor * (1.0 - keep)
                });
                (steps.collect(), attention * (1.0 + 0.1 * libm::log(factor)))
            }
        };
        let steps = match factors {
            Some(factors) if config.factors => scaled.iter().zip(factors).map(|(s, f)| s / f64::from(*f)).collect(),
            _ => scaled,
        };
        RopeTable { steps, magnitude, blocks: (0..n_ctx.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect() }
    }

    /// Cosines and sines of a position, one a pair.
    pub(crate) fn row(&self, pos: usize) -> (&[f32], &[f32]) {
        let half = self.steps.len();
        let block = self.blocks[pos / BLOCK].get_or_init(|| self.make(pos / BLOCK * BLOCK));
        block[pos % BLOCK * 2 * half..][..2 * half].split_at(half)
    }

    fn make(&self, first: usize) -> Box<[f32]> {
        let mut rows = Vec::with_capacity(BLOCK * 2 * self.steps.len());
        for pos in first..first + BLOCK {
            let angles = self.steps.iter().map(|step| pos as f64 * step);
            rows.extend(angles.clone().map(|a| (libm::cos(a) * self.magnitude) as f32));
            rows.extend(angles.map(|a| (libm::sin(a) * self.magnitude) as f32));
        }
        rows.into_boxed_slice()
    }
}

/// The pairs between which YaRN passes from kept to divided angles: those that turn 32 times and once within the original context.
fn yarn_bounds(base: f64, span: f64, original: f64) -> (f64, f64) {
    let pair = |turns: f64| span * libm::log(original / (turns * std::f64::consts::TAU)) / (2.0 * libm::log(base));
    (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(span - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { dims: 64, span: 64, base: 10_000.0, scaling, factors: true }
    }

    #[test]
    fn rows_are_cosines_and_sines_of_position_times_frequency() {
        let table = RopeTable::new(&config(RopeScaling::None), None, 1000);
        for pos in [0, 1, 127, 128, 999] {
            let (cos, sin) = table.row(pos);
            for i in 0..32 {
                let angle = pos as f64 * 10_000f64.powf(-2.0 * i as f64 / 64.0);
                assert!(
                    (f64::from(cos[i]) - angle.cos()).abs() < 1e-7 && (f64::from(sin[i]) - angle.sin()).abs() < 1e-7
                );
            }
        }
    }

    #[test]
    fn divisors_divide_the_angles() {
        let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
        let plain = RopeTable::new(&config(RopeScaling::None), None, 256);
        let divided = RopeTable::new(&config(RopeScaling::None), Some(&factors), 256);
        assert_eq!(plain.row(10).0[0], divided.row(10).0[0]);
        assert!((divided.row(124).0[30] - plain.row(4).0[30]).abs() < 1e-6);
    }

    #[test]
    fn yarn_keeps_fast_angles_divides_slow_ones_and_scales_the_magnitude() {
        let (factor, original) = (4.0, 4096.0);
        let table = RopeTable::new(&config(RopeScaling::Yarn { factor, original, attention: 1.0 }), None, 8);
        let magnitude = 1.0 + 0.1 * factor.ln();
        let plain = |i: usize| 10_000f64.powf(-2.0 * i as f64 / 64.0);
        assert_eq!(table.steps[0], plain(0));
        assert!((table.steps[31] - plain(31) / factor).abs() < 1e-15);
        assert!((table.magnitude - magnitude).abs() < 1e-12);
        // Between the two bounds the mixture falls step by step.
        let ratio: Vec<f64> = (0..32).map(|i| table.steps[i] / plain(i)).collect();
        assert!(ratio.windows(2).all(|w| w[1] <= w[0] + 1e-12) && ratio[31] < 0.26 && ratio[0] == 1.0);
        let linear = RopeTable::new(&config(RopeScaling::Linear { factor }), None, 8);
        assert!((linear.steps[3] - plain(3) / factor).abs() < 1e-15);
    }
}
