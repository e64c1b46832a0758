//! The orders and polynomials that every instruction set repeats step by step.
//!
//! This file is the specification (N3, N4): 16 virtual lanes, one fold tree, `exp` and what is made of it. A set may compute many elements at
//! once; for one element it performs exactly these operations in exactly this order.

/// Virtual lanes of a float reduction.
pub const LANES: usize = 16;

/// Folds 16 lanes into one: halves are added onto each other, 8 + 8, 4 + 4, 2 + 2, 1 + 1.
#[inline]
pub fn fold(lanes: &[f32; LANES]) -> f32 {
    let mut sum = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sum[i] += sum[i + width];
        }
        width /= 2;
    }
    sum[0]
}

/// log2(e), rounded.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the upper has nine trailing zero bits, so that `n * LN2_HIGH` is exact for |n| ≤ 128.
pub const LN2_HIGH: f32 = f32::from_bits(0x3f31_7200);
/// The rest of ln 2.
pub const LN2_LOW: f32 = f32::from_bits(0x35bf_be8e);
/// Below this, `exp` is zero: the result would be subnormal.
pub const EXP_MIN: f32 = -87.0;
/// Above this, `exp` saturates at `exp(EXP_MAX)`: callers divide by `1 + exp`, and a huge finite number serves them as infinity would.
pub const EXP_MAX: f32 = 88.0;
/// Coefficients of `exp(r)` for |r| ≤ ln 2 / 2, highest power first, Taylor up to r^7: the truncation error is below 2^-27 of the value.
pub const EXP_POLY: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// `e^x`, within 2 units in the last place of the true value on [`EXP_MIN`, `EXP_MAX`]; zero below, saturated above; NaN stays NaN; `exp(0)` is 1.
///
/// Steps: clamp above, n = x·log2(e) to the nearest even integer, r = x − n·ln 2 in two fused steps, Horner with fused steps, exponent of 2^n
/// added by an exact multiplication.
#[inline]
pub fn exp(x: f32) -> f32 {
    let clamped = if EXP_MAX < x { EXP_MAX } else { x };
    let n = (clamped * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_HIGH, clamped);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = EXP_POLY[0];
    for c in &EXP_POLY[1..] {
        p = p.mul_add(r, *c);
    }
    // A NaN or a very negative x may make any exponent here; the first is kept by `p`, the second is replaced below.
    let power = f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23);
    if x < EXP_MIN { 0.0 } else { p * power }
}

/// Below this, [`exp2`] is zero.
pub const EXP2_MIN: f32 = -64.0;
/// Coefficients of `2^r` for |r| ≤ 1/2, highest power first: the polynomial of least relative error, 2^-22.5, whose value at 0 is 1.
pub const EXP2_POLY: [f32; 6] = [
    f32::from_bits(0x3aad_dd0a),
    f32::from_bits(0x3c1e_7544),
    f32::from_bits(0x3d63_5ba9),
    f32::from_bits(0x3e75_fcde),
    f32::from_bits(0x3f31_7215),
    1.0,
];

/// `2^x` for x ≤ 0, with a relative error below 2^-22; zero below [`EXP2_MIN`]; NaN stays NaN; `exp2(0)` is 1.
///
/// Steps: n = x to the nearest even integer, r = x − n (exact), Horner with fused steps, n added to the exponent.
#[inline]
pub fn exp2(x: f32) -> f32 {
    let n = x.round_ties_even();
    let r = x - n;
    let mut p = EXP2_POLY[0];
    for c in &EXP2_POLY[1..] {
        p = p.mul_add(r, *c);
    }
    // p lies between 0.7 and 1.5 and n is at least −64, so the sum of bits is the product. A NaN's n adds nothing to the exponent.
    let scaled = f32::from_bits(p.to_bits().wrapping_add((n as i32 as u32) << 23));
    if x < EXP2_MIN { 0.0 } else { scaled }
}

