//! The products with AVX-512 (F, BW, VL, VNNI): 16 outputs in a register, up to 12 activation rows a walk.
//!
//! `vpdpbusd` multiplies 64 codes (4 of each of 16 weight rows) by four activation bytes broadcast from memory. A code register is unpacked once and
//! serves all rows of the tile; integer scales cost one multiply a sub-block, minimums go through `vpdpwssd` on pairs of sums.

use std::arch::x86_64::*;

use super::{Tile, TileFn};
use crate::act::{EXTRAS_32, EXTRAS_256, NEG4_16, NEG4_32, PAIRS_16, PAIRS_32};
use crate::attend::{CHUNK, Values};
use crate::format::{Bf16, Block, F16, F32, Format, I8, PANEL, SmallBlock, SuperBlock, with_shape};

/// How AVX-512 unpacks a format of 32-wide blocks.
pub(crate) trait Small512: SmallBlock {
    /// The codes of the eight groups of four weights, from the words of a block.
    ///
    /// # Safety
    /// `words` must point to the panel words of a whole block, and the CPU must have AVX-512 F and BW.
    unsafe fn codes(words: *const u8) -> [__m512i; 8];
}

/// How AVX-512 unpacks a format of 256-wide blocks.
pub(crate) trait Super512: SuperBlock {
    /// Weights that share a scale: 16 or 32.
    const SUB: usize;

    /// The scales as 32-bit lanes: 16 of them, or 8 and padding where [`Self::SUB`] is 32.
    ///
    /// # Safety
    /// `words` and `halves` must point to the panel words and halves of a whole block, and the CPU must have AVX-512 F and BW.
    unsafe fn scales(words: *const u8, halves: *const u8) -> [__m512i; 16];

    /// The minimums as pairs of 16-bit lanes, in the order of the activations' pairs: 8 of them, or 4 and padding.
    ///
    /// # Safety
    /// As [`Self::scales`].
    unsafe fn mins(words: *const u8) -> [__m512i; 8];

    /// The codes of the eight groups of weights `128 · half + 32 · RUN ..`.
    ///
    /// # Safety
    /// As [`Self::scales`]; `half` is 0 or 1, `RUN` 0 to 3.
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m512i; 8];
}

/// How AVX-512 widens a float format.
trait Float512 {
    /// Bytes of a number.
    const WIDTH: usize;

    /// 16 numbers.
    ///
    /// # Safety
    /// `at` must have 16 numbers, and the CPU AVX-512 F.
    unsafe fn load(at: *const u8) -> __m512;
}

impl Float512 for F32 {
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: 64 bytes by the caller.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }
}

impl Float512 for F16 {
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: 32 bytes by the caller.
        unsafe { halves(at) }
    }
}

impl Float512 for Bf16 {
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: 32 bytes by the caller.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())))) }
    }
}

impl Float512 for I8 {
    const WIDTH: usize = 1;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: 16 bytes by the caller.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }
}

macro_rules! by_rows {
    ($kernel:ident, $F:ty $(, $more:literal)?) => {{
        /// # Safety
        /// As [`TileFn`].
        unsafe fn any_rows<F: Of>(t: &Tile) {
            // SAFETY: passed on; the rows given to each kernel are the tile's.
            unsafe {
                match t.rows {
                    1 => $kernel::<F, 1 $(, $more)?>(t),
                    2 => $kernel::<F, 2 $(, $more)?>(t),
                    3 => $kernel::<F, 3 $(, $more)?>(t),
                    4 => $kernel::<F, 4 $(, $more)?>(t),
                    5 => $kernel::<F, 5 $(, $more)?>(t),
                    6 => $kernel::<F, 6 $(, $more)?>(t),
                    7 => $kernel::<F, 7 $(, $more)?>(t),
                    8 => $kernel::<F, 8 $(, $more)?>(t),
                    9 => $kernel::<F, 9 $(, $more)?>(t),
                    12 => $kernel::<F, 12 $(, $more)?>(t),
                    rows => unreachable!("no tile of {rows} rows"),
                }
            }
        }
        any_rows::<$F> as TileFn
    }};
}

/// The micro-kernel of a format.
pub(crate) fn multiply(format: Format) -> TileFn {
    with_shape!(format, F =>
        small: { use Small512 as Of; by_rows!(small, F) },
        large: { use Super512 as Of; by_rows!(large, F) },
        float: { use Float512 as Of; by_rows!(float, F, false) })
}

/// The micro-kernel for cached values: the activations are rows of [`CHUNK`] probabilities.
pub(crate) fn weigh(values: Values) -> TileFn {
    use Float512 as Of;
    match values {
        Values::F32 => by_rows!(float, F32, true),
        Values::F16 => by_rows!(float, F16, true),
        Values::I8 => by_rows!(float, I8, true),
    }
}

