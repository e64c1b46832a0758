//! Gated units: `up = silu(gate) · up` and `up = gelu(gate) · up`, element by element with the polynomials of [`crate::order`]; the soft cap
//! `x = cap · tanh(x / cap)`.
//! Source: Shazeer, 2020.

use crate::lanes::{Lanes, stamp, update};

stamp!(silu, silu_body, (gate: &[f32], up: &mut [f32]));
stamp!(gelu, gelu_body, (gate: &[f32], up: &mut [f32]));
stamp!(cap, cap_body, (x: &mut [f32], cap: f32));

pub(crate) type GluFn = unsafe fn(&[f32], &mut [f32]);
pub(crate) type CapFn = unsafe fn(&mut [f32], f32);

/// The three functions of a set.
#[derive(Clone, Copy)]
pub(crate) struct Glu {
    pub(crate) silu: GluFn,
    pub(crate) gelu: GluFn,
    pub(crate) cap: CapFn,
}

pub(crate) const SCALAR: Glu = Glu { silu: silu::scalar, gelu: gelu::scalar, cap: cap::scalar };
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: Glu = Glu { silu: silu::avx2, gelu: gelu::avx2, cap: cap::avx2 };
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: Glu = Glu { silu: silu::avx512, gelu: gelu::avx512, cap: cap::avx512 };
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON: Glu = Glu { silu: silu::neon, gelu: gelu::neon, cap: cap::neon };

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn silu_body<L: Lanes>(gate: &[f32], up: &mut [f32]) {
    // SAFETY: passed on.
    unsafe {
        update::<L>(
            gate,
            up,
            #[inline(always)]
            |g, u| g.silu().mul(u),
        )
    }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn gelu_body<L: Lanes>(gate: &[f32], up: &mut [f32]) {
    // SAFETY: passed on.
    unsafe {
        update::<L>(
            gate,
            up,
            #[inline(always)]
            |g, u| g.gelu().mul(u),
        )
    }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn cap_body<L: Lanes>(x: &mut [f32], cap: f32) {
    let mut chunks = x.chunks_exact_mut(16);
    // SAFETY: chunks and the padded array have 16 floats.
    unsafe {
        let bound = L::splat(cap);
        for chunk in &mut chunks {
            bound.mul(L::load(chunk.as_ptr()).div(bound).tanh()).store(chunk.as_mut_ptr());
        }
        let rest = chunks.into_remainder();
        let mut padded = [0.0; 16];
        padded[..rest.len()].copy_from_slice(rest);
        bound.mul(L::load(padded.as_ptr()).div(bound).tanh()).store(padded.as_mut_ptr());
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use crate::act::tests::Random;
    use crate::order;
    use crate::set::KernelSet;

    fn same(a: &[f32], b: impl Iterator<Item = f32>, what: &str) {
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{what} {i}: {a} {b}");
        }
    }

    #[test]
    fn every_set_follows_the_scalar_formulas_bit_for_bit() {
        let mut random = Random(11);
        let mut gate: Vec<f32> = (0..1003).map(|_| random.float() * 5.0).collect();
        let up: Vec<f32> = (0..1003).map(|_| random.float()).collect();
        gate[..12].copy_from_slice(&[
            0.0,
            -0.0,
            87.5,
            -87.5,
            200.0,
            -200.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1e-40,
            -1e-40,
            1e30,
        ]);
        for set in KernelSet::available() {
            let mut out = up.clone();
            set.silu_mul(&gate, &mut out);
            same(&out, gate.iter().zip(&up).map(|(g, u)| order::silu(*g) * u), set.name());
            out.copy_from_slice(&up);
            set.gelu_mul(&gate, &mut out);
            same(&out, gate.iter().zip(&up).map(|(g, u)| order::gelu(*g) * u), set.name());
            out.copy_from_slice(&gate);
            set.soft_cap(&mut out, 6.0);
            same(&out, gate.iter().map(|g| 6.0 * order::tanh(g / 6.0)), set.name());
        }
    }
}
