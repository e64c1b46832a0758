//! The weight of a token: exp(-distance / temperature), in f64, with operations that IEEE 754 fixes.
//!
//! In: the distance of a logit below the best one, in f64, since f32 would round it. Out: a weight in [0, 1], to [`super::mass`] and [`super::filter`].
//!
//! 1. The best token weighs exactly 1; a token at -inf weighs exactly 0.
//! 2. Only `+ - *`, compares and integer shifts, unfused: the bits are the same on every machine, alone or vectorised.
//! 3. Relative error below (4 + d/T)·2^-52 while d/T < 690; beyond that (a weight under 2^-1000) the weight is 0.
//!
//! exp(-d/T) = 2^y with y = d·(-log2 e / T). Adding 1.5·2^52 rounds y to an integer n that sits in the low bits of the sum;
//! r = y - n is exact and at most a half; 2^r is 1 + r·q(r); n is added to the exponent field. The constants of q are our
//! own fit of (2^r - 1)/r at Chebyshev nodes on [-1/2, 1/2]; the worst relative error of the fit is 6e-16.
//! The bound: log2 e / T and the product are rounded once each, which moves y by |y|·2^-52 and the weight by ln 2 times
//! that, so (d/T)·2^-52; fit and the last few roundings stay under 4·2^-52.

const Q: [f64; 10] = [
    0.693_147_180_559_946_2,
    0.240_226_506_959_100_75,
    0.055_504_108_664_651_67,
    0.009_618_129_107_618_665,
    0.001_333_355_820_079_459_2,
    0.000_154_035_304_247_765_29,
    1.525_267_292_485_073_7e-5,
    1.321_545_163_322_143_4e-6,
    1.020_590_541_376_559e-7,
    7.070_977_866_508_138e-9,
];
const ROUND: f64 = 6_755_399_441_055_744.0;
const SMALLEST: f64 = -1000.0;

/// The curve from distance to weight at one temperature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Curve {
    scale: f64,
}

impl Curve {
    /// The curve of a temperature above zero.
    pub(super) fn new(temperature: f32) -> Self {
        Self { scale: -std::f64::consts::LOG2_E / f64::from(temperature) }
    }

    /// Weight of a token whose logit lies `distance` (0 to inf) below the best.
    #[inline(always)]
    pub(super) fn weight(self, distance: f64) -> f64 {
        let y = distance * self.scale;
        let shifted = y + ROUND;
        let r = y - (shifted - ROUND);
        let (r2, r4) = (r * r, (r * r) * (r * r));
        let low = (Q[0] + Q[1] * r) + (Q[2] + Q[3] * r) * r2;
        let high = (Q[4] + Q[5] * r) + (Q[6] + Q[7] * r) * r2;
        let q = low + (high + (Q[8] + Q[9] * r) * r4) * r4;
        let mantissa = 1.0 + r * q;
        let weight = f64::from_bits(mantissa.to_bits().wrapping_add(shifted.to_bits() << 52));
        // Far below, `shifted` holds no integer and the bits mean nothing; they are thrown away here.
        if y >= SMALLEST { weight } else { 0.0 }
    }

    /// A distance that no token of at least this weight exceeds, not even rounded to f32. It may be a little too large.
    pub(super) fn reach(self, weight: f64) -> f32 {
        // A millionth, absolute and relative, covers the rounding of `log2`, of the curve and of the conversion.
        let wide = ((libm::log2(weight) - 1e-6) / self.scale * (1.0 + 1e-6)) as f32 + f32::MIN_POSITIVE;
        if wide.is_nan() { f32::INFINITY } else { wide }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances() -> impl Iterator<Item = f64> {
        (0..200_000).map(|i| f64::from(i) * 0.003_512_345)
    }

    #[test]
    fn the_weight_keeps_its_error_bound_against_libm() {
        for temperature in [0.1f32, 0.7, 0.8, 1.0, 1.7, 30.0] {
            let curve = Curve::new(temperature);
            for d in distances() {
                let ratio = d / f64::from(temperature);
                if ratio < 690.0 {
                    let exact = libm::exp(-ratio);
                    // The reference itself is off by a rounding of the ratio and one of its own.
                    let bound = (4.0 + ratio) * 2f64.powi(-52) + (1.0 + ratio) * 2f64.powi(-53);
                    let error = (curve.weight(d) - exact).abs() / exact;
                    assert!(error <= bound, "T {temperature}, d {d}: {error:e} > {bound:e}");
                }
            }
        }
    }

    #[test]
    fn ends_are_exact() {
        for temperature in [f32::from_bits(1), 1e-30, 0.5, 1.0, f32::MAX] {
            let curve = Curve::new(temperature);
            assert_eq!(curve.weight(0.0), 1.0);
            assert_eq!(curve.weight(f64::INFINITY), 0.0);
        }
        assert_eq!(Curve::new(1e-3).weight(f64::from(f32::MAX)), 0.0);
        assert_eq!(Curve::new(1.0).weight(694.0), 0.0);
        assert!(Curve::new(1.0).weight(693.0) > 0.0);
        assert!(Curve::new(f32::MAX).weight(f64::from(f32::MAX)) > 0.36);
    }

    #[test]
    fn a_larger_distance_never_weighs_more_than_a_rounding_more() {
        let curve = Curve::new(0.8);
        let weights: Vec<f64> = distances().map(|d| curve.weight(d)).collect();
        for pair in weights.windows(2) {
            assert!(pair[1] <= pair[0] * (1.0 + 4.0 * 2f64.powi(-52)), "{pair:?}");
        }
    }

    #[test]
    fn nothing_within_the_weight_lies_beyond_the_reach() {
        for temperature in [1e-30f32, 0.01, 0.8, 1.0, 50.0, 1e30] {
            let curve = Curve::new(temperature);
            for step in 0..2000 {
                let d = (step as f32 * 0.01) * temperature;
                assert!(d <= curve.reach(curve.weight(f64::from(d))), "T {temperature}, d {d}");
            }
            assert_eq!(curve.reach(0.0), f32::INFINITY);
            assert!(curve.reach(1.0) >= 0.0);
        }
    }
}
