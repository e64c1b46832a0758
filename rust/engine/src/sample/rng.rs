//! The random numbers: a function of (seed, index) that keeps no state.
//!
//! In: the seed of a decode, the number of the committed token. Out: one number in [0, 1), to [`super::pick`].
//!
//! 1. `uniform(seed, i)` depends on nothing else, so stops, forks, edits, failed and resumed steps have nothing to rewind.
//! 2. It is a multiple of 2^-53 below 1: the lower half of a Philox block, its top 53 bits.
//! 3. The same on every machine: 32-bit integer arithmetic and one exact conversion.
//!
//! Counter words 2 and 3 are zero; they are left for other streams of the same seed.
//! Source: Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3").

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// One block of Philox4x32-10: four random words for a counter and a key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c1, c2, c3) = ((b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32);
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [c0, c1, c2, c3]
}

/// The draw of committed token number `index` of a decode with this seed, in [0, 1).
pub fn uniform(seed: u64, index: u64) -> f64 {
    let words = philox4x32([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[0]) | u64::from(words[1]) << 32;
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        let ones = u32::MAX;
        let pi = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(philox4x32(pi.0, pi.1), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn the_first_draw_of_seed_zero_is_the_published_block() {
        let expected = (0xe169_c58d_6627_e8d5_u64 >> 11) as f64 / 9_007_199_254_740_992.0;
        assert_eq!(uniform(0, 0), expected);
    }

    #[test]
    fn every_bit_of_seed_and_index_changes_the_draw() {
        let base = uniform(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        for bit in 0..64 {
            assert_ne!(base, uniform(0x0123_4567_89ab_cdef ^ 1 << bit, 0xfedc_ba98_7654_3210), "seed bit {bit}");
            assert_ne!(base, uniform(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210 ^ 1 << bit), "index bit {bit}");
        }
    }

    #[test]
    fn draws_stay_below_one_and_fill_the_interval_evenly() {
        let mut bins = [0u32; 64];
        for index in 0..64_000 {
            let u = uniform(7, index);
            assert!((0.0..1.0).contains(&u), "{index}: {u}");
            bins[(u * 64.0) as usize] += 1;
        }
        // Chi-square with 63 degrees of freedom exceeds 103.4 once in a thousand.
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 103.4, "{chi}");
    }
}
