//! The products with AVX-512 (F, BW, VL, VNNI): 16 outputs in a register, up to 9 activation rows a walk.
//!
//! `vpdpbusd` multiplies 64 codes (4 of each of 16 weight rows) by four activation bytes broadcast from memory. A code register is unpacked once and
//! serves all rows of the tile; integer scales cost one multiply a sub-block, minimums go through `vpdpwssd` on pairs of sums.

use std::arch::x86_64::*;
use std::array::from_mut;

use super::{Tile, TileFn};
use crate::act::{EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32};
use crate::attend::Values;
use crate::format::{Bf16, F16, F32, Format, PANEL, SmallBlock, SuperBlock, with_shape};

/// How AVX-512 unpacks a format of 32-wide blocks.
pub(crate) trait Small512: SmallBlock {
    /// The codes of group `G` (weights 4G to 4G + 3) of a block.
    ///
    /// # Safety
    /// `words` must point to the panel words of a whole block, `G` be below 8, and the CPU have AVX-512 F and BW.
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i;

    /// The scales of the lanes.
    ///
    /// # Safety
    /// `at` must have [`SmallBlock::SCALE_BYTES`] bytes of each lane, and the CPU the set's instructions.
    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m512 {
        // SAFETY: half-precision numbers, by the caller.
        unsafe { halves(at) }
    }
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

    /// The blocks' scales `d`.
    ///
    /// # Safety
    /// As [`Self::scales`].
    #[inline(always)]
    unsafe fn scale(_words: *const u8, tail: *const u8) -> __m512 {
        // SAFETY: half-precision numbers, by the caller.
        unsafe { halves(tail) }
    }
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

/// How many panels the micro-kernel of a format takes at once for `m` rows: two, where that was measured to be faster.
pub(crate) fn together(format: Format, m: usize) -> usize {
    let two = match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::NVFP4 | Format::Q8_0 => m >= 2,
        Format::Q4_0 | Format::IQ4_NL => m >= 4,
        Format::Q4_1 => (4..=6).contains(&m),
        _ => false,
    };
    if two { 2 } else { 1 }
}

