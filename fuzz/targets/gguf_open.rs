//! Bytes as a GGUF file through all that reads it: header, vocabulary, model, decoding with and without guesses.
//!
//! The checks are those of the hostile files in the engine's tests.

#![no_main]
#![allow(dead_code)]

#[path = "../../rust/engine/tests/hostile/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let outcome = check::bytes(data.to_vec(), true);
    assert!(outcome.mapped < 100_000_000);
});
