//! Tokens by text: a hash table of ids over the table of texts, so no text is stored twice.

use crate::error::VocabError;
use crate::keys::clip;
use crate::table::StringTable;
use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};
use std::hash::BuildHasher;

#[derive(Debug)]
pub(crate) struct Index {
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    /// Tokens without text are left out.
    pub(crate) fn new(texts: &StringTable) -> Result<Index, VocabError> {
        let hasher = DefaultHashBuilder::default();
        let mut ids = HashTable::with_capacity(texts.len());
        let of = |id: &u32| texts.get(*id as usize).unwrap_or_default();
        for (id, text) in (0u32..).zip(texts.iter()) {
            if text.is_empty() {
                continue;
            }
            if std::str::from_utf8(text).is_err() {
                return Err(VocabError::NotText { id, text: clip(text) });
            }
            match ids.entry(hasher.hash_one(text), |other| of(other) == text, |other| hasher.hash_one(of(other))) {
                Entry::Vacant(place) => drop(place.insert(id)),
                Entry::Occupied(first) => {
                    return Err(VocabError::SameText { text: clip(text), first: *first.get(), second: id });
                }
            }
        }
        Ok(Index { ids, hasher })
    }

    /// The token with this text.
    pub(crate) fn get(&self, texts: &StringTable, text: &[u8]) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(text), |id| texts.get(*id as usize) == Some(text)).copied()
    }
}
