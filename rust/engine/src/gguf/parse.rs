//! One file: header bytes to checked metadata and tensor descriptions.
//!
//! P1  Every number of the file is compared with a limit, or with what the file has room for, before it is used.
//! P2  A tensor that leaves here has 1 to 4 axes, none of length 0, whole blocks in its rows, a size that fits 64 bits,
//!     and lies inside the data section, aligned, over no other tensor.
//! P3  Time is linear in the header, and n log n in keys and tensors.

use super::error::{Fault, GgufError, clip};
use super::header::{Header, Place, check_unchanged};
use super::metadata::{Metadata, Stored};
use super::source::ByteSource;
use super::types::GgmlType;
use super::value::{STRIDE, Value, ValueType};
use crate::limits;
use std::ops::Range;
use std::path::Path;

/// A tensor as the header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, unique in the model.
    pub name: String,
    /// Length of each axis, fastest first; 1 on axes from `n_dims` on.
    pub dims: [u64; 4],
    /// Number of axes, 1 to 4.
    pub n_dims: u32,
    /// The element type; perhaps one that the engine cannot compute with.
    pub ty: GgmlType,
    /// Where the data begins, in bytes from the start of its file.
    pub offset: u64,
    /// Bytes of data.
    pub n_bytes: u64,
    /// Which file of a split model holds the data, from 0.
    pub file: usize,
}

impl TensorInfo {
    /// Length of each axis that the tensor has, fastest first.
    pub fn shape(&self) -> &[u64] {
        &self.dims[..self.n_dims as usize]
    }

    /// Values in all.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Values of a row: the length of the fastest axis.
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Rows in all.
    pub fn n_rows(&self) -> u64 {
        self.dims[1] * self.dims[2] * self.dims[3]
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.dims[0] / self.ty.block_size() * self.ty.block_bytes()
    }
}

/// A file whose header was read and found sound.
pub(super) struct Parsed {
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
}

/// Least bytes of a key: length, type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
/// Least bytes of a tensor description: name length, number of axes, one axis, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// Reads the header of file number `file` of a model.
pub(super) fn parse(path: &Path, source: &dyn ByteSource, file: usize) -> Result<Parsed, GgufError> {
    let mut header = Header::new(path, source);
    let version = magic_and_version(&mut header)?;
    let tensor_count = header.u64(Place::Header)?;
    // Keys and tensors share what is left; each count alone must fit it.
    let n_tensors = header.count(tensor_count, MIN_TENSOR_BYTES, limits::MAX_TENSORS, Place::Tensors)?;
    let key_count = header.u64(Place::Header)?;
    let n_keys = header.count(key_count, MIN_KEY_BYTES, limits::MAX_KEYS, Place::Keys)?;

    let mut entries = Vec::with_capacity(n_keys);
    for n in 0..n_keys as u64 {
        let key = header.text(limits::MAX_KEY_BYTES, Place::KeyName(n))?;
        let value = value(&mut header, &key)?;
        entries.push((key, value));
    }
    let keys_end = header.pos() as usize;

    let mut tensors = Vec::with_capacity(n_tensors);
    for n in 0..n_tensors as u64 {
        tensors.push(tensor(&mut header, n, file)?);
    }
    let header_end = header.pos();
    let metadata = Metadata::new(path, header.into_bytes(keys_end), entries)?;
    let refuse = |fault| GgufError::File { path: path.to_owned(), fault: Box::new(fault) };
    let alignment = alignment(&metadata)?;
    place(&mut tensors, header_end, alignment, source.len()).map_err(refuse)?;
    check_unchanged(path, source)?;
    Ok(Parsed { version, alignment, metadata, tensors })
}

fn magic_and_version(header: &mut Header) -> Result<u32, GgufError> {
    const MAGIC: &[u8] = b"GGUF";
    let start = header.peek(64)?;
    if start.is_empty() {
        return Err(header.fault(Fault::Empty));
    }
    if !start.starts_with(MAGIC) && !MAGIC.starts_with(start) {
        let fault = match first_line(start) {
            Some(start) => Fault::TextFile { start },
            None => Fault::BadMagic { found: start[..start.len().min(4)].escape_ascii().to_string() },
        };
        return Err(header.fault(fault));
    }
    header.take(MAGIC.len() as u64, Place::Header)?;
    let found = header.u32(Place::Header)?;
    match found {
        2 | 3 => Ok(found),
        // Versions are small numbers, so the bytes of one in the other order have an empty lower half.
        _ if found & 0xffff == 0 && found != 0 => Err(header.fault(Fault::BigEndian { found })),
        _ => Err(header.fault(Fault::Version { found })),
    }
}

