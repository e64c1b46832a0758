//! One logits row and the history become one token, with at most one draw.
//!
//! In: a row from a forward, the committed tokens, the number of the token to commit. Out: the token, to the commit loop;
//! log-probabilities and top ids of the raw row, to callers and draft sources.
//!
//! The order, each step in its file:
//! biases, bans, penalties (`penalty`) → temperature ≤ 0: the highest logit, no draw → top-k (`topk`) → top-p,
//! min-p (`filter`) → one draw (`pick`) with a number from `rng`. `exp` and `mass` weigh and add; `scan` is the one
//! pass over the row that all of them begin with.
//!
//! 1. The token is a function of (options, row, history, draw index): a [`Sampler`] holds scratch space and nothing else.
//!    A row that is sampled and thrown away leaves no trace.
//! 2. One number per sampled token, none when greedy: [`Picked::drew`] says which. Token number i uses number (seed, i).
//! 3. The row is given back bit for bit, also after an error; so log-probabilities and recycling see what the model made.
//! 4. Exact over the whole vocabulary: no step leaves out a token that its definition keeps.
//! 5. The same bits on every platform: integers, IEEE 754 operations in a fixed order, and `libm` (which is such code too) for
//!    one logarithm. No step depends on a vector width or on how the standard library sorts.
//! 6. A NaN anywhere in the row is an error that names position and token; so is a row where nothing is above -inf.
//!    A +inf is a token beside which finite ones have no probability.
//!
//! Cost: one to three reads of the row and, without top-k, one exponential per token. Nothing is allocated once warm.

mod error;
mod exp;
mod filter;
mod logprobs;
mod mass;
mod options;
mod penalty;
mod pick;
mod rng;
mod scan;
#[cfg(test)]
mod tests;
mod topk;
#[cfg(test)]
mod twin;

use crate::constraint::Mask;
pub use error::SampleError;
pub use logprobs::{TokenLogprobs, logprobs};
pub use options::{MAX_PENALTY, Sampling};
pub use rng::{philox4x32, uniform};
pub use topk::topk_ids;

/// The outcome of sampling a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// The token.
    pub token: u32,
    /// Whether a random number was used.
    pub drew: bool,
}

/// Chooses tokens by one set of options.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    n_vocab: usize,
    patches: penalty::Patches,
    picker: pick::Picker,
    /// The row with what a mask does not allow at -inf.
    masked: Vec<f32>,
}

impl Sampler {
    /// A sampler for rows of `n_vocab` logits.
    ///
    /// # Errors
    /// An option out of range, named with what was expected and found.
    pub fn new(sampling: Sampling, n_vocab: usize) -> Result<Self, SampleError> {
        Ok(Self {
            sampling: sampling.settle(n_vocab)?,
            n_vocab,
            patches: penalty::Patches::default(),
            picker: pick::Picker::default(),
            masked: Vec::new(),
        })
    }

    /// The options in force; biases and bans are sorted by token, and a bias of -inf is among the bans.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Whether the token is simply the greatest logit of the raw row: greedy, and nothing changes the row.
    pub fn is_plainly_greedy(&self) -> bool {
        let s = &self.sampling;
        s.is_greedy() && !s.has_penalties() && s.logit_bias.is_empty() && s.banned.is_empty()
    }

    /// Chooses the token that follows `history`.
    ///
    /// `row` holds `n_vocab` logits and is the same again on return. `history` is every committed token; penalties look at its
    /// end. `draw_index` is the number that the token will have among the committed tokens of this decode, from 0. `pos` is
    /// the row's position in the stream and only names it in errors.
    ///
    /// # Errors
    /// A row of another length, with a NaN, or with nothing above -inf; with penalties on, a history token outside the
    /// vocabulary.
    pub fn sample(
        &mut self,
        row: &mut [f32],
        history: &[u32],
        draw_index: u64,
        pos: usize,
    ) -> Result<Picked, SampleError> {
        check_length(row, self.n_vocab, pos)?;
        self.patches.apply(&self.sampling, row, history, pos)?;
        let seed = self.sampling.seed;
        let picked = if self.patches.hid_a_nan() {
            Err(None)
        } else {
            self.picker.pick(&self.sampling, row, pos, || uniform(seed, draw_index)).map_err(Some)
        };
        self.patches.undo(row);
        // The token to name is looked for in the raw row.
        picked.map_err(|error| error.unwrap_or_else(|| pick::not_a_number(row, pos)))
    }

    /// The one token that the mask allows, without a row.
    ///
    /// # Errors
    /// It allows several, or the one is banned.
    pub fn sample_forced(&self, mask: &Mask, pos: usize) -> Result<Picked, SampleError> {
        match mask {
            Mask::One(token) if self.sampling.banned.binary_search(token).is_err() => {
                Ok(Picked { token: *token, drew: !self.sampling.is_greedy() })
            }
            _ => Err(SampleError::AllMasked { pos }),
        }
    }

    /// As [`Self::sample`], among the tokens that the mask allows: the others count as -inf before all else. Where one token alone is allowed the row is
    /// not looked at.
    ///
    /// # Errors
    /// As [`Self::sample`]; the one that is allowed is banned.
    pub fn sample_allowed(
        &mut self,
        row: &mut [f32],
        mask: &Mask,
        history: &[u32],
        draw_index: u64,
        pos: usize,
    ) -> Result<Picked, SampleError> {
        match mask {
            Mask::All => self.sample(row, history, draw_index, pos),
            Mask::One(_) => self.sample_forced(mask, pos),
            Mask::Set(words) => {
                check_length(row, self.n_vocab, pos)?;
                let mut masked = std::mem::take(&mut self.masked);
                masked.clear();
                masked.resize(row.len(), f32::NEG_INFINITY);
                let mut nan = false;
                for ((out, logits), word) in masked.chunks_mut(32).zip(row.chunks(32)).zip(words) {
                    for (i, (out, logit)) in out.iter_mut().zip(logits).enumerate() {
                        *out = if word >> i & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                    }
                }
                row.iter().for_each(|x| nan |= x.is_nan());
                let picked = if nan {
                    Err(pick::not_a_number(row, pos))
                } else {
                    self.sample(&mut masked, history, draw_index, pos)
                };
                self.masked = masked;
                picked
            }
        }
    }
}

fn check_length(row: &[f32], expected: usize, pos: usize) -> Result<(), SampleError> {
    if row.len() == expected { Ok(()) } else { Err(SampleError::RowLength { pos, expected, found: row.len() }) }
}
