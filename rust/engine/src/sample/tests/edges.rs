//! Ties, infinities, masks, refusals, and what a sampler must not remember.

use super::super::twin::{logits, noise};
use super::super::uniform;
use super::*;

#[test]
fn greedy_takes_the_lowest_id_among_equals_and_draws_nothing() {
    for temperature in [0.0, -0.0, -1.0] {
        for (first, second) in [(0, 1), (5, 70), (63, 64), (100, 299)] {
            let mut row = noise(1, 300, 1.0);
            (row[first], row[second]) = (2.0, 2.0);
            let picked = once(&Sampling { temperature, ..warm() }, &row, &[], 0);
            assert_eq!(picked, Ok(Picked { token: first as u32, drew: false }));
        }
    }
    let zeros = once(&Sampling::default(), &[-1.0, -0.0, 0.0], &[], 0);
    assert_eq!(zeros, Ok(Picked { token: 1, drew: false }));
}

#[test]
fn every_sampled_token_uses_one_draw_even_if_one_is_left() {
    for sampling in [warm(), Sampling { top_k: 1, ..warm() }, Sampling { top_p: 0.0, ..warm() }] {
        assert!(once(&sampling, &noise(2, 90, 1.0), &[], 0).expect("the row is sound").drew);
    }
}

/// All tokens that 3000 draws give, ascending.
fn drawn(sampling: &Sampling, row: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(sampling.clone(), row.len());
    let mut given = row.to_vec();
    let mut tokens: Vec<u32> =
        (0..3000).map(|i| sampler.sample(&mut given, &[], i, 0).expect("the row is sound").token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[test]
fn lower_ids_come_first_at_every_border_of_equals() {
    let row: Vec<f32> = (0..400).map(|i| if i % 10 == 3 { 1.0 } else { 0.0 }).collect();
    let ones = |n: u32| (0..n).map(|i| i * 10 + 3).collect::<Vec<_>>();
    assert_eq!(drawn(&Sampling { top_k: 4, ..warm() }, &row), ones(4));
    assert_eq!(drawn(&Sampling { top_k: 42, ..warm() }, &row)[..3], [0, 1, 3]);
    assert_eq!(drawn(&Sampling { min_p: 0.9, ..warm() }, &row), ones(40));
    assert_eq!(drawn(&Sampling { top_k: 40, top_p: 0.25, ..warm() }, &row), ones(10));
    assert_eq!(drawn(&Sampling { top_p: 0.0, ..warm() }, &row), ones(1));
    assert_eq!(drawn(&Sampling { min_p: 1.0, ..warm() }, &row), ones(40));
}

#[test]
fn filters_that_are_off_change_no_pick() {
    let row = logits(5, 900);
    let plain = sampler(warm(), 900);
    for off in [
        Sampling { top_k: 900, ..warm() },
        Sampling { top_k: usize::MAX, ..warm() },
        Sampling { repeat_last_n: 0, repeat_penalty: 3.0, presence_penalty: 9.0, ..warm() },
        Sampling { repeat_last_n: usize::MAX, ..warm() },
    ] {
        for index in 0..50 {
            let expected = once(plain.sampling(), &row, &[1, 2, 3], index);
            assert_eq!(once(&off, &row, &[1, 2, 3], index), expected, "{off:?}");
        }
    }
}

#[test]
fn infinities_take_all_the_probability_and_share_it() {
    let mut row = noise(3, 500, 4.0);
    (row[40], row[300], row[301]) = (f32::INFINITY, f32::INFINITY, f32::INFINITY);
    assert_eq!(once(&Sampling::default(), &row, &[], 0), Ok(Picked { token: 40, drew: false }));
    assert_eq!(drawn(&warm(), &row), [40, 300, 301]);
    assert_eq!(drawn(&Sampling { top_k: 2, ..warm() }, &row), [40, 300]);
    assert_eq!(drawn(&Sampling { top_k: 20, top_p: 0.99, min_p: 0.5, ..warm() }, &row), [40, 300, 301]);
    assert_eq!(drawn(&Sampling { top_p: 0.5, ..warm() }, &row), [40, 300]);
    assert_eq!(drawn(&Sampling { banned: vec![40], logit_bias: vec![(300, -9.0)], ..warm() }, &row), [300, 301]);
}

#[test]
fn a_masked_token_is_never_drawn() {
    let mut row = vec![f32::NEG_INFINITY; 1000];
    (row[0], row[511], row[700]) = (1.0, -3.0, 0.0);
    for sampling in
        [warm(), Sampling { top_k: 700, ..warm() }, Sampling { top_p: 0.9999999, temperature: 1e30, ..warm() }]
    {
        assert_eq!(drawn(&sampling, &row), [0, 511, 700], "{sampling:?}");
    }
}

#[test]
fn a_row_with_nothing_left_is_refused() {
    let refused = Err(SampleError::AllMasked { pos: 0 });
    for sampling in [Sampling::default(), warm(), Sampling { top_k: 2, banned: vec![0, 1], ..warm() }] {
        let row = if sampling.banned.is_empty() { [f32::NEG_INFINITY; 3] } else { [1.0, 2.0, f32::NEG_INFINITY] };
        assert_eq!(once(&sampling, &row, &[], 0), refused);
    }
    let by_bias = Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..warm() };
    assert_eq!(once(&by_bias, &[1.0, f32::NEG_INFINITY], &[], 0), refused);
}

#[test]
fn a_nan_is_found_behind_a_ban_a_bias_and_a_penalty() {
    for sampling in [
        Sampling { banned: vec![2], ..warm() },
        Sampling { logit_bias: vec![(2, f32::NEG_INFINITY)], ..Sampling::default() },
        Sampling { repeat_penalty: 2.0, ..warm() },
    ] {
        let mut row = vec![1.0, 2.0, f32::from_bits(0x7fc0_0042), 0.0, f32::NAN];
        let before = bits(&row);
        let mut sampler = sampler(sampling, 5);
        let found = sampler.sample(&mut row, &[2, 1, 0], 0, 17);
        assert_eq!(found, Err(SampleError::NotANumber { pos: 17, token: 2 }));
        assert_eq!(bits(&row), before, "the row came back changed");
        row[2] = 1.0;
        row[4] = 1.0;
        assert!(sampler.sample(&mut row, &[2, 1, 0], 0, 18).is_ok(), "the refusal left something behind");
    }
}

#[test]
fn a_row_of_another_length_and_a_history_from_another_vocabulary_are_refused() {
    let mut ten = sampler(Sampling { presence_penalty: 1.0, ..warm() }, 10);
    let short = ten.sample(&mut [0.0; 9], &[], 0, 4);
    assert_eq!(short, Err(SampleError::RowLength { pos: 4, expected: 10, found: 9 }));
    let mut row = noise(1, 10, 1.0);
    let before = bits(&row);
    let foreign = ten.sample(&mut row, &[1, 10, 2], 0, 4);
    assert_eq!(foreign, Err(SampleError::Token { place: "history", pos: 4, token: 10, n_vocab: 10 }));
    assert_eq!(bits(&row), before);
    // Tokens out of the window are not looked at, and none are without penalties.
    let mut narrow = sampler(Sampling { presence_penalty: 1.0, repeat_last_n: 1, ..warm() }, 10);
    assert!(narrow.sample(&mut row, &[10, 2], 0, 4).is_ok());
}

#[test]
fn options_that_mean_nothing_are_refused_by_name() {
    let nan = f32::NAN;
    let cases = [
        ("temperature", Sampling { temperature: nan, ..warm() }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..warm() }),
        ("top_p", Sampling { top_p: -0.1, ..warm() }),
        ("top_p", Sampling { top_p: 1.5, ..warm() }),
        ("top_p", Sampling { top_p: nan, ..warm() }),
        ("min_p", Sampling { min_p: -0.1, ..warm() }),
        ("min_p", Sampling { min_p: 1.1, ..warm() }),
        ("repeat_penalty", Sampling { repeat_penalty: 0.0, ..warm() }),
        ("repeat_penalty", Sampling { repeat_penalty: -1.0, ..warm() }),
        ("repeat_penalty", Sampling { repeat_penalty: f32::INFINITY, ..warm() }),
        ("frequency_penalty", Sampling { frequency_penalty: nan, ..warm() }),
        ("presence_penalty", Sampling { presence_penalty: -100.5, ..warm() }),
        ("logit_bias", Sampling { logit_bias: vec![(1, nan)], ..warm() }),
        ("logit_bias", Sampling { logit_bias: vec![(1, f32::INFINITY)], ..warm() }),
        ("logit_bias", Sampling { logit_bias: vec![(1, 0.5), (0, 1.0), (1, 0.5)], ..warm() }),
        ("logit_bias", Sampling { logit_bias: vec![(8, 0.5)], ..warm() }),
        ("banned", Sampling { banned: vec![1, 8], ..warm() }),
    ];
    for (name, sampling) in cases {
        let text = Sampler::new(sampling, 8).expect_err(name).to_string();
        assert!(text.contains(name) && text.contains("expected") && text.contains("found"), "{name}: {text}");
    }
    let text = Sampler::new(Sampling { top_p: 1.5, ..warm() }, 8).expect_err("too large").to_string();
    assert_eq!(text, "sampling option `top_p`: expected 0 to 1, found 1.5");
}

