//! Weighted values in integers with AVX2: eight columns at a time, up to four queries a walk.
//!
//! Without VNNI values and weights are widened to 16 bits, and `vpmaddwd` adds two products into 32 bits, exactly.

use std::arch::x86_64::*;

use super::{BLOCK, CHUNK, MAX_TILE, PANEL_BYTES, QUAD, QUAD_BYTES, QUADS, Tile, VALUE_PART};

/// Columns of a register.
const COLUMNS: usize = 8;

/// A way to add products of bytes: one sum of eight columns, under way.
trait Dot {
    type Values: Copy;
    type Sum: Copy;

    /// # Safety
    /// (Of each function:) the CPU must have the instructions of this way.
    unsafe fn zero() -> Self::Sum;
    /// The quad of eight columns: 32 bytes.
    unsafe fn values(at: *const u8) -> Self::Values;
    /// Adds, for each column, four values times the four codes.
    unsafe fn add(sum: Self::Sum, values: Self::Values, codes: i32) -> Self::Sum;
    unsafe fn total(sum: Self::Sum) -> __m256i;
}

/// `vpmaddwd`.
struct Madd;

impl Dot for Madd {
    /// Four columns each, four slots of 16 bits a column.
    type Values = [__m256i; 2];
    /// Two sums a column.
    type Sum = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> [__m256i; 2] {
        // SAFETY: no memory is touched.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn values(at: *const u8) -> [__m256i; 2] {
        // SAFETY: 32 bytes by the caller.
        unsafe {
            let sixteen = [_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(16).cast())];
            [_mm256_cvtepi8_epi16(sixteen[0]), _mm256_cvtepi8_epi16(sixteen[1])]
        }
    }

    #[inline(always)]
    unsafe fn add(sum: [__m256i; 2], values: [__m256i; 2], codes: i32) -> [__m256i; 2] {
        // SAFETY: no memory is touched.
        unsafe {
            let w = _mm256_cvtepu8_epi16(_mm_set1_epi32(codes));
            [
                _mm256_add_epi32(sum[0], _mm256_madd_epi16(values[0], w)),
                _mm256_add_epi32(sum[1], _mm256_madd_epi16(values[1], w)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn total(sum: [__m256i; 2]) -> __m256i {
        // SAFETY: no memory is touched. Pairs are added within halves of registers, which leaves columns 0, 1, 4, 5, 2, 3, 6, 7.
        unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(sum[0], sum[1])) }
    }
}

/// `vpdpbusd`.
struct Vnni;

impl Dot for Vnni {
    type Values = __m256i;
    type Sum = __m256i;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: no memory is touched.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn values(at: *const u8) -> __m256i {
        // SAFETY: 32 bytes by the caller.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, values: __m256i, codes: i32) -> __m256i {
        // SAFETY: no memory is touched.
        unsafe { _mm256_dpbusd_avx_epi32(sum, _mm256_set1_epi32(codes), values) }
    }

    #[inline(always)]
    unsafe fn total(sum: __m256i) -> __m256i {
        sum
    }
}

/// # Safety
/// The CPU must have AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn base(t: Tile<'_>) {
    // SAFETY: passed on.
    unsafe { weigh::<Madd>(t) };
}

/// # Safety
/// The CPU must have AVX2 and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn with_vnni(t: Tile<'_>) {
    // SAFETY: passed on.
    unsafe { weigh::<Vnni>(t) };
}

#[inline(always)]
unsafe fn weigh<D: Dot>(mut t: Tile<'_>) {
    t.check();
    for (block, part) in (0..t.blocks).flat_map(|block| (0..VALUE_PART / COLUMNS).map(move |part| (block, part))) {
        let mut row = 0;
        // SAFETY: passed on; sizes were checked, and rows `row .. row + R` are rows of the tile.
        unsafe {
            while t.rows - row >= 4 {
                rows::<D, 4>(&mut t, block, part, row);
                row += 4;
            }
            match t.rows - row {
                1 => rows::<D, 1>(&mut t, block, part, row),
                2 => rows::<D, 2>(&mut t, block, part, row),
                3 => rows::<D, 3>(&mut t, block, part, row),
                _ => {}
            }
        }
    }
}

/// `R` rows from `row` on, columns `8 · part ..` of a block.
///
/// # Safety
/// The CPU must have the instructions of `D`; block, part and rows are the tile's, whose sizes [`Tile::check`] has checked.
#[inline(always)]
unsafe fn rows<D: Dot, const R: usize>(t: &mut Tile<'_>, block: usize, part: usize, row: usize) {
    let stride = t.stride();
    // SAFETY: reads quads of one of the tile's panels and codes of its rows, and writes eight columns of their results.
    unsafe {
        let panel = 2 * block + part / 2;
        let values = t.values.as_ptr().add(panel * PANEL_BYTES + part % 2 * QUAD * COLUMNS);
        let ahead = t.next.as_ptr().wrapping_add(panel * PANEL_BYTES);
        let codes = t.codes.as_ptr().add(block * BLOCK + row * CHUNK);
        let mut sum = [D::zero(); R];
        for quad in QUADS * t.panels.start..QUADS * t.panels.end {
            if row == 0 && part.is_multiple_of(2) {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(quad * QUAD_BYTES).cast());
            }
            let v = D::values(values.add(quad * QUAD_BYTES));
            for (r, sum) in sum.iter_mut().enumerate() {
                *sum = D::add(*sum, v, codes.add(r * CHUNK + quad * QUAD).cast::<i32>().read_unaligned());
            }
        }
        for (r, sum) in sum.into_iter().enumerate() {
            let factor = _mm256_set1_ps(t.factors[block * MAX_TILE + row + r]);
            let at = t.out.as_mut_ptr().add((row + r) * stride + block * VALUE_PART + part * COLUMNS);
            _mm256_storeu_ps(at, _mm256_mul_ps(factor, _mm256_cvtepi32_ps(D::total(sum))));
        }
    }
}
