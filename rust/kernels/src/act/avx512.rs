//! The packing formula with AVX-512: sixteen blocks (of 32) or sub-blocks (of 256) side by side, so that maxima, sums and divisions are vectors too.

use std::arch::x86_64::*;

use super::{AMAX_MIN, ActKind, EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32, pack_scalar, pair_first};

/// Packs one tile.
///
/// # Safety
/// The CPU must have AVX-512 F and BW.
pub(crate) unsafe fn pack(kind: ActKind, x: &[f32], k: usize, groups: &mut [u32], extras: &mut [u32]) {
    if kind == ActKind::F32 {
        return pack_scalar(kind, x, k, groups, extras);
    }
    let m = x.len() / k;
    // SAFETY: passed on.
    unsafe {
        match kind {
            ActKind::Q32 => pack_rows_32(x, k, m, groups, extras),
            _ => {
                for (r, row) in x.chunks_exact(k).enumerate() {
                    pack_row_256(row, m, &mut groups[r..], &mut extras[r..]);
                }
            }
        }
    }
}

/// Blocks of 32 that are packed together.
const BATCH: usize = 16;

/// The blocks of all rows, one row after another, so that a batch may begin in one row and end in the next.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_rows_32(x: &[f32], k: usize, m: usize, groups: &mut [u32], extras: &mut [u32]) {
    let in_row = k / 32;
    assert!(x.len() == m * k && groups.len() >= m * in_row * 8 && extras.len() >= m * in_row * EXTRAS_32);
    let (mut row, mut block) = (0, 0);
    let mut padded = [0f32; 32 * BATCH];
    for batch in x.chunks(32 * BATCH) {
        let blocks = batch.len() / 32;
        let x = if blocks == BATCH {
            batch
        } else {
            padded[..batch.len()].copy_from_slice(batch);
            padded[batch.len()..].fill(0.0);
            &padded
        };
        let mut most = [_mm512_setzero_si512(); BATCH];
        for (most, block) in most.iter_mut().zip(x.chunks_exact(32)) {
            *most = _mm512_max_epu32(magnitudes(&block[..16]), magnitudes(&block[16..]));
        }
        let (d, inverse) = scales(fold16(most, |a, b| _mm512_max_epu32(a, b)));
        let d = shorten_all(d);
        let inverse = floats(inverse);
        let mut sums = [_mm512_setzero_si512(); BATCH];
        let mut codes = [0u32; 8 * BATCH];
        for (b, block) in x.chunks_exact(32).enumerate() {
            let low = round(&block[..16], inverse[b]);
            let high = round(&block[16..], inverse[b]);
            sums[b] = _mm512_add_epi32(low, high);
            put(low, &mut codes[8 * b..8 * b + 4]);
            put(high, &mut codes[8 * b + 4..8 * b + 8]);
        }
        let total = fold16(sums, |a, b| _mm512_add_epi32(a, b));
        let scaled = _mm512_mul_ps(d, _mm512_cvtepi32_ps(total));
        let mut columns = [[0u32; BATCH]; EXTRAS_32];
        store(_mm512_castps_si512(d), &mut columns[0]);
        store(_mm512_castps_si512(scaled), &mut columns[1]);
        for (column, offset) in columns[2..].iter_mut().zip(OFFSETS_32) {
            store(_mm512_mullo_epi32(total, _mm512_set1_epi32(-offset)), column);
        }
        for (b, codes) in codes.chunks_exact(8).take(blocks).enumerate() {
            let (mut group, mut extra) = (8 * block * m + row, EXTRAS_32 * block * m + row);
            // SAFETY: `row` is below m and `block` below `in_row`, so these are words of the groups and the extras, whose lengths were checked.
            unsafe {
                for word in codes {
                    *groups.get_unchecked_mut(group) = *word;
                    group += m;
                }
                for column in &columns {
                    *extras.get_unchecked_mut(extra) = column[b];
                    extra += m;
                }
            }
            block += 1;
            if block == in_row {
                (row, block) = (row + 1, 0);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_row_256(row: &[f32], m: usize, groups: &mut [u32], extras: &mut [u32]) {
    assert!(groups.len() > (row.len() / 4 - 1) * m && row.len() >= 256);
    for (b, x) in row.chunks_exact(256).enumerate() {
        let mut most = _mm512_setzero_si512();
        for sixteen in x.chunks_exact(16) {
            most = _mm512_max_epu32(most, magnitudes(sixteen));
        }
        let (d, inverse) = scales(_mm512_set1_epi32(_mm512_reduce_max_epu32(most) as i32));
        let (d, inverse) = (floats(d)[0], floats(inverse)[0]);
        let mut sums = [_mm512_setzero_si512(); 16];
        let mut codes = [0u32; 64];
        for (s, sixteen) in x.chunks_exact(16).enumerate() {
            sums[s] = round(sixteen, inverse);
            put(sums[s], &mut codes[4 * s..4 * s + 4]);
        }
        let mut sums_16 = [0u32; 16];
        store(fold16(sums, |a, b| _mm512_add_epi32(a, b)), &mut sums_16);
        let mut group = 64 * b * m;
        for word in &codes {
            // SAFETY: the row has 64 words for each block, m apart, as was checked.
            unsafe { *groups.get_unchecked_mut(group) = *word };
            group += m;
        }
        let sums_32: [u32; 8] = std::array::from_fn(|s| sums_16[2 * s].wrapping_add(sums_16[2 * s + 1]));
        let pair = |sums: &[u32], q: usize| sums[pair_first(q)] & 0xffff | sums[pair_first(q) + 2] << 16;
        let e = &mut extras[b * EXTRAS_256 * m..];
        e[0] = d.to_bits();
        for q in 0..4 {
            e[(PAIRS_32 + q) * m] = pair(&sums_32, q);
        }
        for q in 0..8 {
            e[(PAIRS_16 + q) * m] = pair(&sums_16, q);
        }
    }
}

/// The bits of 16 magnitudes, which order as the magnitudes do, with NaN above all.
#[inline]
#[target_feature(enable = "avx512f")]
fn magnitudes(x: &[f32]) -> __m512i {
    assert!(x.len() >= 16);
    // SAFETY: 16 floats.
    let bits = unsafe { _mm512_loadu_si512(x.as_ptr().cast()) };
    _mm512_and_si512(bits, _mm512_set1_epi32(0x7fff_ffff))
}

/// Scales from greatest magnitudes, and what the values are multiplied by: 0 where the codes are zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn scales(amax: __m512i) -> (__m512, __m512) {
    let floats = _mm512_castsi512_ps(amax);
    let (zero, most) = (_mm512_setzero_ps(), _mm512_set1_ps(127.0));
    let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(floats, _mm512_set1_ps(AMAX_MIN));
    let finite = _mm512_cmp_epu32_mask::<_MM_CMPINT_LT>(amax, _mm512_set1_epi32(0x7f80_0000));
    let d = _mm512_maskz_div_ps(counts & finite, floats, most);
    let inverse = _mm512_maskz_div_ps(counts & finite, most, floats);
    (_mm512_mask_blend_ps(finite, _mm512_set1_ps(f32::NAN), _mm512_mask_blend_ps(counts, zero, d)), inverse)
}

/// [`super::shorten`] for 16 scales.
#[inline]
#[target_feature(enable = "avx512f")]
fn shorten_all(d: __m512) -> __m512 {
    let bits = _mm512_castps_si512(d);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<13>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x0fff)), odd);
    let short = _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(0x1fff), rounded));
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(d, d), short, d)
}

