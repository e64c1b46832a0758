//! Each mechanism broken on purpose: a speculative loop written plainly, with one thing left out, and the comparison of the proofs that notices it.
//!
//! Unbroken, the loop is a second decoder, without pool of sources, gate or error paths, and equals the first. So what is noticed is what was left out.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use quoth_engine::decode::Request;
use quoth_engine::model::Want;
use quoth_engine::sample::{Sampler, Sampling};
use quoth_engine::session::Session;

use crate::batch::bits;
use crate::lossless::{chi_limit, chi_square, exact};
use crate::rig::{Rig, Run, assert_same_run, request, warm};

const PROMPT: [u32; 9] = [40, 41, 42, 43, 44, 40, 41, 42, 43];
const N: usize = 60;

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// Obligation 1: rows behind a wrong guess use up random numbers, too.
    DrawNumbers,
    /// Obligation 2: the last bit of a logit depends on the row's place in the batch.
    Bits,
    /// Obligation 3: penalties see the history as it was when the step began.
    History,
    /// Obligation 4: rows of rejected guesses stay in the cache.
    Truncation,
    /// Obligation 5: steps of a closed gate do not count.
    Gate,
    /// Obligation 6: stop tokens are looked for when a step is over.
    Stops,
}

/// Guesses that are right up to a place which wanders, wrong there, and right again; none in the steps of a closed gate.
fn guess(stream: &[u32], history: &[u32], step: usize, most: usize) -> Vec<u32> {
    if is_closed(step) {
        return Vec::new();
    }
    let mut draft: Vec<u32> = stream[history.len()..].iter().copied().take(most.min(6)).collect();
    if let Some(token) = draft.get_mut(step % 7) {
        *token = (*token + 1) % 97;
    }
    draft
}

fn is_closed(step: usize) -> bool {
    step % 9 > 6
}

/// The request, decoded with guesses. Text and finish are left to the caller.
fn decode(rig: &Rig, stream: &[u32], wanted: &Request, broken: Option<Broken>) -> (Run, Session) {
    let n_vocab = rig.model.config().n_vocab;
    let mut session = Session::new(rig.model.clone(), rig.kind).unwrap();
    let mut sampler = Sampler::new(rig.sampling.clone(), n_vocab).unwrap();
    let mut run = Run { history: PROMPT.to_vec(), ..Run::default() };
    let (mut carried, mut draft, mut number, mut ended) = (PROMPT.to_vec(), Vec::new(), 0, false);
    for step in 0.. {
        let input = [&carried[..], &draft].concat();
        let mut rows = vec![0.0; input.len() * n_vocab];
        session.forward(&input, Want::All, &mut rows, &mut |_| true).unwrap();
        let (start, before) = (run.history.len(), number);
        for (i, row) in rows.chunks_exact_mut(n_vocab).skip(carried.len() - 1).enumerate() {
            if broken == Some(Broken::Bits) && i > 0 {
                row[5] = f32::from_bits(row[5].to_bits() ^ 1);
            }
            let pos = run.history.len();
            let seen = if broken == Some(Broken::History) { &run.history[..start] } else { &run.history[..] };
            let picked = sampler.sample(row, seen, number, pos).unwrap();
            number += 1;
            run.committed += 1;
            run.draws += u64::from(picked.drew);
            run.rows.push((pos, bits(row), picked.token));
            run.history.push(picked.token);
            let stops = wanted.stop_ids.contains(&picked.token);
            ended |= stops;
            if stops && broken != Some(Broken::Stops) {
                run.history.pop();
                break;
            }
            run.tokens.push(picked.token);
            ended |= run.tokens.len() == wanted.max_tokens;
            if ended && !stops || draft.get(i) != Some(&picked.token) {
                break;
            }
        }
        match broken {
            Some(Broken::DrawNumbers) => number = before + 1 + draft.len() as u64,
            Some(Broken::Gate) if is_closed(step) => number = before,
            _ => {}
        }
        if broken != Some(Broken::Truncation) {
            session.truncate(run.history.len() - 1).unwrap();
        }
        if ended {
            break;
        }
        carried = vec![*run.history.last().unwrap()];
        draft = guess(stream, &run.history, step + 1, wanted.max_tokens - run.tokens.len() - 1);
    }
    (run, session)
}

