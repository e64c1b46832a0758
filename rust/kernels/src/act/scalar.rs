//! The packing formula as plain code: the specification.

use super::{AMAX_MIN, ActKind, EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32, pair_first};

/// Packs one tile: `x` holds its rows, `k` floats each; `out` has `rows · row_words` words.
pub(crate) fn pack(kind: ActKind, x: &[f32], k: usize, groups: &mut [u32], extras: &mut [u32]) {
    let m = x.len() / k;
    for (r, row) in x.chunks_exact(k).enumerate() {
        match kind {
            ActKind::F32 => row.iter().enumerate().for_each(|(i, v)| groups[i * m + r] = v.to_bits()),
            ActKind::Q32 => pack_row_32(row, m, r, groups, extras),
            ActKind::Q256 => pack_row_256(row, m, r, groups, extras),
        }
    }
}

/// Scale and codes of a block.
fn quantize(x: &[f32], codes: &mut [i8]) -> f32 {
    let amax = f32::from_bits(x.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7fff_ffff)));
    if !amax.is_finite() || amax < AMAX_MIN {
        codes.fill(0);
        return if amax < AMAX_MIN { 0.0 } else { f32::NAN };
    }
    let inverse = 127.0 / amax;
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round_ties_even() as i8;
    }
    amax / 127.0
}

/// Rounds to 11 significant bits, half to even; zero and NaN stay.
#[inline(always)]
pub(crate) fn shorten(d: f32) -> f32 {
    let bits = d.to_bits();
    if d.is_nan() { d } else { f32::from_bits((bits + 0x0fff + (bits >> 13 & 1)) & !0x1fff) }
}

fn put_codes(codes: &[i8], m: usize, r: usize, first_group: usize, out: &mut [u32]) {
    for (g, four) in codes.chunks_exact(4).enumerate() {
        out[(first_group + g) * m + r] =
            u32::from_le_bytes([four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8]);
    }
}

fn sum(codes: &[i8]) -> i32 {
    codes.iter().map(|c| i32::from(*c)).sum()
}

fn pack_row_32(row: &[f32], m: usize, r: usize, groups: &mut [u32], extras: &mut [u32]) {
    for (b, block) in row.chunks_exact(32).enumerate() {
        let mut codes = [0i8; 32];
        let d = shorten(quantize(block, &mut codes));
        put_codes(&codes, m, r, 8 * b, groups);
        let total = sum(&codes);
        let at = b * EXTRAS_32 * m + r;
        extras[at] = d.to_bits();
        extras[at + m] = (d * total as f32).to_bits();
        for (i, offset) in OFFSETS_32.into_iter().enumerate() {
            extras[at + (2 + i) * m] = (-offset * total) as u32;
        }
    }
}

fn pack_row_256(row: &[f32], m: usize, r: usize, groups: &mut [u32], extras: &mut [u32]) {
    for (b, block) in row.chunks_exact(256).enumerate() {
        let mut codes = [0i8; 256];
        let d = quantize(block, &mut codes);
        put_codes(&codes, m, r, 64 * b, groups);
        let sums_16: [i32; 16] = std::array::from_fn(|s| sum(&codes[16 * s..16 * (s + 1)]));
        let sums_32: [i32; 8] = std::array::from_fn(|s| sums_16[2 * s] + sums_16[2 * s + 1]);
        let at = b * EXTRAS_256 * m + r;
        let mut put = |extra: usize, word: u32| extras[at + extra * m] = word;
        put(0, d.to_bits());
        let pair = |sums: &[i32], q: usize| {
            u32::from(sums[pair_first(q)] as u16) | u32::from(sums[pair_first(q) + 2] as u16) << 16
        };
        (0..4).for_each(|q| put(PAIRS_32 + q, pair(&sums_32, q)));
        (0..8).for_each(|q| put(PAIRS_16 + q, pair(&sums_16, q)));
    }
}

/// Reads codes and scale of block `b` of row `r` back from a tile of `m` rows.
pub(crate) fn unpack_row(kind: ActKind, tile: &[u32], m: usize, k: usize, r: usize, b: usize, codes: &mut [i8]) -> f32 {
    let len = kind.block();
    for (g, four) in codes[..len].chunks_exact_mut(4).enumerate() {
        for (code, byte) in four.iter_mut().zip(tile[(b * len / 4 + g) * m + r].to_le_bytes()) {
            *code = byte as i8;
        }
    }
    let extras = if len == 32 { EXTRAS_32 } else { EXTRAS_256 };
    f32::from_bits(tile[k / 4 * m + b * extras * m + r])
}