/// The micro-kernel of attention for cached numbers: rows that are not packed, several panels.
pub(crate) fn weigh(values: Values) -> TileFn {
    use Float512 as Of;
    match values {
        Values::F32 => by_rows!(each_panel, F32),
        Values::F16 => by_rows!(each_panel, F16),
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

/// What is fetched while block `b` is worked on: the same block of the next panel; of two panels, which with the next two might not fit the first cache,
/// a block not so far ahead. Blocks have `words` bytes of words; `bytes` lie between what is fetched of one and of the next.
#[inline(always)]
fn ahead<const P: usize>(t: &Tile, b: usize, words: usize, bytes: usize) -> *const u8 {
    if P == 1 {
        return t.next.wrapping_add(b * bytes);
    }
    let to = b + (DISTANCE / words).min(t.blocks);
    match to < t.blocks {
        true => t.panel.wrapping_add(to * bytes),
        false => t.next.wrapping_add((to - t.blocks) * bytes),
    }
}

/// Bytes of each of two panels between what is worked on and what is fetched.
const DISTANCE: usize = 6144;

/// `$body` once for each group of four weights, with the group's number as a constant: unpacking needs constant shifts, and the compiler does not unroll
/// bodies of this size on its own.
macro_rules! each_group {
    ($G:ident in [$($g:literal)+] $body:block) => {
        $({ const $G: usize = $g; $body })+
    };
}

/// Four bytes of each of 16 weight rows times four bytes of one activation row, added to that row's sum, for each of `P` panels. The row is `ROW` of `N`, which
/// lie among `R` of a tile; `at` points to group 0 of the first of them. Two panels share the load of the activations, of which the CPU can do no more than
/// products.
///
/// In assembly, because the order matters and the compiler would change it: free to schedule, it moves the unpacking of many groups to the front, runs out of
/// registers and spills, at up to three times the cost. Instructions that it may not reorder stay where the source has them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot<const G: usize, const R: usize, const N: usize, const P: usize, const ROW: usize>(
    sum: &mut [[__m512i; N]; P],
    code: &[__m512i; P],
    at: *const u32,
) {
    // SAFETY: reads the word of group G and row ROW, which the caller's tile has; touches nothing else but the named registers.
    unsafe {
        if P == 1 {
            std::arch::asm!(
                "vpdpbusd {sum}, {code}, dword ptr [{at} + {offset}]{{1to16}}",
                sum = inout(zmm_reg) sum[0][ROW],
                code = in(zmm_reg) code[0],
                at = in(reg) at,
                offset = const (G * R + ROW) * 4,
                options(readonly, nostack, preserves_flags),
            );
        } else {
            let _word: __m512i;
            std::arch::asm!(
                "vpbroadcastd {word}, dword ptr [{at} + {offset}]",
                "vpdpbusd {first}, {first_code}, {word}",
                "vpdpbusd {second}, {second_code}, {word}",
                word = out(zmm_reg) _word,
                first = inout(zmm_reg) sum[0][ROW],
                second = inout(zmm_reg) sum[P - 1][ROW],
                first_code = in(zmm_reg) code[0],
                second_code = in(zmm_reg) code[P - 1],
                at = in(reg) at,
                offset = const (G * R + ROW) * 4,
                options(readonly, nostack, preserves_flags),
            );
        }
    }
}

/// [`dot`] for `N` rows.
#[inline(always)]
unsafe fn dot_rows<const G: usize, const R: usize, const N: usize, const P: usize>(
    sum: &mut [[__m512i; N]; P],
    code: &[__m512i; P],
    at: *const u32,
) {
    macro_rules! rows {
        ($($row:literal)+) => {
            $(if $row < N {
                // SAFETY: passed on.
                unsafe { dot::<G, R, N, P, $row>(sum, code, at) };
            })+
        };
    }
    rows!(0 1 2 3 4 5 6 7 8);
}

/// Up to so many rows (times panels), two independent integer sums a row hide the latency of `vpdpbusd`; with more rows the rows do, and registers run short.
/// For blocks of 32, which also keep float sums; for sub-blocks of 32; for sub-blocks of 16.
const TWO_SUMS: [usize; 3] = [6, 9, 8];

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn small<F: Small512, const R: usize>(t: &Tile) {
    // SAFETY: passed on.
    unsafe {
        match t.panels.0 {
            1 => small_panels::<F, R, 1>(t),
            _ => small_panels::<F, R, 2>(t),
        }
    }
}

/// `P` panels side by side.
#[inline(always)]
unsafe fn small_panels<F: Small512, const R: usize, const P: usize>(t: &Tile) {
    // SAFETY: blocks b and b + 1 exist.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); R]; P];
        let mut b = 0;
        if R * P <= TWO_SUMS[0] {
            while b + 2 <= t.blocks {
                small_blocks::<F, R, P, 2>(t, b, &mut acc);
                b += 2;
            }
        }
        while b < t.blocks {
            small_blocks::<F, R, P, 1>(t, b, &mut acc);
            b += 1;
        }
        store_panels(t, &acc);
    }
}

