//! Obligations 1, 2, 3 and 7: the stream, its rows, its draws and its distribution are those of plain decoding, whatever the source.

use std::collections::HashMap;

use quoth_engine::model::Want;
use quoth_engine::sample::{Sampler, Sampling};
use quoth_engine::session::Session;
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

use crate::batch::KINDS;
use crate::cast::{Method, ROLES, Role};
use crate::gate::ByForwards;
use crate::models::{Dice, FAMILIES, Spec};
use crate::rig::{Rig, Run, assert_same_run, request, warm};

const PROMPT: [u32; 9] = [40, 41, 42, 43, 44, 40, 41, 42, 43];

/// Drafts of a role that must come to something, in how many of a run's steps at least.
fn is_right(role: Role) -> bool {
    let never_rebuilt = Role::Raising(Method::Rebuild);
    matches!(role, Role::Perfect | Role::Alternating | Role::Lying | Role::Slow) || role == never_rebuilt
}

#[test]
fn sampled_streams_have_one_draw_a_token_and_are_plain_ones_for_100_seeds_and_every_source() {
    let mut rig = Rig::tiny(128, Sampling::default());
    let mut texts = Vec::new();
    let mut accepted: HashMap<String, u64> = HashMap::new();
    for seed in 0..100 {
        rig.sampling = warm(seed);
        let max_draft = [1, 2, 3, 4, 5, 7, 8, 16, 31, 64][seed as usize % 10];
        let mut plain = rig.plain();
        let expected = plain.run(&PROMPT, request(40));
        assert_eq!((expected.tokens.len(), expected.draws), (40, 40));
        let streams = [rig.stream(&PROMPT, 80)];
        for role in ROLES {
            let what = format!("seed {seed}, {role:?}, drafts up to {max_draft}");
            let mut other = rig.acted(role, &streams, max_draft);
            let run = other.run(&PROMPT, request(40));
            assert_same_run(&expected, &run, &what);
            other.assert_same_state(&plain, &what);
            other.assert_contract(&what);
            let stats = other.decoder.stats();
            *accepted.entry(format!("{role:?}")).or_default() += stats.accepted;
            assert!(!is_right(role) || stats.accepted > 0, "{what}: {stats:?}");
            assert!(stats.longest_draft <= max_draft as u64, "{what}");
            assert_eq!(stats.steps, stats.verify_steps + stats.plain_steps, "{what}");
            assert_eq!(stats.committed, 1 + stats.steps + stats.accepted, "{what}");
        }
        texts.push(expected.tokens);
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() > 95, "the seeds make different texts");
    assert!(accepted["Cascade"] > 100 && accepted["Silent"] == 0, "{accepted:?}");
}

#[test]
fn greedy_streams_draw_nothing_and_are_plain_ones_for_every_source_and_draft_length() {
    let seeing = Rig::tiny(256, Sampling::default());
    let with_rows = seeing.plain().run(&PROMPT, request(150));
    // As a user has it: no rows are made. Other tests look at rows.
    let rig = seeing.blindly();
    let mut plain = rig.plain();
    let expected = plain.run(&PROMPT, request(150));
    assert_eq!((&expected.tokens, &expected.text), (&with_rows.tokens, &with_rows.text));
    assert!(expected.rows[1..].iter().all(|(_, row, _)| row.is_empty()) && !with_rows.rows[1].1.is_empty());
    assert_eq!((expected.committed, expected.draws), (150, 0));
    let streams = [rig.stream(&PROMPT, 230)];
    for role in ROLES {
        for max_draft in 1..=64 {
            let what = format!("{role:?}, drafts up to {max_draft}");
            let mut other = rig.acted(role, &streams, max_draft);
            assert_same_run(&expected, &other.run(&PROMPT, request(150)), &what);
            other.assert_same_state(&plain, &what);
            other.assert_contract(&what);
            let stats = other.decoder.stats();
            if role == Role::Perfect {
                // Every draft was as long as it may be, and accepted whole with the token after it.
                assert_eq!(stats.longest_draft, max_draft as u64, "{what}");
                assert_eq!((stats.accepted, stats.bonus), (stats.drafted, stats.verify_steps), "{what}");
            }
        }
    }
}