/// 16 values times `inverse`, rounded half to even. Where the product is not finite, `inverse` is 0 and the code must be 0.
#[inline]
#[target_feature(enable = "avx512f")]
fn round(x: &[f32], inverse: f32) -> __m512i {
    assert!(x.len() >= 16);
    // SAFETY: 16 floats.
    let product = _mm512_mul_ps(unsafe { _mm512_loadu_ps(x.as_ptr()) }, _mm512_set1_ps(inverse));
    let codes = _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(product);
    // Infinity times 0 is no number, and converts to the least integer.
    _mm512_maskz_mov_epi32(if inverse == 0.0 { 0 } else { 0xffff }, codes)
}

/// Stores 16 codes as four words.
#[inline]
#[target_feature(enable = "avx512f")]
fn put(codes: __m512i, words: &mut [u32]) {
    assert!(words.len() >= 4);
    // SAFETY: four words are 16 bytes.
    unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(codes)) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(v: __m512i, words: &mut [u32; 16]) {
    // SAFETY: 16 words.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), v) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn floats(v: __m512) -> [f32; 16] {
    let mut all = [0.0; 16];
    // SAFETY: 16 floats.
    unsafe { _mm512_storeu_ps(all.as_mut_ptr(), v) };
    all
}

/// Lane i of the result is all lanes of vector i, joined by `op`; for operations whose order does not matter.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold16(v: [__m512i; 16], op: impl Fn(__m512i, __m512i) -> __m512i) -> __m512i {
    let mut a = [_mm512_setzero_si512(); 8];
    for (i, a) in a.iter_mut().enumerate() {
        let (x, y) = (v[2 * i], v[2 * i + 1]);
        *a = op(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    }
    let mut b = [_mm512_setzero_si512(); 4];
    for (i, b) in b.iter_mut().enumerate() {
        let (x, y) = (a[2 * i], a[2 * i + 1]);
        *b = op(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    }
    // Now each 128-bit part of b[i] has a share of vectors 4i to 4i + 3, in order: join the four parts.
    let halves = [0, 2].map(
        #[inline]
        |i| {
            let (x, y) = (b[i], b[i + 1]);
            op(_mm512_shuffle_i32x4::<0x88>(x, y), _mm512_shuffle_i32x4::<0xdd>(x, y))
        },
    );
    let (x, y) = (halves[0], halves[1]);
    op(_mm512_shuffle_i32x4::<0x88>(x, y), _mm512_shuffle_i32x4::<0xdd>(x, y))
}
