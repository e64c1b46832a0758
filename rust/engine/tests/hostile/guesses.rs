//! The decode loop with a source that answers at random: right, wrong, impossible, too much, nothing, an error. Whatever it says, and whatever the caller does
//! between, the tokens are those of a decoder that does not guess.

use std::sync::Arc;

use quoth_draft::{Budget, CostPoint, CostTable, Draft, DraftSource, Gate, GateOptions, SourceError, TopkRow};
use quoth_engine::decode::{Decoder, Request, Speculation};
use quoth_engine::gguf::GgufFile;
use quoth_engine::model::{LoadOptions, Model};
use quoth_engine::sample::Sampling;
use quoth_engine::vocab::{StopSet, Vocab};
use quoth_kernels::KernelSet;
use quoth_kernels::attend::KvKind;

use crate::budget::{BYTES, TIME, measured};
use crate::dice::Dice;
use crate::seeds;

const CONVERSATIONS: u64 = 700;
const N_CTX: usize = 64;

/// Answers at random; what it knows to be right it says half of the time.
struct Random {
    dice: Dice,
    /// The tokens after the prompt, if they were known.
    right: Vec<u32>,
    prompt: usize,
    n_vocab: u32,
    /// One call in so many fails.
    fails: usize,
}

impl Random {
    fn call(&mut self) -> Result<(), SourceError> {
        if self.dice.once_in(self.fails) { Err(SourceError("at random".into())) } else { Ok(()) }
    }
}

impl DraftSource for Random {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        let (max_tokens, out) = (budget.max_tokens, &mut draft.tokens);
        let known = self.right.iter().skip(context.len().saturating_sub(self.prompt));
        let wild = self.dice.once_in(6);
        let n = if wild { self.dice.below(3 * max_tokens + 2) } else { self.dice.below(max_tokens + 1) };
        if self.dice.once_in(2) {
            out.extend(known.take(n));
        } else {
            out.extend((0..n).map(|_| self.dice.below(self.n_vocab as usize) as u32));
        }
        if !out.is_empty() && self.dice.once_in(3) {
            let at = self.dice.below(out.len());
            let anything = self.dice.next() as u32;
            out[at] = *self.dice.pick(&[0, self.n_vocab, u32::MAX, self.n_vocab - 1, anything]);
        }
        self.call()
    }

    fn observe(&mut self, _: &[u32]) -> Result<(), SourceError> {
        self.call()
    }

    fn topk(&self) -> usize {
        // Also more than there are tokens.
        [0, 1, 8, 200][self.fails % 4]
    }

    fn observe_topk(&mut self, _: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.call()
    }

    fn rebuild(&mut self, _: &[u32]) -> Result<(), SourceError> {
        self.call()
    }
}

