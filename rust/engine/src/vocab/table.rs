//! Many short byte strings in one allocation.

use crate::gguf::Strings;

/// Strings by index: one blob and where each ends. Holds less than 4 GiB of text, as every GGUF header does.
#[derive(Debug, Clone, Default)]
pub struct StringTable {
    blob: Vec<u8>,
    ends: Vec<u32>,
}

impl StringTable {
    /// A copy of strings of a file.
    pub(super) fn copy(strings: Strings) -> StringTable {
        let mut table = StringTable::with_capacity(strings.len(), strings.iter().map(<[u8]>::len).sum());
        strings.iter().for_each(|s| table.push(|blob| blob.extend_from_slice(s)));
        table
    }

    pub(super) fn with_capacity(strings: usize, bytes: usize) -> StringTable {
        StringTable { blob: Vec::with_capacity(bytes), ends: Vec::with_capacity(strings) }
    }

    /// Adds the string that `write` appends to the blob.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.blob);
        self.ends.push(self.blob.len() as u32);
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        Some(&self.blob[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}
