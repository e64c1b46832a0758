//! Tokens in, guesses out: where drafts come from, and whether they pay. Knows no model, no text and no unsafe code.
#![forbid(unsafe_code)]