#[test]
fn rows_at_every_commit_have_the_bits_of_plain_ones_for_every_format_set_and_kind() {
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let spec = Spec::of(FAMILIES[i % 7], format);
        for (j, kind) in KINDS.into_iter().enumerate() {
            let sampling = if (i + j) % 2 == 0 { warm(i as u64) } else { Sampling::default() };
            // Plain, in the plainest set, one thread: the reference for all sets and threads.
            let reference = Rig::new(&spec, KernelSet::scalar(), 1, 96, kind, sampling.clone());
            let mut plain = reference.plain();
            let expected = plain.run(&PROMPT, request(40));
            let streams = [reference.stream(&PROMPT, 70)];
            for (k, set) in KernelSet::available().into_iter().enumerate() {
                // More threads than cores are slow: they get a fifth of the formats here, and a test of their own.
                let threads = 1 + (i + j + k) % if i % 5 == 0 { 4 } else { 2 };
                let model = reference.made.load(set, threads, 96);
                let rig = Rig {
                    model,
                    made: reference.made.clone(),
                    vocab: reference.vocab.clone(),
                    blind: false,
                    kind,
                    sampling: sampling.clone(),
                };
                for role in [Role::Perfect, Role::Alternating] {
                    let max_draft = 1 + (7 * i + 11 * j + 3 * k) % 33;
                    let what =
                        format!("{format:?}, {kind:?}, {set:?}, {threads} threads, {role:?}, drafts up to {max_draft}");
                    let mut other = rig.acted(role, &streams, max_draft);
                    let run = other.run(&PROMPT, request(40));
                    assert_same_run(&expected, &run, &what);
                    other.assert_same_state(&plain, &what);
                    assert!(other.decoder.stats().accepted > 0, "{what}");
                }
            }
        }
    }
}

#[test]
fn rows_have_the_bits_of_plain_ones_for_every_draft_length_kind_and_number_of_threads() {
    for kind in [KvKind::F16, KvKind::Q8_0] {
        for threads in 1..=4 {
            let rig = Rig::new(&Spec::tiny(), KernelSet::best(), threads, 256, kind, warm(3));
            let n = if threads == 1 { 130 } else { 70 };
            let mut plain = rig.plain();
            let expected = plain.run(&PROMPT, request(n));
            let streams = [rig.stream(&PROMPT, 160)];
            for max_draft in 1..=64 {
                // All lengths on one thread, an eighth of them on each other number.
                if threads > 1 && max_draft % 8 != threads {
                    continue;
                }
                for role in [Role::Perfect, Role::Alternating] {
                    let what = format!("{kind:?}, {threads} threads, {role:?}, drafts up to {max_draft}");
                    let mut other = rig.acted(role, &streams, max_draft);
                    assert_same_run(&expected, &other.run(&PROMPT, request(n)), &what);
                    other.assert_same_state(&plain, &what);
                }
            }
        }
    }
}

#[test]
fn rows_have_the_bits_of_plain_ones_where_a_draft_crosses_a_chunk() {
    for (kind, threads) in KINDS.into_iter().zip([1, 2, 3]) {
        let rig = Rig::new(&Spec::of("qwen3", Format::Q4_1), KernelSet::best(), threads, 700, kind, warm(5));
        let prompt = Dice(1).tokens(500, 300);
        let mut plain = rig.plain();
        let expected = plain.run(&prompt, request(60));
        let streams = [rig.stream(&prompt, 130)];
        for max_draft in [1, 5, 17, 64] {
            let mut other = rig.acted(Role::Perfect, &streams, max_draft);
            assert_same_run(&expected, &other.run(&prompt, request(60)), "across 512");
            other.assert_same_state(&plain, "across 512");
        }
    }
}

