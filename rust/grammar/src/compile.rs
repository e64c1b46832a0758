//! Texts of grammars to compiled ones, each text once.
//!
//! In: a [`Grammar`]. Out: a [`Compiled`], shared by all requests with the same text; or an error that says what is wrong, where.
//!
//! P1  A text is compiled in a thread with a large stack, at most [`MAX_SECONDS`] of the caller's time: then the caller gets an error, and the thread ends when
//!     the bounds of the grammar engine end it.
//! P2  At most [`MAX_CACHED`] grammars are kept; the one that was used least recently goes first. A text that failed is not kept.
//! P3  Whitespace between the parts of JSON is fixed (`", "` and `": "`), so that all of it is forced; where it is left open, at most 40 characters of it stand
//!     in one place.
//!
//! Cost: see the crate.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use quoth_engine::Error;
use quoth_engine::constraint::Constraint;
use serde_json::{Value, json};

use crate::after::{After, Start};
use crate::machine::Machine;
use crate::schema;
use crate::tokens::Tokens;

/// Bytes of the longest text.
pub const MAX_TEXT: usize = 1 << 20;
/// Bytes of the longest expression or Lark grammar: their size tells less about what they compile to.
const MAX_EXPRESSION: usize = 1 << 16;
/// Brackets within brackets of an expression or Lark grammar.
const MAX_NESTED: usize = 200;
/// Grammars that are kept.
pub const MAX_CACHED: usize = 64;
/// How long a caller waits for a grammar.
pub const MAX_SECONDS: u64 = 20;
/// States of the lexer of one request, some 1 to 2 KB each.
const MAX_STATES: usize = 50_000;
/// Characters of a message.
const MAX_MESSAGE: usize = 400;
const STACK: usize = 256 << 20;

/// What an answer has to look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema, as JSON.
        schema: String,
        /// Whether whitespace between parts is the model's choice.
        whitespace: bool,
    },
    /// Text that an expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// Text that a grammar derives, in the syntax of Lark as `llguidance` has it.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Grammar {
    fn texts(&self) -> &[String] {
        match self {
            Grammar::JsonSchema { schema: text, .. } | Grammar::Regex(text) | Grammar::Lark(text) => {
                std::slice::from_ref(text)
            }
            Grammar::Choice(texts) => texts,
        }
    }

    /// What it is called by callers.
    fn name(&self) -> &'static str {
        match self {
            Grammar::JsonSchema { .. } => "json_schema",
            Grammar::Regex(_) => "regex",
            Grammar::Lark(_) => "lark",
            Grammar::Choice(_) => "choice",
        }
    }
}

/// A grammar that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}{}: {message}", place.as_ref().map(|place| format!(" at `{place}`")).unwrap_or_default())]
pub struct GrammarError {
    /// `json_schema`, `regex`, `lark` or `choice`.
    pub kind: &'static str,
    /// Where in a schema, as a JSON pointer that begins with `#`.
    pub place: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl From<GrammarError> for Error {
    fn from(error: GrammarError) -> Self {
        Error::Constraint(error.to_string())
    }
}

/// A grammar that can be started.
pub struct Compiled {
    matcher: Matcher,
    env: TokEnv,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

impl Compiled {
    /// A constraint at the beginning of an answer.
    pub fn start(&self, start: &Start) -> Box<dyn Constraint> {
        let machine = Machine::new(&self.matcher);
        match start {
            Start::Now => Box::new(machine),
            Start::After { .. } => Box::new(After::new(machine, start, self.env.clone())),
        }
    }
}

/// Compiles grammars for one vocabulary. Shared by all threads.
pub struct Compiler {
    tokens: Tokens,
    /// Without forcing, and with.
    factories: [OnceLock<Result<Arc<ParserFactory>, String>>; 2],
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// With when it was last used.
    grammars: HashMap<Grammar, (u64, Arc<Compiled>)>,
    clock: u64,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiler")
    }
}

impl Compiler {
    /// A compiler for these tokens. Their trie is made with the first grammar.
    pub fn new(tokens: Tokens) -> Compiler {
        Compiler { tokens, factories: Default::default(), cache: Mutex::default() }
    }

    /// A compiled grammar; the one that was made before, if its text was compiled before.
    ///
    /// # Errors
    /// The text is not a grammar of its kind, asks for what is not supported, cannot be met, or goes beyond the bounds.
    pub fn compile(&self, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut cache = lock();
            cache.clock += 1;
            let now = cache.clock;
            if let Some((used, compiled)) = cache.grammars.get_mut(grammar) {
                *used = now;
                return Ok(compiled.clone());
            }
        }
        let compiled = Arc::new(self.compile_anew(grammar)?);
        let mut cache = lock();
        if cache.grammars.len() >= MAX_CACHED {
            let oldest = cache.grammars.iter().min_by_key(|(_, (used, _))| *used).map(|(grammar, _)| grammar.clone());
            oldest.map(|grammar| cache.grammars.remove(&grammar));
        }
        let now = cache.clock;
        cache.grammars.insert(grammar.clone(), (now, compiled.clone()));
        Ok(compiled)
    }

