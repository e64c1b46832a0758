//! Scores: text to token ids for sentencepiece-style vocabularies, which have scores and no list of merges.
//!
//! In: text, already cut from special tokens. Out: ids.
//!
//! C1  The pair of neighbours whose join is the token with the highest score is joined first, the leftmost of equals,
//!     until no pair is a token; what is then no token becomes byte tokens.
//! C2  Control, unknown and byte tokens are never made from text.
//! C3  Text is cut between two characters only if no token holds these two side by side. No join can cross such a cut,
//!     so cutting changes nothing; it makes chunks short.
//! C4  A byte that the vocabulary cannot spell is found, not lost.
//!
//! Which characters stand side by side is remembered in bits, by hash: a wrong bit only makes a chunk longer, so the memory does not grow with what a file holds.
//! A list of merges could not express C1: equals on the left and on the right of one character would need opposite ranks.
//! Cost: 5 ms to prepare 32 000 tokens; n log n in the length of a chunk.
//! Source: sentencepiece's BPE encoder, as llama.cpp runs it on GGUF vocabularies.

use crate::error::VocabError;
use crate::join::{Joined, NONE, Symbol, join};
use crate::spell;
use crate::vocab::Vocab;

#[derive(Debug)]
pub(crate) struct Scores {
    /// By token; the highest score first. `None` for tokens that text never becomes.
    ranks: Vec<Option<u32>>,
    /// The token of each byte, or [`NONE`].
    bytes: [u32; 256],
    side_by_side: Box<[u64]>,
}

const BITS: u32 = 22;

impl Scores {
    pub(crate) fn new(vocab: &Vocab, scores: &[f32]) -> Result<Scores, VocabError> {
        let texts = vocab.texts();
        let mut bytes = [NONE; 256];
        for (byte, id) in (0u8..=255).zip(&mut bytes) {
            *id = vocab.id_of(format!("<0x{byte:02X}>").as_bytes())?.unwrap_or(NONE);
        }
        let mut side_by_side = vec![0; 1 << (BITS - 6)].into_boxed_slice();
        let mut ranks = vec![None; texts.len()];
        for ((id, text), score) in (0u32..).zip(texts.iter()).zip(scores) {
            if vocab.kind(id).is_some_and(|kind| kind.is_hidden()) || spell::byte_name(text).is_some() {
                continue;
            }
            ranks[id as usize] = Some(rank(*score));
            let mut last = None;
            for (at, len) in spell::characters(text) {
                let character = number(&text[at..at + len]);
                if let Some(last) = last.replace(character) {
                    let (word, bit) = place(last, character);
                    side_by_side[word] |= bit;
                }
            }
        }
        Ok(Scores { ranks, bytes, side_by_side })
    }

    /// The token of a byte, or [`NONE`].
    pub(crate) fn byte(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    /// Appends the ids of a text with `▁` for its spaces. Gives the place of the first byte that has no token and was left out.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &[u8], ids: &mut Vec<u32>) -> Option<usize> {
        let (mut symbols, mut last, mut lost) = (Vec::new(), 0, None);
        for (start, len) in spell::characters(text) {
            let character = number(&text[start..start + len]);
            let (word, bit) = place(last, character);
            if self.side_by_side[word] & bit == 0 {
                self.chunk(vocab, text, &mut symbols, ids, &mut lost);
            }
            symbols.push(Symbol { start, len, id: NONE });
            last = character;
        }
        self.chunk(vocab, text, &mut symbols, ids, &mut lost);
        lost
    }

    fn chunk(
        &self,
        vocab: &Vocab,
        text: &[u8],
        symbols: &mut Vec<Symbol>,
        ids: &mut Vec<u32>,
        lost: &mut Option<usize>,
    ) {
        let token = |at: usize, len: usize| {
            let id = vocab.id_of(&text[at..at + len]).ok().flatten()?;
            Some(Joined { rank: self.ranks[id as usize]?, id })
        };
        join(symbols, |left, right| token(left.start, left.len + right.len));
        for Symbol { start, len, id } in symbols.drain(..) {
            if id != NONE {
                ids.push(id);
            } else if let Some(found) = token(start, len) {
                ids.push(found.id);
            } else {
                for (at, byte) in (start..).zip(&text[start..start + len]) {
                    match self.byte(*byte) {
                        NONE => drop(lost.get_or_insert(at)),
                        id => ids.push(id),
                    }
                }
            }
        }
    }
}

/// Numbers in the opposite order of scores; equal for equal scores.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // both zeros are one
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

/// A number of a character's bytes, at most 4, other than 0 for all but NUL.
fn number(character: &[u8]) -> u32 {
    character.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Where the bit of two characters is.
fn place(left: u32, right: u32) -> (usize, u64) {
    let mixed = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS);
    ((mixed >> 6) as usize, 1 << (mixed & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_opposite_order_of_scores() {
        let scores = [f32::INFINITY, 3.5, 1e-40, 0.0, -1e-40, -2.0, -2.5, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
