//! Rows of tokens in, rows of logits and committed tokens out.
//!
//! Place in the flow: `py` calls this crate; it calls `kernels` for arithmetic, `draft` for guesses and `vocab` for what tokens say, and is the only one that knows all of them.
//!
//! # Invariants (each test that proves one cites it)
//!
//! - **I1** Between steps `len(history) == len(cache) + 1`: the last committed token is carried, not yet cached.
//! - **I2** A token enters history only in `commit`. Rejected drafts never touch history, penalties, the draw count, sources or observers.
//! - **I3** One draw per committed token when sampling, none when greedy. No row past the first mismatch, or past a stop, is sampled.
//! - **I4** Row i of an m-row forward equals the one-row forward at that position, bit for bit.
//! - **I5** After `truncate(n)` the cache is, bit for bit, one that only ever saw n tokens; also after an error.
//! - **I6** Gate and sources decide whether and what to guess, never what is committed: any source yields the same stream.
//!
//! # The map
//!
//! | module | what |
//! | --- | --- |
//! | [`gguf`], [`vocab`], [`limits`] | files: metadata, tensors, the bytes of tokens; bounds on all of it |
//! | [`model`] | weights, forward |
//! | [`cache`], [`state`] | keys and values; all that a model remembers of a sequence |
//! | [`proposer`] | drafters with weights of their own: heads that read the model's hidden rows |
//! | [`prefix`] | prefixes of earlier sequences, for later ones to begin with |
//! | [`session`] | the bare machine: rows in, logits out |
//! | [`decode`] | prompts to committed tokens: plan, forward, commit; one forward for many sequences |
//! | [`schedule`] | many requests: admission, prompts in chunks, cancellation |
//! | [`sample`] | one row and the history to one token |
//! | [`constraint`] | which tokens an answer may consist of |
//! | [`pool`] | threads |

pub mod cache;
pub mod constraint;
pub mod decode;
pub mod error;
pub mod gguf;
pub mod limits;
pub mod model;
pub mod pool;
pub mod prefix;
pub mod proposer;
pub mod sample;
pub mod schedule;
pub mod session;
mod shared;
pub mod state;

pub use error::{Error, ErrorKind, Result};
pub use quoth_vocab as vocab;
