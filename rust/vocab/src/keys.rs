//! The metadata that a vocabulary is read from, wherever it stands.
//!
//! A file's header and a mapping of Python give values in these few shapes; integers and floats of all widths are one. What is of none of these shapes comes as
//! [`Value::Other`], described in words, so that the error says what was found.

use crate::error::VocabError;
use crate::table::StringTable;

/// The value of a key.
#[derive(Debug, Clone)]
pub enum Value {
    /// Mostly UTF-8, but not checked to be.
    Text(Vec<u8>),
    /// True or false.
    Flag(bool),
    /// An integer of any width.
    Int(i128),
    /// A float of any width.
    Float(f64),
    /// An array of texts; also an empty array of no known type.
    Texts(StringTable),
    /// An array of integers; those beyond 64 bits with a sign are at their limit.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f32>),
    /// Anything else, in words.
    Other(String),
}

impl Value {
    /// What the value is, in words.
    fn describe(&self) -> String {
        match self {
            Value::Text(text) => format!("the text `{}`", clip(text)),
            Value::Flag(flag) => format!("the flag {flag}"),
            Value::Int(number) => format!("the whole number {number}"),
            Value::Float(number) => format!("the number {number:?}"),
            Value::Texts(_) => "an array of text".to_owned(),
            Value::Ints(_) => "an array of whole numbers".to_owned(),
            Value::Floats(_) => "an array of numbers".to_owned(),
            Value::Other(what) => what.clone(),
        }
    }
}

/// Metadata by key, as GGUF names the keys.
pub trait Keys {
    /// The value of a key; `None` where there is no such key.
    fn get(&self, key: &str) -> Option<Value>;
}

/// A text of a file for a message: at most 80 characters, on one line.
pub(crate) fn clip(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(400)]);
    let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        shown.push('…');
    }
    shown
}

fn wrong_type(key: &str, expected: &'static str, found: &Value) -> VocabError {
    VocabError::WrongType { key: key.to_owned(), expected, found: found.describe() }
}

macro_rules! getter {
    ($(#[$doc:meta])* $name:ident -> $ty:ty, $expected:literal, $($pattern:pat $(if $guard:expr)? => $value:expr),+) => {
        $(#[$doc])*
        pub(crate) fn $name(keys: &dyn Keys, key: &str) -> Result<Option<$ty>, VocabError> {
            match keys.get(key) {
                None => Ok(None),
                $(Some($pattern) $(if $guard)? => Ok(Some($value)),)+
                Some(other) => Err(wrong_type(key, $expected, &other)),
            }
        }
    };
}

getter!(flag -> bool, "a flag", Value::Flag(flag) => flag);
getter!(id -> i128, "a token id", Value::Int(id) => id);
getter!(
    /// An array of texts, as bytes.
    texts -> StringTable, "an array of text", Value::Texts(texts) => texts
);
getter!(ints -> Vec<i64>, "an array of whole numbers",
    Value::Ints(all) => all, Value::Texts(none) if none.is_empty() => Vec::new());
getter!(floats -> Vec<f32>, "an array of numbers",
    Value::Floats(all) => all, Value::Ints(all) => all.into_iter().map(|n| n as f32).collect(),
    Value::Texts(none) if none.is_empty() => Vec::new());

/// A text that is UTF-8.
pub(crate) fn text(keys: &dyn Keys, key: &str) -> Result<Option<String>, VocabError> {
    match keys.get(key) {
        None => Ok(None),
        Some(Value::Text(bytes)) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(wrong_type(key, "text in UTF-8", &Value::Text(error.into_bytes()))),
        },
        Some(other) => Err(wrong_type(key, "text", &other)),
    }
}
