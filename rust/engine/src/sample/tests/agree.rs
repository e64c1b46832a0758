//! The sampler against the twin, over options, rows and histories.

use proptest::prelude::*;

use super::super::twin::{choices, logits, noise};
use super::*;

/// Rows of the kinds that make trouble: smooth, bell-shaped, few distinct values, masked in part, with infinities.
fn row(kind: u8, seed: u64, n: usize) -> Vec<f32> {
    let pick = |i: usize, of: u64| (seed >> 7 ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % of;
    match kind {
        0 => noise(seed, n, 5.0),
        1 => logits(seed, n),
        2 => noise(seed, n, 3.0).iter().map(|x| x.round()).collect(),
        3 => (0..n).map(|i| if pick(i, 3) == 0 { f32::NEG_INFINITY } else { noise(seed, n, 4.0)[i] }).collect(),
        4 => (0..n).map(|i| if pick(i, 7) == 0 { f32::INFINITY } else { i as f32 }).collect(),
        5 => vec![0.5; n],
        _ => (0..n).map(|i| i as f32 * 0.01 - 1.0).collect(),
    }
}

fn temperature() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0), Just(-1.0), Just(0.8), Just(1.0), 0.05f32..3.0]
}

fn share(off: f32) -> impl Strategy<Value = f32> {
    prop_oneof![3 => Just(off), 1 => Just(0.0), 1 => Just(1.0), 4 => 0.01f32..0.999]
}

prop_compose! {
    fn options()(
        temperature in temperature(),
        top_k in prop_oneof![2 => Just(0usize), 2 => 1usize..60, 1 => 60usize..5000],
        top_p in share(1.0),
        min_p in share(0.0),
        repeat_penalty in prop_oneof![Just(1.0), 0.5f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0), -1.0f32..1.0],
        presence_penalty in prop_oneof![Just(0.0), -1.0f32..1.0],
        repeat_last_n in prop_oneof![Just(0usize), Just(64), 1usize..20, Just(usize::MAX)],
        seed in any::<u64>(),
        bias in prop::collection::btree_map(0u32..40, prop_oneof![4 => -5.0f32..5.0, 1 => Just(f32::NEG_INFINITY)], 0..4),
        banned in prop::collection::vec(0u32..40, 0..4),
    ) -> Sampling {
        Sampling {
            temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, repeat_last_n, seed,
            logit_bias: bias.into_iter().collect(), banned,
        }
    }
}

/// Compares a few draws from one row, and the row afterwards.
fn compare(sampling: &Sampling, row: &[f32], history: &[u32]) {
    let mut sampler = sampler(sampling.clone(), row.len());
    let mut given = row.to_vec();
    for index in [0, 1, 2, u64::MAX] {
        let picked = sampler.sample(&mut given, history, index, 11);
        assert_eq!(bits(&given), bits(row), "the row came back changed");
        match (picked, choices(sampling, row, history, index, 11)) {
            (Ok(picked), Ok(allowed)) => {
                assert!(
                    allowed.contains(&picked.token),
                    "{picked:?} is not among {allowed:?}, draw {index}, {sampling:?}"
                );
                assert_eq!(picked.drew, sampling.temperature > 0.0);
            }
            (Err(found), Err(expected)) => assert_eq!(found, expected),
            (found, expected) => panic!("found {found:?}, expected {expected:?}, {sampling:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_rows_agree_with_the_twin(
        sampling in options(), kind in 0u8..7, seed in any::<u64>(), n in 40usize..400,
        history in prop::collection::vec(0u32..40, 0..100),
    ) {
        compare(&sampling, &row(kind, seed, n), &history);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_rows_agree_with_the_twin(
        sampling in options(), kind in prop::sample::select(vec![0u8, 1, 2, 5, 6]), seed in any::<u64>(), n in 4000usize..9000,
        history in prop::collection::vec(0u32..40, 0..20),
    ) {
        compare(&sampling, &row(kind, seed, n), &history);
    }

    #[test]
    fn a_nan_is_named_whatever_the_options(
        sampling in options(), seed in any::<u64>(), n in 40usize..300, at in any::<prop::sample::Index>(), second in any::<prop::sample::Index>(),
        history in prop::collection::vec(0u32..40, 0..100),
    ) {
        let mut row = noise(seed, n, 2.0);
        row[at.index(n)] = f32::from_bits(0xffc0_1234);
        row[second.index(n)] = f32::NAN;
        compare(&sampling, &row, &history);
    }
}

#[test]
fn each_option_alone_agrees_with_the_twin_on_many_draws() {
    let history = [3, 3, 9, 1, 3];
    let alone = [
        warm(),
        Sampling { top_k: 5, ..warm() },
        Sampling { top_p: 0.7, ..warm() },
        Sampling { min_p: 0.2, ..warm() },
        Sampling { repeat_penalty: 1.5, ..warm() },
        Sampling { frequency_penalty: 0.8, ..warm() },
        Sampling { presence_penalty: 0.8, ..warm() },
        Sampling { repeat_last_n: 2, presence_penalty: 2.0, ..warm() },
        Sampling { logit_bias: vec![(9, 3.0), (2, -2.0)], ..warm() },
        Sampling { banned: vec![9, 4, 9], ..warm() },
    ];
    let row = noise(1, 50, 2.0);
    for sampling in alone {
        let mut sampler = sampler(sampling.clone(), row.len());
        let mut given = row.clone();
        for index in 0..2000 {
            let picked = sampler.sample(&mut given, &history, index, 0).expect("the row is sound");
            let allowed = choices(&sampling, &row, &history, index, 0).expect("the row is sound");
            assert!(allowed.contains(&picked.token), "{picked:?}, {allowed:?}, {index}, {sampling:?}");
        }
    }
}

#[test]
fn a_nucleus_of_thousands_is_cut_at_the_twins_border() {
    let shapes: [Vec<f32>; 5] = [
        noise(3, 30_000, 1.0),
        noise(4, 30_000, 1.0).iter().map(|x| (x * 8.0).round() / 8.0).collect(),
        // One token far above a tail that has most of the mass.
        noise(6, 30_000, 1.0).iter().enumerate().map(|(i, x)| if i == 9000 { 9.0 } else { x * 0.5 }).collect(),
        // All distances share their high bits, so that the finer rounds have to tell them apart.
        noise(5, 30_000, 1.0).iter().map(|x| if *x > 0.9999 { 4.0 } else { 1.0 + x * 1e-3 }).collect(),
        // And here even their middle bits.
        (0..30_000).map(|i| if i == 77 { 4.0 } else { 1.0 + (i % 700) as f32 * f32::EPSILON }).collect(),
    ];
    for (shape, row) in shapes.iter().enumerate() {
        for top_p in [0.01, 0.3, 0.5, 0.9, 0.99, 0.999] {
            let sampling = Sampling { temperature: 1.0, top_p, ..warm() };
            // The last token by id that can be drawn tells where ties were cut.
            for index in 0..4 {
                let picked = once(&sampling, row, &[], index).expect("the row is sound");
                let allowed = choices(&sampling, row, &[], index, 0).expect("the row is sound");
                assert!(allowed.contains(&picked.token), "shape {shape}, top_p {top_p}: {picked:?} not in {allowed:?}");
            }
        }
    }
}
