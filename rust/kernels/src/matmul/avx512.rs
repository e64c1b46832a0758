//! The products with AVX-512 (F, BW, VL, VNNI): 16 outputs in a register, up to 9 activation rows a walk.
//!
//! `vpdpbusd` multiplies 64 codes (4 of each of 16 weight rows) by four activation bytes broadcast from memory. A code register is unpacked once and
//! serves all rows of the tile; integer scales cost one multiply a sub-block, minimums go through `vpdpwssd` on pairs of sums.

use std::arch::x86_64::*;

use super::{Tile, TileFn};
use crate::act::{EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32};
use crate::attend::Values;
use crate::format::{Bf16, F16, F32, Format, I8, PANEL, SmallBlock, SuperBlock, with_shape};

/// How AVX-512 unpacks a format of 32-wide blocks.
pub(crate) trait Small512: SmallBlock {
    /// The codes of group `G` (weights 4G to 4G + 3) of a block.
    ///
    /// # Safety
    /// `words` must point to the panel words of a whole block, `G` be below 8, and the CPU have AVX-512 F and BW.
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i;
}

/// How AVX-512 unpacks a format of 256-wide blocks.
pub(crate) trait Super512: SuperBlock {
    /// Weights that share a scale: 16 or 32.
    const SUB: usize;

    /// Each half of a block is four runs of 32 weights; these two pairs of runs are unpacked together, because they lie in the same words.
    const RUNS: [[usize; 2]; 2];

    /// The scales as 32-bit lanes: 16 of them, or 8 and padding where [`Self::SUB`] is 32.
    ///
    /// # Safety
    /// `words` and `halves` must point to the panel words and halves of a whole block, and the CPU must have AVX-512 F and BW.
    unsafe fn scales(words: *const u8, halves: *const u8) -> [__m512i; 16];

    /// What meets the activations' pairs of sums, as pairs of 16-bit lanes in their order, 8 of them, or 4 and padding: the minimums, or in a format with an
    /// offset the scales.
    ///
    /// # Safety
    /// As [`Self::scales`].
    unsafe fn pairs(words: *const u8, halves: *const u8) -> [__m512i; 8];

