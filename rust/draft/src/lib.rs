//! Tokens in, guesses out: where drafts come from, and whether they pay. Knows no model, no text and no unsafe code.
//!
//! ```text
//!            context ──> cascade ──> draft ──> (the decoder verifies it)
//!                        │  │  │                        │
//!       conversation: suffix │  recycle              committed tokens, top-k rows, ns
//!             references: frozen                        │
//!                        ▲  ▲  ▲                        ├──> gate: may the next step draft, how much?
//!                        └──┴──┴── observe ─────────────┘
//! ```
//!
//! | file | its one idea |
//! | --- | --- |
//! | `source` | the contract between a decoder and whoever guesses |
//! | `suffix`, `edges` | the longest end of the stream that occurred before; the edges of its graph |
//! | `frozen` | the same graph of a finished document, read by cursors |
//! | `recycle` | the newest successors of each token |
//! | `cascade` | who drafts now |
//! | `policy`, `score` | how much to draft; acceptance by match length |
//! | `ledger`, `window` | the book of one source; its rolling acceptance |
//! | `cost` | what a verification costs, in plain steps |
//! | `gate` | whether drafting pays |
//! | `replay` | all of it on a recorded stream, without a model |
//! | `oracle` | the slow twins of the tests |
//!
//! Nothing here decides what is committed: any answer of this crate yields the same text, only sooner or later.
#![forbid(unsafe_code)]

mod cascade;
mod cost;
mod edges;
mod error;
mod frozen;
mod gate;
mod ledger;
#[cfg(test)]
mod oracle;
mod policy;
mod recycle;
mod replay;
mod score;
mod source;
mod suffix;
mod window;

pub use cascade::{Cascade, MAX_VOCAB, ReferenceId};
pub use cost::{CostPoint, CostTable, MAX_COST, MAX_DRAFT, MIN_COST};
pub use error::{IndexError, OptionsError, ReferenceError};
pub use frozen::{Cursor, FrozenIndex};
pub use gate::{Gate, GateOptions, GateReason, GateState, GateStats};
pub use policy::{CascadeOptions, Policy};
pub use recycle::{Recycler, WIDTH};
pub use replay::{ReplayError, ReplayOptions, ReplayReport, ReplayStep, Turn, replay, replay_turns};
pub use score::{BUCKETS, BucketRate};
pub use source::{DraftSource, SourceError, SourceStats, TopkRow};
pub use suffix::{IndexBytes, MAX_INDEX_TOKENS, SuffixIndex};
pub use window::MAX_WINDOW;
