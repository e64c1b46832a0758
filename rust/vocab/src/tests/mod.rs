//! Tests of vocabularies, of the way from text to tokens and back.

mod encode;
mod reading;
mod text;

use crate::{Keys, StringTable, Tokenizer, Value, Vocab, VocabError};

/// Metadata written down in a test.
#[derive(Clone, Default)]
struct File(Vec<(String, Value)>);

impl Keys for File {
    fn get(&self, key: &str) -> Option<Value> {
        self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.clone())
    }
}

impl File {
    /// Sets `tokenizer.ggml.KEY`.
    fn kv(mut self, key: &str, value: impl Into<Value>) -> File {
        self.0.push((format!("tokenizer.ggml.{key}"), value.into()));
        self
    }
}

macro_rules! from {
    ($($ty:ty => |$v:ident| $value:expr),* $(,)?) => { $(impl From<$ty> for Value { fn from($v: $ty) -> Value { $value } })* };
}
from!(
    &str => |v| Value::Text(v.into()),
    bool => |v| Value::Flag(v),
    i128 => |v| Value::Int(v),
    Vec<i64> => |v| Value::Ints(v),
    Vec<f32> => |v| Value::Floats(v),
    StringTable => |v| Value::Texts(v),
);

fn texts<S: AsRef<[u8]>>(texts: impl IntoIterator<Item = S>) -> StringTable {
    texts.into_iter().collect()
}

/// A file with these tokens and types.
fn file(model: &str, tokens: &[(&str, i64)]) -> File {
    File::default()
        .kv("model", model)
        .kv("tokens", texts(tokens.iter().map(|t| t.0)))
        .kv("token_type", tokens.iter().map(|t| t.1).collect::<Vec<i64>>())
}

fn open(file: File) -> Result<Vocab, VocabError> {
    Vocab::from_metadata(&file)
}

fn tokenizer(file: &File) -> Tokenizer {
    Tokenizer::from_metadata(file, None).expect("sound")
}

const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;
