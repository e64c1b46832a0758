//! Top ids and log-probabilities against a full sort in f64.

use super::super::twin::{logits, noise, ranking};
use super::super::{logprobs, topk_ids};
use super::*;

fn rows() -> Vec<Vec<f32>> {
    let n = 5000;
    let mut masked = noise(9, n, 2.0);
    masked[100..4990].fill(f32::NEG_INFINITY);
    let mut signed_zeros = vec![-0.0; n];
    signed_zeros.iter_mut().skip(3).step_by(5).for_each(|x| *x = 0.0);
    vec![
        noise(1, n, 3.0),
        logits(2, n),
        noise(3, n, 2.0).iter().map(|x| x.round()).collect(),
        (0..n).map(|i| i as f32).collect(),
        (0..n).map(|i| -(i as f32)).collect(),
        vec![1.0; n],
        vec![f32::NEG_INFINITY; n],
        masked,
        signed_zeros,
        (0..n).map(|i| if i % 50 == 7 { f32::INFINITY } else { i as f32 }).collect(),
        noise(4, 70, 1.0),
        vec![2.5],
    ]
}

#[test]
fn top_ids_are_the_head_of_a_full_sort() {
    for (case, row) in rows().iter().enumerate() {
        let sorted = ranking(row);
        for k in [0, 1, 2, 8, 19, 20, 64, 100, 1000, 4999, 5000, 6000] {
            let mut ids = vec![u32::MAX; k];
            let written = topk_ids(row, &mut ids);
            assert_eq!(written, k.min(row.len()), "row {case}, k {k}");
            assert_eq!(ids[..written], sorted[..written], "row {case}, k {k}");
            assert!(ids[written..].iter().all(|&id| id == u32::MAX));
        }
    }
}

#[test]
fn a_nan_is_never_a_top_id() {
    let mut row = noise(6, 3000, 1.0);
    row[5..2995].fill(f32::NAN);
    for k in [1, 8, 10, 20, 3000] {
        let mut ids = vec![0; k];
        let written = topk_ids(&row, &mut ids);
        assert_eq!(written, k.min(10));
        assert!(ids[..written].iter().all(|&id| !row[id as usize].is_nan()), "{ids:?}");
    }
}

/// Natural logarithms of the softmax, in f64 by the definition.
fn exact(row: &[f32]) -> Vec<f64> {
    let high = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = row.iter().map(|&x| libm::exp(f64::from(x) - high)).sum();
    row.iter().map(|&x| f64::from(x) - high - libm::log(total)).collect()
}

#[test]
fn logprobs_are_those_of_the_definition() {
    for (case, row) in rows().iter().enumerate().filter(|(_, row)| row.iter().any(|x| x.is_finite())) {
        if row.contains(&f32::INFINITY) {
            continue;
        }
        let exact = exact(row);
        let sorted = ranking(row);
        for chosen in [0, row.len() / 2, row.len() - 1] {
            let found = logprobs(row, chosen as u32, 20, 0).expect("the row is sound");
            // Half a unit of f32 and what two f64 sums of 5000 terms may differ by.
            let close = |found: f32, id: usize| {
                let bound = exact[id].abs() * 2f64.powi(-24) + 1e-11;
                f64::from(found) == exact[id] || (f64::from(found) - exact[id]).abs() <= bound
            };
            assert!(close(found.chosen, chosen), "row {case}: {} {}", found.chosen, exact[chosen]);
            let ids: Vec<u32> = found.top.iter().map(|&(id, _)| id).collect();
            assert_eq!(ids, sorted[..20.min(row.len())], "row {case}");
            assert!(found.top.iter().all(|&(id, value)| close(value, id as usize)), "row {case}: {:?}", found.top);
        }
    }
}

#[test]
fn logprobs_of_infinities_share_the_probability() {
    let mut row = noise(8, 300, 1.0);
    (row[20], row[250]) = (f32::INFINITY, f32::INFINITY);
    let found = logprobs(&row, 3, 3, 0).expect("infinities are numbers");
    let half = -std::f32::consts::LN_2;
    let third = found.top[2];
    assert_eq!((found.chosen, &found.top[..2]), (f32::NEG_INFINITY, &[(20, half), (250, half)][..]));
    assert_eq!(third.1, f32::NEG_INFINITY);
}

#[test]
fn logprobs_refuse_what_has_no_probabilities() {
    let mut row = noise(8, 100, 1.0);
    let outside = SampleError::Token { place: "chosen token", pos: 5, token: 100, n_vocab: 100 };
    assert_eq!(logprobs(&row, 100, 1, 5), Err(outside));
    row[99] = f32::NAN;
    assert_eq!(logprobs(&row, 0, 1, 5), Err(SampleError::NotANumber { pos: 5, token: 99 }));
    assert_eq!(logprobs(&[f32::NEG_INFINITY; 7], 0, 1, 5), Err(SampleError::AllMasked { pos: 5 }));
}

#[test]
fn logprobs_do_not_see_what_sampling_does_to_the_row() {
    let mut row = noise(12, 500, 3.0);
    let before = logprobs(&row, 3, 10, 0);
    let sampling = Sampling { logit_bias: vec![(3, 9.0)], banned: vec![4], repeat_penalty: 1.7, top_k: 3, ..warm() };
    sampler(sampling, 500).sample(&mut row, &[3, 3, 8], 0, 0).expect("the row is sound");
    assert_eq!(logprobs(&row, 3, 10, 0), before);
}
