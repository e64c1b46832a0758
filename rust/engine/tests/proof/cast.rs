//! The cast: draft sources that know everything, nothing, or lie, stall and break.
//!
//! A [`Witness`] stands before each of them and checks the decoder's side of the contract (S2, S3 of `quoth_draft::source`): what is observed is the history,
//! each token once; `observe_topk` comes after the `observe` of its step, with the rows that were sampled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quoth_draft::{Budget, Cascade, CascadeOptions, Draft, DraftSource, Part, SourceError, TopkRow};

use crate::models::Dice;

/// A method of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Suggest,
    Observe,
    ObserveTopk,
    Rebuild,
}

/// How a source drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Knows the plain stream.
    Perfect,
    /// Tokens that have nothing to do with it.
    Garbage,
    /// Right up to a place that wanders through the draft, wrong there, right again.
    Alternating,
    /// More tokens than were asked for, right ones and ids outside the vocabulary.
    Lying,
    Silent,
    /// Right until a method is called for the third time, which fails; a failing suggestion leaves nonsense behind.
    Raising(Method),
    /// Right and late.
    Slow,
    /// Always this token.
    Stubborn(u32),
    /// Wrong until the context has so many tokens, then right.
    Late(usize),
    /// quoth's own.
    Cascade,
}

pub(crate) const ROLES: [Role; 11] = [
    Role::Perfect,
    Role::Garbage,
    Role::Alternating,
    Role::Lying,
    Role::Silent,
    Role::Raising(Method::Suggest),
    Role::Raising(Method::Observe),
    Role::Raising(Method::ObserveTopk),
    Role::Raising(Method::Rebuild),
    Role::Slow,
    Role::Cascade,
];

/// A source of some role.
pub(crate) struct Actor {
    role: Role,
    /// Whole streams, prompts and answers, that perfect ones know.
    streams: Vec<Vec<u32>>,
    n_vocab: usize,
    calls: [usize; 4],
    drafts: usize,
}

impl Actor {
    /// How the stream that begins with `context` goes on.
    fn knowledge(&self, context: &[u32]) -> &[u32] {
        self.streams.iter().find(|s| s.starts_with(context)).map_or(&[], |s| &s[context.len()..])
    }

    fn call(&mut self, method: Method) -> Result<(), SourceError> {
        self.calls[method as usize] += 1;
        let fails = self.role == Role::Raising(method) && self.calls[method as usize] >= 3;
        // A rebuild is rare: it fails at once.
        let fails = fails || self.role == Role::Raising(Method::Rebuild) && method == Method::Rebuild;
        if fails { Err(SourceError(format!("{method:?} does not work"))) } else { Ok(()) }
    }
}

impl DraftSource for Actor {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        let (max_tokens, out) = (budget.max_tokens, &mut draft.tokens);
        self.drafts += 1;
        let known: Vec<u32> = self.knowledge(context).to_vec();
        let right = known.iter().copied().take(max_tokens);
        match self.role {
            Role::Perfect | Role::Raising(_) => out.extend(right),
            Role::Slow => {
                std::thread::sleep(Duration::from_micros(50));
                out.extend(right);
            }
            Role::Garbage => out.extend(Dice(context.len() as u64).tokens(max_tokens, self.n_vocab)),
            Role::Alternating => {
                out.extend(right);
                let wrong = self.drafts % (max_tokens + 1);
                if let Some(token) = out.get_mut(wrong) {
                    *token = (*token + 1) % self.n_vocab as u32;
                }
            }
            Role::Lying => {
                out.extend(known.iter().take(max_tokens + 37));
                let n_vocab = self.n_vocab as u32;
                match self.drafts % 4 {
                    0 => out.extend(std::iter::repeat_n(n_vocab, 100)),
                    1 => out.insert(out.len().min(2), n_vocab),
                    2 => out.iter_mut().for_each(|t| *t = u32::MAX - *t),
                    _ => out.extend(0..1000),
                }
            }
            Role::Silent | Role::Cascade => {}
            Role::Late(from) => {
                out.extend(right);
                if context.len() < from {
                    out.iter_mut().for_each(|t| *t = (*t + 1) % self.n_vocab as u32);
                }
            }
            Role::Stubborn(token) => out.extend(std::iter::repeat_n(token, max_tokens)),
        }
        let answer = self.call(Method::Suggest);
        if answer.is_err() {
            out.extend([self.n_vocab as u32, u32::MAX]);
            out.extend(0..100);
            out.rotate_right(101);
        }
        answer
    }

    fn observe(&mut self, _committed: &[u32]) -> Result<(), SourceError> {
        self.call(Method::Observe)
    }

    fn topk(&self) -> usize {
        // More than the smallest vocabulary has, for one of them.
        if self.role == Role::Garbage { 200 } else { 8 }
    }

    fn observe_topk(&mut self, _rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.call(Method::ObserveTopk)
    }

    fn rebuild(&mut self, _history: &[u32]) -> Result<(), SourceError> {
        self.call(Method::Rebuild)
    }
}

