//! The vocabulary as grammars see it.
//!
//! In: bytes and kinds of tokens, and a tokenizer that encodes what is forced. Out: the trie that masks are computed on.
//!
//! T1  A mark (a control token, an end of generation) begins with a byte that no text has, so no grammar of text can spell it. The grammar engine has this
//!     convention.
//! T2  Tokens that mean nothing (unknown, unused, without bytes) are never allowed. A token that stands for one byte gives way to a token of text with the same
//!     byte, because models write the latter.
//! T3  Vocabularies lack bytes (SmolLM2 has no token for 0x04 or 0xF1), and text that has them cannot be encoded. A grammar that could force such a byte is
//!     compiled without forcing: it holds, and leaves the spelling to the model.
//!
//! Cost: some 100 ms for 150 000 tokens, once a model.

use std::sync::Arc;

use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use quoth_engine::vocab::{TokenKind, Tokenizer, Vocab};

/// Tokens longer than this are not allowed: the trie is not made for them.
const MAX_TOKEN: usize = 1000;

/// The tokens of a model.
#[derive(Clone)]
pub struct Tokens {
    words: Vec<Vec<u8>>,
    ends: Vec<u32>,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({}, ends {:?})", self.words.len(), self.ends)
    }
}

impl Tokens {
    /// The tokens of a vocabulary. `tokenizer` encodes forced text; without it the longest token that fits is taken, again and again.
    pub fn new(vocab: &Vocab, tokenizer: Option<Arc<Tokenizer>>) -> Tokens {
        let ids = 0..vocab.n_vocab() as u32;
        let text: std::collections::HashSet<&[u8]> = ids
            .clone()
            .filter(|id| matches!(vocab.kind(*id), Some(TokenKind::Normal | TokenKind::UserDefined)))
            .map(|id| vocab.token_bytes(id))
            .collect();
        let suppressed = |id: u32| vocab.suppressed().binary_search(&id).is_ok();
        let word = |id: u32| {
            let bytes = vocab.token_bytes(id);
            let mark = || [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
            match vocab.kind(id) {
                _ if bytes.is_empty() || bytes.len() > MAX_TOKEN || suppressed(id) => Vec::new(),
                _ if vocab.is_eog(id) => mark(),
                Some(TokenKind::Control) => mark(),
                Some(TokenKind::Normal | TokenKind::UserDefined) => bytes.to_vec(),
                Some(TokenKind::Byte) if !text.contains(bytes) => bytes.to_vec(),
                _ => Vec::new(),
            }
        };
        Tokens { words: ids.map(word).collect(), ends: vocab.eog_ids().to_vec(), tokenizer }
    }

    /// Whether text of these characters can be encoded, printable ASCII beside them (T3). Escapes may stand for any character.
    pub(crate) fn can_spell(&self, text: &str) -> bool {
        let mut covered = [false; 256];
        self.words.iter().filter(|word| word.len() == 1).for_each(|word| covered[usize::from(word[0])] = true);
        // 0xF5 and above stand in no text; 0xC0 and 0xC1 neither.
        let all = covered.iter().enumerate().all(|(byte, covered)| *covered || byte >= 0xf5 || byte & !1 == 0xc0);
        let escaped = ["\\x", "\\u", "\\U"].iter().any(|escape| text.contains(escape));
        all || !escaped && text.bytes().chain(b' '..=b'~').all(|byte| covered[usize::from(byte)])
    }

    /// The grammar engine's view; with `forces`, forced bytes become forced tokens.
    pub(crate) fn environment(self, forces: bool) -> TokEnv {
        let info = TokRxInfo::new(self.words.len() as u32, self.ends.first().copied().unwrap_or(INVALID_TOKEN));
        let trie = TokTrie::from(&info, &self.words);
        let trie = if self.ends.is_empty() { trie } else { trie.with_eos_tokens(&self.ends) };
        Arc::new(Environment { trie, tokenizer: self.tokenizer, forces })
    }
}

struct Environment {
    trie: TokTrie,
    tokenizer: Option<Arc<Tokenizer>>,
    forces: bool,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<u32> {
        let encoded = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.tokenize_bytes(text).ok());
        // A token that means nothing to the trie (T2) is allowed by no mask.
        let known = |id: &u32| !self.trie.token(*id).is_empty();
        encoded.filter(|ids| ids.iter().all(known)).unwrap_or_else(|| self.trie.greedy_tokenize(text))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.forces
    }
}