/// What the comparisons of the proofs say of a run of the loop.
fn noticed(rig: &Rig, wanted: &Request, broken: Option<Broken>) -> Option<String> {
    let stream = rig.stream(&PROMPT, N + 20);
    let mut plain = rig.plain();
    let expected = plain.run(&PROMPT, wanted.clone());
    let (mut run, session) = decode(rig, &stream, wanted, broken);
    (run.text, run.finish) = (expected.text.clone(), expected.finish);
    let compare = || {
        assert_same_run(&expected, &run, "a run");
        let (a, b) = (plain.decoder.cache(), session.cache());
        assert_eq!((a.len(), a.len() + 1), (b.len(), run.history.len()), "I1");
        assert!(a.same_prefix(b, a.len()), "other bytes in the cache");
    };
    let caught = catch_unwind(AssertUnwindSafe(compare)).err()?;
    Some(*caught.downcast::<String>().unwrap())
}

#[test]
fn each_mechanism_left_out_is_noticed_and_a_loop_with_all_of_them_is_plain() {
    let penalised = Sampling { repeat_penalty: 1.2, frequency_penalty: 1.5, presence_penalty: 5.0, ..warm(1) };
    let cases = [
        (Broken::DrawNumbers, warm(1), "position, token"),
        (Broken::Bits, warm(1), "differs in bits"),
        (Broken::Bits, Sampling::default(), "differs in bits"),
        (Broken::History, penalised.clone(), "position, token"),
        (Broken::History, Sampling { temperature: 0.0, ..penalised }, "position, token"),
        (Broken::Truncation, warm(1), "differs in bits"),
        (Broken::Truncation, Sampling::default(), "position, token"),
        (Broken::Gate, warm(1), "position, token"),
        (Broken::Stops, warm(1), "commits"),
        (Broken::Stops, Sampling::default(), "commits"),
    ];
    for (broken, sampling, says) in cases {
        let rig = Rig::tiny(1000, sampling);
        // For stops: one in the middle of a draft.
        let stream = rig.stream(&PROMPT, N);
        let inside = (PROMPT.len() + 12..).find(|i| !stream[..*i].contains(&stream[*i])).unwrap();
        let mut told = Vec::new();
        for at in if broken == Broken::Stops { inside..inside + 4 } else { 0..1 } {
            let stop_ids = if broken == Broken::Stops { vec![stream[at]] } else { Vec::new() };
            let wanted = Request { stop_ids, ..request(N) };
            assert_eq!(noticed(&rig, &wanted, None), None, "with everything in place, {:?}", rig.sampling);
            told.extend(noticed(&rig, &wanted, Some(broken)));
        }
        assert!(told.iter().any(|told| told.contains(says)), "{broken:?}, {:?}: noticed {told:?}", rig.sampling);
    }
}

/// Obligation 7: a guess that is merely probable is taken, as some engines do for speed.
#[test]
fn accepting_probable_guesses_is_noticed_in_the_histogram() {
    const SAMPLES: u64 = 20_000;
    let rig = Rig::tiny(16, warm(0));
    let row_after = |tokens: &[u32]| {
        let mut session = Session::new(rig.model.clone(), rig.kind).unwrap();
        let mut last = vec![0.0; 97];
        session.forward(tokens, Want::Last, &mut last, &mut |_| true).unwrap();
        last
    };
    let first_row = row_after(&[50, 51, 52]);
    let first = exact(&first_row);
    let rows: Vec<_> = (0..97).map(|token| row_after(&[50, 51, 52, token])).collect();
    let after: Vec<_> = rows.iter().map(|row| exact(row)).collect();
    let second: Vec<f64> = (0..97).map(|t| (0..97).map(|f| first[f] * after[f][t]).sum()).collect();
    let guess = (0..97).max_by(|a, b| second[*a].total_cmp(&second[*b])).unwrap();
    for takes_probable in [false, true] {
        let mut counts = HashMap::new();
        for seed in 0..SAMPLES {
            let mut sampler = Sampler::new(warm(seed), 97).unwrap();
            let f = sampler.sample(&mut first_row.clone(), &[50, 51, 52], 0, 3).unwrap().token as usize;
            let chosen = sampler.sample(&mut rows[f].clone(), &[50, 51, 52, f as u32], 1, 4).unwrap().token;
            let token = if takes_probable && after[f][guess] > 0.2 { guess as u32 } else { chosen };
            *counts.entry(token).or_insert(0u64) += 1;
        }
        let (chi, freedom) = chi_square(&counts, &second, SAMPLES);
        assert_eq!(chi > chi_limit(freedom), takes_probable, "chi-square {chi:.1}, {freedom} degrees");
    }
}
