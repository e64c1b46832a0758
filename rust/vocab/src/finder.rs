//! Special tokens in text: where they stand, before anything is merged.
//!
//! F1  The leftmost token wins, of several at one place the longest. Nothing inside a token is looked at again.
//! F2  The parts, joined, are the text, but for white space behind tokens that swallow it.
//!
//! Cost: one automaton; its search is linear in the text. The bound on its patterns keeps a file from making it large.

use crate::error::VocabError;
use crate::tokenizer::Part;
use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

/// Bytes of all tokens that are looked for: ten times those of the largest vocabularies in use. Each takes about 30 bytes of memory.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Finder {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
    swallowing: Vec<bool>,
}

impl Finder {
    /// Looks for these tokens; those without text are never found. White space behind those that swallow it is dropped.
    pub(crate) fn new<'t>(
        tokens: impl Iterator<Item = (u32, &'t [u8])>,
        swallows: impl Fn(&[u8]) -> bool,
    ) -> Result<Finder, VocabError> {
        let tokens: Vec<(u32, &[u8])> = tokens.filter(|(_, text)| !text.is_empty()).collect();
        let found = tokens.iter().map(|(_, text)| text.len()).sum();
        // With fewer patterns than 2^20 and fewer bytes than that, building cannot fail.
        let automaton = (found <= MAX_BYTES).then(|| {
            let mut builder = AhoCorasick::builder();
            builder.match_kind(MatchKind::LeftmostLongest).kind(Some(AhoCorasickKind::ContiguousNFA));
            builder.build(tokens.iter().map(|(_, text)| text)).ok()
        });
        let Some(Some(automaton)) = automaton else {
            return Err(VocabError::SpecialTooLong { found, limit: MAX_BYTES });
        };
        Ok(Finder {
            automaton: (!tokens.is_empty()).then_some(automaton),
            ids: tokens.iter().map(|(id, _)| *id).collect(),
            swallowing: tokens.iter().map(|(_, text)| swallows(text)).collect(),
        })
    }

    /// Parts a text at its special tokens; no part of text is empty. White space is dropped only if `swallow` says so.
    pub(crate) fn split(&self, text: &[u8], swallow: bool) -> Vec<Part> {
        let (mut parts, mut start) = (Vec::new(), 0);
        while let Some(found) = self.automaton.as_ref().and_then(|found| found.find(Input::new(text).range(start..))) {
            if start < found.start() {
                parts.push(Part::Text(start..found.start()));
            }
            parts.push(Part::Token(self.ids[found.pattern().as_usize()]));
            start = found.end();
            if swallow && self.swallowing[found.pattern().as_usize()] {
                start += text[start..].iter().take_while(|b| matches!(b, b' ' | 9..=13)).count();
            }
        }
        if start < text.len() {
            parts.push(Part::Text(start..text.len()));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts as tokens and stretches of text.
    fn split(tokens: &[(u32, &str)], text: &str) -> Vec<String> {
        let tokens = tokens.iter().map(|(id, text)| (*id, text.as_bytes()));
        let parts = Finder::new(tokens, |text| text == b"<s>").unwrap().split(text.as_bytes(), true);
        parts
            .into_iter()
            .map(|part| match part {
                Part::Token(id) => id.to_string(),
                Part::Text(range) => text[range].to_owned(),
            })
            .collect()
    }

    #[test]
    fn the_leftmost_token_wins_and_of_several_at_one_place_the_longest() {
        let tokens = [(1, "ab"), (2, "abc"), (3, "bcd"), (4, "x"), (5, "<|a|>"), (6, "")];
        assert_eq!(split(&tokens, "abcd"), ["2", "d"]);
        assert_eq!(split(&tokens, "zbcdab"), ["z", "3", "1"]);
        assert_eq!(split(&tokens, "<|b|><|a|>x<|"), ["<|b|>", "5", "4", "<|"]);
        assert!(split(&tokens, "").is_empty());
        assert_eq!((split(&[], "ab"), split(&[(7, "")], "ab")), (vec!["ab".to_owned()], vec!["ab".to_owned()]));
    }

    #[test]
    fn white_space_behind_a_token_that_swallows_it_is_gone_with_the_tokens_in_it() {
        let tokens = [(1, "<s>"), (2, "  "), (3, "x"), (4, " x")];
        assert_eq!(split(&tokens, "<s>\n   x  y"), ["1", "3", "2", "y"]);
        assert_eq!(split(&tokens, "<s><s>   "), ["1", "1"]);
    }

    #[test]
    fn more_text_than_the_limit_is_refused() {
        let text = vec![b'a'; MAX_BYTES];
        assert!(Finder::new([(0, &text[..])].into_iter(), |_| false).is_ok());
        let error = Finder::new([(0, &text[..]), (1, b"b")].into_iter(), |_| false).expect_err("too long");
        assert_eq!(error, VocabError::SpecialTooLong { found: MAX_BYTES + 1, limit: MAX_BYTES });
    }
}
