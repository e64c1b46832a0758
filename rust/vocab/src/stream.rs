//! Tokens to the text that a user sees: whole characters, and nothing of a stop.
//!
//! X1  What was appended up to a hit, joined, is the text before the stop, decoded at once; without a hit it is all the
//!     text, once finished.
//! X2  Held back are only bytes that may become a stop, and bytes of an incomplete character.
//! X3  A clone costs the held bytes, fewer than the longest stop has.

use crate::detokenize::Detokenizer;
use crate::stops::{StopHit, StopMatcher, StopSet};
use crate::vocab::Vocab;
use std::sync::Arc;

/// A [`Detokenizer`] behind a [`StopMatcher`].
#[derive(Debug, Clone)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Bytes that were seen and not passed on.
    held: Vec<u8>,
}

impl TextStream {
    /// A stream whose first token comes next.
    pub fn new(detokenizer: Detokenizer, stops: Arc<StopSet>) -> TextStream {
        TextStream { detokenizer, stops: StopMatcher::new(stops), held: Vec::new() }
    }

    /// Takes a token and appends the text that may now be shown. With a hit, that is all the text before the stop, and
    /// the stream is at its end: further tokens append nothing.
    pub fn push(&mut self, vocab: &Vocab, token: u32, out: &mut String) -> Option<StopHit> {
        let ended = self.stops.hit().is_some();
        let bytes = self.detokenizer.visible(vocab, token);
        let passed = self.stops.seen() - self.held.len() as u64;
        let step = self.stops.push(bytes);
        if ended {
            return step.hit;
        }
        self.held.extend_from_slice(bytes);
        let show = match step.hit {
            // No stop begins before the bytes that were held back for it.
            Some(hit) => (hit.start - passed) as usize,
            None => self.held.len() - step.held,
        };
        self.detokenizer.utf8().push(&self.held[..show], out);
        self.held.drain(..show);
        if step.hit.is_some() {
            self.held.clear();
            self.detokenizer.finish(out);
        }
        step.hit
    }

    /// Ends the text and appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        self.detokenizer.utf8().push(&self.held, out);
        self.held.clear();
        self.detokenizer.finish(out);
    }

    /// Ends a text that was cut off: appends what was held back for a stop, and leaves out the bytes of a character that did not become whole.
    pub fn cut(&mut self, out: &mut String) {
        self.detokenizer.utf8().push(&self.held, out);
        self.held.clear();
    }

    /// Bytes that were seen and are not shown yet.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}
