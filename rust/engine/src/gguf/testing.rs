//! Writes small GGUF files for tests: sound ones, and ones that lie where a test wants them to.
//!
//! Nothing is checked here. `kv_raw`, `tensor_raw`, `claim_keys` and `claim_tensors` write what no sound file holds.

use super::types::GgmlType;
use super::value::ValueType;

/// A metadata value to write.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kv {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    U64(u64),
    I64(i64),
    F64(f64),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Strs(Vec<Vec<u8>>),
}

impl Kv {
    /// An array of strings.
    pub fn strs<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> Kv {
        Kv::Strs(strings.into_iter().map(|s| s.as_ref().as_bytes().to_vec()).collect())
    }

    fn write(&self) -> (ValueType, Vec<u8>) {
        fn array<T>(elem: ValueType, values: &[T], each: impl Fn(&T) -> Vec<u8>) -> (ValueType, Vec<u8>) {
            let mut out = (elem as u32).to_le_bytes().to_vec();
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|v| out.extend(each(v)));
            (ValueType::Array, out)
        }
        match self {
            Kv::U8(v) => (ValueType::U8, vec![*v]),
            Kv::I8(v) => (ValueType::I8, v.to_le_bytes().to_vec()),
            Kv::U16(v) => (ValueType::U16, v.to_le_bytes().to_vec()),
            Kv::I16(v) => (ValueType::I16, v.to_le_bytes().to_vec()),
            Kv::U32(v) => (ValueType::U32, v.to_le_bytes().to_vec()),
            Kv::I32(v) => (ValueType::I32, v.to_le_bytes().to_vec()),
            Kv::F32(v) => (ValueType::F32, v.to_le_bytes().to_vec()),
            Kv::Bool(v) => (ValueType::Bool, vec![u8::from(*v)]),
            Kv::Str(v) => (ValueType::String, string(v.as_bytes())),
            Kv::U64(v) => (ValueType::U64, v.to_le_bytes().to_vec()),
            Kv::I64(v) => (ValueType::I64, v.to_le_bytes().to_vec()),
            Kv::F64(v) => (ValueType::F64, v.to_le_bytes().to_vec()),
            Kv::U32s(v) => array(ValueType::U32, v, |x| x.to_le_bytes().to_vec()),
            Kv::I32s(v) => array(ValueType::I32, v, |x| x.to_le_bytes().to_vec()),
            Kv::F32s(v) => array(ValueType::F32, v, |x| x.to_le_bytes().to_vec()),
            Kv::Bools(v) => array(ValueType::Bool, v, |x| vec![u8::from(*x)]),
            Kv::Strs(v) => array(ValueType::String, v, |x| string(x)),
        }
    }
}

macro_rules! from {
    ($($ty:ty => $variant:ident),*) => { $(impl From<$ty> for Kv { fn from(v: $ty) -> Kv { Kv::$variant(v.into()) } })* };
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, &str => Str,
      String => Str, u64 => U64, i64 => I64, f64 => F64, Vec<u32> => U32s, Vec<i32> => I32s, Vec<f32> => F32s,
      Vec<bool> => Bools, Vec<Vec<u8>> => Strs);

fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend(bytes);
    out
}

struct Tensor {
    name: Vec<u8>,
    dims: Vec<u64>,
    type_id: u32,
    /// Where the data starts in the data section; `None`: behind the tensor before, aligned.
    offset: Option<u64>,
    data: Vec<u8>,
}

/// Builds the bytes of a GGUF file.
pub struct GgufBuilder {
    version: u32,
    alignment: u64,
    keys: Vec<u8>,
    n_keys: u64,
    claimed_keys: Option<u64>,
    tensors: Vec<Tensor>,
    claimed_tensors: Option<u64>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        GgufBuilder {
            version: 3,
            alignment: 32,
            keys: Vec::new(),
            n_keys: 0,
            claimed_keys: None,
            tensors: Vec::new(),
            claimed_tensors: None,
        }
    }
}

impl GgufBuilder {
    /// An empty file of version 3, alignment 32.
    pub fn new() -> Self {
        GgufBuilder::default()
    }

    /// Adds a key with a value of each type, and arrays of some.
    pub fn every_type(self) -> Self {
        self.kv("a.u8", 200u8)
            .kv("a.i8", -3i8)
            .kv("a.u16", 60_000u16)
            .kv("a.i16", -300i16)
            .kv("a.u32", 70_000u32)
            .kv("a.i32", -70_000i32)
            .kv("a.f32", 1.5f32)
            .kv("a.bool", true)
            .kv("a.u64", 1u64 << 40)
            .kv("a.i64", -(1i64 << 40))
            .kv("a.f64", 1e-5f64)
            .kv("b.u32", vec![1u32, 2, 3])
            .kv("b.i32", vec![-1i32, 2])
            .kv("b.f32", vec![0.5f32, -2.0])
            .kv("b.bool", vec![true, false, true])
            .kv("b.str", Kv::strs(["a", "", "é", "long enough to be seen"]))
    }

