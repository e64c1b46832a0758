//! The products with AVX2, FMA and F16C, and with AVX-VNNI where the CPU has it: 8 outputs in a register, half a panel at a time.
//!
//! Without VNNI, `vpmaddubsw` adds two products into 16 bits. That cannot saturate: an unsigned code is at most 127 here, and the formats with 8-bit
//! levels multiply |w| ≤ 128 by ±a, two of which are at most 2·128·127 = 32,512 (N7 keeps a away from −128). Sums of several groups stay in 16 bits
//! as long as the greatest code allows. With VNNI the same values go through `vpdpbusd`.

use std::arch::x86_64::*;

use super::{Tile, TileFn};
use crate::act::{EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32};
use crate::attend::Values;
use crate::format::{Bf16, Block, F16, F32, Format, PANEL, SmallBlock, SuperBlock, with_shape};

/// How AVX2 unpacks a format of 32-wide blocks. All pointers to words and halves are advanced to the half panel.
pub(crate) trait Small256: SmallBlock {
    /// The greatest unsigned code; 128 means that [`Self::codes`] gives signed levels.
    const MOST: i32;

    /// The codes of the eight groups of four weights: unsigned as the format says, or signed levels if [`Self::MOST`] is 128.
    ///
    /// # Safety
    /// `words` must point to the panel words of a whole block, and the CPU must have AVX2.
    unsafe fn codes(words: *const u8) -> [__m256i; 8];

    /// The scales of the lanes.
    ///
    /// # Safety
    /// `at` must have [`SmallBlock::SCALE_BYTES`] bytes of each lane, and the CPU the set's instructions.
    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m256 {
        // SAFETY: half-precision numbers, by the caller.
        unsafe { halves(at) }
    }
}

/// How AVX2 unpacks a format of 256-wide blocks.
pub(crate) trait Super256: SuperBlock {
    /// As [`Small256::MOST`].
    const MOST: i32;
    /// Weights that share a scale: 16 or 32.
    const SUB: usize;

    /// As [`crate::matmul::avx512::Super512::scales`].
    ///
    /// # Safety
    /// `words` and `halves` must point to the panel words and halves of a whole block, and the CPU must have AVX2.
    unsafe fn scales(words: *const u8, halves: *const u8) -> [__m256i; 16];

    /// As [`crate::matmul::avx512::Super512::pairs`]; not asked for where levels are signed.
    ///
    /// # Safety
    /// As [`Self::scales`].
    unsafe fn pairs(words: *const u8, halves: *const u8) -> [__m256i; 8];

    /// As [`crate::matmul::avx512::Super512::codes`], or signed levels if [`Self::MOST`] is 128.
    ///
    /// # Safety
    /// As [`Self::scales`]; `half` is 0 or 1, `RUN` 0 to 3.
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8];

    /// The blocks' scales `d`.
    ///
    /// # Safety
    /// As [`Self::scales`].
    #[inline(always)]
    unsafe fn scale(_words: *const u8, tail: *const u8) -> __m256 {
        // SAFETY: half-precision numbers, by the caller.
        unsafe { halves(tail) }
    }
}

/// How AVX2 widens a float format.
trait Float256 {
    /// Bytes of a number.
    const WIDTH: usize;

    /// 8 numbers.
    ///
    /// # Safety
    /// `at` must have 8 numbers, and the CPU AVX2 and F16C.
    unsafe fn load(at: *const u8) -> __m256;
}

impl Float256 for F32 {
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: 32 bytes by the caller.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }
}

impl Float256 for F16 {
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: 16 bytes by the caller.
        unsafe { halves(at) }
    }
}

impl Float256 for Bf16 {
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: 16 bytes by the caller.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))) }
    }
}

/// The micro-kernel of a format; `vnni` if the CPU has AVX-VNNI.
pub(crate) fn multiply(format: Format, vnni: bool) -> TileFn {
    if vnni {
        with_shape!(format, F => small: with_vnni::small::<F>, large: with_vnni::large::<F>, float: float::<F, false>)
    } else {
        with_shape!(format, F => small: base::small::<F>, large: base::large::<F>, float: float::<F, false>)
    }
}

