//! The dispatch table: which functions an instruction set has, and which set a process uses.
//!
//! A [`KernelSet`] can only be had for a set that the CPU has, so its methods are safe: that is the fact behind every call of a stamped function.

use crate::act::{ActKind, pack_scalar};
use crate::attend::{self, AttendFns, Values};
use crate::format::Format;
use crate::matmul::{self, Acts, Out, Panels, TileFn, scalar};
use crate::{glu, norm, rope, top};

/// The functions of one instruction set.
#[derive(Clone, Copy)]
pub struct KernelSet {
    name: &'static str,
    /// Lower case, with what else of the CPU it uses.
    detail: &'static str,
    /// Multiplies dequantized weights with float activations (the test mode).
    expanded: bool,
    tile: fn(Format) -> TileFn,
    /// Panels that it takes at once.
    together: fn(Format, usize) -> usize,
    weigh: fn(Values) -> TileFn,
    pack: unsafe fn(ActKind, &[f32], usize, &mut [u32], &mut [u32]),
    rms: norm::RmsFn,
    rotate: rope::RotateFn,
    glu: glu::Glu,
    attend: AttendFns,
    above: top::AboveFn,
}

impl std::fmt::Debug for KernelSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelSet({})", self.detail)
    }
}

const SCALAR: KernelSet = KernelSet {
    name: "scalar",
    detail: "scalar",
    expanded: false,
    tile: scalar::multiply,
    together: |_, _| 1,
    weigh: scalar::weigh,
    pack: pack_scalar_unsafe,
    rms: norm::SCALAR,
    rotate: rope::SCALAR,
    glu: glu::SCALAR,
    attend: attend::SCALAR,
    above: top::SCALAR,
};

const REFERENCE: KernelSet =
    KernelSet { name: "reference", detail: "reference", expanded: true, tile: scalar::multiply_expanded, ..SCALAR };

#[cfg(target_arch = "x86_64")]
const AVX2: KernelSet = KernelSet {
    name: "avx2",
    detail: "avx2",
    expanded: false,
    tile: |format| matmul::avx2::multiply(format, false),
    together: |_, _| 1,
    weigh: matmul::avx2::weigh,
    pack: crate::act::pack_avx2,
    rms: norm::AVX2,
    rotate: rope::AVX2,
    glu: glu::AVX2,
    attend: attend::AVX2,
    above: top::AVX2,
};

#[cfg(target_arch = "x86_64")]
const AVX2_VNNI: KernelSet = KernelSet {
    detail: "avx2 with avx-vnni",
    tile: |format| matmul::avx2::multiply(format, true),
    attend: attend::AVX2_VNNI,
    ..AVX2
};

#[cfg(target_arch = "x86_64")]
const AVX512: KernelSet = KernelSet {
    name: "avx512",
    detail: "avx512 with vnni",
    expanded: false,
    tile: matmul::avx512::multiply,
    together: matmul::avx512::together,
    weigh: matmul::avx512::weigh,
    pack: crate::act::pack_avx512,
    rms: norm::AVX512,
    rotate: rope::AVX512,
    glu: glu::AVX512,
    attend: attend::AVX512,
    above: top::AVX512,
};

#[cfg(target_arch = "aarch64")]
const NEON: KernelSet = KernelSet {
    name: "neon",
    detail: "neon",
    expanded: false,
    tile: |format| matmul::neon::multiply(format, false),
    together: |_, _| 1,
    weigh: matmul::neon::weigh,
    pack: crate::act::pack_neon,
    rms: norm::NEON,
    rotate: rope::NEON,
    glu: glu::NEON,
    attend: attend::NEON,
    above: top::NEON,
};

#[cfg(target_arch = "aarch64")]
const NEON_DOTPROD: KernelSet = KernelSet {
    detail: "neon with dotprod",
    tile: |format| matmul::neon::multiply(format, true),
    attend: attend::NEON_DOTPROD,
    ..NEON
};

/// # Safety
/// None.
unsafe fn pack_scalar_unsafe(kind: ActKind, x: &[f32], k: usize, codes: &mut [u32], extras: &mut [u32]) {
    pack_scalar(kind, x, k, codes, extras);
}

impl KernelSet {
    /// Plain code.
    pub fn scalar() -> KernelSet {
        SCALAR
    }

    /// The test mode: float products on dequantized weights, plain code. Its numbers are near those of the other sets, not equal.
    pub fn reference() -> KernelSet {
        REFERENCE
    }

    /// Every set that this CPU has, slowest first, without the test mode. All of them give the same bits.
    pub fn available() -> Vec<KernelSet> {
        #[allow(unused_mut)]
        let mut sets = vec![SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.push(AVX2);
                if is_x86_feature_detected!("avxvnni") {
                    sets.push(AVX2_VNNI);
                }
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                sets.push(AVX512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            sets.push(NEON);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                sets.push(NEON_DOTPROD);
            }
        }
        sets
    }

    /// The fastest set of this CPU.
    pub fn best() -> KernelSet {
        Self::available().pop().unwrap_or(SCALAR)
    }

