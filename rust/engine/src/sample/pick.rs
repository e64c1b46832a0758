//! From a patched row to one token.
//!
//! In: the row as [`super::penalty`] left it. Out: the token.
//!
//! 1. Greedy: the highest logit, the lowest id among equals; no draw.
//! 2. Sampling: top-k, top-p, min-p, then the draw: tokens are walked by ascending id, and the one at which the running
//!    mass exceeds u times the whole is taken. A token without mass is never taken.
//! 3. Exact over the whole vocabulary: whatever list is made only leaves out what the filters leave out.
//! 4. Beside a logit of +inf every finite one has no mass; several share it equally.
//!
//! Without a list, all weights are computed once and added up, and the one block that holds the draw is computed again.
//! For top-p alone a list of all tokens would be slow, so what cannot belong to the nucleus is left out first: tokens
//! lighter than (1 - p)·total / n together weigh less than (1 - p)·total, so the nucleus is complete without them.

use super::exp::Curve;
use super::filter::Candidates;
use super::mass::{Mass, Row};
use super::scan::{first_of, scan};
use super::topk::TopK;
use super::{Picked, SampleError, Sampling};

/// Scratch space for a pick.
#[derive(Debug, Default)]
pub(super) struct Picker {
    maxima: Vec<f32>,
    topk: TopK,
    mass: Mass,
    candidates: Candidates,
}

impl Picker {
    /// Picks from a row that no longer changes. `u` is asked for at most once.
    pub(super) fn pick(
        &mut self,
        sampling: &Sampling,
        row: &[f32],
        pos: usize,
        u: impl FnOnce() -> f64,
    ) -> Result<Picked, SampleError> {
        let high = scan(row, &mut self.maxima).ok_or_else(|| not_a_number(row, pos))?;
        if high == f32::NEG_INFINITY {
            return Err(SampleError::AllMasked { pos });
        }
        if sampling.is_greedy() {
            return Ok(Picked { token: first_of(row, &self.maxima, high), drew: false });
        }
        let curve = Curve::new(sampling.temperature);
        let everything = Row { logits: row, high, curve };
        let top_k = if sampling.top_k == 0 { row.len() } else { sampling.top_k.min(row.len()) };
        let (top_p, min_p) = (f64::from(sampling.top_p), f64::from(sampling.min_p));
        let mut total = None;
        if high == f32::INFINITY {
            self.candidates.infinite(row, top_k);
        } else if top_k < row.len() {
            self.candidates.highest(row, &self.maxima, high, top_k, &mut self.topk);
        } else if top_p < 1.0 {
            let all = self.mass.sum(&everything);
            // The factor keeps the argument true when the sums are rounded.
            let reach = curve.reach((1.0 - top_p) * all / row.len() as f64 * 0.999);
            self.candidates.within(row, &self.maxima, high, reach);
            total = Some(all);
        } else if min_p > 0.0 {
            self.candidates.within(row, &self.maxima, high, curve.reach(min_p));
        } else {
            self.mass.sum(&everything);
            return Ok(Picked { token: self.mass.draw(&everything, u()) as u32, drew: true });
        }
        self.candidates.weigh(curve);
        if top_p < 1.0 {
            let total = total.unwrap_or_else(|| self.mass.sum(self.candidates.weights()));
            self.candidates.nucleus(top_p * total);
        }
        if min_p > 0.0 {
            self.candidates.floor(min_p);
        }
        self.mass.sum(self.candidates.weights());
        let place = self.mass.draw(self.candidates.weights(), u());
        Ok(Picked { token: self.candidates.ids[place], drew: true })
    }
}

/// The error for a row with a NaN, naming the lowest id.
pub(super) fn not_a_number(row: &[f32], pos: usize) -> SampleError {
    let token = row.iter().position(|x| x.is_nan()).unwrap_or(0) as u32;
    SampleError::NotANumber { pos, token }
}
