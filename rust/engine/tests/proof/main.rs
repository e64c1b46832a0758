//! The engine proved on tiny random models: what it computes, what it keeps, and that speculation changes nothing.
//!
//! | file | what it proves |
//! | --- | --- |
//! | `exact` | the forward against a naive one in f64, within a bound that follows from the roundings |
//! | `batch` | I4: rows do not depend on batch, split, threads, instruction set or other spans |
//! | `rewind` | I5: truncated, copied and failed caches are fresh ones |
//! | `prefix` | P1–P4: sequences that begin with stored prefixes are fresh ones, and nothing of the store outlives it |
//! | `prefix_file` | P5: stored prefixes through files, and files that are refused |
//! | `lossless` | I3, I6, obligations 1, 2, 3, 7: rows, draws, streams, distributions, whatever the source |
//! | `failures` | I1, I2, I5, obligation 4: no unverified row outlives a failure |
//! | `families` | I4, I5, I6 for every family, where windows move |
//! | `gate` | obligation 5: the gate changes no stream |
//! | `drafters` | I6, R1 to R4: drafters that read hidden rows change no stream, and see committed positions only |
//! | `company` | E1, E2, Q4: a sequence among any others, joining and leaving at any step, is what it is alone |
//! | `schedule` | H1 to H5: tasks of a scheduler are what their requests are alone, and leave nothing behind |
//! | `ends` | obligation 6: stops, budgets and contexts that end inside a draft |
//! | `constraint` | C1 to C5: what a constraint allows is committed, and the same with guesses as without |
//! | `broken` | each of the seven notices when its mechanism is left out |
//!
//! `models` makes the models from random `blocks`, `twin` computes them plainly, `cast` the draft sources, `heads` the drafters with hidden rows, `rig` the decoders and their comparison.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod batch;
mod blocks;
mod broken;
mod cast;
mod company;
mod constraint;
#[path = "../dice/mod.rs"]
mod dice;
mod drafters;
mod ends;
mod exact;
mod failures;
mod families;
mod gate;
mod heads;
mod lossless;
mod models;
mod prefix;
mod prefix_file;
mod rewind;
mod rig;
mod schedule;
mod twin;
