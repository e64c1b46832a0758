//! A reference: a document that is indexed once and read by any number of cursors.
//!
//! In: a document's tokens; then, per cursor, the committed tokens. Out: match lengths and drafts, to `cascade`.
//!
//! F1  A frozen index never changes. (A cursor on a growing one would be left behind when a state is split.)
//! F2  After each token a cursor holds the longest suffix of what it was fed that occurs anywhere in the document: `len`
//!     is at most the length of its state and more than that of the state's link.
//! F3  A token that the document lacks brings the cursor back to the root with length 0.
//! F4  Nothing is drafted past the document's end: what follows there is unknown.
//!
//! Cost: the index as in `suffix`; a cursor is 8 bytes and moves in O(1) amortised. One index serves many sessions.

use crate::error::IndexError;
use crate::suffix::{IndexBytes, SuffixIndex};

#[cfg(test)]
mod tests;

/// The suffix automaton of a whole document.
#[derive(Debug, Clone)]
pub struct FrozenIndex {
    index: SuffixIndex,
}

/// A place in a [`FrozenIndex`]; meaningless in any other index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    state: u32,
    len: u32,
}

impl Default for Cursor {
    fn default() -> Self {
        Self { state: SuffixIndex::root(), len: 0 }
    }
}

impl Cursor {
    /// How many of the last tokens are matched.
    pub fn match_len(&self) -> usize {
        self.len as usize
    }

    /// At the longest end of a stream that occurs earlier in it, until the stream grows (F1).
    pub(crate) fn at_end(stream: &SuffixIndex) -> Self {
        let (state, len) = stream.matched();
        Self { state, len }
    }

    /// Moves past `token`.
    #[inline]
    pub(crate) fn advance(&mut self, index: &SuffixIndex, token: u32) {
        loop {
            if let Some(state) = index.follow(self.state, token) {
                *self = Cursor { state, len: self.len + 1 };
                return;
            }
            match index.shorten(self.state) {
                Some((state, len)) => *self = Cursor { state, len },
                // At the root, where the length is 0 already.
                None => return,
            }
        }
    }

    /// The tokens after the matched place; none without a match.
    pub(crate) fn after(self, index: &SuffixIndex) -> impl ExactSizeIterator<Item = u32> + '_ {
        let max = if self.len == 0 { 0 } else { usize::MAX };
        index.after(self.state).take(max)
    }
}

impl FrozenIndex {
    /// Indexes `tokens`.
    ///
    /// # Errors
    /// A token is `u32::MAX`, there are too many, or memory is short.
    pub fn build(tokens: &[u32]) -> Result<Self, IndexError> {
        let mut index = SuffixIndex::new();
        index.extend(tokens)?;
        index.shrink();
        Ok(Self { index })
    }

    /// Tokens in the document.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether the document is empty.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// What it takes in memory.
    pub fn bytes(&self) -> IndexBytes {
        self.index.bytes()
    }

    /// Moves `cursor` past `token`.
    #[inline]
    pub fn advance(&self, cursor: &mut Cursor, token: u32) {
        cursor.advance(&self.index, token);
    }

    /// How many tokens the document has after the matched place; 0 without a match.
    pub fn available(&self, cursor: &Cursor) -> usize {
        cursor.after(&self.index).len()
    }

    /// The token after the matched place.
    pub fn next_token(&self, cursor: &Cursor) -> Option<u32> {
        cursor.after(&self.index).next()
    }

    /// Appends to `out` up to `max` tokens from after the matched place.
    pub fn draft(&self, cursor: &Cursor, max: usize, out: &mut Vec<u32>) {
        out.extend(cursor.after(&self.index).take(max));
    }
}
