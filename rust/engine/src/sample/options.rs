//! The sampling options, checked when a sampler is built.
//!
//! In: what the caller asked for. Out: to [`super::Sampler`], which trusts them.
//!
//! 1. After [`Sampling::check`] every number is finite and in its range (a bias may also be -inf, which is a ban).
//! 2. After [`Sampling::settle`] biases are finite and sorted by token, bans are sorted and single, and all are below `n_vocab`.
//! 3. Options that are off cost nothing per token.

use super::SampleError;

/// Bound of the frequency and presence penalties, in logits.
pub const MAX_PENALTY: f32 = 100.0;

/// How a token is chosen from a row. The default is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits. Finite; zero or less means greedy: the highest logit, the lowest id among equals, no draw.
    pub temperature: f32,
    /// Keeps the k highest logits, lower ids first among equals. 0, or `n_vocab` and more, is off.
    pub top_k: usize,
    /// Keeps the smallest set of most probable tokens whose mass reaches this share. 0 to 1; 1 is off, 0 keeps one token.
    pub top_p: f32,
    /// Keeps tokens at least this share as probable as the best. 0 to 1; 0 is off.
    pub min_p: f32,
    /// Divides positive logits of tokens in the window, multiplies the others. Finite, above 0; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once per occurrence in the window, in logits. -100 to 100; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once per distinct token in the window, in logits. -100 to 100; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last committed tokens the penalties look at. 0 is none.
    pub repeat_last_n: usize,
    /// With the number of a committed token, all that its draw depends on.
    pub seed: u64,
    /// Added to the logits of these tokens. Finite, or -inf for a ban. Each token once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub banned: Vec<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            seed: 0,
            logit_bias: Vec::new(),
            banned: Vec::new(),
        }
    }
}

impl Sampling {
    /// Whether the highest logit is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Whether the history has any influence on the choice.
    pub fn has_penalties(&self) -> bool {
        self.repeat_last_n > 0
            && (self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0)
    }

    /// Refuses values that mean nothing, by name. What depends on the vocabulary is checked by [`Sampling::settle`].
    ///
    /// # Errors
    /// The first option that is out of range, in the order of the fields.
    pub fn check(&self) -> Result<(), SampleError> {
        let share = |v: f32| (0.0..=1.0).contains(&v);
        let penalty = |v: f32| (-MAX_PENALTY..=MAX_PENALTY).contains(&v);
        let rules = [
            ("temperature", self.temperature, self.temperature.is_finite(), "a finite number"),
            ("top_p", self.top_p, share(self.top_p), "0 to 1"),
            ("min_p", self.min_p, share(self.min_p), "0 to 1"),
            (
                "repeat_penalty",
                self.repeat_penalty,
                self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0,
                "a finite number above 0",
            ),
            ("frequency_penalty", self.frequency_penalty, penalty(self.frequency_penalty), "-100 to 100"),
            ("presence_penalty", self.presence_penalty, penalty(self.presence_penalty), "-100 to 100"),
        ];
        for (name, found, holds, expected) in rules {
            if !holds {
                return Err(SampleError::Option { name, expected, found });
            }
        }
        for &(token, found) in &self.logit_bias {
            if found.is_nan() || found == f32::INFINITY {
                return Err(SampleError::Bias { token, expected: "a finite number or -inf", found });
            }
        }
        Ok(())
    }

    /// Checks everything, then sorts the token lists; a bias of -inf joins the bans.
    ///
    /// # Errors
    /// As [`Sampling::check`]; also a token that is not below `n_vocab`, or a token with two biases.
    pub fn settle(mut self, n_vocab: usize) -> Result<Self, SampleError> {
        self.check()?;
        self.logit_bias.sort_unstable_by_key(|&(token, _)| token);
        if let Some(pair) = self.logit_bias.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SampleError::BiasTwice { token: pair[0].0 });
        }
        let biased = self.logit_bias.iter().map(|&(token, _)| ("logit_bias", token));
        let banned = self.banned.iter().map(|&token| ("banned", token));
        if let Some((name, token)) = biased.chain(banned).find(|&(_, token)| token as usize >= n_vocab) {
            return Err(SampleError::OptionToken { name, token, n_vocab });
        }
        // As a sum, -inf would turn a logit of +inf into NaN.
        self.banned
            .extend(self.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).map(|&(token, _)| token));
        self.logit_bias.retain(|(_, bias)| *bias != f32::NEG_INFINITY);
        self.banned.sort_unstable();
        self.banned.dedup();
        if self.banned.len() == n_vocab {
            return Err(SampleError::AllBanned { n_vocab });
        }
        Ok(self)
    }
}