/// The micro-kernel of attention for cached numbers: rows that are not packed, several panels.
pub(crate) fn weigh(values: Values) -> TileFn {
    match values {
        Values::F32 => each_panel::<F32>,
        Values::F16 => each_panel::<F16>,
    }
}

/// Eight half-precision numbers, widened.
#[inline(always)]
unsafe fn halves(at: *const u8) -> __m256 {
    // SAFETY: 16 bytes by the caller.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

#[inline(always)]
unsafe fn word(at: *const u32) -> __m256i {
    // SAFETY: a word of the tile, by the caller.
    unsafe { _mm256_set1_epi32(at.read() as i32) }
}

#[inline(always)]
unsafe fn number(at: *const u32) -> __m256 {
    // SAFETY: a word of the tile, by the caller.
    unsafe { _mm256_set1_ps(f32::from_bits(at.read())) }
}

/// Fetches block `b` of the next panel; both half panels lie in the same cache lines, so one of them asks.
#[inline(always)]
unsafe fn prefetch<F: Block>(next: *const u8, blocks: usize, b: usize) {
    let word_bytes = F::WORD_BYTES;
    let half_bytes = F::TAIL_BYTES;
    for w in 0..F::WORDS.len() {
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(b * word_bytes + 64 * w).cast()) };
    }
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(blocks * word_bytes + b * half_bytes).cast()) };
}

/// Stores eight columns from `lane` on, as far as the tile has them.
#[inline(always)]
unsafe fn store(t: &Tile, r: usize, lane: usize, acc: __m256) {
    // SAFETY: only columns below `columns` of a row of the tile are written.
    unsafe {
        let at = t.out.add(r * t.stride);
        if t.columns >= lane + 8 {
            _mm256_storeu_ps(at.add(lane), acc);
        } else {
            let mut values = [0f32; 8];
            _mm256_storeu_ps(values.as_mut_ptr(), acc);
            for (c, value) in values.iter().enumerate().take(t.columns.saturating_sub(lane)) {
                *at.add(lane + c) = *value;
            }
        }
    }
}

/// Adds the products of a run of groups to `sum`, four bytes a lane: the 16-bit way.
///
/// # Safety
/// `a` must have a word at every multiple of `stride` up to the number of codes, and the CPU AVX2.
#[inline(always)]
unsafe fn add_madd<const MOST: i32>(mut sum: __m256i, codes: &[__m256i], a: *const u32, stride: usize) -> __m256i {
    // SAFETY: the words by the caller.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        // How many groups fit 16 bits: each adds at most 2·MOST·127.
        let fit = (32_767 / (2 * MOST * 127)) as usize;
        let mut g = 0;
        while g < codes.len() {
            let mut pairs = pair_products::<MOST>(codes[g], word(a.add(g * stride)));
            let mut more = 1;
            while more < fit && g + more < codes.len() {
                pairs =
                    _mm256_add_epi16(pairs, pair_products::<MOST>(codes[g + more], word(a.add((g + more) * stride))));
                more += 1;
            }
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
            g += more;
        }
        sum
    }
}

#[inline(always)]
unsafe fn pair_products<const MOST: i32>(code: __m256i, a: __m256i) -> __m256i {
    // SAFETY: no memory is touched; AVX2 by the caller.
    unsafe {
        if MOST == 128 {
            _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(a, code))
        } else {
            _mm256_maddubs_epi16(code, a)
        }
    }
}

/// The same with `vpdpbusd`. Signed levels are multiplied as magnitude times signed activation too, so both ways see the same numbers.
///
/// # Safety
/// As [`add_madd`], and the CPU must have AVX-VNNI.
#[inline(always)]
unsafe fn add_vnni<const MOST: i32>(mut sum: __m256i, codes: &[__m256i], a: *const u32, stride: usize) -> __m256i {
    for (g, code) in codes.iter().enumerate() {
        // SAFETY: the words by the caller.
        unsafe {
            let a = word(a.add(g * stride));
            sum = if MOST == 128 {
                _mm256_dpbusd_avx_epi32(sum, _mm256_abs_epi8(*code), _mm256_sign_epi8(a, *code))
            } else {
                _mm256_dpbusd_avx_epi32(sum, *code, a)
            };
        }
    }
    sum
}