/// What a caller does: a request, or going back.
#[derive(Debug, Clone)]
enum Act {
    Ask(Vec<u32>, usize, Vec<&'static str>, Option<usize>),
    Rewind(usize),
    Reset,
    Fork,
}

fn acts(dice: &mut Dice, n_vocab: usize) -> Vec<Act> {
    (0..2 + dice.below(4))
        .map(|_| match dice.below(6) {
            0 => Act::Rewind(dice.below(N_CTX + 4)),
            1 => Act::Reset,
            2 => Act::Fork,
            _ => {
                let n = dice.below(40);
                let period = 1 + dice.below(6);
                // Now and then an id that does not exist.
                let limit = n_vocab + usize::from(dice.once_in(10));
                let words: Vec<u32> = (0..period).map(|_| dice.below(limit) as u32).collect();
                let prompt = (0..n).map(|i| words[i % period]).collect();
                let stops = (0..dice.below(3)).map(|_| *dice.pick(&["a", "w31", "ab", "w", "\u{fffd}"])).collect();
                Act::Ask(prompt, dice.below(30), stops, dice.once_in(3).then(|| dice.below(6)))
            }
        })
        .collect()
}

/// Everything that a caller sees, as text.
fn play(decoder: Decoder, sampling: &Sampling, acts: &[Act], extend: bool) -> (Vec<String>, u64) {
    let (mut seen, mut decoder, mut accepted) = (Vec::new(), decoder, 0);
    for act in acts {
        match act {
            Act::Rewind(n) => seen.push(format!("{:?}", decoder.rewind(*n).map_err(|e| e.to_string()))),
            Act::Reset => seen.push(format!("{:?}", decoder.reset().map_err(|e| e.to_string()))),
            Act::Fork => match decoder.fork(None) {
                Ok(fork) => {
                    seen.push(format!("{:?}", fork.history()));
                    if !extend {
                        decoder = fork;
                    }
                }
                Err(error) => seen.push(error.to_string()),
            },
            Act::Ask(prompt, max_tokens, stops, logprobs) => {
                // A later request goes on from what was said, as chats do.
                let prompt = if extend { [decoder.history(), prompt].concat() } else { prompt.clone() };
                let request = Request {
                    sampling: sampling.clone(),
                    max_tokens: *max_tokens,
                    stop_ids: vec![5],
                    stop_at_eog: true,
                    stops: Arc::new(StopSet::new(stops).unwrap()),
                    logprobs: *logprobs,
                    trace: false,
                    constraint: None,
                };
                let mut step = decoder.begin(&prompt, request, &mut |_, _| true);
                let (mut tokens, mut text, mut logs) = (Vec::new(), String::new(), Vec::new());
                loop {
                    match step {
                        Err(error) => break seen.push(error.to_string()),
                        Ok(found) => {
                            tokens.extend(found.tokens);
                            text.push_str(&found.text);
                            logs.extend(found.logprobs.iter().map(|l| format!("{l:?}")));
                            accepted += found.accepted as u64;
                            if let Some(finish) = found.finish {
                                break seen.push(format!("{finish:?}"));
                            }
                        }
                    }
                    step = decoder.step();
                }
                seen.push(format!("{tokens:?} {text:?} {logs:?} {:?}", decoder.history()));
            }
        }
        let (history, cache) = (decoder.history().len(), decoder.cache().len());
        // The tiny models have windows, so a cache may hold less than the history after going back.
        assert!(history > cache || (history == 0 && cache == 0), "I1: {history} tokens, {cache} cached");
    }
    (seen, accepted)
}

#[test]
fn whatever_a_source_answers_the_tokens_are_those_of_a_decoder_that_does_not_guess() {
    let models: Vec<_> = seeds::all()[..6]
        .iter()
        .map(|(name, bytes)| {
            let file = GgufFile::from_bytes(*name, bytes.clone()).unwrap();
            let options = LoadOptions { n_ctx: N_CTX, threads: 1, kernels: KernelSet::best() };
            let model = Model::load(&file, &options, &mut |_, _| true).unwrap();
            (model, Arc::new(Vocab::from_metadata(file.metadata()).unwrap()))
        })
        .collect();
    let (mut accepted, mut asked, mut refused) = (0, 0, 0);
    for number in 0..CONVERSATIONS {
        let ((), cost) = measured(|| {
            let mut dice = Dice(number);
            let (model, vocab) = dice.pick(&models).clone();
            let n_vocab = model.config().n_vocab;
            let acts = acts(&mut dice, n_vocab);
            let extend = dice.once_in(2);
            let sampling = if dice.once_in(2) {
                Sampling::default()
            } else {
                Sampling { temperature: 0.9, top_k: 5, seed: number, ..Sampling::default() }
            };
            let decoder = |speculation| Decoder::new(model.clone(), vocab.clone(), KvKind::F16, speculation).unwrap();
            let (plain, _) = play(decoder(None), &sampling, &acts, extend);
            // What came after the first request that was answered, so that guesses are right now and then.
            let first =
                acts.iter().find_map(|act| if let Act::Ask(p, n, ..) = act { Some((p.clone(), *n)) } else { None });
            let (prompt, n) = first.unwrap_or_default();
            let mut oracle = decoder(None);
            let mut right = Vec::new();
            let request = Request {
                sampling: sampling.clone(),
                max_tokens: n.max(1),
                stop_ids: Vec::new(),
                stop_at_eog: false,
                stops: Arc::new(StopSet::new::<&str>(&[]).unwrap()),
                logprobs: None,
                trace: false,
                constraint: None,
            };
            if let Ok(mut step) = oracle.begin(&prompt, request, &mut |_, _| true) {
                right.append(&mut step.tokens);
                while step.finish.is_none() {
                    step = oracle.step().unwrap();
                    right.append(&mut step.tokens);
                }
            }
            let max_draft = 1 + dice.below(64);
            let fails = *dice.pick(&[20usize, 50, 200, 1_000_000, 1_000_001, 1_000_002]);
            let source =
                Random { dice: Dice(number ^ 77), right, prompt: prompt.len(), n_vocab: n_vocab as u32, fails };
            let open = GateOptions {
                min_draft: 1,
                min_speedup: 0.5,
                max_debt: 1000.0,
                adapt_budget: false,
                ..GateOptions::default()
            };
            let costs = CostTable::new(vec![CostPoint { k: 1, cost: 1.0 }], "a test").unwrap();
            let gate = Gate::new(open).unwrap();
            let costs = costs.into();
            let (guessed, hits) = play(
                decoder(Some(Speculation { source: Box::new(source), gate, costs, max_draft, drafters: Vec::new() })),
                &sampling,
                &acts,
                extend,
            );
            assert_eq!(plain, guessed, "conversation {number}: {acts:?}");
            accepted += hits;
            asked += plain.len();
            refused += plain.iter().filter(|line| line.contains("expected") || line.contains("fit")).count();
        });
        assert!(cost.bytes < BYTES && cost.time < 4 * TIME, "conversation {number}: {cost:?}");
    }
    println!(
        "{CONVERSATIONS} conversations, {asked} answers, {refused} of them refusals; {accepted} guesses were right"
    );
    assert!(accepted > 500 && refused > 100 && asked > 3_000, "{accepted}, {refused}, {asked}");
}