#[test]
fn greedy_decoding_that_makes_no_rows_gives_the_same_tokens_and_tells_sources_the_same() {
    for (i, format) in [Format::Q8_0, Format::Q6_K, Format::F16, Format::Q4_0].into_iter().enumerate() {
        let spec = Spec { outer: format, ..Spec::of("qwen2", format) };
        for threads in [1, 2, 3] {
            let set = KernelSet::available()[(i + threads) % KernelSet::available().len()];
            let seeing = Rig::new(&spec, set, threads, 128, KvKind::F16, Sampling::default());
            let streams = [seeing.stream(&PROMPT, 100)];
            let runs = |rig: &Rig| {
                [Role::Silent, Role::Perfect, Role::Alternating, Role::Garbage, Role::Cascade].map(|role| {
                    let mut watched = rig.acted(role, &streams, 7);
                    // No time passes: the lengths of the cascade's drafts follow what steps take.
                    watched.decoder.set_clock(Box::new(ByForwards(watched.log.clone())));
                    let run = watched.run(&PROMPT, request(60));
                    let told = watched.book.as_ref().unwrap().lock().unwrap().told.clone();
                    (run.tokens, run.text, run.history, run.steps.0, told)
                })
            };
            let (with_rows, without) = (runs(&seeing), runs(&seeing.blindly()));
            for (a, b) in with_rows.iter().zip(&without) {
                assert_eq!(a, b, "{format:?}, {set:?}, {threads} threads");
                assert_eq!(a.0, streams[0][PROMPT.len()..][..60]);
            }
            assert!(without[1].4.len() > 40, "rows of top-k were told");
        }
    }
}

/// Replays the rows of a run through a sampler that sees the history as it stood at the start of each step: how many picks come out otherwise.
fn replay(run: &Run, prompt: &[u32], sampling: &Sampling, n_vocab: usize, stale: bool) -> usize {
    let mut sampler = Sampler::new(sampling.clone(), n_vocab).unwrap();
    let mut history = prompt.to_vec();
    let mut differ = 0;
    let mut commits = run.rows.iter().enumerate();
    for n in &run.steps.0 {
        let start = history.len();
        for (i, (pos, row, token)) in commits.by_ref().take(*n) {
            let mut row: Vec<f32> = row.iter().map(|x| f32::from_bits(*x)).collect();
            let seen = if stale { &history[..start] } else { &history[..] };
            let picked = sampler.sample(&mut row, seen, i as u64, *pos).unwrap();
            differ += usize::from(picked.token != *token);
            history.push(*token);
        }
    }
    differ
}

#[test]
fn bug_21_penalties_see_the_accepted_part_of_the_draft_and_stale_history_would_pick_otherwise() {
    let mut differed = 0;
    for temperature in [0.0, 0.8] {
        for seed in 0..10 {
            let sampling = Sampling {
                temperature,
                repeat_penalty: 1.2,
                frequency_penalty: 1.5,
                presence_penalty: 5.0,
                repeat_last_n: 32,
                ..warm(seed)
            };
            let rig = Rig::tiny(160, sampling.clone());
            let mut plain = rig.plain();
            let expected = plain.run(&PROMPT, request(60));
            let streams = [rig.stream(&PROMPT, 120)];
            for max_draft in [4, 16] {
                let mut other = rig.acted(Role::Perfect, &streams, max_draft);
                let run = other.run(&PROMPT, request(60));
                assert_same_run(&expected, &run, &format!("seed {seed}"));
                assert_eq!(
                    replay(&run, &PROMPT, &sampling, 97, false),
                    0,
                    "with the true history every pick is repeated"
                );
                differed += replay(&run, &PROMPT, &sampling, 97, true);
            }
        }
    }
    assert!(differed > 20, "stale history changed {differed} picks");
}

/// Chi-square of counts against probabilities, and its degrees of freedom; cells that expect fewer than five are put together.
pub(crate) fn chi_square(counts: &HashMap<u32, u64>, probabilities: &[f64], n: u64) -> (f64, usize) {
    let (mut chi, mut cells) = (0.0, 0);
    let mut rest = (0.0, 0.0);
    for (token, p) in probabilities.iter().enumerate() {
        let (expected, found) = (p * n as f64, counts.get(&(token as u32)).copied().unwrap_or(0) as f64);
        if expected >= 5.0 {
            chi += (found - expected).powi(2) / expected;
            cells += 1;
        } else {
            rest = (rest.0 + expected, rest.1 + found);
        }
    }
    if rest.0 > 0.0 {
        chi += (rest.1 - rest.0).powi(2) / rest.0.max(5.0);
        cells += 1;
    } else {
        assert_eq!(rest.1, 0.0, "a token without probability was chosen");
    }
    (chi, cells - 1)
}

