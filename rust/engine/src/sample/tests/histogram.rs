//! Twenty thousand draws against the exact distribution.

use super::super::twin::{distribution, noise, patched};
use super::*;

const DRAWS: u64 = 20_000;

/// What chi-square exceeds once in a thousand (Wilson and Hilferty's approximation).
fn critical(degrees: f64) -> f64 {
    let step = 2.0 / (9.0 * degrees);
    degrees * (1.0 - step + 3.09 * step.sqrt()).powi(3)
}

/// Chi-square of the draws against what `claimed` says, and its degrees of freedom; rare tokens share a bin.
fn chi_square(sampling: &Sampling, claimed: &Sampling, row: &[f32], history: &[u32]) -> (f64, f64) {
    let mut sampler = sampler(sampling.clone(), row.len());
    let mut given = row.to_vec();
    let mut counts = vec![0u32; row.len()];
    for index in 0..DRAWS {
        counts[sampler.sample(&mut given, history, index, 0).expect("the row is sound").token as usize] += 1;
    }
    let kept = distribution(claimed, &patched(claimed, row, history), 0.0);
    let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
    let (mut chi, mut bins, mut rare, mut seen) = (0.0, 0, (0.0, 0.0), 0);
    let mut add = |expected: f64, found: f64| {
        chi += (found - expected).powi(2) / expected;
        bins += 1;
    };
    for (id, weight) in kept {
        let (expected, found) = (weight / total * DRAWS as f64, counts[id as usize]);
        seen += found;
        if expected < 8.0 {
            rare = (rare.0 + expected, rare.1 + f64::from(found));
        } else {
            add(expected, f64::from(found));
        }
    }
    if rare.0 > 0.0 {
        add(rare.0, rare.1);
    }
    if sampling == claimed {
        assert_eq!(u64::from(seen), DRAWS, "a token was drawn that the filters leave out");
    }
    (chi, f64::from(bins - 1))
}

fn sets() -> Vec<Sampling> {
    let all = Sampling { top_k: 30, top_p: 0.9, min_p: 0.02, repeat_penalty: 1.2, frequency_penalty: 0.3, ..warm() };
    vec![
        warm(),
        Sampling { temperature: 1.6, seed: 8, ..warm() },
        Sampling { top_k: 20, ..warm() },
        Sampling { top_p: 0.8, ..warm() },
        Sampling { min_p: 0.1, seed: 12, ..warm() },
        Sampling { presence_penalty: 1.0, logit_bias: vec![(5, 1.0)], banned: vec![6], ..warm() },
        all,
    ]
}

#[test]
fn draws_follow_the_exact_distribution() {
    let history = [1, 2, 2, 40, 41];
    for (case, sampling) in sets().iter().enumerate() {
        let (chi, degrees) = chi_square(sampling, sampling, &noise(20, 60, 3.0), &history);
        assert!(degrees >= 3.0 && chi < critical(degrees), "case {case}: {chi} with {degrees} degrees");
    }
}

#[test]
fn the_histogram_notices_options_that_are_slightly_off() {
    let row = noise(20, 60, 3.0);
    let wrong = [
        Sampling { temperature: 0.85, ..warm() },
        Sampling { logit_bias: vec![(ranked(&row, 3), 0.15)], ..warm() },
        Sampling { repeat_penalty: 1.1, ..warm() },
    ];
    for sampling in &wrong {
        let history: Vec<u32> = (0..6).map(|rank| ranked(&row, rank * 2)).collect();
        let (chi, degrees) = chi_square(sampling, &warm(), &row, &history);
        assert!(chi > critical(degrees), "{sampling:?}: {chi} with {degrees} degrees");
    }
}

fn ranked(row: &[f32], rank: usize) -> u32 {
    super::super::twin::ranking(row)[rank]
}

#[test]
fn a_long_row_is_drawn_from_evenly_in_all_its_parts() {
    let n = 10_000;
    let mut sampler = sampler(warm(), n);
    let mut row = vec![1.5; n];
    let mut parts = [0u32; 40];
    for index in 0..DRAWS {
        let token = sampler.sample(&mut row, &[], index, 0).expect("the row is sound").token;
        parts[token as usize * 40 / n] += 1;
    }
    let chi: f64 = parts.iter().map(|&found| (f64::from(found) - 500.0).powi(2) / 500.0).sum();
    assert!(chi < critical(39.0), "{chi}");
}
