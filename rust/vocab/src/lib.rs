//! Vocabularies: what tokens are, from text to tokens, from tokens back to text and stops.
//!
//! In: the metadata of a model file, as [`Keys`]. Out: [`Vocab`] (bytes, kinds and roles of tokens) to decoding, [`Tokenizer`] (ids of a text) to
//! callers that have text, [`TextStream`] to callers that show text. Nothing here knows files, models or Python.
//!
//! V1  Every id in 0 to `n_vocab` - 1 has bytes; the bytes of the tokens of a text, joined, are its UTF-8 (with a space
//!     in front where the vocabulary adds one).
//! V2  The kind of vocabulary is one of `gpt2`, `llama`, `gemma4`, or it is refused by name.
//! V3  Text that leaves [`Detokenizer`] or [`TextStream`] is whole characters, and joined it is what decoding all bytes
//!     at once gives.
//! V4  States of streams are small and cloned for a few bytes: a caller that takes back tokens keeps a clone.
//! V5  A key that is read has the right type, or the vocabulary is refused by that key: a wrong type is not absence.
//! V6  Reading makes two tables of strings and no index. What encoding needs is built at the first text, once; decoding never needs it.
//!
//! Cost: 150 000 tokens are read in about 10 ms; the index and the merges take about 40 ms more.

#![forbid(unsafe_code)]

mod detokenize;
mod error;
mod finder;
mod index;
mod join;
mod keys;
mod merges;
mod scores;
mod special;
mod spell;
mod split;
mod stops;
mod stream;
mod table;
mod tokenizer;
mod vocab;

#[cfg(test)]
mod tests;

pub use detokenize::{Detokenizer, Utf8Stream};
pub use error::VocabError;
pub use keys::{Keys, Value};
pub use special::Role;
pub use split::splitter_names;
pub use stops::{MAX_STOP_BYTES, StopHit, StopMatcher, StopSet, StopStep};
pub use stream::TextStream;
pub use table::StringTable;
pub use tokenizer::{EncodeOptions, Part, Tokenizer};
pub use vocab::{MAX_VOCAB, Model, TokenKind, Vocab};
