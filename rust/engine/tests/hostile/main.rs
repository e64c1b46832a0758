//! Hundreds of thousands of damaged files, and random bytes and guesses for what works behind them.
//!
//! | file | what |
//! | --- | --- |
//! | `seeds` | sound files, as small as they can be: each family, vocabularies, a value of every type |
//! | `parts` | a file taken apart and put together, with the place of every number in it |
//! | `damage` | what is done to a file, one kind of lie at a time |
//! | `budget` | memory and time of one case |
//! | `check` | a file through all that reads it: header, vocabulary, model, decoding |
//! | `files` | all of it, counted |
//! | `text` | detokenizer and stops on random vocabularies and bytes |
//! | `tokenizer` | vocabularies that lie, as tokenizers |
//! | `prefixes` | files of stored prefixes |
//! | `guesses` | the decode loop with sources that answer at random |
//!
//! - **Z1** Each file costs less than 100 MB and less than 1 s, and ends in a named error or a working model. Nothing panics.
//! - **Z2** A case follows from its number alone. `QUOTH_HOSTILE_FIRST` and `QUOTH_HOSTILE_CASES` choose others than the usual ones; a case that fails is
//!   written to the folder for temporary files, and its message says how to repeat it.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod budget;
mod check;
mod damage;
#[path = "../dice/mod.rs"]
mod dice;
mod files;
mod guesses;
mod parts;
mod prefixes;
mod seeds;
mod text;
mod tokenizer;
