//! A request: what is wanted, how its tokens are chosen, what ends it, and how far it has come.

use std::sync::Arc;

use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::sample::{Sampler, Sampling, TokenLogprobs};
use crate::vocab::{Detokenizer, StopSet, TextStream, Vocab};

/// What is wanted of a decode. It owns everything that is the request's alone; a sequence keeps nothing of it for the next.
#[derive(Debug, Clone)]
pub struct Request {
    /// How tokens are chosen, and the seed of their draws.
    pub sampling: Sampling,
    /// Most tokens to hand out, at least 1.
    pub max_tokens: usize,
    /// Tokens that end the decode, beside the vocabulary's ends of generation.
    pub stop_ids: Vec<u32>,
    /// Whether the vocabulary's ends of generation end the decode.
    pub stop_at_eog: bool,
    /// Texts that end the decode.
    pub stops: Arc<StopSet>,
    /// Log-probabilities of the chosen and of so many best tokens.
    pub logprobs: Option<usize>,
    /// Whether each step names the source of its draft.
    pub trace: bool,
    /// Which tokens the answer may consist of.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Why a decode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends a decode was chosen.
    StopId(u32),
    /// A stop text was completed: its index.
    StopText(usize),
    /// All wanted tokens were handed out.
    Length,
    /// The context is full.
    Context,
    /// The constraint's answer is complete: nothing can follow.
    Complete,
}

/// What a step hands out.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// Committed tokens, without one that completes a stop.
    pub tokens: Vec<u32>,
    /// Text that may be shown: whole characters, nothing of a stop.
    pub text: String,
    /// For each token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Drafted tokens that this step verified.
    pub drafted: usize,
    /// Drafted tokens that it committed.
    pub accepted: usize,
    /// The source that drafted them, if asked for.
    pub source: Option<String>,
    /// Why the decode ended, in its last step.
    pub finish: Option<Finish>,
}

/// What a constraint says about the next tokens.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    pub(crate) tokens: Vec<u32>,
    /// How many of them come in any case.
    pub(crate) certain: usize,
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) request: Request,
    pub(crate) sampler: Sampler,
    /// When the request began.
    pub(crate) begun_ns: u64,
    /// All tokens that end the decode, ascending.
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) text: TextStream,
    /// Tokens handed out.
    pub(crate) produced: usize,
    /// Tokens committed: the index of the next draw.
    pub(crate) committed: u64,
    pub(crate) finish: Option<Finish>,
    /// An error that came after tokens which had to be handed out first.
    pub(crate) deferred: Option<Error>,
}

impl Turn {
    /// Checks a request and makes it ready.
    ///
    /// # Errors
    /// It makes no sense for a model with `n_vocab` tokens.
    pub(crate) fn new(request: Request, vocab: &Vocab, n_vocab: usize, begun_ns: u64) -> Result<Self> {
        if request.max_tokens == 0 {
            let expected = "at least 1".into();
            return Err(Error::Option { what: "max_tokens", found: "0".into(), expected });
        }
        if let Some(token) = request.stop_ids.iter().find(|t| **t as usize >= n_vocab) {
            let expected = format!("token ids of 0 to {}", n_vocab - 1);
            return Err(Error::Option { what: "stop", found: token.to_string(), expected });
        }
        let mut sampling = request.sampling.clone();
        // What the file suppresses is never chosen, whatever the options say.
        sampling.banned.extend(vocab.suppressed().iter().filter(|id| (**id as usize) < n_vocab));
        let sampler = Sampler::new(sampling, n_vocab)?;
        let mut stop_ids = request.stop_ids.clone();
        if request.stop_at_eog {
            stop_ids.extend(vocab.eog_ids());
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let text = TextStream::new(Detokenizer::new(vocab, false, false), request.stops.clone());
        Ok(Turn { request, sampler, begun_ns, stop_ids, text, produced: 0, committed: 0, finish: None, deferred: None })
    }

    /// Takes a committed token into what is handed out; one that completes a stop is not.
    pub(crate) fn take(&mut self, vocab: &Vocab, token: u32, step: &mut Step) {
        self.committed += 1;
        if self.stop_ids.binary_search(&token).is_ok() {
            self.text.cut(&mut step.text);
            self.finish = Some(Finish::StopId(token));
            return;
        }
        if let Some(hit) = self.text.push(vocab, token, &mut step.text) {
            self.finish = Some(Finish::StopText(hit.stop));
            return;
        }
        step.tokens.push(token);
        self.produced += 1;
        if self.produced == self.request.max_tokens {
            self.text.cut(&mut step.text);
            self.finish = Some(Finish::Length);
        }
    }

    /// Tells the constraint the token that `take` took. Gives whether the decode ends with it.
    ///
    /// # Errors
    /// The constraint could not follow.
    pub(crate) fn constrain(&mut self, token: u32, step: &mut Step) -> Result<bool> {
        let Some(constraint) = self.request.constraint.as_mut().filter(|_| !ended_by_stop(self.finish)) else {
            return Ok(self.finish.is_some());
        };
        if constraint.commit(token)? {
            self.text.cut(&mut step.text);
            self.finish = Some(Finish::Complete);
        }
        Ok(self.finish.is_some())
    }

    /// How many of the tokens the constraint allows, one after another; all without a constraint.
    ///
    /// # Errors
    /// The constraint could not follow.
    pub(crate) fn allowed(&mut self, draft: &[u32]) -> Result<usize> {
        self.request.constraint.as_mut().map_or(Ok(draft.len()), |constraint| constraint.valid_prefix(draft))
    }

    /// Up to `max` tokens that come next in any case, and with `guess` those that probably come behind them.
    ///
    /// # Errors
    /// The constraint could not follow.
    pub(crate) fn ahead(&mut self, max: usize, guess: bool) -> Result<Ahead> {
        let mut ahead = Ahead::default();
        if let Some(constraint) = &mut self.request.constraint {
            constraint.forced(max, &mut ahead.tokens)?;
            ahead.certain = ahead.tokens.len();
            if guess && ahead.certain < max {
                constraint.likely(max - ahead.certain, &mut ahead.tokens)?;
            }
        }
        Ok(ahead)
    }

    /// Whether the last committed token completed a stop.
    pub(crate) fn ended_by_stop(&self) -> bool {
        ended_by_stop(self.finish)
    }
}

fn ended_by_stop(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::StopId(_) | Finish::StopText(_)))
}