/// Makes a call for both half panels and all rows of a tile: for four rows at a time, then for those that are left. `$side` is the half panel, `$row` the
/// first row, `$R` how many.
macro_rules! by_rows {
    ($t:ident, $side:ident, $row:ident, $R:ident => $call:expr) => {
        for $side in 0..2 {
            let mut $row = 0;
            while $t.rows - $row >= 4 {
                const $R: usize = 4;
                $call;
                $row += 4;
            }
            match $t.rows - $row {
                1 => {
                    const $R: usize = 1;
                    $call
                }
                2 => {
                    const $R: usize = 2;
                    $call
                }
                3 => {
                    const $R: usize = 3;
                    $call
                }
                _ => {}
            }
        }
    };
}

/// The kernels, once for each way of adding.
macro_rules! kernels {
    ($name:ident, $features:literal, $add:ident) => {
        mod $name {
            use super::*;

            /// # Safety
            /// As [`TileFn`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn small<F: Small256>(t: &Tile) {
                // SAFETY: the caller's promise for the whole tile covers rows `row .. row + R` of it.
                by_rows!(t, side, row, R => unsafe { small_rows::<F, R>(t, side, row) });
            }

            #[target_feature(enable = $features)]
            unsafe fn small_rows<F: Small256, const R: usize>(t: &Tile, side: usize, row: usize) {
                let m = t.rows;
                let word_bytes = F::WORD_BYTES;
                let half_bytes = F::TAIL_BYTES;
                let panel = t.panel.wrapping_add(32 * side);
                let half_area = t.panel.wrapping_add(t.blocks * word_bytes + 8 * F::SCALE_BYTES * side);
                let act = t.act.wrapping_add(row);
                let extras = act.wrapping_add(t.k / 4 * m);
                let mut acc = [_mm256_setzero_ps(); R];
                for b in 0..t.blocks {
                    // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
                    unsafe {
                        if side == 0 && row == 0 {
                            prefetch::<F>(t.next, t.blocks, b);
                        }
                        let codes = F::codes(panel.add(b * word_bytes));
                        let a = act.add(b * 8 * m);
                        let e = extras.add(b * EXTRAS_32 * m);
                        let h = half_area.add(b * half_bytes);
                        let d = F::scale(h);
                        for (r, acc) in acc.iter_mut().enumerate() {
                            let sum = match OFFSETS_32.iter().position(|o| *o == F::OFFSET) {
                                // Signed levels need none.
                                Some(i) if F::MOST < 128 => word(e.add((2 + i) * m + r)),
                                _ => _mm256_setzero_si256(),
                            };
                            let sum = add::<F>(sum, &codes, a.add(r), m);
                            let scale = _mm256_mul_ps(d, number(e.add(r)));
                            *acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), *acc);
                        }
                        if F::MIN {
                            let min = halves(h.add(2 * PANEL));
                            for (r, acc) in acc.iter_mut().enumerate() {
                                *acc = _mm256_fmadd_ps(min, number(e.add(m + r)), *acc);
                            }
                        }
                    }
                }
                for (r, acc) in acc.iter().enumerate() {
                    // SAFETY: passed on.
                    unsafe { store(t, row + r, 8 * side, *acc) };
                }
            }

            #[inline(always)]
            unsafe fn add<F: Small256>(sum: __m256i, codes: &[__m256i], a: *const u32, m: usize) -> __m256i {
                // SAFETY: passed on.
                unsafe {
                    match F::MOST {
                        15 => $add::<15>(sum, codes, a, m),
                        31 => $add::<31>(sum, codes, a, m),
                        _ => $add::<128>(sum, codes, a, m),
                    }
                }
            }

            /// # Safety
            /// As [`TileFn`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn large<F: Super256>(t: &Tile) {
                // SAFETY: the caller's promise for the whole tile covers rows `row .. row + R` of it.
                by_rows!(t, side, row, R => unsafe { large_rows::<F, R>(t, side, row) });
            }

            #[target_feature(enable = $features)]
            unsafe fn large_rows<F: Super256, const R: usize>(t: &Tile, side: usize, row: usize) {
                let m = t.rows;
                let word_bytes = F::WORD_BYTES;
                let half_bytes = F::TAIL_BYTES;
                let panel = t.panel.wrapping_add(32 * side);
                let half_area = t.panel.wrapping_add(t.blocks * word_bytes + 16 * side);
                let act = t.act.wrapping_add(row);
                let extras = act.wrapping_add(t.k / 4 * m);
                let mut acc = [_mm256_setzero_ps(); R];
                for b in 0..t.blocks {
                    // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
                    unsafe {
                        if side == 0 && row == 0 {
                            prefetch::<F>(t.next, t.blocks, b);
                        }
                        let words = panel.add(b * word_bytes);
                        let h = half_area.add(b * half_bytes);
                        let a = act.add(b * 64 * m);
                        let e = extras.add(b * EXTRAS_256 * m);
                        let scales = F::scales(words, h);
                        let mut sum = [_mm256_setzero_si256(); R];
                        for half in 0..2 {
                            run::<F, R, 0>(words, &scales, half, a, m, &mut sum);
                            run::<F, R, 1>(words, &scales, half, a, m, &mut sum);
                            run::<F, R, 2>(words, &scales, half, a, m, &mut sum);
                            run::<F, R, 3>(words, &scales, half, a, m, &mut sum);
                        }
                        let mut least = [_mm256_setzero_si256(); R];
                        let offset = if F::MOST < 128 { F::OFFSET } else { 0 };
                        if F::MIN || offset != 0 {
                            let pairs = F::pairs(words, h);
                            let (count, first) = if F::SUB == 32 { (4, PAIRS_32) } else { (8, PAIRS_16) };
                            for (q, pair) in pairs[..count].iter().enumerate() {
                                for (r, least) in least.iter_mut().enumerate() {
                                    let sums = word(e.add((first + q) * m + r));
                                    *least = _mm256_add_epi32(*least, _mm256_madd_epi16(*pair, sums));
                                }
                            }
                        }
                        if offset != 0 {
                            let shift = _mm_cvtsi32_si128(offset.trailing_zeros() as i32);
                            for (sum, least) in sum.iter_mut().zip(&least) {
                                *sum = _mm256_sub_epi32(*sum, _mm256_sll_epi32(*least, shift));
                            }
                        }
                        let d = F::scale(words, h);
                        for r in 0..R {
                            let scale = _mm256_mul_ps(d, number(e.add(r)));
                            acc[r] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[r]), acc[r]);
                        }
                        if F::MIN {
                            let dmin = halves(h.add(2 * PANEL));
                            for r in 0..R {
                                let scale = _mm256_mul_ps(dmin, number(e.add(r)));
                                acc[r] = _mm256_fnmadd_ps(scale, _mm256_cvtepi32_ps(least[r]), acc[r]);
                            }
                        }
                    }
                }
                for (r, acc) in acc.iter().enumerate() {
                    // SAFETY: passed on.
                    unsafe { store(t, row + r, 8 * side, *acc) };
                }
            }

            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            unsafe fn run<F: Super256, const R: usize, const RUN: usize>(
                words: *const u8,
                scales: &[__m256i; 16],
                half: usize,
                a: *const u32,
                m: usize,
                sum: &mut [__m256i; R],
            ) {
                // SAFETY: as in `large_rows`, which calls this.
                unsafe {
                    let codes = F::codes::<RUN>(words, half);
                    let a = a.add((4 * half + RUN) * 8 * m);
                    let parts = 32 / F::SUB;
                    let groups = F::SUB / 4;
                    for part in 0..parts {
                        let s = (4 * half + RUN) * parts + part;
                        for (r, sum) in sum.iter_mut().enumerate() {
                            let start = _mm256_setzero_si256();
                            let codes = &codes[part * groups..(part + 1) * groups];
                            let at = a.add(part * groups * m + r);
                            let sub = match F::MOST {
                                3 => $add::<3>(start, codes, at, m),
                                7 => $add::<7>(start, codes, at, m),
                                15 => $add::<15>(start, codes, at, m),
                                31 => $add::<31>(start, codes, at, m),
                                63 => $add::<63>(start, codes, at, m),
                                127 => $add::<127>(start, codes, at, m),
                                _ => $add::<128>(start, codes, at, m),
                            };
                            *sum = _mm256_add_epi32(*sum, _mm256_mullo_epi32(sub, scales[s]));
                        }
                    }
                }
            }
        }
    };
}

