//! A file in parts: what a test changes before it is put together, and the place of every number afterwards.
//!
//! The reader trusts the file, which the tests' own writer made; the writer writes whatever the parts say.

use quoth_engine::gguf::GgmlType;

/// Value types by number.
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

/// Bytes of a value of a fixed size, by type number.
pub(crate) fn width(ty: u32) -> Option<usize> {
    [Some(1), Some(1), Some(2), Some(2), Some(4), Some(4), Some(4), Some(1), None, None, Some(8), Some(8), Some(8)]
        .get(ty as usize)
        .copied()
        .flatten()
}

/// A key and its value as it stands in the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: Vec<u8>,
    pub(crate) ty: u32,
    pub(crate) value: Value,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Anything of a fixed size.
    Raw(Vec<u8>),
    Text(Vec<u8>),
    /// The elements' type and the elements.
    List(u32, Vec<Value>),
}

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: Vec<u8>,
    pub(crate) dims: Vec<u64>,
    pub(crate) ty: u32,
    /// `None`: behind the tensor before.
    pub(crate) offset: Option<u64>,
    pub(crate) data: Vec<u8>,
}

/// What a place in a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Version,
    Keys,
    Tensors,
    /// Bytes of a text.
    Length,
    /// Elements of an array.
    Count,
    ValueType,
    Axes,
    Axis,
    TensorType,
    Offset,
    /// Bytes of a text, of so many.
    Text(usize),
    /// A number, of so many bytes.
    Number(usize),
}

/// A file.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Parts {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) keys: Vec<Key>,
    pub(crate) tensors: Vec<Tensor>,
}

/// A file put together.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) bytes: Vec<u8>,
    /// Every place of the header, in order.
    pub(crate) fields: Vec<(usize, Field)>,
    /// Where tensor data begin.
    pub(crate) data: usize,
}

impl Parts {
    /// Takes a sound file apart.
    pub(crate) fn read(bytes: &[u8]) -> Parts {
        let mut cursor = Cursor { bytes, at: 4 };
        let version = cursor.u32();
        let (n_tensors, n_keys) = (cursor.u64(), cursor.u64());
        let keys = (0..n_keys)
            .map(|_| {
                let (name, ty) = (cursor.text(), cursor.u32());
                Key { name, ty, value: cursor.value(ty) }
            })
            .collect();
        let described: Vec<_> = (0..n_tensors)
            .map(|_| {
                let name = cursor.text();
                let dims: Vec<u64> = (0..cursor.u32()).map(|_| cursor.u64()).collect();
                (name, dims, cursor.u32(), cursor.u64())
            })
            .collect();
        let data = cursor.at.next_multiple_of(32);
        let tensors = described
            .into_iter()
            .map(|(name, dims, ty, offset)| {
                let kind = GgmlType::from_id(ty).unwrap();
                let n = dims.iter().product::<u64>() / kind.block_size() * kind.block_bytes();
                let start = data + offset as usize;
                Tensor { name, dims, ty, offset: None, data: bytes[start..start + n as usize].to_vec() }
            })
            .collect();
        Parts { version, alignment: 32, keys, tensors }
    }

    /// Puts the file together.
    pub(crate) fn write(&self) -> Whole {
        let mut out = Whole { bytes: b"GGUF".to_vec(), ..Whole::default() };
        out.number(Field::Version, &self.version.to_le_bytes());
        out.number(Field::Tensors, &(self.tensors.len() as u64).to_le_bytes());
        out.number(Field::Keys, &(self.keys.len() as u64).to_le_bytes());
        for key in &self.keys {
            out.text(&key.name);
            out.number(Field::ValueType, &key.ty.to_le_bytes());
            out.value(&key.value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            let offset = tensor.offset.unwrap_or_else(|| {
                data.resize(data.len().next_multiple_of(self.alignment), 0);
                data.len() as u64
            });
            data.extend(&tensor.data);
            out.text(&tensor.name);
            out.number(Field::Axes, &(tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.number(Field::Axis, &dim.to_le_bytes()));
            out.number(Field::TensorType, &tensor.ty.to_le_bytes());
            out.number(Field::Offset, &offset.to_le_bytes());
        }
        out.data = out.bytes.len().next_multiple_of(self.alignment);
        if !data.is_empty() {
            out.bytes.resize(out.data, 0);
            out.bytes.extend(data);
        }
        out
    }

    /// The key of this name.
    pub(crate) fn key(&mut self, name: &str) -> Option<&mut Key> {
        self.keys.iter_mut().find(|key| key.name == name.as_bytes())
    }
}

impl Whole {
    fn number(&mut self, field: Field, bytes: &[u8]) {
        self.fields.push((self.bytes.len(), field));
        self.bytes.extend(bytes);
    }

    fn text(&mut self, text: &[u8]) {
        self.number(Field::Length, &(text.len() as u64).to_le_bytes());
        if !text.is_empty() {
            self.number(Field::Text(text.len()), text);
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Raw(bytes) => self.number(Field::Number(bytes.len()), bytes),
            Value::Text(text) => self.text(text),
            Value::List(ty, elements) => {
                self.number(Field::ValueType, &ty.to_le_bytes());
                self.number(Field::Count, &(elements.len() as u64).to_le_bytes());
                elements.iter().for_each(|element| self.value(element));
            }
        }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        self.at += n;
        &self.bytes[self.at - n..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> Vec<u8> {
        let n = self.u64() as usize;
        self.take(n).to_vec()
    }

    fn value(&mut self, ty: u32) -> Value {
        match ty {
            STRING => Value::Text(self.text()),
            ARRAY => {
                let (ty, n) = (self.u32(), self.u64());
                Value::List(ty, (0..n).map(|_| self.value(ty)).collect())
            }
            _ => Value::Raw(self.take(width(ty).unwrap()).to_vec()),
        }
    }
}

#[test]
fn every_seed_taken_apart_and_put_together_is_itself() {
    for (name, bytes) in crate::seeds::all() {
        let whole = Parts::read(&bytes).write();
        assert_eq!(whole.bytes, bytes, "{name}");
        let text = |i: usize| matches!(whole.fields[i].1, Field::Text(_));
        assert!(whole.fields.len() > 10 && (0..whole.fields.len()).any(text), "{name}");
    }
}