/// What a decoder told its source.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Everything observed since the last rebuild.
    pub(crate) seen: Vec<u32>,
    /// A method has failed: nothing more may be called.
    pub(crate) failed: bool,
    /// Calls after that.
    pub(crate) calls_after: usize,
    pub(crate) suggests: usize,
    pub(crate) rebuilds: usize,
    /// All rows of top-k.
    pub(crate) told: Vec<(u32, Vec<u32>)>,
    /// Context, most tokens, answer of the last suggestion that has not been settled.
    pub(crate) pending: Option<(usize, usize, Vec<u32>)>,
    /// The carried token of the last suggestion, and what was observed since.
    step: Vec<u32>,
    /// What was not as agreed.
    pub(crate) faults: Vec<String>,
}

impl Book {
    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(what());
        }
    }
}

/// A source that keeps a book on its decoder.
pub(crate) struct Witness {
    inner: Box<dyn DraftSource>,
    book: Arc<Mutex<Book>>,
}

impl Witness {
    fn note(&self, result: Result<(), SourceError>) -> Result<(), SourceError> {
        self.book.lock().unwrap().failed |= result.is_err();
        result
    }

    fn enter(&self) -> std::sync::MutexGuard<'_, Book> {
        let mut book = self.book.lock().unwrap();
        book.calls_after += usize::from(book.failed);
        book
    }
}

impl DraftSource for Witness {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        let max_tokens = budget.max_tokens;
        let committed = &context[..context.len() - budget.ahead];
        {
            let mut book = self.enter();
            book.suggests += 1;
            book.step = committed.last().copied().into_iter().collect();
            let same = book.seen == committed;
            book.expect(same, || format!("a context of {} tokens that was not observed so", context.len()));
            let fresh = *draft == Draft::default() && budget.extra.len() == max_tokens + 1;
            book.expect(fresh && max_tokens > 0, || format!("asked for {max_tokens} into {draft:?}"));
        }
        let result = self.inner.suggest(context, budget, draft);
        self.book.lock().unwrap().pending = result.is_ok().then(|| (context.len(), max_tokens, draft.tokens.clone()));
        self.note(result)
    }

    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        {
            let mut book = self.enter();
            book.step.extend_from_slice(committed);
            book.seen.extend_from_slice(committed);
            book.pending = None;
        }
        let result = self.inner.observe(committed);
        self.note(result)
    }

    fn topk(&self) -> usize {
        self.inner.topk()
    }

    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        {
            let mut book = self.enter();
            book.told.extend(rows.iter().map(|row| (row.token, row.top.to_vec())));
            let inputs: Vec<u32> = rows.iter().map(|row| row.token).collect();
            // The carried token went into the first row, each committed one into the next, if that was sampled.
            let fits = !rows.is_empty() && inputs.len() <= book.step.len() && inputs == book.step[..inputs.len()];
            let step = book.step.clone();
            book.expect(fits, || format!("top-k of rows {inputs:?} after a step {step:?}"));
            let wanted = self.inner.topk();
            book.expect(rows.iter().all(|row| row.top.len() <= wanted), || "more than was wanted".into());
        }
        let result = self.inner.observe_topk(rows);
        self.note(result)
    }

    fn truncate_pending(&mut self, n: usize) {
        {
            let mut book = self.enter();
            let fits = book.pending.as_ref().is_some_and(|(_, _, draft)| n < draft.len());
            book.expect(fits, || format!("cut to {n} tokens of what was no draft"));
            if n == 0 {
                book.pending = None;
            } else if let Some((_, _, draft)) = &mut book.pending {
                draft.truncate(n);
            }
        }
        self.inner.truncate_pending(n);
    }

    fn give_way(&mut self, extra: Option<f64>) {
        {
            let mut book = self.enter();
            let settled = book.pending.as_ref().is_none_or(|(_, _, draft)| draft.is_empty());
            book.expect(settled, || format!("gives way at {extra:?} with a draft pending"));
        }
        self.inner.give_way(extra);
    }

    fn graft(&mut self, context: &[u32], guessed: &[u32], max: usize, draft: &mut Draft) -> Result<(), SourceError> {
        {
            let mut book = self.enter();
            let fits = book.seen == context && !guessed.is_empty() && *draft == Draft::default();
            book.expect(fits, || format!("a graft behind {guessed:?} into {draft:?}"));
        }
        let result = self.inner.graft(context, guessed, max, draft);
        self.note(result)
    }

    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        {
            let mut book = self.enter();
            book.rebuilds += 1;
            book.seen = history.to_vec();
            book.pending = None;
        }
        let result = self.inner.rebuild(history);
        self.note(result)
    }

    fn parts(&self) -> Vec<Part> {
        self.inner.parts()
    }
}

/// An actor behind a witness, and the witness' book.
pub(crate) fn hire(role: Role, streams: &[Vec<u32>], n_vocab: usize) -> (Box<dyn DraftSource>, Arc<Mutex<Book>>) {
    let inner: Box<dyn DraftSource> = match role {
        Role::Cascade => Box::new(Cascade::new(n_vocab, CascadeOptions::default()).unwrap()),
        _ => Box::new(Actor { role, streams: streams.to_vec(), n_vocab, calls: [0; 4], drafts: 0 }),
    };
    let book = Arc::new(Mutex::new(Book::default()));
    (Box::new(Witness { inner, book: book.clone() }), book)
}