/// What chi-square exceeds 3 times in 100,000: normal with 4 standard deviations, by Wilson and Hilferty.
pub(crate) fn chi_limit(freedom: usize) -> f64 {
    let f = freedom as f64;
    f * (1.0 - 2.0 / (9.0 * f) + 4.0 * (2.0 / (9.0 * f)).sqrt()).powi(3)
}

/// The exact distribution at temperature 0.8, top-k 20.
pub(crate) fn exact(row: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    let weight = |i: usize| ((f64::from(row[i]) - f64::from(row[order[0]])) / f64::from(0.8f32)).exp();
    let total: f64 = order[..20].iter().map(|i| weight(*i)).sum();
    let mut p = vec![0.0; row.len()];
    order[..20].iter().for_each(|i| p[*i] = weight(*i) / total);
    p
}

#[test]
fn twenty_thousand_samples_follow_the_exact_distribution_with_and_without_speculation() {
    const N: u64 = 20_000;
    let prompt = [50, 51, 52];
    let rig = Rig::tiny(16, warm(0));
    // The distributions of the first token, and of the second and third over all ways to get there.
    let row_after = |tokens: &[u32]| {
        let mut session = Session::new(rig.model.clone(), rig.kind).unwrap();
        let mut last = vec![0.0; 97];
        session.forward(tokens, Want::Last, &mut last, &mut |_| true).unwrap();
        last
    };
    let mut probabilities = [exact(&row_after(&prompt)), vec![0.0; 97], vec![0.0; 97]];
    for first in 0..97u32 {
        let p1 = probabilities[0][first as usize];
        if p1 > 0.0 {
            let second_row = exact(&row_after(&[50, 51, 52, first]));
            for second in 0..97u32 {
                let p2 = p1 * second_row[second as usize];
                probabilities[1][second as usize] += p2;
                if p2 > 0.0 {
                    let third = exact(&row_after(&[50, 51, 52, first, second]));
                    (0..97).for_each(|t| probabilities[2][t] += p2 * third[t]);
                }
            }
        }
    }
    let likely =
        (0..97u32).max_by(|a, b| probabilities[1][*a as usize].total_cmp(&probabilities[1][*b as usize])).unwrap();
    let mut plain = rig.plain();
    let mut other = rig.acted(Role::Stubborn(likely), &[], 2);
    let (mut counts, mut deep) = ([(); 3].map(|()| [HashMap::new(), HashMap::new()]), 0);
    for seed in 0..N {
        for (which, watched) in [&mut plain, &mut other].into_iter().enumerate() {
            watched.sampling = warm(seed);
            let run = watched.run(&prompt, request(3));
            for (place, token) in run.tokens.iter().enumerate() {
                *counts[place][which].entry(*token).or_insert(0u64) += 1;
            }
            deep += usize::from(which == 1 && run.steps.0 == [1, 2]);
        }
    }
    assert!(deep > 500, "the third token came from the second row of a verification {deep} times");
    for (place, pair) in counts.iter().enumerate() {
        assert_eq!(pair[0], pair[1], "token {place}: the same samples with and without speculation");
        let (chi, freedom) = chi_square(&pair[0], &probabilities[place], N);
        let limit = chi_limit(freedom);
        assert!(
            chi < limit && freedom > 10,
            "token {place}: chi-square {chi:.1} with {freedom} degrees, limit {limit:.1}"
        );
        // The test is sharp enough to see a temperature that is a little off.
        let off: Vec<f64> = probabilities[place].iter().map(|p| p.powf(0.9)).collect();
        let total: f64 = off.iter().sum();
        let off: Vec<f64> = off.iter().map(|p| p / total).collect();
        assert!(chi_square(&pair[0], &off, N).0 > limit, "token {place}: a temperature of 0.89 is seen");
    }
}
