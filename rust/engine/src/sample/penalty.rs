//! Changes to a few logits, and their undoing.
//!
//! In: a raw row, the options, the history. Out: the row that is picked from; afterwards the raw row again.
//!
//! 1. Order: biases are added, bans set to -inf, then penalties once per distinct token of the window.
//! 2. Only the touched logits are saved, so a row is never copied; [`Patches::undo`] restores every bit.
//! 3. A penalty divides a logit above zero and multiplies any other, then subtracts count·frequency + presence.
//! 4. History is what the caller says: nothing is remembered from one row to the next.
//!
//! Cost: O(window + biases + bans); 4·`n_vocab` bytes of counters, only once a penalty is used.

use super::{SampleError, Sampling};

/// The logits that were changed, in the order of the changes.
#[derive(Debug, Default)]
pub(super) struct Patches {
    saved: Vec<(u32, f32)>,
    counts: Vec<u32>,
}

impl Patches {
    /// Applies biases, bans and penalties. Nothing is changed if the history names a token outside the vocabulary.
    pub(super) fn apply(
        &mut self,
        sampling: &Sampling,
        row: &mut [f32],
        history: &[u32],
        pos: usize,
    ) -> Result<(), SampleError> {
        self.saved.clear();
        let window = if sampling.has_penalties() { last(history, sampling.repeat_last_n) } else { &[] };
        if let Some(&token) = window.iter().find(|&&token| token as usize >= row.len()) {
            return Err(SampleError::Token { place: "history", pos, token, n_vocab: row.len() });
        }
        for &(token, bias) in &sampling.logit_bias {
            let logit = self.save(row, token);
            *logit += bias;
        }
        for &token in &sampling.banned {
            *self.save(row, token) = f32::NEG_INFINITY;
        }
        self.penalise(sampling, row, window);
        Ok(())
    }

    fn penalise(&mut self, sampling: &Sampling, row: &mut [f32], window: &[u32]) {
        if window.is_empty() {
            return;
        }
        self.counts.resize(row.len(), 0);
        let first = self.saved.len();
        for &token in window {
            let count = &mut self.counts[token as usize];
            if *count == 0 {
                self.saved.push((token, row[token as usize]));
            }
            *count += 1;
        }
        for &(token, logit) in &self.saved[first..] {
            let count = std::mem::take(&mut self.counts[token as usize]) as f32;
            let scaled = if logit > 0.0 { logit / sampling.repeat_penalty } else { logit * sampling.repeat_penalty };
            row[token as usize] = scaled - (count * sampling.frequency_penalty + sampling.presence_penalty);
        }
    }

    fn save<'a>(&mut self, row: &'a mut [f32], token: u32) -> &'a mut f32 {
        let logit = &mut row[token as usize];
        self.saved.push((token, *logit));
        logit
    }

    /// Whether a NaN was covered by a change: a ban hides it from the scan.
    pub(super) fn hid_a_nan(&self) -> bool {
        self.saved.iter().any(|(_, logit)| logit.is_nan())
    }

    /// Puts the saved logits back, newest first, since a token may have been changed more than once.
    pub(super) fn undo(&mut self, row: &mut [f32]) {
        for &(token, logit) in self.saved.iter().rev() {
            row[token as usize] = logit;
        }
        self.saved.clear();
    }
}

fn last(history: &[u32], n: usize) -> &[u32] {
    &history[history.len() - n.min(history.len())..]
}
