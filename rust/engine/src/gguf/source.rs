//! Where the bytes of a model come from: a file read by position, or memory.
//!
//! A file is never mapped: a mapped file that is cut short by another process kills this one at the next access, and
//! weights are repacked at load, so every byte is read once anyway.
//!
//! S1  `read_at` fills the whole buffer or fails; no cursor is shared, so many threads may read at once.
//! S2  `check_unchanged` fails once length or modification time differ from those at opening. A reader calls it after
//!     reading, so bytes that it hands out were read from the file that was opened.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// Random access to the bytes of one model file.
pub(crate) trait ByteSource: Send + Sync {
    /// Bytes in all, as at opening.
    fn len(&self) -> u64;

    /// Fills `out` from `offset`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// The length that the file has by now, or `None` if it is still the file that was opened.
    fn changed_len(&self) -> io::Result<Option<u64>>;
}

/// A file on disk.
pub(crate) struct FileSource {
    file: File,
    len: u64,
    modified: Option<SystemTime>,
}

/// What stands at a path that is no regular file.
pub(crate) enum OpenError {
    /// The system refused.
    Io(io::Error),
    /// A directory, device or pipe.
    NotAFile(&'static str),
}

impl FileSource {
    /// Opens a regular file. Anything else is refused before it is opened: opening a pipe would wait for its writer.
    pub(crate) fn open(path: &Path) -> Result<FileSource, OpenError> {
        let kind = std::fs::metadata(path).map_err(OpenError::Io)?;
        if kind.is_dir() {
            return Err(OpenError::NotAFile("a directory"));
        }
        if !kind.is_file() {
            return Err(OpenError::NotAFile("a device or pipe"));
        }
        let file = File::open(path).map_err(OpenError::Io)?;
        let meta = file.metadata().map_err(OpenError::Io)?;
        Ok(FileSource { len: meta.len(), modified: meta.modified().ok(), file })
    }
}

impl ByteSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, offset, out)
    }

    fn changed_len(&self) -> io::Result<Option<u64>> {
        let meta = self.file.metadata()?;
        Ok((meta.len() != self.len || meta.modified().ok() != self.modified).then_some(meta.len()))
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Bytes in memory; they cannot change.
impl ByteSource for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let part = start.and_then(|s| self.get(s..s.checked_add(out.len())?));
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn changed_len(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
}