    /// The codes of group `G` of the two runs of pair `P` in half `half`.
    ///
    /// # Safety
    /// As [`Self::scales`]; `half` and `P` are 0 or 1, `G` is below 8.
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2];
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
    ($kernel:ident, $F:ty) => {{
        /// # Safety
        /// As [`TileFn`].
        unsafe fn any_rows<F: Of>(t: &Tile) {
            // SAFETY: passed on; the rows given to each kernel are the tile's.
            unsafe {
                match t.rows {
                    1 => $kernel::<F, 1>(t),
                    2 => $kernel::<F, 2>(t),
                    3 => $kernel::<F, 3>(t),
                    4 => $kernel::<F, 4>(t),
                    5 => $kernel::<F, 5>(t),
                    6 => $kernel::<F, 6>(t),
                    7 => $kernel::<F, 7>(t),
                    8 => $kernel::<F, 8>(t),
                    9 => $kernel::<F, 9>(t),
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
        float: { use Float512 as Of; by_rows!(float, F) })
}

/// The micro-kernel of attention for cached numbers: rows that are not packed, several panels.
pub(crate) fn weigh(values: Values) -> TileFn {
    use Float512 as Of;
    match values {
        Values::F32 => by_rows!(each_panel, F32),
        Values::F16 => by_rows!(each_panel, F16),
        Values::I8 => by_rows!(each_panel, I8),
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

/// Fetches a line of the next panel.
#[inline(always)]
unsafe fn fetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
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

/// `$body` once for each group of four weights, with the group's number as a constant: unpacking needs constant shifts, and the compiler does not unroll
/// bodies of this size on its own.
macro_rules! each_group {
    ($G:ident in [$($g:literal)+] $body:block) => {
        $({ const $G: usize = $g; $body })+
    };
}

/// Four bytes of each of 16 weight rows times four bytes of activation row `ROW` of `R`, added to `sum`; `at` points to group 0 of the tile.
///
/// In assembly, because the order matters and the compiler would change it: free to schedule, it moves the unpacking of many groups to the front, runs out of
/// registers and spills, at up to three times the cost. Instructions that it may not reorder stay where the source has them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot<const G: usize, const R: usize, const ROW: usize>(sum: &mut __m512i, code: __m512i, at: *const u32) {
    // SAFETY: reads the word of group G and row ROW, which the caller's tile has; touches nothing else but the named registers.
    unsafe {
        std::arch::asm!(
            "vpdpbusd {sum}, {code}, dword ptr [{at} + {offset}]{{1to16}}",
            sum = inout(zmm_reg) *sum,
            code = in(zmm_reg) code,
            at = in(reg) at,
            offset = const (G * R + ROW) * 4,
            options(readonly, nostack, preserves_flags),
        );
    }
}

/// [`dot`] for all rows of a tile.
#[inline(always)]
unsafe fn dot_rows<const G: usize, const R: usize>(sum: &mut [__m512i; R], code: __m512i, at: *const u32) {
    macro_rules! rows {
        ($($row:literal)+) => {
            $(if $row < R {
                // SAFETY: passed on.
                unsafe { dot::<G, R, $row>(&mut sum[$row], code, at) };
            })+
        };
    }
    rows!(0 1 2 3 4 5 6 7 8);
}

/// Up to so many rows, two independent integer sums a row hide the latency of `vpdpbusd`; with more rows the rows do, and registers run short. For blocks
/// of 32, which also keep float sums; for sub-blocks of 32; for sub-blocks of 16.
const TWO_SUMS: [usize; 3] = [6, 9, 8];

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn small<F: Small512, const R: usize>(t: &Tile) {
    let mut acc = [_mm512_setzero_ps(); R];
    let mut b = 0;
    // SAFETY: blocks b and b + 1 exist.
    unsafe {
        if R <= TWO_SUMS[0] {
            while b + 2 <= t.blocks {
                small_blocks::<F, R, 2>(t, b, &mut acc);
                b += 2;
            }
        }
        while b < t.blocks {
            small_blocks::<F, R, 1>(t, b, &mut acc);
            b += 1;
        }
        store(t, &acc);
    }
}

/// Blocks `b .. b + N`, whose integer sums are computed side by side; their float steps follow in order.
#[inline(always)]
unsafe fn small_blocks<F: Small512, const R: usize, const N: usize>(t: &Tile, b: usize, acc: &mut [__m512; R]) {
    let word_bytes = F::WORDS.len() * 4 * PANEL;
    let half_bytes = F::HALVES.len() * 2 * PANEL;
    let half_area = t.blocks * word_bytes;
    // SAFETY: blocks of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
    unsafe {
        let words = t.panel.add(b * word_bytes);
        let ahead = t.next.wrapping_add(b * word_bytes);
        let halves_at = t.panel.add(half_area + b * half_bytes);
        fetch(t.next.wrapping_add(half_area + b * half_bytes));
        let a = t.act.add(b * 8 * R);
        let e = t.act.add(t.k / 4 * R + b * EXTRAS_32 * R);
        let mut sum = [[_mm512_setzero_si512(); R]; N];
        // A format's offset times Σ is among the extras, negated.
        if let Some(i) = OFFSETS_32.iter().position(|o| *o == F::OFFSET) {
            for (n, sum) in sum.iter_mut().enumerate() {
                for (r, sum) in sum.iter_mut().enumerate() {
                    *sum = word(e.add((n * EXTRAS_32 + 2 + i) * R + r));
                }
            }
        }
        each_group!(G in [0 1 2 3 4 5 6 7] {
            for (n, sum) in sum.iter_mut().enumerate() {
                // Spread over the work, so that fetching never makes the work wait for a free line buffer.
                if G < F::WORDS.len() {
                    fetch(ahead.wrapping_add(n * word_bytes + 64 * G));
                }
                dot_rows::<G, R>(sum, F::codes::<G>(words.add(n * word_bytes)), a.add(n * 8 * R));
            }
        });
        for (n, sum) in sum.iter().enumerate() {
            let h = halves_at.add(n * half_bytes);
            let e = e.add(n * EXTRAS_32 * R);
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
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn large<F: Super512, const R: usize>(t: &Tile) {
    let word_bytes = F::WORDS.len() * 4 * PANEL;
    let half_bytes = F::HALVES.len() * 2 * PANEL;
    let half_area = t.blocks * word_bytes;
    let extras = t.act.wrapping_add(t.k / 4 * R);
    let mut acc = [_mm512_setzero_ps(); R];
    for b in 0..t.blocks {
        // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
        unsafe {
            let words = t.panel.add(b * word_bytes);
            let ahead = t.next.wrapping_add(b * word_bytes);
            let h = t.panel.add(half_area + b * half_bytes);
            fetch(t.next.wrapping_add(half_area + b * half_bytes));
            let a = t.act.add(b * 64 * R);
            let e = extras.add(b * EXTRAS_256 * R);
            let scales = F::scales(words, h);
            let mut sum = [_mm512_setzero_si512(); R];
            for half in 0..2 {
                two_runs::<F, R, 0>(words, &scales, half, a, ahead, &mut sum);
                two_runs::<F, R, 1>(words, &scales, half, a, ahead, &mut sum);
            }
            let mut least = [_mm512_setzero_si512(); R];
            if F::MIN || F::OFFSET != 0 {
                let pairs = F::pairs(words, h);
                let (count, first) = if F::SUB == 32 { (4, PAIRS_32) } else { (8, PAIRS_16) };
                for (q, pair) in pairs[..count].iter().enumerate() {
                    for (r, least) in least.iter_mut().enumerate() {
                        *least = _mm512_dpwssd_epi32(*least, *pair, word(e.add((first + q) * R + r)));
                    }
                }
            }
            if F::OFFSET != 0 {
                // Σ scale·Σ (code − offset)·a = Σ scale·Σ code·a − offset·Σ scale·Σ a; offsets are powers of two.
                let shift = _mm_cvtsi32_si128(F::OFFSET.trailing_zeros() as i32);
                for (sum, least) in sum.iter_mut().zip(&least) {
                    *sum = _mm512_sub_epi32(*sum, _mm512_sll_epi32(*least, shift));
                }
            }
            let d = halves(h);
            for r in 0..R {
                let scale = _mm512_mul_ps(d, number(e.add(r)));
                acc[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[r]), acc[r]);
            }
            if F::MIN {
                let dmin = halves(h.add(2 * PANEL));
                for r in 0..R {
                    let scale = _mm512_mul_ps(dmin, number(e.add(r)));
                    acc[r] = _mm512_fnmadd_ps(scale, _mm512_cvtepi32_ps(least[r]), acc[r]);
                }
            }
        }
    }
    // SAFETY: passed on.
    unsafe { store(t, &acc) };
}

/// The products of some groups of the two runs of a pair: side by side where the registers allow it, else one run after the other.
macro_rules! add_groups {
    ($groups:tt, $F:ty, $R:ident, $P:ident, $words:ident, $half:ident, $a:ident, $ahead:ident, $sub:expr) => {
        let sub = $sub;
        // Lines of the next panel that each of the four pairs of a block fetches, spread over its groups.
        let lines = <$F>::WORDS.len().div_ceil(4);
        let ahead = $ahead.wrapping_add((2 * $half + $P) * lines * 64);
        let first = $a.add((4 * $half + <$F>::RUNS[$P][0]) * 8 * $R);
        let second = $a.add((4 * $half + <$F>::RUNS[$P][1]) * 8 * $R);
        if $R <= if <$F>::SUB == 32 { TWO_SUMS[1] } else { TWO_SUMS[2] } {
            each_group!(G in $groups {
                fetch_share(ahead, G, lines);
                let codes = <$F>::codes::<$P, G>($words, $half);
                dot_rows::<G, $R>(&mut sub[0], codes[0], first);
                dot_rows::<G, $R>(&mut sub[1], codes[1], second);
            });
        } else {
            each_group!(G in $groups {
                fetch_share(ahead, G, lines);
                dot_rows::<G, $R>(&mut sub[0], <$F>::codes::<$P, G>($words, $half)[0], first);
            });
            each_group!(G in $groups {
                dot_rows::<G, $R>(&mut sub[1], <$F>::codes::<$P, G>($words, $half)[1], second);
            });
        }
    };
}

/// Adds the scaled sums of the two runs of pair `P` in a half of a block.
#[inline(always)]
unsafe fn two_runs<F: Super512, const R: usize, const P: usize>(
    words: *const u8,
    scales: &[__m512i; 16],
    half: usize,
    a: *const u32,
    ahead: *const u8,
    sum: &mut [__m512i; R],
) {
    // SAFETY: as in `large`, which calls this.
    unsafe {
        if F::SUB == 32 {
            let mut sub = [[_mm512_setzero_si512(); R]; 2];
            add_groups!([0 1 2 3 4 5 6 7], F, R, P, words, half, a, ahead, &mut sub);
            add_scaled::<F, R, P>(scales, half, 0, &sub, sum);
        } else {
            let mut sub = [[_mm512_setzero_si512(); R]; 2];
            add_groups!([0 1 2 3], F, R, P, words, half, a, ahead, &mut sub);
            add_scaled::<F, R, P>(scales, half, 0, &sub, sum);
            let mut sub = [[_mm512_setzero_si512(); R]; 2];
            add_groups!([4 5 6 7], F, R, P, words, half, a, ahead, &mut sub);
            add_scaled::<F, R, P>(scales, half, 1, &sub, sum);
        }
    }
}

/// Adds the two runs' sums of their sub-block `part`, scaled.
#[inline(always)]
unsafe fn add_scaled<F: Super512, const R: usize, const P: usize>(
    scales: &[__m512i; 16],
    half: usize,
    part: usize,
    sub: &[[__m512i; R]; 2],
    sum: &mut [__m512i; R],
) {
    for (n, sub) in sub.iter().enumerate() {
        let scale = scales[(4 * half + F::RUNS[P][n]) * (32 / F::SUB) + part];
        for (sum, sub) in sum.iter_mut().zip(sub) {
            // SAFETY: no memory is touched; the caller has AVX-512 F.
            *sum = unsafe { _mm512_add_epi32(*sum, _mm512_mullo_epi32(*sub, scale)) };
        }
    }
}

/// Group `g`'s share of `lines` lines that eight groups fetch.
#[inline(always)]
unsafe fn fetch_share(ahead: *const u8, g: usize, lines: usize) {
    for line in g * lines / 8..(g + 1) * lines / 8 {
        // SAFETY: a prefetch cannot fault.
        unsafe { fetch(ahead.wrapping_add(64 * line)) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn float<F: Float512, const R: usize>(t: &Tile) {
    let width = F::WIDTH * PANEL;
    let mut acc = [_mm512_setzero_ps(); R];
    for i in 0..t.blocks {
        // SAFETY: weight i of 16 rows and value i of R rows lie inside panel and tile.
        unsafe {
            fetch(t.next.wrapping_add(i * width));
            let w = F::load(t.panel.add(i * width));
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = _mm512_fmadd_ps(w, number(t.act.add(i * R + r)), *acc);
            }
        }
    }
    // SAFETY: passed on.
    unsafe { store(t, &acc) };
}

/// All panels of a tile, several side by side: one alone would wait for its own sums if rows are few, and for loads if they are many.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn each_panel<F: Float512, const R: usize>(t: &Tile) {
    let mut p = 0;
    // SAFETY: passed on; panels `p .. p + N` are panels of the tile.
    unsafe {
        while R <= 5 && p + 4 <= t.panels.0 {
            side_by_side::<F, R, 4>(&t.from(p));
            p += 4;
        }
        while p + 2 <= t.panels.0 {
            side_by_side::<F, R, 2>(&t.from(p));
            p += 2;
        }
        if p < t.panels.0 {
            side_by_side::<F, R, 1>(&t.from(p));
        }
    }
}

/// The first `N` panels of a tile. Meanwhile the next ones are fetched, or what comes after the last.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn side_by_side<F: Float512, const R: usize, const N: usize>(t: &Tile) {
    let mut acc = [[_mm512_setzero_ps(); R]; N];
    let ahead = if t.panels.0 > N { t.panel.wrapping_add(N * t.panels.1) } else { t.next };
    for i in 0..t.blocks {
        // SAFETY: number i of 16 lanes lies inside each panel, value i of R rows inside the tile.
        unsafe {
            for n in (0..N).filter(|_| (i * F::WIDTH * PANEL).is_multiple_of(64)) {
                fetch(ahead.wrapping_add(n * t.panels.1 + i * F::WIDTH * PANEL));
            }
            let w: [__m512; N] = std::array::from_fn(
                #[inline(always)]
                |n| F::load(t.panel.add(n * t.panels.1 + i * F::WIDTH * PANEL)),
            );
            for r in 0..R {
                let x = number(t.act.add(i + r * t.act_stride));
                for (acc, w) in acc.iter_mut().zip(w) {
                    acc[r] = _mm512_fmadd_ps(w, x, acc[r]);
                }
            }
        }
    }
    for (n, acc) in acc.iter().enumerate() {
        // SAFETY: passed on.
        unsafe { store(&t.one(n), acc) };
    }
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

/// Group `G` of a 32-wide block of nibbles in words `first .. first + 4`: low nibbles of the words, then high ones.
///
/// # Safety
/// As [`load`], for those words; `G` must be below 8.
#[inline(always)]
pub(crate) unsafe fn nibbles<const G: usize>(words: *const u8, first: usize) -> __m512i {
    // SAFETY: passed on.
    unsafe {
        let bytes = load(words, first + G % 4);
        _mm512_and_si512(if G < 4 { bytes } else { _mm512_srli_epi16::<4>(bytes) }, _mm512_set1_epi8(15))
    }
}

/// Low and high nibbles of a word.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(crate) unsafe fn both_nibbles(words: *const u8, w: usize) -> [__m512i; 2] {
    // SAFETY: passed on.
    unsafe {
        let (bytes, mask) = (load(words, w), _mm512_set1_epi8(15));
        [_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask)]
    }
}
