//! Log-probabilities of a raw row.
//!
//! In: the row as the model made it, before bias, penalties and temperature. Out: numbers for the caller, never for a choice.
//!
//! 1. A function of the row alone, so the same with and without speculation.
//! 2. log p(i) = (x_i - max) - ln Σ exp(x - max), the sum in f64 in the order of [`super::mass`]; rounded to f32 at the end.
//!    Error: half a unit of f32 and 1e-12.
//! 3. The list of the best is descending, ties to the lower id, and does not care which token was chosen.
//! 4. A token at -inf has -inf. Beside logits of +inf, those share the probability equally and all others have -inf.
//!
//! Cost: two reads of the row, one of them with an exponential per token.

use super::SampleError;
use super::exp::Curve;
use super::mass::{Mass, Row};
use super::pick::not_a_number;
use super::scan::scan;
use super::topk::TopK;

/// Natural logarithms of probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// Log-probabilities of `chosen` and of the `n` most probable tokens. `pos` is the row's position, for errors.
///
/// # Errors
/// A NaN in the row, nothing above -inf in it, or a `chosen` that it does not have.
pub fn logprobs(row: &[f32], chosen: u32, n: usize, pos: usize) -> Result<TokenLogprobs, SampleError> {
    if chosen as usize >= row.len() {
        return Err(SampleError::Token { place: "chosen token", pos, token: chosen, n_vocab: row.len() });
    }
    let mut maxima = Vec::new();
    let high = scan(row, &mut maxima).ok_or_else(|| not_a_number(row, pos))?;
    if high == f32::NEG_INFINITY {
        return Err(SampleError::AllMasked { pos });
    }
    let log_total = if high == f32::INFINITY {
        libm::log(row.iter().filter(|&&x| x == high).count() as f64)
    } else {
        libm::log(Mass::default().sum(&Row { logits: row, high, curve: Curve::new(1.0) }))
    };
    let of = |id: u32| {
        let logit = row[id as usize];
        let below = if logit == high { 0.0 } else { f64::from(logit) - f64::from(high) };
        (below - log_total) as f32
    };
    let mut best = vec![0; n.min(row.len())];
    TopK::default().by_rank(row, &maxima, &mut best);
    Ok(TokenLogprobs { chosen: of(chosen), top: best.into_iter().map(|id| (id, of(id))).collect() })
}