/// `x / (1 + e^-x)`.
#[inline]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `tanh x` as `1 - 2 / (e^2x + 1)` on the magnitude, with the sign put back.
///
/// Absolute error below 2^-22. Small arguments lose relative accuracy, which its one caller ([`gelu`]) adds to 1.
#[inline]
pub fn tanh(x: f32) -> f32 {
    let magnitude = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    let t = 1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0);
    f32::from_bits(t.to_bits() | x.to_bits() & 0x8000_0000)
}

/// sqrt(2 / pi).
pub const GELU_SCALE: f32 = 0.797_884_6;
/// Cubic coefficient of the approximation.
pub const GELU_CUBIC: f32 = 0.044_715;

/// The tanh form of GELU: `x/2 · (1 + tanh(sqrt(2/pi)·(x + 0.044715·x³)))`.
///
/// Source: Hendrycks and Gimpel, 2016.
#[inline]
pub fn gelu(x: f32) -> f32 {
    let inner = GELU_SCALE * x * (GELU_CUBIC * x).mul_add(x, 1.0);
    (0.5 * x) * (1.0 + tanh(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_stays_within_two_units_of_the_true_value() {
        let mut worst = 0f64;
        let mut x = EXP_MIN;
        while x < EXP_MAX {
            let truth = f64::from(x).exp();
            let unit = f64::from(f32::from_bits((truth as f32).to_bits() + 1)) - f64::from(truth as f32);
            worst = worst.max((f64::from(exp(x)) - truth).abs() / unit);
            x += 0.000_37 + x.abs() * 1e-6;
        }
        assert!(worst < 2.0, "{worst}");
    }

    #[test]
    fn exp_is_exact_where_it_promises() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-87.1), 0.0);
        assert!(exp(EXP_MIN) > 0.0);
        assert_eq!(exp(f32::INFINITY), exp(EXP_MAX));
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn exp2_stays_near_the_true_value_and_is_exact_where_it_promises() {
        let mut x = EXP2_MIN;
        while x < 0.0 {
            let truth = f64::from(x).exp2();
            assert!((f64::from(exp2(x)) - truth).abs() < truth * 2f64.powi(-22), "{x}");
            assert!(exp2(x) <= 1.0);
            x += 0.000_37 - x * 1e-6;
        }
        for n in 0..=64 {
            assert_eq!(exp2(-n as f32), 2f32.powi(-n));
        }
        assert!(exp2(-1e-9) <= 1.0 && exp2(-0.0) == 1.0);
        assert_eq!((exp2(-64.1), exp2(f32::NEG_INFINITY)), (0.0, 0.0));
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn silu_and_gelu_follow_their_formulas() {
        for i in -4000..4000 {
            let x = i as f32 * 0.01;
            let wide = f64::from(x);
            assert!((f64::from(silu(x)) - wide / (1.0 + (-wide).exp())).abs() <= 1e-6 * wide.abs().max(1.0));
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            assert!(
                (f64::from(gelu(x)) - 0.5 * wide * (1.0 + inner.tanh())).abs() <= 1e-6 * wide.abs().max(1.0),
                "{x}"
            );
        }
        assert!(silu(f32::NAN).is_nan() && gelu(f32::NAN).is_nan());
        assert_eq!(silu(-200.0), -200.0 / (1.0 + exp(200.0)));
    }

    #[test]
    fn fold_adds_halves_onto_each_other() {
        let lanes: [f32; 16] = std::array::from_fn(|i| [1e8, 1.0, -1e8, 3.0][i % 4] + i as f32);
        let mut by_hand = lanes.to_vec();
        while by_hand.len() > 1 {
            let half = by_hand.len() / 2;
            by_hand = (0..half).map(|i| by_hand[i] + by_hand[i + half]).collect();
        }
        assert_eq!(fold(&lanes).to_bits(), by_hand[0].to_bits());
    }
}