#[test]
fn settled_options_are_sorted_and_single() {
    let bias = vec![(5, 1.0), (4, f32::NEG_INFINITY), (2, -1.0)];
    let sampler = sampler(Sampling { logit_bias: bias, banned: vec![7, 1, 7], ..warm() }, 8);
    assert_eq!(sampler.sampling().logit_bias, [(2, -1.0), (5, 1.0)]);
    assert_eq!(sampler.sampling().banned, [1, 4, 7]);
}

#[test]
fn errors_have_the_class_of_their_cause() {
    use crate::error::ErrorKind::{Internal, ModelFile, Options};
    let of = |found: Result<Picked, SampleError>| found.expect_err("refused").kind();
    assert_eq!(Sampler::new(Sampling { min_p: 2.0, ..warm() }, 8).expect_err("refused").kind(), Options);
    assert_eq!(Sampler::new(Sampling { banned: vec![8], ..warm() }, 8).expect_err("refused").kind(), Options);
    assert_eq!(of(once(&warm(), &[f32::NAN, 1.0], &[], 0)), ModelFile);
    assert_eq!(Sampler::new(Sampling { banned: vec![0], ..warm() }, 1).expect_err("refused").kind(), Options);
    assert_eq!(of(once(&Sampling { banned: vec![0], ..warm() }, &[1.0, f32::NEG_INFINITY], &[], 0)), Options);
    assert_eq!(of(once(&Sampling { presence_penalty: 1.0, ..warm() }, &[1.0], &[1], 0)), Internal);
}

