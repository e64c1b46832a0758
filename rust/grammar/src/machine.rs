//! A compiled grammar as a constraint.
//!
//! In: drafts and committed tokens. Out: masks, forced tokens, the end.
//!
//! M1  Forced bytes become a *plan*: tokens that follow in any case. A plan is made at the first place where bytes are forced and none is left, so it is a
//!     function of the committed tokens alone; along the plan each mask allows one token.
//! M2  Questions walk along the draft and roll back to where they began, plan included.
//! M3  What is left of forced bytes behind a plan, because a longer token could spell it, is a guess: `likely`.
//! M4  An end of generation is allowed where the answer may end, and completes it.
//!
//! Cost: that of the grammar engine; along a plan nothing.

use std::collections::VecDeque;

use llguidance::Matcher;
use quoth_engine::constraint::{Constraint, Mask};
use quoth_engine::{Error, Result};

use crate::compile::said;

/// See the module.
pub(crate) struct Machine {
    matcher: Matcher,
    plan: VecDeque<u32>,
}

impl Machine {
    /// A constraint at the beginning of an answer, independent of the one that `matcher` belongs to.
    pub(crate) fn new(matcher: &Matcher) -> Machine {
        Machine { matcher: matcher.deep_clone(), plan: VecDeque::new() }
    }

    /// Makes a plan if there is none and bytes are forced here.
    fn make_plan(&mut self) {
        if self.plan.is_empty() {
            self.plan = self.matcher.compute_ff_tokens().into();
        }
    }

    /// What may come next.
    pub(crate) fn mask(&mut self) -> Result<Mask> {
        self.make_plan();
        if let Some(token) = self.plan.front() {
            return Ok(Mask::One(*token));
        }
        let set = self.matcher.compute_mask().map_err(failed)?;
        let words = set.as_slice();
        let mut held = words.iter().enumerate().filter(|(_, word)| **word != 0);
        match (held.next(), held.next()) {
            (Some((at, word)), None) if word.is_power_of_two() => Ok(Mask::One(at as u32 * 32 + word.trailing_zeros())),
            _ => Ok(Mask::Set(words.to_vec())),
        }
    }

    /// Takes a token. False, and nothing happens, if it is not allowed here.
    fn take(&mut self, token: u32) -> Result<bool> {
        self.make_plan();
        match self.plan.front() {
            Some(planned) if *planned != token => return Ok(false),
            Some(_) => {}
            None if self.matcher.validate_tokens(&[token]).map_err(failed)? == 0 => return Ok(false),
            None => {}
        }
        self.matcher.consume_token(token).map_err(failed)?;
        self.plan.pop_front();
        Ok(true)
    }

    /// Whether nothing can follow.
    fn is_complete(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Walks along `draft`, as far as it is allowed and not complete, with `visit` at each place; then goes back. How many tokens were allowed.
    fn walk(&mut self, draft: &[u32], mut visit: impl FnMut(&mut Machine) -> Result<()>) -> Result<usize> {
        let plan = self.plan.clone();
        let mut taken = 0;
        let mut walk = || -> Result<()> {
            loop {
                visit(self)?;
                match draft.get(taken) {
                    Some(token) if self.take(*token)? => taken += 1,
                    _ => return Ok(()),
                }
                if self.is_complete() {
                    return Ok(());
                }
            }
        };
        walk()?;
        self.matcher.rollback(taken).map_err(failed)?;
        self.plan = plan;
        Ok(taken)
    }

    /// An independent machine at the same place.
    pub(crate) fn copy(&self) -> Machine {
        Machine { matcher: self.matcher.deep_clone(), plan: self.plan.clone() }
    }

    /// Whether bytes are allowed here.
    pub(crate) fn try_bytes(&mut self, bytes: &[u8]) -> Result<bool> {
        let tokens = self.encoded(bytes)?;
        Ok(tokens.len() == self.matcher.validate_tokens(&tokens).map_err(failed)?)
    }

    /// Asks something behind bytes that are allowed here, and goes back.
    pub(crate) fn behind<T>(&mut self, bytes: &[u8], ask: impl FnOnce(&mut Machine) -> Result<T>) -> Result<T> {
        let (plan, tokens) = (self.plan.clone(), self.encoded(bytes)?.len());
        self.take_bytes(bytes)?;
        let answer = ask(self)?;
        self.matcher.rollback(tokens).map_err(failed)?;
        self.plan = plan;
        Ok(answer)
    }

    /// Bytes as tokens that spell them, of whatever kind.
    fn encoded(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        Ok(self.matcher.tok_env().map_err(failed)?.tok_trie().greedy_tokenize(bytes))
    }

    /// Takes bytes, as tokens of whatever kind. False, and nothing happens, if they are not allowed here.
    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) -> Result<bool> {
        let tokens = self.encoded(bytes)?;
        if tokens.len() != self.matcher.validate_tokens(&tokens).map_err(failed)? {
            return Ok(false);
        }
        self.matcher.consume_tokens(&tokens).map_err(failed)?;
        self.plan.clear();
        Ok(true)
    }
}

impl Constraint for Machine {
    fn masks(&mut self, draft: &[u32], out: &mut Vec<Mask>) -> Result<()> {
        self.walk(draft, |machine| {
            out.push(machine.mask()?);
            Ok(())
        })?;
        Ok(())
    }

    fn valid_prefix(&mut self, draft: &[u32]) -> Result<usize> {
        self.walk(draft, |_| Ok(()))
    }

    fn forced(&mut self, max: usize, out: &mut Vec<u32>) -> Result<()> {
        self.make_plan();
        out.extend(self.plan.iter().take(max));
        Ok(())
    }

    fn likely(&mut self, max: usize, out: &mut Vec<u32>) -> Result<()> {
        self.make_plan();
        let (plan, forced) = (self.plan.clone(), Vec::from(self.plan.clone()));
        self.matcher.consume_tokens(&forced).map_err(failed)?;
        if !self.is_complete() {
            let bytes = self.matcher.compute_ff_bytes();
            let env = self.matcher.tok_env().map_err(failed)?;
            // Without forcing, the vocabulary may not be able to spell them.
            if env.tokenize_is_canonical() {
                out.extend(env.tokenize_bytes(&bytes).into_iter().take(max));
            }
        }
        self.matcher.rollback(forced.len()).map_err(failed)?;
        self.plan = plan;
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<bool> {
        if !self.take(token)? {
            return Err(Error::Constraint(format!(
                "token {token} was committed, expected one that the grammar allows"
            )));
        }
        Ok(self.is_complete())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.copy())
    }
}

/// The grammar engine could not go on.
fn failed(error: impl std::fmt::Display) -> Error {
    Error::Constraint(format!("the grammar cannot be followed here: {}", said(&error.to_string())))
}
