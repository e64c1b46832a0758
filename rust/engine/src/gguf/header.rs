//! A cursor over the header of a file that reads ahead in pieces and keeps what it has read.
//!
//! H1  `take` hands out a range only after its end was compared with the file's length and with the header limit, in
//!     numbers that cannot overflow. No buffer grows before that.
//! H2  What is kept is at most the header, rounded up to a read-ahead of at most 1 MiB.

use super::error::{Fault, GgufError, clip};
use super::source::ByteSource;
use crate::limits;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// What is being read, for a message.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Header,
    /// The number of keys.
    Keys,
    /// The number of tensors.
    Tensors,
    /// The number of elements of a key.
    Elements(&'a str),
    /// The name of key number n (from 0).
    KeyName(u64),
    Value(&'a str),
    /// The name of tensor number n (from 0).
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => f.write_str("the header"),
            Place::Keys => f.write_str("keys"),
            Place::Tensors => f.write_str("tensors"),
            Place::Elements(key) => write!(f, "elements of key `{}`", clip(key)),
            Place::KeyName(n) => write!(f, "the name of key {n}"),
            Place::Value(key) => write!(f, "the value of key `{}`", clip(key)),
            Place::TensorName(n) => write!(f, "the name of tensor {n}"),
            Place::Tensor(name) => write!(f, "the description of tensor `{}`", clip(name)),
        }
    }
}

/// The cursor.
pub(super) struct Header<'s> {
    path: &'s Path,
    source: &'s dyn ByteSource,
    len: u64,
    bytes: Vec<u8>,
    pos: usize,
}

impl<'s> Header<'s> {
    pub(super) fn new(path: &'s Path, source: &'s dyn ByteSource) -> Self {
        Header { path, source, len: source.len(), bytes: Vec::new(), pos: 0 }
    }

    /// Where the next byte will be read.
    pub(super) fn pos(&self) -> u64 {
        self.pos as u64
    }

    /// Bytes of the file behind the cursor.
    pub(super) fn left(&self) -> u64 {
        self.len - self.pos as u64
    }

    /// The bytes of a range that was taken.
    pub(super) fn at(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Gives the bytes read so far, cut at `end`, without slack.
    pub(super) fn into_bytes(self, end: usize) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.truncate(end);
        bytes.shrink_to_fit();
        bytes
    }

    /// An error about the content of this file.
    pub(super) fn fault(&self, fault: Fault) -> GgufError {
        GgufError::File { path: self.path.to_owned(), fault: Box::new(fault) }
    }

    /// The next `n` bytes, or as many as the file has; the cursor stays.
    pub(super) fn peek(&mut self, n: u64) -> Result<&[u8], GgufError> {
        let at = self.take(n.min(self.left()), Place::Header)?;
        self.pos = at.start;
        Ok(&self.bytes[at])
    }

    /// Moves the cursor over `n` bytes and gives their range.
    #[inline]
    pub(super) fn take(&mut self, n: u64, what: Place) -> Result<Range<usize>, GgufError> {
        let start = self.pos;
        if n > (self.bytes.len() - start) as u64 {
            self.fill(n, what)?;
        }
        self.pos = start + n as usize;
        Ok(start..self.pos)
    }

    #[cold]
    fn fill(&mut self, n: u64, what: Place) -> Result<(), GgufError> {
        let end = (self.pos as u64).saturating_add(n);
        if end > self.len {
            return Err(self.fault(Fault::Truncated { what: what.to_string(), end, len: self.len }));
        }
        let limit = limits::MAX_HEADER_BYTES;
        if end > limit {
            return Err(self.fault(Fault::HeaderTooLarge { what: what.to_string(), end, limit }));
        }
        let have = self.bytes.len() as u64;
        let ahead = have.clamp(64 << 10, 1 << 20);
        let to = end.max(have + ahead).min(self.len).min(limit) as usize;
        if to > self.bytes.capacity() {
            // By a quarter, not by doubling: this buffer is most of what opening a file may cost.
            let want = (self.bytes.capacity() + self.bytes.capacity() / 4).max(to);
            self.bytes.reserve_exact(want - self.bytes.len());
        }
        let from = self.bytes.len();
        self.bytes.resize(to, 0);
        self.source
            .read_at(from as u64, &mut self.bytes[from..])
            .map_err(|source| read_error(self.path, self.source, source))
    }

    pub(super) fn u32(&mut self, what: Place) -> Result<u32, GgufError> {
        let at = self.take(4, what)?;
        let mut le = [0; 4];
        le.copy_from_slice(&self.bytes[at]);
        Ok(u32::from_le_bytes(le))
    }

    #[inline]
    pub(super) fn u64(&mut self, what: Place) -> Result<u64, GgufError> {
        let at = self.take(8, what)?;
        let mut le = [0; 8];
        le.copy_from_slice(&self.bytes[at]);
        Ok(u64::from_le_bytes(le))
    }

    /// A length and that many bytes; the range of the bytes.
    #[inline]
    pub(super) fn string(&mut self, max: u64, what: Place) -> Result<Range<usize>, GgufError> {
        let offset = self.pos();
        let len = self.u64(what)?;
        if len > max && len <= self.left() {
            return Err(self.fault(Fault::StringTooLong { what: what.to_string(), found: len, limit: max, offset }));
        }
        self.take(len, what)
    }

    /// A string that must be text.
    pub(super) fn text(&mut self, max: u64, what: Place) -> Result<String, GgufError> {
        let at = self.string(max, what)?;
        match std::str::from_utf8(&self.bytes[at]) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.fault(Fault::NotUtf8 { what: what.to_string() })),
        }
    }

    /// Compares a count with a limit and with what `each` bytes of every one leave room for.
    pub(super) fn count(&self, found: u64, each: u64, limit: u64, what: Place) -> Result<usize, GgufError> {
        let (offset, room) = (self.pos() - 8, self.left() / each);
        if found > room {
            return Err(self.fault(Fault::CountPastEnd { what: what.to_string(), found, room, offset }));
        }
        if found > limit {
            return Err(self.fault(Fault::TooMany { what: what.to_string(), found, limit, offset }));
        }
        Ok(found as usize)
    }
}

/// A failed read: the file has changed if it ends early or its length differs, else the system's own error.
pub(super) fn read_error(path: &Path, source: &dyn ByteSource, error: std::io::Error) -> GgufError {
    match source.changed_len() {
        Ok(Some(found)) => changed(path, source.len(), found),
        _ => GgufError::Io { path: path.to_owned(), source: error },
    }
}

/// Fails once the file is no longer the one that was opened.
pub(super) fn check_unchanged(path: &Path, source: &dyn ByteSource) -> Result<(), GgufError> {
    match source.changed_len() {
        Ok(None) => Ok(()),
        Ok(Some(found)) => Err(changed(path, source.len(), found)),
        Err(source) => Err(GgufError::Io { path: path.to_owned(), source }),
    }
}

fn changed(path: &Path, expected: u64, found: u64) -> GgufError {
    GgufError::File { path: path.to_owned(), fault: Box::new(Fault::Changed { expected, found }) }
}