    /// Sets the version number.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the alignment and writes `general.alignment`.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment.into();
        self.kv("general.alignment", alignment)
    }

    /// Adds a key.
    pub fn kv(self, key: &str, value: impl Into<Kv>) -> Self {
        let (ty, bytes) = value.into().write();
        self.kv_raw(key.as_bytes(), ty as u32, &bytes)
    }

    /// Adds a key with any value type number and value bytes.
    pub fn kv_raw(mut self, key: &[u8], value_type: u32, value: &[u8]) -> Self {
        self.keys.extend(string(key));
        self.keys.extend(value_type.to_le_bytes());
        self.keys.extend(value);
        self.n_keys += 1;
        self
    }

    /// Whether the bytes of the keys so far hold this text.
    pub fn has_keys(&self, text: &str) -> bool {
        self.keys.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// Writes another number of keys than there are.
    pub fn claim_keys(mut self, n: u64) -> Self {
        self.claimed_keys = Some(n);
        self
    }

    /// Adds a tensor behind the one before; `dims` fastest axis first.
    pub fn tensor(mut self, name: &str, dims: &[u64], ty: GgmlType, data: &[u8]) -> Self {
        let (name, dims) = (name.as_bytes().to_vec(), dims.to_vec());
        self.tensors.push(Tensor { name, dims, type_id: ty.id(), offset: None, data: data.to_vec() });
        self
    }

    /// Adds a tensor of zeros of the right size.
    pub fn zeros(self, name: &str, dims: &[u64], ty: GgmlType) -> Self {
        let n = dims.iter().product::<u64>() / ty.block_size() * ty.block_bytes();
        self.tensor(name, dims, ty, &vec![0; n as usize])
    }

    /// Describes a tensor with any type id and any offset into the data section, and adds no data for it.
    pub fn tensor_raw(mut self, name: &[u8], dims: &[u64], type_id: u32, offset: u64) -> Self {
        let (name, dims) = (name.to_vec(), dims.to_vec());
        self.tensors.push(Tensor { name, dims, type_id, offset: Some(offset), data: Vec::new() });
        self
    }

    /// Writes another number of tensors than there are.
    pub fn claim_tensors(mut self, n: u64) -> Self {
        self.claimed_tensors = Some(n);
        self
    }

    /// The bytes of the file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.claimed_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.claimed_keys.unwrap_or(self.n_keys).to_le_bytes());
        out.extend(&self.keys);
        let mut data = Vec::new();
        for tensor in &self.tensors {
            let offset = tensor.offset.unwrap_or_else(|| {
                data.resize(data.len().next_multiple_of(self.alignment as usize), 0);
                data.len() as u64
            });
            data.extend(&tensor.data);
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        if !data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        }
        out.extend(data);
        out
    }
}

/// Damages files, the same way on every run. Numbers are SplitMix64's.
pub struct Damage(u64);

impl Damage {
    /// Damage that follows from a seed.
    pub fn new(seed: u64) -> Damage {
        Damage(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A copy of `whole` with up to 4 places among its first `head` bytes changed, and perhaps cut short.
    pub fn apply(&mut self, whole: &[u8], head: usize) -> Vec<u8> {
        /// Numbers at the edge of something.
        const EDGES: [u64; 12] =
            [0, 1, 2, 31, 255, 1 << 31, u32::MAX as u64, 1 << 32, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX];
        let mut bytes = whole.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(head.min(bytes.len()));
            match self.below(4) {
                0 => bytes[at] = self.next() as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                _ => {
                    let value = EDGES[self.below(EDGES.len())].to_le_bytes();
                    let n = (bytes.len() - at).min([4, 8][self.below(2)]);
                    bytes[at..at + n].copy_from_slice(&value[..n]);
                }
            }
        }
        if self.below(8) == 0 {
            bytes.truncate(self.below(whole.len()));
        }
        bytes
    }
}

/// A new folder under the system's folder for temporary files, removed with everything in it when dropped.
pub struct TempDir(std::path::PathBuf);

impl TempDir {
    /// Makes the folder.
    pub fn new() -> std::io::Result<TempDir> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("quoth-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(TempDir(path))
    }

    /// Writes a file into the folder and gives its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> std::io::Result<std::path::PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, bytes)?;
        Ok(path)
    }

    /// The folder.
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A folder that stays behind is no failure of the test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
