//! Bounds on what a file or a caller may ask for, each with its reason.
//!
//! A number that comes from a file is compared with one of these, or with what is left of the file, before it sizes an
//! allocation or a loop. With all of them at their worst, opening a file holds less than 100 MB and takes less than 1 s.

pub use quoth_vocab::{MAX_STOP_BYTES, MAX_VOCAB};

/// Bytes of a GGUF header: keys, values and tensor descriptions of one file.
///
/// The largest vocabularies in use (262 144 tokens and 514 906 merges, with scores) take 15 MB, a whole `tokenizer.json`
/// stored as one value takes 35 MB. The header is held in memory, so this bounds what opening a file costs.
pub const MAX_HEADER_BYTES: u64 = 56 << 20;

/// Metadata keys of one file. Files in use have below 100; each costs about 100 bytes beside its text.
pub const MAX_KEYS: u64 = 1 << 14;

/// Bytes of a metadata key: the bound of the format's specification.
pub const MAX_KEY_BYTES: u64 = 65_535;

/// Bytes of one string: a whole `tokenizer.json` (35 MB) fits, and two of them do not fit the header.
pub const MAX_STRING_BYTES: u64 = 40 << 20;

/// Elements of one metadata array: eight times the merges of the largest vocabulary in use.
pub const MAX_ARRAY_LEN: u64 = 1 << 22;

/// Tensors of a model, all its files together. The largest models in use have about 2 000, and 23 000 where each expert
/// is a tensor of its own; each costs about 200 bytes.
pub const MAX_TENSORS: u64 = 1 << 15;

/// Bytes of a tensor name. ggml allows 63, tools built on it up to 127.
pub const MAX_TENSOR_NAME_BYTES: u64 = 255;

/// Axes of a tensor: what ggml has.
pub const MAX_DIMS: u32 = 4;

/// Smallest alignment of tensor data: an `f64` or `i64` element.
pub const MIN_ALIGNMENT: u64 = 8;

/// Largest alignment of tensor data: a page.
pub const MAX_ALIGNMENT: u64 = 4096;

/// Alignment where the file names none: the specification's default.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Files of a split model. Each stays open, and a process may commonly open 1 024.
pub const MAX_SPLIT_FILES: u64 = 256;

/// Layers of a model. The deepest in use have about 130.
pub const MAX_LAYERS: usize = 1024;

/// Width of a layer's input or feed-forward. The widest in use have 16,384 and 53,248; a row of activations must fit scratch memory.
pub const MAX_WIDTH: usize = 1 << 18;

/// Heads of a layer. Models in use have up to 128.
pub const MAX_HEADS: usize = 1024;

/// Numbers a head: what one tile of queries has room for. Models in use have up to 576.
pub const MAX_HEAD_DIM: usize = 1024;

/// Positions of a context: beyond any model in use, and below what overflows the size of a cache.
pub const MAX_CONTEXT: usize = 1 << 24;

/// Layers of a target that a drafter reads. Drafters in use read up to 5.
pub const MAX_TAPS: usize = 16;

/// Experts of a layer. Models in use have up to 512.
pub const MAX_EXPERTS: usize = 4096;
