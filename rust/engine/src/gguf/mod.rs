//! GGUF files: bytes on disk to typed metadata and checked tensor descriptions, and tensor data on demand.
//!
//! In: a path. Out: [`Metadata`] to model configuration and vocabulary, [`TensorInfo`] and data to the weight loader.
//! Versions 2 and 3, little-endian, also split over several files.
//!
//! G1  What `open` returns was checked in full: every count, size, offset and type of the header. A file that lies is
//!     refused with a [`Fault`] that says what was expected, what was found and where.
//! G2  Opening costs less than 100 MB and less than 1 s, whatever the file says.
//! G3  Data is read by position into the caller's buffer. Bytes that `read_tensor` hands out came from the file as it
//!     was at opening, or it fails.
//! G4  A tensor of a type without kernels is described like any other; only [`GgufFile::check_supported`] refuses it.
//!
//! There is no memory map and no unsafe code; `source` says why. Source of the format: the GGUF specification of ggml.

mod error;
mod header;
mod metadata;
mod parse;
mod source;
mod split;
#[doc(hidden)]
pub mod testing;
mod types;
mod value;

#[cfg(test)]
mod tests;

pub use error::{Fault, GgufError};
pub use metadata::Metadata;
pub use parse::TensorInfo;
pub use types::GgmlType;
pub use value::{Array, Strings, Value, ValueType};

use parse::{Parsed, parse};
use source::OpenError;
pub(crate) use source::{ByteSource, FileSource};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One file of a model.
struct ModelFile {
    path: PathBuf,
    source: Box<dyn ByteSource>,
}

/// An open model: its metadata, its tensors, and its files.
pub struct GgufFile {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Tensors by name.
    sorted: Vec<u32>,
    files: Vec<ModelFile>,
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile")
            .field("path", &self.files[0].path)
            .field("keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl GgufFile {
    /// Opens a model and checks its header. Any part of a split model opens all of it; metadata are those of the first.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let (file, parsed) = open_one(path.as_ref(), 0)?;
        match split::parts(&file.path, &parsed.metadata)? {
            None => GgufFile::assemble(vec![file], parsed),
            Some(paths) => split::open(&paths, file, parsed),
        }
    }

    /// Opens a model that lies in memory; `name` stands for its path in errors. A part of a split model is refused.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Vec<u8>) -> Result<GgufFile, GgufError> {
        let path = name.as_ref().to_owned();
        let parsed = parse(&path, &bytes, 0)?;
        if let Some(count) = split::count(&path, &parsed.metadata)? {
            return Err(parsed.metadata.fault(Fault::SplitName { count, expected: "a path on disk".to_owned() }));
        }
        GgufFile::assemble(vec![ModelFile { path, source: Box::new(bytes) }], parsed)
    }

    fn assemble(files: Vec<ModelFile>, parsed: Parsed) -> Result<GgufFile, GgufError> {
        let Parsed { version, alignment, metadata, tensors } = parsed;
        let name = |i: u32| tensors[i as usize].name.as_str();
        let mut sorted: Vec<u32> = (0..tensors.len() as u32).collect();
        sorted.sort_by(|&a, &b| name(a).cmp(name(b)));
        if let Some(pair) = sorted.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
            let second = &tensors[pair[1] as usize];
            let fault = Box::new(Fault::DuplicateTensor { tensor: second.name.clone() });
            return Err(GgufError::File { path: files[second.file].path.clone(), fault });
        }
        Ok(GgufFile { version, alignment, metadata, tensors, sorted, files })
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes to which tensor data is aligned in the (first) file.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the file or files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.sorted.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.sorted[at] as usize])
    }

    /// Bytes of all files together, as at opening.
    pub fn file_size(&self) -> u64 {
        self.files.iter().map(|file| file.source.len()).sum()
    }

    /// The files: one, or all parts of a split model in order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Refuses a tensor whose type the engine cannot compute with, by the type's name.
    pub fn check_supported(&self, tensor: &TensorInfo) -> Result<(), GgufError> {
        if tensor.ty.supported() {
            return Ok(());
        }
        Err(self.fault(tensor, Fault::UnsupportedType { tensor: tensor.name.clone(), type_name: tensor.ty.name() }))
    }

    /// Reads bytes `range` of a tensor's data into `out`, which must be exactly as long. Threads may read at once.
    ///
    /// # Errors
    /// The range lies outside the tensor or differs from `out` in length; the system failed; the file is no longer the
    /// one that was opened. `out` then holds anything.
    pub fn read_tensor(&self, tensor: &TensorInfo, range: Range<u64>, out: &mut [u8]) -> Result<(), GgufError> {
        let len = range.end.checked_sub(range.start);
        if len != Some(out.len() as u64) || range.end > tensor.n_bytes {
            let Range { start, end } = range;
            let (tensor_name, n_bytes, buffer) = (tensor.name.clone(), tensor.n_bytes, out.len() as u64);
            return Err(self.fault(tensor, Fault::ReadRange { tensor: tensor_name, start, end, n_bytes, buffer }));
        }
        let ModelFile { path, source } = &self.files[tensor.file];
        // `place` checked offset + n_bytes against the file's length.
        let read = source.read_at(tensor.offset + range.start, out);
        read.map_err(|error| header::read_error(path, &**source, error))?;
        header::check_unchanged(path, &**source)
    }

    fn fault(&self, tensor: &TensorInfo, fault: Fault) -> GgufError {
        GgufError::File { path: self.files[tensor.file].path.clone(), fault: Box::new(fault) }
    }
}

/// Opens one file and reads its header.
fn open_one(path: &Path, number: usize) -> Result<(ModelFile, Parsed), GgufError> {
    let source = open_file(path)?;
    let parsed = parse(path, &source, number)?;
    Ok((ModelFile { path: path.to_owned(), source: Box::new(source) }, parsed))
}

/// Opens a regular file to read it by position.
pub(crate) fn open_file(path: &Path) -> Result<FileSource, GgufError> {
    FileSource::open(path).map_err(|error| match error {
        OpenError::Io(source) => GgufError::Io { path: path.to_owned(), source },
        OpenError::NotAFile(found) => GgufError::NotAFile { path: path.to_owned(), found },
    })
}