kernels!(base, "avx2,fma,f16c", add_madd);
kernels!(with_vnni, "avx2,fma,f16c,avxvnni", add_vnni);

/// # Safety
/// As [`TileFn`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn each_panel<F: Float256>(t: &Tile) {
    for p in 0..t.panels.0 {
        // SAFETY: passed on.
        unsafe { float::<F, true>(&t.one(p)) };
    }
}

/// # Safety
/// As [`TileFn`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float<F: Float256, const BY_ROW: bool>(t: &Tile) {
    // SAFETY: the caller's promise for the whole tile covers rows `row .. row + R` of it.
    by_rows!(t, side, row, R => unsafe { float_rows::<F, R, BY_ROW>(t, side, row) });
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_rows<F: Float256, const R: usize, const BY_ROW: bool>(t: &Tile, side: usize, row: usize) {
    let width = F::WIDTH * PANEL;
    // Where value i of row r is: in a packed tile the rows of a value lie together.
    let (step, row_step) = if BY_ROW { (1, t.act_stride) } else { (t.rows, 1) };
    let mut acc = [_mm256_setzero_ps(); R];
    for i in 0..t.blocks {
        // SAFETY: weight i of 8 rows and value i of R rows lie inside panel and tile.
        unsafe {
            if !BY_ROW {
                _mm_prefetch::<_MM_HINT_T0>(t.next.wrapping_add(i * width).cast());
            }
            let w = F::load(t.panel.add(i * width + side * width / 2));
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = _mm256_fmadd_ps(w, number(t.act.add(i * step + (row + r) * row_step)), *acc);
            }
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: passed on.
        unsafe { store(t, row + r, 8 * side, *acc) };
    }
}

