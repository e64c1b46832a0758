//! Every way in which a GGUF file can be refused.
//!
//! A [`GgufError`] names the file; a [`Fault`] says what was expected, what was found and where in it.

use std::path::PathBuf;

/// Why a model file could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused an operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something other than a regular file stands at the path.
    #[error("{}: expected a file, found {found}", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// The content of the file was refused.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<Fault>,
    },
}

impl GgufError {
    /// What is wrong with the content; `None` where the operating system failed.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            GgufError::File { fault, .. } => Some(fault),
            _ => None,
        }
    }
}

/// What is wrong with the content of a file. Offsets count bytes from its start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
#[non_exhaustive]
pub enum Fault {
    // Not a GGUF file that can be read here.
    #[error("expected a GGUF header of 24 bytes, found an empty file")]
    Empty,
    #[error("expected the magic bytes `GGUF` at byte 0, found text that starts with `{start}`")]
    TextFile { start: String },
    #[error("expected the magic bytes `GGUF` at byte 0, found `{found}`")]
    BadMagic { found: String },
    #[error("expected a little-endian file, found version bytes {found:#010x} at byte 4, as in a big-endian file")]
    BigEndian { found: u32 },
    #[error("expected GGUF version 2 or 3 at byte 4, found {found}")]
    Version { found: u32 },

    // Counts and sizes against the file and the limits.
    #[error("{what} ends at byte {end}, the file has {len}")]
    Truncated { what: String, end: u64, len: u64 },
    #[error("{what} ends at byte {end} of the header, the limit is {limit}")]
    HeaderTooLarge { what: String, end: u64, limit: u64 },
    #[error("{found} {what} at byte {offset}, the file has room for {room}")]
    CountPastEnd { what: String, found: u64, room: u64, offset: u64 },
    #[error("{found} {what} at byte {offset}, the limit is {limit}")]
    TooMany { what: String, found: u64, limit: u64, offset: u64 },
    #[error("{what} at byte {offset} has {found} bytes, the limit is {limit}")]
    StringTooLong { what: String, found: u64, limit: u64, offset: u64 },

    // Metadata.
    #[error("{what} is not UTF-8")]
    NotUtf8 { what: String },
    #[error("key `{key}` stands in the file twice")]
    DuplicateKey { key: String },
    #[error("key `{key}` has the value type {found} at byte {offset}, expected 0 to 12")]
    ValueType { key: String, found: u32, offset: u64 },
    #[error("key `{key}` holds an array of arrays at byte {offset}, expected an array of numbers, booleans or strings")]
    NestedArray { key: String, offset: u64 },
    #[error("key `{key}` holds the boolean {found} at byte {offset}, expected 0 or 1")]
    BadBool { key: String, found: u8, offset: u64 },
    #[error("key `general.alignment` is {found}, expected a power of two from 8 to 4096")]
    Alignment { found: u64 },

    // Typed access to metadata.
    #[error("key `{key}` is missing, expected {expected}")]
    MissingKey { key: String, expected: &'static str },
    #[error("key `{key}` is {found}, expected {expected}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("key `{key}` holds {found}, out of range for {expected}")]
    OutOfRange { key: String, expected: &'static str, found: String },
    #[error("key `{key}` has {found} elements, expected {expected}")]
    ArrayLength { key: String, expected: u64, found: u64 },

    // Tensors.
    #[error("tensor `{tensor}` is described twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor `{tensor}` has {found} dimensions, expected 1 to 4")]
    DimCount { tensor: String, found: u32 },
    #[error("tensor `{tensor}` has length 0 on axis {axis}")]
    ZeroDim { tensor: String, axis: usize },
    #[error("tensor `{tensor}` has the shape {dims:?}, whose size does not fit 64 bits")]
    SizeOverflow { tensor: String, dims: Vec<u64> },
    #[error("tensor `{tensor}` has the type id {id}, which is not known")]
    UnknownType { tensor: String, id: u32 },
    #[error("tensor `{tensor}` has rows of {row} values, expected a multiple of {block} for {type_name}")]
    PartialBlock { tensor: String, row: u64, block: u64, type_name: &'static str },
    #[error("tensor `{tensor}` starts {offset} bytes into the data, expected a multiple of {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: u64 },
    #[error("tensor `{tensor}` ends at byte {end}, the file has {len}")]
    TensorPastEnd { tensor: String, end: u64, len: u64 },
    #[error("tensor `{tensor}` starts at byte {offset}, inside tensor `{other}`")]
    Overlap { tensor: String, other: String, offset: u64 },
    #[error("tensor `{tensor}` is of type {type_name}, which the engine cannot compute with")]
    UnsupportedType { tensor: String, type_name: &'static str },
    #[error("bytes {start}..{end} of tensor `{tensor}` asked for into {buffer} bytes, it has {n_bytes}")]
    ReadRange { tensor: String, start: u64, end: u64, n_bytes: u64, buffer: u64 },
    #[error("changed since it was opened: {expected} bytes then, {found} now")]
    Changed { expected: u64, found: u64 },

    // Split files.
    #[error("part of a split model of {count} files, expected a name that ends in `{expected}`")]
    SplitName { count: u64, expected: String },
    #[error("key `{key}` is {found}, expected {expected} as in the name and the first file")]
    SplitPart { key: &'static str, expected: u64, found: u64 },
    #[error("the split files hold {found} tensors, expected {expected} as key `split.tensors.count` says")]
    SplitTensors { expected: u64, found: u64 },
}

/// At most 80 characters of a string, for a message.
pub(crate) fn clip(text: &str) -> String {
    match text.char_indices().nth(80) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