/// 16 half-precision numbers, widened.
#[inline(always)]
unsafe fn halves(at: *const u8) -> __m512 {
    // SAFETY: 32 bytes by the caller.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

#[inline(always)]
unsafe fn word(at: *const u32) -> __m512i {
    // SAFETY: a word of the tile, by the caller.
    unsafe { _mm512_set1_epi32(at.read() as i32) }
}

#[inline(always)]
unsafe fn number(at: *const u32) -> __m512 {
    // SAFETY: a word of the tile, by the caller.
    unsafe { _mm512_set1_ps(f32::from_bits(at.read())) }
}

/// Fetches block `b` of the next panel.
#[inline(always)]
unsafe fn prefetch<F: Block>(next: *const u8, blocks: usize, b: usize) {
    let word_bytes = F::WORDS.len() * 4 * PANEL;
    let half_bytes = F::HALVES.len() * 2 * PANEL;
    let words = next.wrapping_add(b * word_bytes);
    let mut at = 0;
    while at < word_bytes {
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(words.wrapping_add(at).cast()) };
        at += 64;
    }
    if half_bytes > 0 {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(blocks * word_bytes + b * half_bytes).cast()) };
    }
}

#[inline(always)]
unsafe fn store<const R: usize>(t: &Tile, acc: &[__m512; R]) {
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: `columns` columns of row r are valid by the tile's maker; the mask covers exactly them.
        unsafe {
            let at = t.out.add(r * t.stride);
            if t.columns == PANEL {
                _mm512_storeu_ps(at, *acc);
            } else {
                _mm512_mask_storeu_ps(at, (1u16 << t.columns) - 1, *acc);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn small<F: Small512, const R: usize>(t: &Tile) {
    let word_bytes = F::WORDS.len() * 4 * PANEL;
    let half_bytes = F::HALVES.len() * 2 * PANEL;
    let half_area = t.panel.wrapping_add(t.blocks * word_bytes);
    let extras = t.act.wrapping_add(t.k / 4 * R);
    let mut acc = [_mm512_setzero_ps(); R];
    for b in 0..t.blocks {
        // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
        unsafe {
            prefetch::<F>(t.next, t.blocks, b);
            let codes = F::codes(t.panel.add(b * word_bytes));
            let a = t.act.add(b * 8 * R);
            let e = extras.add(b * EXTRAS_32 * R);
            let mut sum = [_mm512_setzero_si512(); R];
            for (r, sum) in sum.iter_mut().enumerate() {
                // The extras hold -8·Σ; a format's offset is 8, 16 or 128 times Σ.
                *sum = match F::OFFSET {
                    8 => word(e.add(2 * R + r)),
                    16 => _mm512_slli_epi32::<1>(word(e.add(2 * R + r))),
                    128 => _mm512_slli_epi32::<4>(word(e.add(2 * R + r))),
                    _ => _mm512_setzero_si512(),
                };
            }
            for (g, code) in codes.iter().enumerate() {
                for (r, sum) in sum.iter_mut().enumerate() {
                    *sum = _mm512_dpbusd_epi32(*sum, *code, word(a.add(g * R + r)));
                }
            }
            let h = half_area.add(b * half_bytes);
            let d = halves(h);
            for r in 0..R {
                let scale = _mm512_mul_ps(d, number(e.add(r)));
                acc[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[r]), acc[r]);
            }
            if F::MIN {
                let m = halves(h.add(2 * PANEL));
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = _mm512_fmadd_ps(m, number(e.add(R + r)), *acc);
                }
            }
        }
    }
    // SAFETY: passed on.
    unsafe { store(t, &acc) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn large<F: Super512, const R: usize>(t: &Tile) {
    let word_bytes = F::WORDS.len() * 4 * PANEL;
    let half_bytes = F::HALVES.len() * 2 * PANEL;
    let half_area = t.panel.wrapping_add(t.blocks * word_bytes);
    let extras = t.act.wrapping_add(t.k / 4 * R);
    let mut acc = [_mm512_setzero_ps(); R];
    for b in 0..t.blocks {
        // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
        unsafe {
            prefetch::<F>(t.next, t.blocks, b);
            let words = t.panel.add(b * word_bytes);
            let h = half_area.add(b * half_bytes);
            let a = t.act.add(b * 64 * R);
            let e = extras.add(b * EXTRAS_256 * R);
            let scales = F::scales(words, h);
            let mut sum = [_mm512_setzero_si512(); R];
            for half in 0..2 {
                run::<F, R, 0>(words, &scales, half, a, e, &mut sum);
                run::<F, R, 1>(words, &scales, half, a, e, &mut sum);
                run::<F, R, 2>(words, &scales, half, a, e, &mut sum);
                run::<F, R, 3>(words, &scales, half, a, e, &mut sum);
            }
            let d = halves(h);
            for r in 0..R {
                let scale = _mm512_mul_ps(d, number(e.add(r)));
                acc[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[r]), acc[r]);
            }
            if F::MIN {
                let mins = F::mins(words);
                let dmin = halves(h.add(2 * PANEL));
                let (pairs, first) = if F::SUB == 32 { (4, PAIRS_32) } else { (8, PAIRS_16) };
                for (r, acc) in acc.iter_mut().enumerate() {
                    let mut least = _mm512_setzero_si512();
                    for (q, min) in mins[..pairs].iter().enumerate() {
                        least = _mm512_dpwssd_epi32(least, *min, word(e.add((first + q) * R + r)));
                    }
                    let scale = _mm512_mul_ps(dmin, number(e.add(r)));
                    *acc = _mm512_fnmadd_ps(scale, _mm512_cvtepi32_ps(least), *acc);
                }
            }
        }
    }
    // SAFETY: passed on.
    unsafe { store(t, &acc) };
}

/// Adds the scaled sums of weights `128 · half + 32 · RUN ..` of a block.
#[inline(always)]
unsafe fn run<F: Super512, const R: usize, const RUN: usize>(
    words: *const u8,
    scales: &[__m512i; 16],
    half: usize,
    a: *const u32,
    e: *const u32,
    sum: &mut [__m512i; R],
) {
    // SAFETY: as in `large`, which calls this.
    unsafe {
        let codes = F::codes::<RUN>(words, half);
        let a = a.add((4 * half + RUN) * 8 * R);
        let parts = 32 / F::SUB;
        for part in 0..parts {
            let s = (4 * half + RUN) * parts + part;
            let mut sub = [_mm512_setzero_si512(); R];
            for (r, sub) in sub.iter_mut().enumerate() {
                // The extras hold -4·Σ; a format's offset is 4, 32 or 128 times Σ.
                let first = if F::SUB == 32 { NEG4_32 } else { NEG4_16 };
                *sub = match F::OFFSET {
                    4 => word(e.add((first + s) * R + r)),
                    32 => _mm512_slli_epi32::<3>(word(e.add((first + s) * R + r))),
                    128 => _mm512_slli_epi32::<5>(word(e.add((first + s) * R + r))),
                    _ => _mm512_setzero_si512(),
                };
            }
            let groups = F::SUB / 4;
            for (g, code) in codes.iter().enumerate().skip(part * groups).take(groups) {
                for (r, sub) in sub.iter_mut().enumerate() {
                    *sub = _mm512_dpbusd_epi32(*sub, *code, word(a.add(g * R + r)));
                }
            }
            for r in 0..R {
                sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(sub[r], scales[s]));
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn float<F: Float512, const R: usize, const BY_ROW: bool>(t: &Tile) {
    let width = F::WIDTH * PANEL;
    // Where value i of row r is: in a packed tile the rows of a value lie together, probabilities lie row by row.
    let (step, row_step) = if BY_ROW { (1, CHUNK) } else { (R, 1) };
    let mut acc = [_mm512_setzero_ps(); R];
    for i in 0..t.blocks {
        // SAFETY: weight i of 16 rows and value i of R rows lie inside panel and tile.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(t.next.wrapping_add(i * width).cast());
            let w = F::load(t.panel.add(i * width));
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = _mm512_fmadd_ps(w, number(t.act.add(i * step + r * row_step)), *acc);
            }
        }
    }
    // SAFETY: passed on.
    unsafe { store(t, &acc) };
}

/// The words of a block, 64 bytes each: what the formats' unpackers read with.
///
/// # Safety
/// `words` must have word `w` of 16 rows.
#[inline(always)]
pub(crate) unsafe fn load(words: *const u8, w: usize) -> __m512i {
    // SAFETY: 64 bytes by the caller.
    unsafe { _mm512_loadu_si512(words.add(w * 64).cast()) }
}

/// Low nibbles of four words, then their high nibbles: the codes of a 32-wide block of nibbles.
///
/// # Safety
/// As [`load`], for words `first .. first + 4`.
#[inline(always)]
pub(crate) unsafe fn nibbles(words: *const u8, first: usize) -> [__m512i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        let mut codes = [_mm512_setzero_si512(); 8];
        for w in 0..4 {
            let bytes = load(words, first + w);
            codes[w] = _mm512_and_si512(bytes, mask);
            codes[w + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask);
        }
        codes
    }
}

/// Low (`SHIFT` 0) or high (`SHIFT` 4) nibbles of eight words.
///
/// # Safety
/// As [`load`], for words `first .. first + 8`.
#[inline(always)]
pub(crate) unsafe fn run_of_nibbles<const HIGH: bool>(words: *const u8, first: usize) -> [__m512i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        let mut codes = [_mm512_setzero_si512(); 8];
        for (w, code) in codes.iter_mut().enumerate() {
            let bytes = load(words, first + w);
            *code = _mm512_and_si512(if HIGH { _mm512_srli_epi16::<4>(bytes) } else { bytes }, mask);
        }
        codes
    }
}