/// Word `w` of eight rows.
///
/// # Safety
/// `words` must have it.
#[inline(always)]
pub(crate) unsafe fn load(words: *const u8, w: usize) -> __m256i {
    // SAFETY: 32 bytes by the caller.
    unsafe { _mm256_loadu_si256(words.add(w * 64).cast()) }
}

/// Low nibbles of four words, then their high nibbles.
///
/// # Safety
/// As [`load`], for words `first .. first + 4`.
#[inline(always)]
pub(crate) unsafe fn nibbles(words: *const u8, first: usize) -> [__m256i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut codes = [_mm256_setzero_si256(); 8];
        for w in 0..4 {
            let bytes = load(words, first + w);
            codes[w] = _mm256_and_si256(bytes, mask);
            codes[w + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
        }
        codes
    }
}

/// Low or high nibbles of eight words.
///
/// # Safety
/// As [`load`], for words `first .. first + 8`.
#[inline(always)]
pub(crate) unsafe fn run_of_nibbles<const HIGH: bool>(words: *const u8, first: usize) -> [__m256i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut codes = [_mm256_setzero_si256(); 8];
        for (w, code) in codes.iter_mut().enumerate() {
            let bytes = load(words, first + w);
            *code = _mm256_and_si256(if HIGH { _mm256_srli_epi16::<4>(bytes) } else { bytes }, mask);
        }
        codes
    }
}

/// Adds `value` to the bytes of `code` whose `bits` are set in `mask`.
///
/// # Safety
/// The CPU must have AVX2. `bits` has one bit set a byte.
#[inline(always)]
pub(crate) unsafe fn add_where(code: __m256i, mask: __m256i, bits: __m256i, value: i8) -> __m256i {
    // SAFETY: no memory is touched.
    unsafe {
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(mask, bits), bits);
        _mm256_or_si256(code, _mm256_and_si256(set, _mm256_set1_epi8(value)))
    }
}
