//! The types of metadata values and the borrowed views that callers get of them.
//!
//! V1  A view borrows the header's bytes; nothing is copied until a caller asks for owned numbers.
//! V2  Strings are bytes: the format says UTF-8, files do not always keep to it, and only a caller that needs text
//!     has to refuse them.

use std::fmt;

/// The type of a metadata value, as numbered in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
#[repr(u8)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this number.
    pub fn from_id(id: u32) -> Option<ValueType> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of a value; for strings and arrays the least that one takes: its length field, or its header.
    pub(crate) fn min_bytes(self) -> u64 {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => 1,
            U16 | I16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 | String => 8,
            Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ValueType::*;
        f.write_str(match self {
            U8 => "u8",
            I8 => "i8",
            U16 => "u16",
            I16 => "i16",
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            String => "string",
            Array => "array",
            U64 => "u64",
            I64 => "i64",
            F64 => "f64",
        })
    }
}

/// A metadata value, borrowed from the header.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Mostly UTF-8, but not checked to be.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Decodes a scalar of a fixed size from exactly its bytes, which are `ty.min_bytes()` long.
    pub(crate) fn scalar(ty: ValueType, bytes: &[u8]) -> Value<'a> {
        fn le<const N: usize>(bytes: &[u8]) -> [u8; N] {
            let mut out = [0; N];
            out.copy_from_slice(bytes);
            out
        }
        match ty {
            ValueType::U8 => Value::U8(bytes[0]),
            ValueType::I8 => Value::I8(bytes[0] as i8),
            ValueType::Bool => Value::Bool(bytes[0] != 0),
            ValueType::U16 => Value::U16(u16::from_le_bytes(le(bytes))),
            ValueType::I16 => Value::I16(i16::from_le_bytes(le(bytes))),
            ValueType::U32 => Value::U32(u32::from_le_bytes(le(bytes))),
            ValueType::I32 => Value::I32(i32::from_le_bytes(le(bytes))),
            ValueType::F32 => Value::F32(f32::from_le_bytes(le(bytes))),
            ValueType::U64 => Value::U64(u64::from_le_bytes(le(bytes))),
            ValueType::I64 => Value::I64(i64::from_le_bytes(le(bytes))),
            ValueType::F64 => Value::F64(f64::from_le_bytes(le(bytes))),
            ValueType::String | ValueType::Array => unreachable!("not a scalar of a fixed size"),
        }
    }

    /// The type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The number, where this is an integer of any width.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The number, where this is a float of any width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// What the value is, in words: `u32`, `array of string`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::Array(a) => format!("array of {}", a.elem_type()),
            other => other.value_type().to_string(),
        }
    }
}

/// An array of scalars or strings, borrowed from the header.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    elem: ValueType,
    len: usize,
    /// The elements as they stand in the file; all of the header for strings.
    raw: &'a [u8],
    /// Where the text of every [`STRIDE`]-th string begins in `raw`; its length stands in the 8 bytes before, and the next
    /// string's length behind it. Empty for scalars.
    starts: &'a [u32],
}

/// Strings from one remembered place to the next.
pub(super) const STRIDE: usize = 16;

/// The text that begins at `start`.
fn text_at(raw: &[u8], start: usize) -> &[u8] {
    let mut len = [0; 8];
    len.copy_from_slice(&raw[start - 8..start]);
    &raw[start..start + u64::from_le_bytes(len) as usize]
}

impl<'a> Array<'a> {
    pub(crate) fn scalars(elem: ValueType, raw: &'a [u8]) -> Array<'a> {
        Array { elem, len: raw.len() / elem.min_bytes() as usize, raw, starts: &[] }
    }

    pub(super) fn strings_at(raw: &'a [u8], starts: &'a [u32], len: usize) -> Array<'a> {
        Array { elem: ValueType::String, len, raw, starts }
    }

    /// The type that all elements have.
    pub fn elem_type(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `i`.
    pub fn get(&self, i: usize) -> Option<Value<'a>> {
        if i >= self.len {
            return None;
        }
        if self.elem == ValueType::String {
            return Some(Value::String(self.string(i)));
        }
        let size = self.elem.min_bytes() as usize;
        Some(Value::scalar(self.elem, &self.raw[i * size..(i + 1) * size]))
    }

    /// All elements in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Value<'a>> {
        (0..self.len).map(move |i| match self.get(i) {
            Some(value) => value,
            None => unreachable!("the range ends at the length"),
        })
    }

    /// The array as strings, `None` where it holds something else.
    pub fn strings(self) -> Option<Strings<'a>> {
        (self.elem == ValueType::String).then_some(Strings(self))
    }

    fn string(&self, i: usize) -> &'a [u8] {
        let mut start = self.starts[i / STRIDE] as usize;
        for _ in 0..i % STRIDE {
            start += text_at(self.raw, start).len() + 8;
        }
        text_at(self.raw, start)
    }
}

/// Equal where type and elements are, wherever the arrays lie.
impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.elem == other.elem && self.iter().eq(other.iter())
    }
}

/// An array of strings, borrowed from the header.
#[derive(Debug, Clone, Copy)]
pub struct Strings<'a>(Array<'a>);

impl<'a> Strings<'a> {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The bytes of string `i`.
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        (i < self.0.len).then(|| self.0.string(i))
    }

    /// All strings in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let Array { raw, starts, len, .. } = self.0;
        let mut start = starts.first().map_or(0, |&first| first as usize);
        (0..len).map(move |_| {
            let text = text_at(raw, start);
            start += text.len() + 8;
            text
        })
    }
}