    /// The set of a name: `scalar`, `avx2`, `avx512`, `neon`, `reference`. The error lists the names that this CPU has.
    pub fn named(name: &str) -> Result<KernelSet, Vec<&'static str>> {
        let sets = Self::available();
        let found = sets.iter().rev().copied().chain([REFERENCE]).find(|s| s.name == name);
        found.ok_or_else(|| {
            let mut names: Vec<_> = sets.iter().map(|s| s.name).collect();
            names.dedup();
            names.push(REFERENCE.name);
            names
        })
    }

    /// The name that [`Self::named`] takes.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The name with what else of the CPU is used.
    pub fn detail(&self) -> &'static str {
        self.detail
    }

    /// What activations must be packed to for weights of a format.
    pub fn act_kind(&self, format: Format) -> ActKind {
        if self.expanded { ActKind::F32 } else { format.act_kind() }
    }

    /// Packs one tile of activation rows ([`crate::act`]): `x` holds rows of `k` floats, `out` their words.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn pack(&self, kind: ActKind, x: &[f32], k: usize, out: &mut [u32]) {
        assert!(x.len().is_multiple_of(k) && out.len() == x.len() / k * kind.row_words(k));
        let (codes, extras) = out.split_at_mut(x.len() / k * kind.code_words(k));
        self.pack_columns(kind, x, k, codes, extras);
    }

    /// Packs `k` columns of a tile's rows, whole blocks, whose codes and extras lie in one piece each.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn pack_columns(&self, kind: ActKind, x: &[f32], k: usize, codes: &mut [u32], extras: &mut [u32]) {
        assert!(k.is_multiple_of(kind.block()) && x.len().is_multiple_of(k));
        let rows = x.len() / k;
        assert!(codes.len() == rows * kind.code_words(k) && extras.len() == rows * kind.extra_words(k));
        // SAFETY: the CPU has this set.
        unsafe { (self.pack)(kind, x, k, codes, extras) }
    }

    /// Multiplies panels `first .. first + count` with all rows of `x` into `out` ([`crate::matmul`]).
    ///
    /// # Panics
    /// If the sizes or the kind of the activations do not fit.
    ///
    /// # Safety
    /// `out` must be valid for all rows of `x` and the columns of these panels, and no other thread may use those columns meanwhile.
    pub unsafe fn multiply(&self, w: &Panels<'_>, first: usize, count: usize, x: &Acts<'_>, out: Out) {
        // SAFETY: passed on.
        unsafe { self.multiply_then(w, (first, count), x, out, &[]) }
    }

    /// As [`Self::multiply`]; meanwhile the beginning of `next` is fetched, which this thread will read afterwards.
    ///
    /// # Panics
    /// As [`Self::multiply`].
    ///
    /// # Safety
    /// As [`Self::multiply`].
    pub unsafe fn multiply_then(&self, w: &Panels<'_>, panels: (usize, usize), x: &Acts<'_>, out: Out, next: &[u8]) {
        let (tile, kind) = (((self.tile)(w.format()), (self.together)(w.format(), x.m())), self.act_kind(w.format()));
        // SAFETY: the CPU has this set; the output by the caller.
        unsafe { matmul::run(tile, kind, w, panels, x, out, next) }
    }

    /// RMS norm ([`crate::norm`]); without a weight, the factor is 1.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], w: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        // SAFETY: the CPU has this set.
        unsafe { (self.rms)(x, w, eps, out) }
    }

    /// Rotates the first `2 · cos.len()` numbers of a head in place ([`crate::rope`]).
    ///
    /// # Panics
    /// If `sin` has another length, or the head is shorter.
    pub fn rotate(&self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        // SAFETY: the CPU has this set.
        unsafe { (self.rotate)(head, cos, sin) }
    }

    /// `up = silu(gate) · up`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &[f32], up: &mut [f32]) {
        // SAFETY: the CPU has this set.
        unsafe { (self.glu.silu)(gate, up) }
    }

    /// `up = gelu(gate) · up`, GELU in its tanh form.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_mul(&self, gate: &[f32], up: &mut [f32]) {
        // SAFETY: the CPU has this set.
        unsafe { (self.glu.gelu)(gate, up) }
    }

    /// `x = cap · tanh(x / cap)`.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: the CPU has this set.
        unsafe { (self.glu.cap)(x, cap) }
    }

    pub(crate) fn tile_fn(&self, format: Format) -> TileFn {
        // The cache is multiplied as it is stored in every set; only weights have a test mode.
        if self.expanded { scalar::multiply(format) } else { (self.tile)(format) }
    }

    /// Panels that [`Self::tile_fn`] takes at once for `m` rows.
    pub(crate) fn together(&self, format: Format, m: usize) -> usize {
        if self.expanded { 1 } else { (self.together)(format, m) }
    }

    pub(crate) fn weigh_fn(&self, values: Values) -> TileFn {
        (self.weigh)(values)
    }

    pub(crate) fn above_fn(&self) -> top::AboveFn {
        self.above
    }

    pub(crate) fn attend_fns(&self) -> &AttendFns {
        &self.attend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_is_not_there_is_refused_with_the_names_that_are() {
        let names = KernelSet::named("sse9").unwrap_err();
        assert!(names.contains(&"scalar") && names.contains(&"reference"));
        for name in names {
            assert_eq!(KernelSet::named(name).unwrap().name(), name);
        }
    }

    #[test]
    fn the_best_set_is_the_last_available() {
        assert_eq!(KernelSet::best().detail(), KernelSet::available().last().unwrap().detail());
    }
}
