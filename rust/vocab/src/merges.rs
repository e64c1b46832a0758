//! Merges: words to token ids for vocabularies that come with a list of pairs to join.
//!
//! In: text, already cut from special tokens. Out: ids.
//!
//! M1  The ids are those of the HF tokenizers model over the same vocabulary, merges and cuts, without a normalizer.
//! M2  Control and unknown tokens are never made from text, whatever a word spells; only if a merge names one it is reached by that merge.
//! M3  A byte that the vocabulary cannot spell is found, not lost.
//! M4  Of two merges of the same pair the later one counts.
//!
//! In the byte alphabet a word begins as one token a byte. Elsewhere it begins as one token a character; a character without a token becomes the tokens of its bytes.
//!
//! Cost: 150 000 merges take about 25 ms to prepare and 5 MB; a megabyte of text about 50 ms.

use crate::error::VocabError;
use crate::join::{Joined, NONE, Symbol, join};
use crate::keys::clip;
use crate::spell;
use crate::split::{Family, Splitter};
use crate::table::StringTable;
use crate::vocab::Vocab;
use hashbrown::HashMap;

#[derive(Debug)]
pub(crate) struct Merges {
    pairs: HashMap<(u32, u32), Joined>,
    /// The token of each byte.
    bytes: [u32; 256],
    /// The characters of the byte alphabet, where text is spelled in it.
    alphabet: Option<[char; 256]>,
    whole_words: bool,
    splitter: Splitter,
}

impl Merges {
    pub(crate) fn new(vocab: &Vocab, merges: &StringTable, family: &Family) -> Result<Merges, VocabError> {
        let (index, texts) = (vocab.index()?, vocab.texts());
        let mut pairs = HashMap::with_capacity(merges.len());
        let mut joined = Vec::new();
        for (rank, merge) in merges.iter().enumerate() {
            // A part may itself begin with a space.
            let Some(at) = merge.iter().skip(1).position(|b| *b == b' ').filter(|at| at + 2 < merge.len()) else {
                return Err(VocabError::MergeParts { rank, found: clip(merge) });
            };
            let (left, right) = (&merge[..at + 1], &merge[at + 2..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let token =
                |text: &[u8]| index.get(texts, text).ok_or_else(|| VocabError::MergeToken { rank, token: clip(text) });
            pairs.insert((token(left)?, token(right)?), Joined { rank: rank as u32, id: token(&joined)? });
        }
        let alphabet = (!family.metaspace).then(spell::byte_alphabet);
        let mut bytes = [NONE; 256];
        for (byte, id) in (0u8..=255).zip(&mut bytes) {
            let text =
                alphabet.map_or_else(|| format!("<0x{byte:02X}>"), |alphabet| alphabet[usize::from(byte)].into());
            *id = visible(vocab, text.as_bytes()).unwrap_or(NONE);
        }
        Ok(Merges { pairs, bytes, alphabet, whole_words: family.whole_words, splitter: Splitter::new(family) })
    }

    /// The token of a byte, or [`NONE`].
    pub(crate) fn byte(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    /// Appends the ids of a text, which has `▁` for its spaces unless it is spelled in the byte alphabet. Gives the place of the first byte that has no token and
    /// was left out.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &[u8], ids: &mut Vec<u32>) -> Option<usize> {
        let (mut symbols, mut spelled, mut lost) = (Vec::new(), String::new(), None);
        self.splitter.cut(text, &mut |word| {
            symbols.clear();
            let mut push = |start: usize, len: usize, id: u32| match id {
                NONE => drop(lost.get_or_insert(start)),
                id => symbols.push(Symbol { start, len, id }),
            };
            if let Some(alphabet) = &self.alphabet {
                if self.whole_words {
                    spelled.clear();
                    spelled.extend(text[word.clone()].iter().map(|byte| alphabet[usize::from(*byte)]));
                    if let Some(id) = visible(vocab, spelled.as_bytes()) {
                        return ids.push(id);
                    }
                }
                word.for_each(|at| push(at, 1, self.byte(text[at])));
            } else {
                for (at, len) in spell::characters(&text[word.clone()]) {
                    let (at, character) = (word.start + at, &text[word.start + at..word.start + at + len]);
                    match visible(vocab, character) {
                        Some(id) => push(at, len, id),
                        None => (at..at + len).for_each(|at| push(at, 1, self.byte(text[at]))),
                    }
                }
            }
            join(&mut symbols, |left, right| self.pairs.get(&(left.id, right.id)).copied());
            ids.extend(symbols.iter().map(|symbol| symbol.id));
        });
        lost
    }
}

/// The token of a text, if text may become it.
fn visible(vocab: &Vocab, text: &[u8]) -> Option<u32> {
    let id = vocab.id_of(text).ok().flatten()?;
    vocab.kind(id).is_some_and(|kind| !kind.is_hidden()).then_some(id)
}