#[test]
fn a_sampler_remembers_nothing() {
    let sampling = Sampling { top_k: 40, top_p: 0.9, repeat_penalty: 1.3, frequency_penalty: 0.2, ..warm() };
    let rows: Vec<Vec<f32>> = (0..12).map(|seed| logits(seed, 2000)).collect();
    let history: Vec<u32> = (0..90).map(|i| i * 7 % 500).collect();
    let fresh: Vec<_> = (0..12).map(|i| once(&sampling, &rows[i], &history[..i * 7], i as u64)).collect();
    let mut used = sampler(sampling, 2000);
    // Backwards, each three times, with a failing row between.
    for i in (0..12).rev() {
        for _ in 0..3 {
            let found = used.sample(&mut rows[i].clone(), &history[..i * 7], i as u64, 0);
            assert_eq!(found, fresh[i], "row {i}");
            assert!(used.sample(&mut vec![f32::NAN; 2000], &history, 99, 0).is_err());
        }
    }
}

#[test]
fn a_stale_history_changes_a_pick() {
    let sampling = Sampling { repeat_penalty: 1.3, presence_penalty: 0.5, ..warm() };
    let history: Vec<u32> = (0..40).collect();
    let differs = (0..100).any(|i| {
        let row = noise(i, 60, 2.0);
        once(&sampling, &row, &history, i) != once(&sampling, &row, &history[..20], i)
    });
    assert!(differs);
}

#[test]
fn another_seed_or_index_draws_another_token_and_only_those() {
    let row = vec![0.0; 5000];
    let base = once(&warm(), &row, &[], 5).expect("the row is sound").token;
    // Of equal weights the token is the draw itself.
    assert_eq!(base, (uniform(7, 5) * 5000.0) as u32);
    assert_eq!(once(&warm(), &row, &[9, 9], 5).expect("the row is sound").token, base);
    assert_ne!(once(&warm(), &row, &[], 6).expect("the row is sound").token, base);
    assert_ne!(once(&Sampling { seed: 8, ..warm() }, &row, &[], 5).expect("the row is sound").token, base);
}

#[test]
fn picks_are_these_on_every_platform() {
    let sets = [
        warm(),
        Sampling { top_k: 20, ..warm() },
        Sampling { top_p: 0.95, temperature: 1.3, ..warm() },
        Sampling { min_p: 0.5, repeat_penalty: 1.2, seed: u64::MAX, ..warm() },
    ];
    let picks: Vec<Vec<u32>> = sets
        .iter()
        .map(|set| {
            let draw = |i| once(set, &noise(i, 4000, 4.0), &[1, 2, 3], i).expect("the row is sound").token;
            (0..8).map(draw).collect()
        })
        .collect();
    assert_eq!(picks, PINNED);
}

const PINNED: [[u32; 8]; 4] = [
    [2987, 3142, 26, 951, 3969, 1324, 1851, 1813],
    [3205, 2949, 223, 1705, 3718, 1560, 2122, 2041],
    [2979, 3152, 26, 968, 3969, 1324, 1864, 1842],
    [339, 1054, 1715, 2616, 3010, 3458, 1041, 2945],
];
