//! The keys and values of a file, kept as the bytes that stand in it.
//!
//! M1  All values lie in one blob, the header itself. An array of strings adds 4 bytes for every 16 strings,
//!     the place of a text; so a vocabulary of 150 000 tokens costs a walk over its lengths, and any string a short one.
//! M2  Keys are distinct. `get` searches a sorted index; iteration keeps the file's order.
//! M3  A typed getter gives `None` for a missing key and an error that names key, expected and found type otherwise.
//!     Integers convert between widths where the value fits, floats between `f32` and `f64`; nothing else converts.

use super::error::{Fault, GgufError, clip};
use super::value::{Array, Strings, Value, ValueType};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A value as stored: small ones decoded, large ones as places in the blob.
#[derive(Debug, Clone)]
pub(super) enum Stored {
    Scalar(Value<'static>),
    String(Range<usize>),
    Scalars(ValueType, Range<usize>),
    /// Number of strings, and where the text of every [`STRIDE`](super::value::STRIDE)-th begins.
    Strings(usize, Box<[u32]>),
}

/// The metadata of a model file.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    bytes: Vec<u8>,
    entries: Vec<(String, Stored)>,
    /// Entries by key.
    sorted: Vec<u32>,
}

impl Metadata {
    /// Fails with the key that stands twice.
    pub(super) fn new(path: &Path, bytes: Vec<u8>, entries: Vec<(String, Stored)>) -> Result<Metadata, GgufError> {
        let key = |i: u32| entries[i as usize].0.as_str();
        let mut sorted: Vec<u32> = (0..entries.len() as u32).collect();
        sorted.sort_by(|&a, &b| key(a).cmp(key(b)));
        if let Some(pair) = sorted.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
            let fault = Fault::DuplicateKey { key: clip(key(pair[0])) };
            return Err(GgufError::File { path: path.to_owned(), fault: Box::new(fault) });
        }
        Ok(Metadata { path: path.to_owned(), bytes, entries, sorted })
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let at = self.sorted.binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key)).ok()?;
        Some(self.value(&self.entries[self.sorted[at] as usize].1))
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|(key, stored)| (key.as_str(), self.value(stored)))
    }

    fn value<'a>(&'a self, stored: &'a Stored) -> Value<'a> {
        match stored {
            Stored::Scalar(value) => *value,
            Stored::String(at) => Value::String(&self.bytes[at.clone()]),
            Stored::Scalars(elem, at) => Value::Array(Array::scalars(*elem, &self.bytes[at.clone()])),
            Stored::Strings(len, starts) => Value::Array(Array::strings_at(&self.bytes, starts, *len)),
        }
    }

    /// The error that `key` is missing.
    pub fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        self.fault(Fault::MissingKey { key: key.to_owned(), expected })
    }

    pub(super) fn fault(&self, fault: Fault) -> GgufError {
        GgufError::File { path: self.path.clone(), fault: Box::new(fault) }
    }

    fn wrong_type(&self, key: &str, expected: &'static str, found: Value) -> GgufError {
        self.fault(Fault::WrongType { key: key.to_owned(), expected, found: found.describe() })
    }

    fn int<T: TryFrom<i128>>(&self, key: &str, expected: &'static str, value: Value) -> Result<T, GgufError> {
        let number = value.as_int().ok_or_else(|| self.wrong_type(key, expected, value))?;
        T::try_from(number)
            .map_err(|_| self.fault(Fault::OutOfRange { key: key.to_owned(), expected, found: number.to_string() }))
    }

    fn float(&self, key: &str, expected: &'static str, value: Value) -> Result<f32, GgufError> {
        let number = value.as_float().ok_or_else(|| self.wrong_type(key, expected, value))?;
        let narrow = number as f32;
        if number.is_finite() && !narrow.is_finite() {
            return Err(self.fault(Fault::OutOfRange { key: key.to_owned(), expected, found: number.to_string() }));
        }
        Ok(narrow)
    }

    fn boolean(&self, key: &str, expected: &'static str, value: Value) -> Result<bool, GgufError> {
        match value {
            Value::Bool(v) => Ok(v),
            other => Err(self.wrong_type(key, expected, other)),
        }
    }

    /// An integer in 0 to 2^32 - 1.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key).map(|v| self.int(key, "u32", v)).transpose()
    }

    /// An integer in 0 to 2^64 - 1.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key).map(|v| self.int(key, "u64", v)).transpose()
    }

    /// An integer in -2^31 to 2^31 - 1.
    pub fn get_i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.get(key).map(|v| self.int(key, "i32", v)).transpose()
    }

    /// A float; may be infinite or not a number if the file says so.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key).map(|v| self.float(key, "f32", v)).transpose()
    }

    /// A boolean.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key).map(|v| self.boolean(key, "bool", v)).transpose()
    }

    /// A string; an error where it is not UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(bytes)) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.fault(Fault::NotUtf8 { what: format!("the value of key `{}`", clip(key)) })),
            },
            Some(other) => Err(self.wrong_type(key, "string", other)),
        }
    }

    fn array(&self, key: &str, expected: &'static str) -> Result<Option<Array<'_>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(self.wrong_type(key, expected, other)),
        }
    }

    fn all<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        fits: fn(ValueType) -> bool,
        each: impl Fn(Value<'a>) -> Result<T, GgufError>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some(array) = self.array(key, expected)? else { return Ok(None) };
        if !fits(array.elem_type()) {
            return Err(self.wrong_type(key, expected, Value::Array(array)));
        }
        array.iter().map(each).collect::<Result<_, _>>().map(Some)
    }

    /// An array of integers, each in 0 to 2^32 - 1.
    pub fn get_array_u32(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.all(key, "array of u32", is_int, |v| self.int(key, "u32", v))
    }

    /// An array of integers, each in -2^31 to 2^31 - 1.
    pub fn get_array_i32(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.all(key, "array of i32", is_int, |v| self.int(key, "i32", v))
    }

    /// An array of floats.
    pub fn get_array_f32(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.all(key, "array of f32", is_float, |v| self.float(key, "f32", v))
    }

    /// An array of booleans.
    pub fn get_array_bool(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.all(key, "array of bool", |t| t == ValueType::Bool, |v| self.boolean(key, "bool", v))
    }

    /// An array of strings, borrowed.
    pub fn get_array_str(&self, key: &str) -> Result<Option<Strings<'_>>, GgufError> {
        const EXPECTED: &str = "array of string";
        let Some(array) = self.array(key, EXPECTED)? else { return Ok(None) };
        array.strings().map(Some).ok_or_else(|| self.wrong_type(key, EXPECTED, Value::Array(array)))
    }

    /// A number for each of `n` layers: an array of exactly `n` integers, or one integer that holds for all.
    pub fn get_per_layer_u32(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, GgufError> {
        match self.get(key) {
            Some(Value::Array(_)) => {}
            None => return Ok(None),
            Some(one) => return Ok(Some(vec![self.int(key, "u32 or array of u32", one)?; n])),
        }
        let all = self.get_array_u32(key)?;
        match &all {
            Some(v) if v.len() != n => {
                Err(self.fault(Fault::ArrayLength { key: key.to_owned(), expected: n as u64, found: v.len() as u64 }))
            }
            _ => Ok(all),
        }
    }

    /// As [`get_u32`](Self::get_u32); an error where the key is missing.
    pub fn need_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.get_u32(key)?.ok_or_else(|| self.missing(key, "u32"))
    }

    /// As [`get_f32`](Self::get_f32); an error where the key is missing.
    pub fn need_f32(&self, key: &str) -> Result<f32, GgufError> {
        self.get_f32(key)?.ok_or_else(|| self.missing(key, "f32"))
    }

    /// As [`get_str`](Self::get_str); an error where the key is missing.
    pub fn need_str(&self, key: &str) -> Result<&str, GgufError> {
        self.get_str(key)?.ok_or_else(|| self.missing(key, "string"))
    }
}

