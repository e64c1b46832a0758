//! Many short byte strings in one allocation.

/// Strings by index: one blob and where each ends. Holds less than 4 GiB of text, as every GGUF header does.
#[derive(Debug, Clone, Default)]
pub struct StringTable {
    blob: Vec<u8>,
    ends: Vec<u32>,
}

impl StringTable {
    /// An empty table with room.
    pub fn with_capacity(strings: usize, bytes: usize) -> StringTable {
        StringTable { blob: Vec::with_capacity(bytes), ends: Vec::with_capacity(strings) }
    }

    /// Bytes of all strings together.
    pub fn n_bytes(&self) -> usize {
        self.blob.len()
    }

    /// Adds the string that `write` appends to the blob.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
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

impl<S: AsRef<[u8]>> FromIterator<S> for StringTable {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringTable {
        let strings = strings.into_iter();
        let mut table = StringTable::with_capacity(strings.size_hint().0, 0);
        strings.for_each(|string| table.push(|blob| blob.extend_from_slice(string.as_ref())));
        table
    }
}
