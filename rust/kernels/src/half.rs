//! Half precision: IEEE binary16 and bfloat16 to and from `f32`, exactly as the hardware instructions convert.
//!
//! Widening is exact. Narrowing rounds half to even; a NaN stays a NaN (quieted, upper payload kept), an overflow becomes an infinity.

/// Widens an IEEE binary16. Exact.
#[inline]
pub fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let magnitude = u32::from(h & 0x7fff);
    let bits = if magnitude >= 0x7c00 {
        // Infinity or NaN; a signalling NaN becomes quiet, as `vcvtph2ps` makes it.
        let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
        0x7f80_0000 | (magnitude & 0x03ff) << 13 | quiet
    } else if magnitude >= 0x0400 {
        (magnitude << 13) + (112 << 23)
    } else {
        // Subnormal: an integer multiple of 2^-24, both factors exact.
        (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits()
    };
    f32::from_bits(sign | bits)
}

/// Narrows to IEEE binary16, half to even.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= 0x7f80_0000 {
        let nan = if magnitude > 0x7f80_0000 { 0x0200 | (magnitude >> 13 & 0x03ff) as u16 } else { 0 };
        return sign | 0x7c00 | nan;
    }
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00; // 65520 and above round to infinity
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: adding 0.5 puts the unit of the result, 2^-24, at the last bit of the sum, which rounds for us.
        let rounded = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits();
        return sign | rounded as u16;
    }
    let odd = magnitude >> 13 & 1;
    sign | ((magnitude - (112 << 23) + 0x0fff + odd) >> 13) as u16
}

/// Widens a bfloat16. Exact.
#[inline]
pub fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a finite binary16 by its definition, in f64 where everything is exact.
    fn by_definition(h: u16) -> f64 {
        let sign = if h & 0x8000 != 0 { -1.0 } else { 1.0 };
        let exponent = i32::from(h >> 10 & 31);
        let fraction = f64::from(h & 0x3ff) / 1024.0;
        sign * if exponent == 0 { fraction * 2f64.powi(-14) } else { (1.0 + fraction) * 2f64.powi(exponent - 15) }
    }

    #[test]
    fn widening_every_half_gives_its_defined_value_and_narrowing_returns_it() {
        for h in 0..=u16::MAX {
            if h & 0x7c00 == 0x7c00 {
                let x = f16_to_f32(h);
                assert_eq!(x.is_nan(), h & 0x3ff != 0);
                assert_eq!(f32_to_f16(x), if x.is_nan() { h | 0x200 } else { h });
            } else {
                assert_eq!(f64::from(f16_to_f32(h)), by_definition(h), "{h:#x}");
                assert_eq!(f32_to_f16(f16_to_f32(h)), h, "{h:#x}");
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_the_nearest_half_and_ties_go_to_even() {
        for h in 0..0x7bffu16 {
            let (low, high) = (f16_to_f32(h), f16_to_f32(h + 1));
            let middle = low + (high - low) / 2.0;
            let even = if h & 1 == 0 { h } else { h + 1 };
            assert_eq!(f32_to_f16(middle), even, "{h:#x}");
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), h);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), h + 1);
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(-1e30), 0xfc00);
    }
}