fn is_int(ty: ValueType) -> bool {
    use ValueType::*;
    matches!(ty, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
}

fn is_float(ty: ValueType) -> bool {
    matches!(ty, ValueType::F32 | ValueType::F64)
}

impl quoth_vocab::Keys for Metadata {
    fn get(&self, key: &str) -> Option<quoth_vocab::Value> {
        use quoth_vocab::Value as Vocab;
        let value = self.get(key)?;
        Some(match value {
            Value::String(text) => Vocab::Text(text.to_owned()),
            Value::Bool(flag) => Vocab::Flag(flag),
            Value::Array(array) => match array.strings() {
                Some(strings) => Vocab::Texts(strings.iter().collect()),
                None if is_int(array.elem_type()) => {
                    let limit = |number: i128| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
                    Vocab::Ints(array.iter().filter_map(|item| item.as_int().map(limit)).collect())
                }
                None if is_float(array.elem_type()) => {
                    Vocab::Floats(array.iter().filter_map(|item| item.as_float().map(|number| number as f32)).collect())
                }
                None => Vocab::Other(format!("an {}", value.describe())),
            },
            other => match (other.as_int(), other.as_float()) {
                (Some(number), _) => Vocab::Int(number),
                (None, Some(number)) => Vocab::Float(number),
                (None, None) => Vocab::Other(other.describe()),
            },
        })
    }
}