/// Blocks `b .. b + N`, whose integer sums are computed side by side; their float steps follow in order.
#[inline(always)]
unsafe fn small_blocks<F: Small512, const R: usize, const P: usize, const N: usize>(
    t: &Tile,
    b: usize,
    acc: &mut [[__m512; R]; P],
) {
    let word_bytes = F::WORD_BYTES;
    let half_bytes = F::TAIL_BYTES;
    let half_area = t.blocks * word_bytes;
    let panel = t.panels.1;
    // SAFETY: blocks of panels and tile, whose sizes the tile states; each offset stays inside its block's part.
    unsafe {
        let words = t.panel.add(b * word_bytes);
        let halves_at = t.panel.add(half_area + b * half_bytes);
        for p in 0..P {
            fetch(ahead::<P>(t, b, word_bytes, half_bytes).wrapping_add(p * panel + half_area));
        }
        let a = t.act.add(b * 8 * R);
        let e = t.act.add(t.k / 4 * R + b * EXTRAS_32 * R);
        let mut sum = [[[_mm512_setzero_si512(); R]; P]; N];
        // A format's offset times Σ is among the extras, negated.
        if let Some(i) = OFFSETS_32.iter().position(|o| *o == F::OFFSET) {
            for (n, sum) in sum.iter_mut().enumerate() {
                for r in 0..R {
                    let start = word(e.add((n * EXTRAS_32 + 2 + i) * R + r));
                    for sum in sum.iter_mut() {
                        sum[r] = start;
                    }
                }
            }
        }
        each_group!(G in [0 1 2 3 4 5 6 7] {
            for (n, sum) in sum.iter_mut().enumerate() {
                let mut code = [_mm512_setzero_si512(); P];
                for (p, code) in code.iter_mut().enumerate() {
                    // Spread over the work, so that fetching never makes the work wait for a free line buffer.
                    if G < F::WORDS.len() {
                        fetch(ahead::<P>(t, b + n, word_bytes, word_bytes).wrapping_add(p * panel + 64 * G));
                    }
                    *code = F::codes::<G>(words.add(p * panel + n * word_bytes));
                }
                dot_rows::<G, R, R, P>(sum, &code, a.add(n * 8 * R));
            }
        });
        for (n, sum) in sum.iter().enumerate() {
            let e = e.add(n * EXTRAS_32 * R);
            for p in 0..P {
                let h = halves_at.add(p * panel + n * half_bytes);
                let d = F::scale(h);
                for r in 0..R {
                    let scale = _mm512_mul_ps(d, number(e.add(r)));
                    acc[p][r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[p][r]), acc[p][r]);
                }
                if F::MIN {
                    let m = halves(h.add(2 * PANEL));
                    for (r, acc) in acc[p].iter_mut().enumerate() {
                        *acc = _mm512_fmadd_ps(m, number(e.add(R + r)), *acc);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn large<F: Super512, const R: usize>(t: &Tile) {
    // SAFETY: passed on; the rows given are the tile's.
    unsafe {
        if F::SUB == 16 && R == 9 {
            // Sums of nine rows do not fit the registers beside the many scales; so the panel is walked twice, and fetches once.
            large_rows::<F, R, 5>(&Tile { next: t.panel, ..*t });
            large_rows::<F, R, 4>(&Tile { act: t.act.add(5), out: t.out.add(5 * t.stride), ..*t });
        } else {
            large_rows::<F, R, R>(t);
        }
    }
}

/// `N` rows of the tile's `R`: act and output begin with the first of them.
#[inline(always)]
unsafe fn large_rows<F: Super512, const R: usize, const N: usize>(t: &Tile) {
    let word_bytes = F::WORD_BYTES;
    let half_bytes = F::TAIL_BYTES;
    let half_area = t.blocks * word_bytes;
    let extras = t.act.wrapping_add(t.k / 4 * R);
    // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); N];
        for b in 0..t.blocks {
            let words = t.panel.add(b * word_bytes);
            let ahead = t.next.wrapping_add(b * word_bytes);
            let h = t.panel.add(half_area + b * half_bytes);
            fetch(t.next.wrapping_add(half_area + b * half_bytes));
            let a = t.act.add(b * 64 * R);
            let e = extras.add(b * EXTRAS_256 * R);
            let scales = F::scales(words, h);
            let mut sum = [_mm512_setzero_si512(); N];
            for half in 0..2 {
                two_runs::<F, R, N, 0>(words, &scales, half, a, ahead, &mut sum);
                two_runs::<F, R, N, 1>(words, &scales, half, a, ahead, &mut sum);
            }
            let mut least = [_mm512_setzero_si512(); N];
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
            let d = F::scale(words, h);
            for r in 0..N {
                let scale = _mm512_mul_ps(d, number(e.add(r)));
                acc[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[r]), acc[r]);
            }
            if F::MIN {
                let dmin = halves(h.add(2 * PANEL));
                for r in 0..N {
                    let scale = _mm512_mul_ps(dmin, number(e.add(r)));
                    acc[r] = _mm512_fnmadd_ps(scale, _mm512_cvtepi32_ps(least[r]), acc[r]);
                }
            }
        }
        store(t, &acc);
    }
}

/// The products of some groups of the two runs of a pair: side by side where the registers allow it, else one run after the other.
macro_rules! add_groups {
    ($groups:tt, $F:ty, $R:ident, $N:ident, $P:ident, $words:ident, $half:ident, $a:ident, $ahead:ident, $sub:expr) => {
        let sub = $sub;
        // Lines of the next panel that each of the four pairs of a block fetches, spread over its groups.
        let lines = <$F>::WORDS.len().div_ceil(4);
        let ahead = $ahead.wrapping_add((2 * $half + $P) * lines * 64);
        let first = $a.add((4 * $half + <$F>::RUNS[$P][0]) * 8 * $R);
        let second = $a.add((4 * $half + <$F>::RUNS[$P][1]) * 8 * $R);
        if $N <= if <$F>::SUB == 32 { TWO_SUMS[1] } else { TWO_SUMS[2] } {
            each_group!(G in $groups {
                fetch_share(ahead, G, lines);
                let codes = <$F>::codes::<$P, G>($words, $half);
                dot_rows::<G, $R, $N, 1>(from_mut(&mut sub[0]), &[codes[0]], first);
                dot_rows::<G, $R, $N, 1>(from_mut(&mut sub[1]), &[codes[1]], second);
            });
        } else {
            each_group!(G in $groups {
                fetch_share(ahead, G, lines);
                let codes = <$F>::codes::<$P, G>($words, $half);
                dot_rows::<G, $R, $N, 1>(from_mut(&mut sub[0]), &[codes[0]], first);
            });
            each_group!(G in $groups {
                let codes = <$F>::codes::<$P, G>($words, $half);
                dot_rows::<G, $R, $N, 1>(from_mut(&mut sub[1]), &[codes[1]], second);
            });
        }
    };
}

/// Adds the scaled sums of the two runs of pair `P` in a half of a block.
#[inline(always)]
unsafe fn two_runs<F: Super512, const R: usize, const N: usize, const P: usize>(
    words: *const u8,
    scales: &[__m512i; 16],
    half: usize,
    a: *const u32,
    ahead: *const u8,
    sum: &mut [__m512i; N],
) {
    // SAFETY: as in `large`, which calls this.
    unsafe {
        if F::SUB == 32 {
            let mut sub = [[_mm512_setzero_si512(); N]; 2];
            add_groups!([0 1 2 3 4 5 6 7], F, R, N, P, words, half, a, ahead, &mut sub);
            add_scaled::<F, N, P>(scales, half, 0, &sub, sum);
        } else {
            let mut sub = [[_mm512_setzero_si512(); N]; 2];
            add_groups!([0 1 2 3], F, R, N, P, words, half, a, ahead, &mut sub);
            add_scaled::<F, N, P>(scales, half, 0, &sub, sum);
            let mut sub = [[_mm512_setzero_si512(); N]; 2];
            add_groups!([4 5 6 7], F, R, N, P, words, half, a, ahead, &mut sub);
            add_scaled::<F, N, P>(scales, half, 1, &sub, sum);
        }
    }
}

/// Adds the two runs' sums of their sub-block `part`, scaled.
#[inline(always)]
unsafe fn add_scaled<F: Super512, const N: usize, const P: usize>(
    scales: &[__m512i; 16],
    half: usize,
    part: usize,
    sub: &[[__m512i; N]; 2],
    sum: &mut [__m512i; N],
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

/// Stores the outputs of panels whose columns lie side by side.
#[inline(always)]
unsafe fn store_panels<const R: usize, const P: usize>(t: &Tile, acc: &[[__m512; R]; P]) {
    for (p, acc) in acc.iter().enumerate() {
        // SAFETY: passed on.
        unsafe { store(&t.one(p), acc) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn float<F: Float512, const R: usize>(t: &Tile) {
    // SAFETY: passed on.
    unsafe {
        match t.panels.0 {
            1 => float_panels::<F, R, 1>(t),
            _ => float_panels::<F, R, 2>(t),
        }
    }
}

/// `P` panels side by side.
#[inline(always)]
unsafe fn float_panels<F: Float512, const R: usize, const P: usize>(t: &Tile) {
    let width = F::WIDTH * PANEL;
    // SAFETY: weight i of 16 rows and value i of R rows lie inside panels and tile.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); R]; P];
        for i in 0..t.blocks {
            let mut w = [_mm512_setzero_ps(); P];
            for (p, w) in w.iter_mut().enumerate() {
                fetch(t.next.wrapping_add(p * t.panels.1 + i * width));
                *w = F::load(t.panel.add(p * t.panels.1 + i * width));
            }
            for r in 0..R {
                let x = number(t.act.add(i * R + r));
                for (acc, w) in acc.iter_mut().zip(&w) {
                    acc[r] = _mm512_fmadd_ps(*w, x, acc[r]);
                }
            }
        }
        store_panels(t, &acc);
    }
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
    // SAFETY: passed on.
    unsafe { store_panels(t, &acc) };
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