    /// How many grammars are kept.
    pub fn cached(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).grammars.len()
    }

    fn compile_anew(&self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        let refuse = |message: String| GrammarError { kind: grammar.name(), place: None, message };
        let forces = grammar.texts().iter().all(|text| self.tokens.can_spell(text));
        let factory = self.factories[usize::from(forces)].get_or_init(|| self.make_factory(forces));
        let factory = factory.clone().map_err(&refuse)?;
        let grammar = grammar.clone();
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("quoth-grammar".into()).stack_size(STACK);
        let work = move || {
            let compiled = catch_unwind(AssertUnwindSafe(|| compile_text(&factory, &grammar)));
            let _ = sender.send(compiled);
        };
        thread.spawn(work).map_err(|error| refuse(format!("cannot start a thread: {error}")))?;
        match receiver.recv_timeout(Duration::from_secs(MAX_SECONDS)) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(refuse("the grammar engine failed on it".into())),
            Err(RecvTimeoutError::Timeout) => {
                Err(refuse(format!("expected a grammar that compiles in {MAX_SECONDS} s, found one that takes longer")))
            }
        }
    }

    fn make_factory(&self, forces: bool) -> Result<Arc<ParserFactory>, String> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let env = self.tokens.clone().environment(forces);
            let mut factory = ParserFactory::new_simple(&env).map_err(|error| said(&error.to_string()))?;
            factory.quiet();
            let limits = factory.limits_mut();
            limits.max_lexer_states = MAX_STATES;
            limits.verbose_errors = false;
            Ok(Arc::new(factory))
        }));
        made.unwrap_or_else(|_| Err("the vocabulary is not one that grammars can be made for".into()))
    }
}

/// Runs in the compiling thread.
fn compile_text(factory: &ParserFactory, grammar: &Grammar) -> Result<Compiled, GrammarError> {
    let kind = grammar.name();
    let refuse = |message: String| GrammarError { kind, place: None, message };
    let bounded = |text: &str, most: usize| match text.len() {
        n if n > most => Err(refuse(format!("expected at most {most} bytes, found {n}"))),
        _ => Ok(()),
    };
    let expression = |text: &str| {
        bounded(text, MAX_EXPRESSION)?;
        match nested(text) {
            n if n > MAX_NESTED => {
                Err(refuse(format!("expected at most {MAX_NESTED} brackets within brackets, found {n}")))
            }
            _ => Ok(()),
        }
    };
    let top = match grammar {
        Grammar::JsonSchema { schema, whitespace } => {
            bounded(schema, MAX_TEXT)?;
            let value: Value = serde_json::from_str(schema)
                .map_err(|error| refuse(format!("expected JSON of at most 127 levels, found {error}")))?;
            let attempt = |schema: &Value| attempt(factory, schema_grammar(schema, *whitespace)).map(drop);
            schema::check(&value).map_err(|fault| fault.of(kind))?;
            if let Err(message) = attempt(&value) {
                return Err(schema::locate(&value, message, &attempt).of(kind));
            }
            schema_grammar(&value, *whitespace)
        }
        Grammar::Regex(text) => {
            expression(text)?;
            TopLevelGrammar::from_regex(text)
        }
        Grammar::Lark(text) => {
            expression(text)?;
            TopLevelGrammar::from_lark(text.clone())
        }
        Grammar::Choice(texts) => {
            if texts.is_empty() || texts.iter().any(String::is_empty) {
                let found = if texts.is_empty() { "none" } else { "an empty one" };
                return Err(refuse(format!("expected texts to choose from, found {found}")));
            }
            bounded(&texts.concat(), MAX_EXPRESSION)?;
            let quoted: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
            TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | ")))
        }
    };
    let matcher = attempt(factory, top).map_err(refuse)?;
    Ok(Compiled { matcher, env: factory.tok_env().clone() })
}

/// The schema with how its JSON is written.
fn schema_grammar(schema: &Value, whitespace: bool) -> TopLevelGrammar {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        whole => json!({ "allOf": [whole] }),
    };
    // Written behind the keywords of the same name that a caller may have given.
    schema["x-guidance"] = match whitespace {
        false => json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " }),
        true => json!({ "whitespace_pattern": r"[ \n\r\t]{1,40}" }),
    };
    TopLevelGrammar::from_json_schema(schema)
}

/// Compiles a grammar and looks whether an answer can begin.
fn attempt(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let parser = factory.create_parser(grammar).map_err(|error| said(&format!("{error:#}")))?;
    let matcher = Matcher::new(Ok(parser));
    if let Some(error) = matcher.get_error() {
        return Err(said(&error));
    }
    matcher.deep_clone().compute_mask().map_err(|error| said(&error.to_string()))?;
    Ok(matcher)
}

/// How deep brackets stand in one another, those of strings included.
fn nested(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// What the grammar engine says, and how it is said here.
const WORDS: [(&str, &str); 5] = [
    ("Unsatisfiable schema:", "no answer can meet it:"),
    ("NoExtensionBias", "no answer can meet it"),
    ("Unimplemented keys:", "expected keywords that are supported, found"),
    ("Unknown format:", "expected a format that is supported, found"),
    (
        "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
        "expected alternatives of `oneOf` that exclude each other, found some that may not; `anyOf` has no such condition",
    ),
];

/// A message of the grammar engine, in one line, without what it adds for its own developers.
pub(crate) fn said(message: &str) -> String {
    let lines: Vec<&str> =
        message.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "<non-verbose/>").collect();
    let text = WORDS.iter().fold(lines.join("; "), |text, (theirs, ours)| text.replace(theirs, ours));
    text.chars().take(MAX_MESSAGE).collect()
}
