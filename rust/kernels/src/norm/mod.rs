//! RMS norm: `y = (x · s) · w`, `s = 1 / sqrt(Σx² / n + eps)`.
//!
//! Floats: lane l of 16 sums `fma(x, x, lane)` over elements l, l + 16, …; the fold tree adds the lanes (N3). A row whose length is no multiple of 16
//! ends with zeros. Then division, addition, square root, division, as IEEE 754 fixes them.
//! Source: Zhang and Sennrich, 2019.

use crate::lanes::{Lanes, stamp, zip};

stamp!(rms, body, (x: &[f32], w: Option<&[f32]>, eps: f32, out: &mut [f32]));
pub(crate) type RmsFn = unsafe fn(&[f32], Option<&[f32]>, f32, &mut [f32]);
pub(crate) const SCALAR: RmsFn = rms::scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: RmsFn = rms::avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: RmsFn = rms::avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON: RmsFn = rms::neon;

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn body<L: Lanes>(x: &[f32], w: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    // SAFETY: every load has 16 floats: whole chunks of x, and an array.
    unsafe {
        let mut sum = L::splat(0.0);
        let chunks = x.chunks_exact(16);
        let mut tail = [0.0; 16];
        tail[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        for chunk in chunks {
            let v = L::load(chunk.as_ptr());
            sum = v.fma(v, sum);
        }
        let v = L::load(tail.as_ptr());
        sum = v.fma(v, sum);
        let mean = sum.fold() / x.len() as f32;
        let scale = L::splat(1.0 / (mean + eps).sqrt());
        match w {
            Some(w) => zip::<L>(
                x,
                w,
                out,
                #[inline(always)]
                |x, w| x.mul(scale).mul(w),
            ),
            None => zip::<L>(
                x,
                x,
                out,
                #[inline(always)]
                |x, _| x.mul(scale),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::act::tests::Random;
    use crate::set::KernelSet;

    #[test]
    fn every_set_gives_the_scalar_bits_and_they_are_near_the_formula() {
        let mut random = Random(5);
        for n in [1, 7, 16, 17, 64, 100, 576, 1024] {
            let x: Vec<f32> = (0..n).map(|_| random.float()).collect();
            let w: Vec<f32> = (0..n).map(|_| random.float()).collect();
            let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64;
            for weight in [Some(w.as_slice()), None] {
                let mut expected = vec![0.0; n];
                KernelSet::scalar().rms_norm(&x, weight, 1e-5, &mut expected);
                for (i, y) in expected.iter().enumerate() {
                    let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * weight.map_or(1.0, |w| f64::from(w[i]));
                    assert!((f64::from(*y) - exact).abs() <= 1e-6 * exact.abs() + 1e-9);
                }
                for set in KernelSet::available() {
                    let mut out = vec![0.0; n];
                    set.rms_norm(&x, weight, 1e-5, &mut out);
                    assert!(out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{} n={n}", set.name());
                }
            }
        }
    }
}