/// The first line of what looks like text; a character cut at the end is still text.
fn first_line(start: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&start[..e.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let printable = text.chars().all(|c| !c.is_control() || c.is_ascii_whitespace());
    printable.then(|| text.trim_start().lines().next().unwrap_or_default().to_owned())
}

fn value(header: &mut Header, key: &str) -> Result<Stored, GgufError> {
    let what = Place::Value(key);
    match value_type(header, key)? {
        ValueType::String => Ok(Stored::String(header.string(limits::MAX_STRING_BYTES, what)?)),
        ValueType::Array => array(header, key),
        ty => {
            let at = header.take(ty.min_bytes(), what)?;
            check_bools(header, key, ty, at.clone())?;
            Ok(Stored::Scalar(Value::scalar(ty, header.at(at))))
        }
    }
}

fn value_type(header: &mut Header, key: &str) -> Result<ValueType, GgufError> {
    let offset = header.pos();
    let found = header.u32(Place::Value(key))?;
    ValueType::from_id(found).ok_or_else(|| header.fault(Fault::ValueType { key: clip(key), found, offset }))
}

fn array(header: &mut Header, key: &str) -> Result<Stored, GgufError> {
    let what = Place::Value(key);
    let offset = header.pos();
    let elem = value_type(header, key)?;
    if elem == ValueType::Array {
        return Err(header.fault(Fault::NestedArray { key: clip(key), offset }));
    }
    let count = header.u64(what)?;
    let n = header.count(count, elem.min_bytes(), limits::MAX_ARRAY_LEN, Place::Elements(key))?;
    if elem == ValueType::String {
        let mut starts = Vec::with_capacity(n.div_ceil(STRIDE));
        for i in 0..n {
            let at = header.string(limits::MAX_STRING_BYTES, what)?;
            if i % STRIDE == 0 {
                // The header limit is below 2^32, so a place in it fits.
                starts.push(at.start as u32);
            }
        }
        return Ok(Stored::Strings(n, starts.into_boxed_slice()));
    }
    let at = header.take(n as u64 * elem.min_bytes(), what)?;
    check_bools(header, key, elem, at.clone())?;
    Ok(Stored::Scalars(elem, at))
}

fn check_bools(header: &Header, key: &str, ty: ValueType, at: Range<usize>) -> Result<(), GgufError> {
    if ty != ValueType::Bool {
        return Ok(());
    }
    match header.at(at.clone()).iter().enumerate().find(|(_, byte)| **byte > 1) {
        None => Ok(()),
        Some((i, &found)) => Err(header.fault(Fault::BadBool { key: clip(key), found, offset: (at.start + i) as u64 })),
    }
}

/// Reads one description; `offset` of the result still counts from the start of the data.
fn tensor(header: &mut Header, n: u64, file: usize) -> Result<TensorInfo, GgufError> {
    let name = header.text(limits::MAX_TENSOR_NAME_BYTES, Place::TensorName(n))?;
    let what = Place::Tensor(&name);
    let tensor = || name.clone();
    let n_dims = header.u32(what)?;
    if n_dims == 0 || n_dims > limits::MAX_DIMS {
        return Err(header.fault(Fault::DimCount { tensor: tensor(), found: n_dims }));
    }
    let mut dims = [1; limits::MAX_DIMS as usize];
    for (axis, dim) in dims[..n_dims as usize].iter_mut().enumerate() {
        *dim = header.u64(what)?;
        if *dim == 0 {
            return Err(header.fault(Fault::ZeroDim { tensor: tensor(), axis }));
        }
    }
    let id = header.u32(what)?;
    let Some(ty) = GgmlType::from_id(id) else {
        return Err(header.fault(Fault::UnknownType { tensor: tensor(), id }));
    };
    let (row, block) = (dims[0], ty.block_size());
    if row % block != 0 {
        return Err(header.fault(Fault::PartialBlock { tensor: tensor(), row, block, type_name: ty.name() }));
    }
    let rows = dims[1..].iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let sizes = rows.and_then(|rows| {
        // Both the number of values and of bytes must fit.
        rows.checked_mul(row)?;
        rows.checked_mul((row / block).checked_mul(ty.block_bytes())?)
    });
    let Some(n_bytes) = sizes else {
        let dims = dims[..n_dims as usize].to_vec();
        return Err(header.fault(Fault::SizeOverflow { tensor: tensor(), dims }));
    };
    let offset = header.u64(what)?;
    Ok(TensorInfo { name, dims, n_dims, ty, offset, n_bytes, file })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let found = metadata.get_u64(KEY)?.unwrap_or(limits::DEFAULT_ALIGNMENT);
    if found.is_power_of_two() && (limits::MIN_ALIGNMENT..=limits::MAX_ALIGNMENT).contains(&found) {
        return Ok(found);
    }
    Err(metadata.fault(Fault::Alignment { found }))
}

/// Turns offsets into the data to offsets into the file and checks that every tensor has its own place there.
fn place(tensors: &mut [TensorInfo], header_end: u64, alignment: u64, len: u64) -> Result<(), Fault> {
    // The header is below its limit, so this does not overflow.
    let data = header_end.next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        if tensor.offset % alignment != 0 {
            return Err(Fault::Misaligned { tensor: tensor.name.clone(), offset: tensor.offset, alignment });
        }
        // Saturated sums are beyond the end of any file.
        tensor.offset = tensor.offset.saturating_add(data);
        let end = tensor.offset.saturating_add(tensor.n_bytes);
        if end > len {
            return Err(Fault::TensorPastEnd { tensor: tensor.name.clone(), end, len });
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    match order.windows(2).find(|pair| pair[0].offset + pair[0].n_bytes > pair[1].offset) {
        None => Ok(()),
        Some(pair) => {
            Err(Fault::Overlap { tensor: pair[1].name.clone(), other: pair[0].name.clone(), offset: pair[1].offset })
        }
    }
}
