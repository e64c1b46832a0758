//! Tokens in, guesses out: where drafts come from, and whether they pay. Knows no model, no text and no unsafe code.
//!
//! ```text
//!      context ──> speculator ──> draft ──> (planner cuts it, the decoder verifies it)
//!                  │   │    │                                    │
//!               gate costs  cascade                  committed tokens, top-k rows, costs
//!                           │  │  │                              │
//!         conversation: suffix │  recycle                        │
//!               references: frozen <────── observe ──────────────┘
//! ```
//!
//! | file | its one idea |
//! | --- | --- |
//! | `source` | the contract between a decoder and a source of drafts |
//! | `speculator` | source, gate and budget of one sequence; the limits on a draft |
//! | `suffix`, `edges` | the longest end of the stream that occurred before; the edges of its graph |
//! | `frozen` | the same graph of a finished document, read by cursors |
//! | `recycle` | the newest successor of each token |
//! | `candidate` | one way of guessing: conversation, references, recycling |
//! | `cascade` | which candidate drafts now |
//! | `policy`, `score` | how much to draft; acceptance by match length |
//! | `lane` | a drafter whose guesses take time: when they pay |
//! | `ledger` | what each part of a source has drafted, and how acceptance falls with depth |
//! | `table`, `cost` | what rows cost before this machine was timed, and what they cost now |
//! | `gate` | whether drafting pays |
//! | `planner` | which drafts of several sequences a step verifies |
//! | `replay` | all of it on a recorded stream, without a model |
//! | `oracle` | the slow twins of the tests |
//!
//! Nothing here decides what is committed: any answer of this crate yields the same text, only sooner or later.
#![forbid(unsafe_code)]

mod candidate;
mod cascade;
mod cost;
mod edges;
mod error;
mod frozen;
mod gate;
mod lane;
mod ledger;
#[cfg(test)]
mod oracle;
mod planner;
mod policy;
mod recycle;
mod replay;
mod score;
mod source;
mod speculator;
mod suffix;
mod table;

pub use cascade::{Cascade, MAX_VOCAB, ReferenceId};
pub use cost::{CostModel, CostOptions, CostStats, Costs, TimedStep};
pub use error::{IndexError, OptionsError, ReferenceError};
pub use frozen::{Cursor, FrozenIndex};
pub use gate::{Gate, GateOptions, GateReason, GateState, GateStats};
pub use lane::{DepthCount, LEVELS};
pub use ledger::SourceStats;
pub use planner::{BaseStep, Planner};
pub use policy::CascadeOptions;
pub use recycle::Recycler;
pub use replay::{ReplayError, ReplayOptions, ReplayReport, ReplayStep, Turn, replay, replay_turns};
pub use score::{BUCKETS, BucketRate};
pub use source::{Budget, Draft, DraftSource, Part, SourceError, TopkRow};
pub use speculator::{Ask, Bounds, Load, SpeculationStats, Speculator};
pub use suffix::{IndexBytes, MAX_INDEX_TOKENS, SuffixIndex};
pub use table::{CostCurve, CostPoint, CostTable, MAX_COST, MAX_DRAFT, MIN_COST};
