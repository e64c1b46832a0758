//! The two moves of a decoder: begin a request, take a step.

use super::Decoder;
use super::probe::{Part, Probe};
use super::request::{Finish, Request, Step, Turn};
use super::stats::DecodeStats;
use quoth_draft::{Bounds, Load, Speculator, TimedStep};
use quoth_kernels::top::Best;

use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Output, Span, Want};
use crate::sample::{Picked, SampleError, Sampler, logprobs, topk_ids};
use crate::vocab::Vocab;

/// The rows of a forward that are to be sampled.
enum Results<'r> {
    /// All logits, `n_vocab` a row.
    Logits(&'r mut [f32]),
    /// The greatest of each row, best first: all that plain greedy decoding wants.
    Best(&'r [Best]),
}

/// What the rows of a forward became.
#[derive(Default)]
struct Rows {
    /// Rows that were sampled.
    sampled: usize,
    accepted: usize,
    error: Option<Error>,
}

impl Decoder {
    /// Begins a request and gives its first token. The longest prefix that `prompt` shares with the cached tokens is kept, up to its last token.
    /// `progress` gets prompt tokens done and in all after every pass; false stops.
    ///
    /// # Errors
    /// The prompt is empty, too long or has tokens out of range, or the request makes no sense: nothing changes. Or the caller stopped, or a forward or the
    /// sampler failed: what is cached then is a prefix of the prompt.
    pub fn begin(
        &mut self,
        prompt: &[u32],
        request: Request,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Step> {
        let n_ctx = self.cache.n_ctx();
        let n_vocab = self.model.config().n_vocab;
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > n_ctx {
            return Err(Error::ContextFull { cached: 0, asked: prompt.len(), n_ctx });
        }
        if let Some((pos, &token)) = prompt.iter().enumerate().find(|(_, t)| **t as usize >= n_vocab) {
            return Err(Error::TokenRange { token, pos, last: n_vocab - 1 });
        }
        if request.max_tokens == 0 {
            let expected = "at least 1".into();
            return Err(Error::Option { what: "max_tokens", found: "0".into(), expected });
        }
        if let Some(token) = request.stop_ids.iter().find(|t| **t as usize >= n_vocab) {
            let expected = format!("token ids of 0 to {}", n_vocab - 1);
            return Err(Error::Option { what: "stop", found: token.to_string(), expected });
        }
        if !self.model.is_alive() {
            return Err(Error::Forked);
        }
        let start = self.clock.now_ns();
        self.turn = None;
        self.mend()?;
        if let Some(sampler) = self.next_sampler.take() {
            self.sampler = sampler;
        }
        self.stats = DecodeStats::default();
        let kept = self.keep_prefix(prompt)?;
        self.stats.cached_tokens = kept as u64;
        let result = self.prefill(prompt, kept, progress).and_then(|()| {
            let mut turn = Turn::new(request, &self.vocab);
            let mut step = Step::default();
            self.commit_first(&mut turn, &mut step)?;
            step.finish = turn.finish;
            self.turn = Some(turn);
            Ok(step)
        });
        if result.is_err() {
            // What is cached is a prefix of the prompt; the token after it is carried (I1).
            self.cache.truncate(prompt.len() - 1)?;
            self.history.truncate(self.cache.len() + 1);
            if let Some(speculator) = &mut self.speculator {
                speculator.rebuild(&self.history);
            }
        }
        self.stats.prefill_ns = self.clock.now_ns() - start;
        result
    }

    /// Rewinds to the longest prefix shared with `prompt`, makes the prompt the history, and brings the sources to it. Gives the tokens kept.
    fn keep_prefix(&mut self, prompt: &[u32]) -> Result<usize> {
        let shared = self.history.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last prompt token is always forwarded: its row is where the first token comes from.
        let mut kept = shared.min(self.cache.len()).min(prompt.len() - 1);
        if self.cache.truncate(kept).is_err() {
            // Window layers no longer reach back so far: begin anew.
            self.cache.truncate(0)?;
            kept = 0;
        }
        let extends = shared == self.history.len();
        let known = self.history.len();
        self.history.clear();
        self.history.extend_from_slice(prompt);
        if let Some(speculator) = &mut self.speculator {
            speculator.begin_request();
            if extends {
                speculator.observe(&prompt[known..]);
            } else {
                speculator.rebuild(prompt);
            }
        }
        Ok(kept)
    }

    /// Forwards the prompt after its first `kept` tokens; the last row's logits stay in scratch memory.
    fn prefill(&mut self, prompt: &[u32], kept: usize, progress: &mut dyn FnMut(usize, usize) -> bool) -> Result<()> {
        let mut done = kept;
        while done < prompt.len() {
            let part = &prompt[done..prompt.len().min(done + MAX_ROWS)];
            let want = if done + part.len() == prompt.len() { Want::Last } else { Want::None };
            self.before(Part::Prefill)?;
            self.forward(part, want, None)?;
            done += part.len();
            self.stats.prefill_tokens += part.len() as u64;
            if !progress(done, prompt.len()) && done < prompt.len() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Forwards tokens; the wanted rows are then in `self.best`, `best` ids each, or if that is `None` in `self.logits`.
    fn forward(&mut self, tokens: &[u32], want: Want, best: Option<usize>) -> Result<()> {
        let rows = match want {
            Want::All => tokens.len(),
            Want::Last => 1,
            Want::None => 0,
        };
        let output = match best {
            Some(k) => {
                self.best.resize_with(rows, Best::default);
                self.best.iter_mut().for_each(|best| best.reset(k));
                Output::Best(&mut self.best)
            }
            None => {
                let n = rows * self.model.config().n_vocab;
                self.logits.resize(self.logits.len().max(n), 0.0);
                Output::Logits(&mut self.logits[..n])
            }
        };
        let mut span = [Span { cache: &mut self.cache, tokens }];
        self.model.forward(&mut span, want, &mut self.scratch, output)
    }

    /// Commits the token after the prompt, from the row that the prefill left.
    fn commit_first(&mut self, turn: &mut Turn, step: &mut Step) -> Result<()> {
        let n_vocab = self.model.config().n_vocab;
        let rows = commit_rows(
            &self.vocab,
            &mut self.sampler,
            None,
            self.probe.as_deref_mut(),
            &mut self.history,
            &mut self.stats,
            turn,
            Results::Logits(&mut self.logits[..n_vocab]),
            &[],
            step,
        );
        if let Some(error) = rows.error {
            return Err(error);
        }
        self.settle(turn, 1)
    }

    /// After committed rows: trims a token that completed a stop, rewinds the cache to the history (I1, I5), tells the sources. `new` tokens were committed.
    fn settle(&mut self, turn: &Turn, new: usize) -> Result<()> {
        let mut kept = new;
        if turn.ended_by_stop() && new > 0 {
            self.history.pop();
            kept -= 1;
        }
        self.cache.truncate(self.history.len() - 1)?;
        if let Some(speculator) = &mut self.speculator {
            if kept > 0 {
                speculator.observe(&self.history[self.history.len() - kept..]);
            } else {
                speculator.drop_pending();
            }
        }
        Ok(())
    }

    /// Takes one step of the request: at least one token, or the end. After the end, steps are empty and say why it ended.
    ///
    /// # Errors
    /// A forward or the sampler failed; history and cache stand at the last committed token, and the request can go on.
    pub fn step(&mut self) -> Result<Step> {
        if !self.model.is_alive() {
            return Err(Error::Forked);
        }
        let Some(mut turn) = self.turn.take() else {
            return Err(Error::Internal("a step without a request".into()));
        };
        let result = self.step_turn(&mut turn);
        self.turn = Some(turn);
        result
    }

    fn step_turn(&mut self, turn: &mut Turn) -> Result<Step> {
        if let Some(error) = turn.deferred.take() {
            return Err(error);
        }
        let mut step = Step::default();
        if turn.finish.is_some() {
            step.finish = turn.finish;
            return Ok(step);
        }
        if self.cache.len() >= self.cache.n_ctx() {
            turn.text.cut(&mut step.text);
            turn.finish = Some(Finish::Context);
            step.finish = turn.finish;
            return Ok(step);
        }
        let result = self.forward_and_commit(turn, &mut step);
        if let Err(error) = result {
            self.cache.truncate(self.history.len() - 1)?;
            if let Some(speculator) = &mut self.speculator {
                speculator.drop_pending();
            }
            if step.tokens.is_empty() {
                return Err(error);
            }
            turn.deferred = Some(error);
        }
        step.finish = turn.finish;
        Ok(step)
    }

    fn forward_and_commit(&mut self, turn: &mut Turn, step: &mut Step) -> Result<()> {
        let start = self.clock.now_ns();
        let n_vocab = self.model.config().n_vocab;
        let carried = self.history.last().copied();
        let mut tokens: Vec<u32> = carried.into_iter().collect();
        let mut draft_ns = 0;
        let cached = self.cache.len();
        if let Some(speculator) = &mut self.speculator {
            let bounds = Bounds {
                room: self.cache.n_ctx() - self.cache.len() - 1,
                wanted: turn.request.max_tokens - turn.produced,
                n_vocab,
                stop_ids: &turn.stop_ids,
            };
            let draft = speculator.propose(&self.history, bounds, Load { cached, ..Load::default() });
            tokens.extend_from_slice(&draft.tokens);
            if turn.request.trace && !draft.is_empty() {
                step.source = Some(draft.source.as_deref().unwrap_or("source").to_owned());
            }
            if speculator.allowed() {
                draft_ns = (self.clock.now_ns() - start).max(1);
            }
        }
        let drafted = tokens.len() - 1;
        step.drafted = drafted;
        self.before(Part::Forward { rows: tokens.len() })?;
        let forward_start = self.clock.now_ns();
        // Plain greedy decoding needs no rows, only the greatest of each; a probe may want to see rows.
        let seen = turn.request.logprobs.is_some() || self.probe.as_ref().is_some_and(|probe| probe.wants_rows());
        let greedy = self.sampler.is_plainly_greedy() && !seen;
        let topk = match &self.speculator {
            Some(speculator) if drafted > 0 => speculator.topk(),
            _ => 0,
        };
        self.forward(&tokens, Want::All, greedy.then_some(topk.max(1)))?;
        let forward_end = self.clock.now_ns();
        self.before(Part::Forwarded)?;

        let before = self.history.len();
        let speculator = if drafted > 0 { self.speculator.as_mut() } else { None };
        let rows = commit_rows(
            &self.vocab,
            &mut self.sampler,
            speculator,
            self.probe.as_deref_mut(),
            &mut self.history,
            &mut self.stats,
            turn,
            if greedy {
                Results::Best(&self.best)
            } else {
                Results::Logits(&mut self.logits[..tokens.len() * n_vocab])
            },
            &tokens[1..],
            step,
        );
        let sampled = self.clock.now_ns();
        let committed = self.history.len() - before;
        step.accepted = rows.accepted;
        self.settle(turn, committed)?;
        if drafted > 0
            && let Some(speculator) = &mut self.speculator
        {
            speculator.observe_topk(&tokens[..rows.sampled]);
        }
        let end = self.clock.now_ns();

        let stats = &mut self.stats;
        stats.steps += 1;
        stats.decode_ns += end - start;
        stats.draft_ns += draft_ns + (end - sampled);
        stats.sample_ns += sampled - forward_end;
        if drafted > 0 {
            stats.verify_steps += 1;
            stats.verify_ns += forward_end - forward_start;
            stats.drafted += drafted as u64;
            stats.accepted += rows.accepted as u64;
            stats.bonus += u64::from(rows.accepted == drafted && committed > drafted);
            stats.longest_draft = stats.longest_draft.max(drafted as u64);
        } else {
            stats.plain_steps += 1;
        }
        if let Some(speculator) = &mut self.speculator {
            // A step that failed, or that a stop cut short, says nothing about the draft's worth; its time is not a sample either.
            let cut_short = rows.accepted == committed && committed <= drafted;
            let mut timed = TimedStep { rows: drafted + 1, spans: 1, cached, drafted, ns: end - start };
            let costs = speculator.costs().clone();
            if drafted == 0 {
                timed.ns = timed.ns.saturating_sub(draft_ns);
                costs.lock().observe(timed);
                speculator.record_plain(draft_ns);
            } else if rows.error.is_none() {
                let cost = (!cut_short).then(|| {
                    let mut costs = costs.lock();
                    costs.observe(timed);
                    costs.draft_cost(drafted, drafted + 1, 1, cached)
                });
                speculator.record_verify(rows.accepted, committed, cost);
            }
        }
        match rows.error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Samples and commits row after row until the draft is contradicted, the rows are used up, the request ends, or sampling fails.
#[allow(clippy::too_many_arguments)]
fn commit_rows(
    vocab: &Vocab,
    sampler: &mut Sampler,
    mut speculator: Option<&mut Speculator>,
    mut probe: Option<&mut (dyn Probe + 'static)>,
    history: &mut Vec<u32>,
    stats: &mut DecodeStats,
    turn: &mut Turn,
    mut results: Results<'_>,
    draft: &[u32],
    step: &mut Step,
) -> Rows {
    let mut rows = Rows::default();
    let topk = speculator.as_ref().map_or(0, |speculator| speculator.topk());
    for i in 0..=draft.len() {
        let pos = history.len();
        if topk > 0
            && let Some(speculator) = &mut speculator
        {
            match &results {
                Results::Logits(logits) => {
                    let mut ids = vec![0; topk];
                    let n = topk_ids(row_of(logits, i, draft.len() + 1), &mut ids);
                    speculator.capture(ids[..n].iter().copied());
                }
                Results::Best(best) => speculator.capture(best[i].ids()),
            }
        }
        if let Some(probe) = &mut probe
            && let Err(error) = probe.before(Part::Sample { row: i })
        {
            rows.error = Some(error);
            break;
        }
        let picked = match &mut results {
            Results::Logits(logits) => {
                let n = logits.len() / (draft.len() + 1);
                sampler.sample(&mut logits[i * n..(i + 1) * n], history, turn.committed, pos)
            }
            Results::Best(best) => greatest(&best[i], pos),
        };
        let picked = match picked {
            Ok(picked) => picked,
            Err(error) => {
                rows.error = Some(error.into());
                break;
            }
        };
        let token = picked.token;
        let row = match &results {
            Results::Logits(logits) => row_of(logits, i, draft.len() + 1),
            Results::Best(_) => &[],
        };
        let lp = match turn.request.logprobs.map(|n| logprobs(row, token, n, pos)).transpose() {
            Ok(lp) => lp,
            Err(error) => {
                rows.error = Some(error.into());
                break;
            }
        };
        rows.sampled += 1;
        stats.committed += 1;
        stats.draws += u64::from(picked.drew);
        history.push(token);
        if let Some(probe) = &mut probe {
            probe.committed(pos, row, token);
        }
        let handed_out = step.tokens.len();
        let ends = turn.take(vocab, token, step);
        if step.tokens.len() > handed_out {
            step.logprobs.extend(lp);
        }
        let agrees = draft.get(i) == Some(&token);
        rows.accepted += usize::from(agrees);
        if ends || !agrees {
            break;
        }
    }
    rows
}

/// Row `i` of `count`.
fn row_of(logits: &[f32], i: usize, count: usize) -> &[f32] {
    let n = logits.len() / count;
    &logits[i * n..(i + 1) * n]
}

/// The token of a row's greatest logit, as the sampler would choose it.
fn greatest(best: &Best, pos: usize) -> Result<Picked, SampleError> {
    if let Some(token) = best.nan() {
        return Err(SampleError::NotANumber { pos, token });
    }
    match best.ids().next() {
        Some(token) => Ok(Picked { token, drew: false }),
        None => Err(SampleError::AllMasked { pos }),
    }
}
