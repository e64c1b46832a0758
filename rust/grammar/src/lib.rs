//! Grammars to constraints: JSON Schema, regular expressions, Lark, choices. The only crate that knows the grammar engine, `llguidance`.
//!
//! ```text
//!   Tokens (bytes of the vocabulary) ──> Compiler ──> Compiled (cached by text) ──> start ──> Box<dyn Constraint> ──> a request
//! ```
//!
//! | file | its one idea |
//! | --- | --- |
//! | `tokens` | the vocabulary as grammars see it: bytes, marks, ends |
//! | `compile` | a grammar's text to something that can be started, once for each text; what that may take |
//! | `schema` | which part of a schema is at fault |
//! | `machine` | a compiled grammar as a [`quoth_engine::constraint::Constraint`] |
//! | `after` | a constraint that begins inside an answer |
//!
//! - **G1** The masks of a constraint are a function of the grammar, the vocabulary and the committed tokens. What was computed before, for this request or
//!   another, changes nothing: a request starts from a copy of the compiled grammar.
//! - **G2** Bytes that the grammar forces are tokens that the grammar forces: they are encoded as the vocabulary encodes text, up to a last token that other text
//!   could make longer, which stays open.
//! - **G3** Marks of the vocabulary (control tokens) are never text: no string of an answer can hold one. Ends of generation are allowed where the answer may
//!   end.
//! - **G4** Whatever a caller gives, compiling ends: texts, time, sizes of expressions and grammars are bounded, and nothing recurses deeper than the stack of
//!   the compiling thread allows.
//! - **G5** What cannot be honoured is an error that names its place. Nothing of a schema is ignored but annotations and unknown keywords, as JSON Schema says.
//!
//! Cost: compiling takes 1 to 50 ms for schemas as people write them; a mask some 10 µs to 1 ms.
#![forbid(unsafe_code)]

mod after;
mod compile;
mod machine;
mod schema;
mod tokens;

pub use after::Start;
pub use compile::{Compiled, Compiler, Grammar, GrammarError, MAX_CACHED, MAX_SECONDS, MAX_TEXT};
pub use tokens::Tokens;
