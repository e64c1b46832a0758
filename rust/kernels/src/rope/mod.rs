//! Rotary positions on pairs (i, i + half): `y_i = x_i·cos − x_j·sin`, `y_j = x_i·sin + x_j·cos`, j = i + half.
//!
//! Floats: `y_i = fms(x_i, cos, x_j·sin)`, `y_j = fma(x_i, sin, x_j·cos)`. The tables come from the engine, made once in f64 (N4). Files whose pairs are
//! adjacent have their rows reordered at load, so this is the one layout here.
//! Source: Su et al., 2021.

use crate::lanes::{Lanes, stamp};

stamp!(rotate, body, (head: &mut [f32], cos: &[f32], sin: &[f32]));
pub(crate) type RotateFn = unsafe fn(&mut [f32], &[f32], &[f32]);
pub(crate) const SCALAR: RotateFn = rotate::scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: RotateFn = rotate::avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: RotateFn = rotate::avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON: RotateFn = rotate::neon;

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn body<L: Lanes>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    assert!(sin.len() == half && head.len() >= 2 * half);
    let (low, high) = head.split_at_mut(half);
    let whole = half / 16 * 16;
    let mut i = 0;
    while i < whole {
        // SAFETY: i + 16 elements exist in all four.
        unsafe {
            let (x, y) = (L::load(low.as_ptr().add(i)), L::load(high.as_ptr().add(i)));
            let (c, s) = (L::load(cos.as_ptr().add(i)), L::load(sin.as_ptr().add(i)));
            x.fms(c, y.mul(s)).store(low.as_mut_ptr().add(i));
            x.fma(s, y.mul(c)).store(high.as_mut_ptr().add(i));
        }
        i += 16;
    }
    for i in whole..half {
        let (x, y) = (low[i], high[i]);
        low[i] = x.mul_add(cos[i], -(y * sin[i]));
        high[i] = x.mul_add(sin[i], y * cos[i]);
    }
}

#[cfg(test)]
mod tests {
    use crate::act::tests::Random;
    use crate::set::KernelSet;

    #[test]
    fn every_set_rotates_to_the_scalar_bits_and_keeps_the_length() {
        let mut random = Random(3);
        for half in [1, 8, 16, 24, 32, 64, 100] {
            let head: Vec<f32> = (0..2 * half + 5).map(|_| random.float()).collect();
            let angles: Vec<f32> = (0..half).map(|_| random.float() * 10.0).collect();
            let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
            for set in KernelSet::available() {
                let mut out = head.clone();
                set.rotate(&mut out, &cos, &sin);
                for i in 0..half {
                    let (x, y) = (head[i], head[i + half]);
                    assert_eq!(out[i].to_bits(), x.mul_add(cos[i], -(y * sin[i])).to_bits());
                    assert_eq!(out[i + half].to_bits(), x.mul_add(sin[i], y * cos[i]).to_bits());
                    assert!((x.hypot(y) - out[i].hypot(out[i + half])).abs() < 1e-5 * (1.0 + x.hypot(y)));
                }
                assert_eq!(out[2 * half..], head[2 * half..], "what is past the pairs stays");
            }
        }
    }
}
