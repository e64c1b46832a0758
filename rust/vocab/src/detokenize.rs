//! Tokens to text, whole characters at a time.
//!
//! D1  What `push` and `finish` append, joined, equals the replacement decoding of all bytes at once: each longest
//!     part that cannot become a character is one U+FFFD, as in Rust's `from_utf8_lossy` and Python's `errors="replace"`.
//! D2  Held back are only bytes that begin a character which later bytes may complete: at most 3.
//! D3  The states are plain values of a few bytes; a copy is a place to come back to.
//!
//! Cost: one scan of each token's bytes.

use crate::vocab::Vocab;

/// Bytes to text, whole characters at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Utf8Stream {
    /// The beginning of a character.
    held: [u8; 3],
    len: u8,
}

impl Utf8Stream {
    /// A stream that has seen nothing.
    pub fn new() -> Utf8Stream {
        Utf8Stream::default()
    }

    /// Bytes of a character that is not complete, 0 to 3.
    pub fn held(&self) -> usize {
        self.len.into()
    }

    /// Takes bytes and appends the characters that are now complete.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.len > 0 {
            let Some((&next, rest)) = bytes.split_first() else { return };
            let len = self.held();
            let mut four = [0; 4];
            four[..len].copy_from_slice(&self.held[..len]);
            four[len] = next;
            match std::str::from_utf8(&four[..len + 1]) {
                Ok(text) => {
                    out.push_str(text);
                    self.len = 0;
                    bytes = rest;
                }
                Err(e) if e.error_len().is_none() => {
                    self.held[len] = next;
                    self.len += 1;
                    bytes = rest;
                }
                // The held bytes were the longest possible beginning; the next byte starts afresh.
                Err(_) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.len = 0;
                }
            }
        }
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(e) => {
                    let (good, rest) = bytes.split_at(e.valid_up_to());
                    out.push_str(std::str::from_utf8(good).unwrap_or_default());
                    match e.error_len() {
                        Some(n) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            bytes = &rest[n..];
                        }
                        None => {
                            self.held[..rest.len()].copy_from_slice(rest);
                            self.len = rest.len() as u8;
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Ends the text: held bytes become one U+FFFD. The stream can be used anew.
    pub fn finish(&mut self, out: &mut String) {
        if self.len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
        }
        *self = Utf8Stream::new();
    }
}

/// Tokens of one vocabulary to text. The vocabulary is passed to each call, so that the state stays small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detokenizer {
    utf8: Utf8Stream,
    /// The first byte that shows is dropped if it is a space.
    strip_space: bool,
    show_control: bool,
}

impl Detokenizer {
    /// A state before the first token.
    ///
    /// `at_start` says that the tokens begin a text, rather than go on from one: then the space that the vocabulary
    /// puts in front when encoding is dropped. `show_control` shows the text of control and unknown tokens.
    pub fn new(vocab: &Vocab, at_start: bool, show_control: bool) -> Detokenizer {
        Detokenizer { utf8: Utf8Stream::new(), strip_space: at_start && vocab.add_space_prefix(), show_control }
    }

    /// The bytes of the next token that show. Moves past the start of the text; characters are not assembled.
    pub fn visible<'v>(&mut self, vocab: &'v Vocab, token: u32) -> &'v [u8] {
        if !self.show_control && vocab.kind(token).is_some_and(|kind| kind.is_hidden()) {
            return &[];
        }
        let bytes = vocab.token_bytes(token);
        match bytes {
            [b' ', rest @ ..] if self.strip_space => {
                self.strip_space = false;
                rest
            }
            _ => {
                self.strip_space &= bytes.is_empty();
                bytes
            }
        }
    }

    /// Takes a token and appends the characters that are now complete.
    pub fn push(&mut self, vocab: &Vocab, token: u32, out: &mut String) {
        let bytes = self.visible(vocab, token);
        self.utf8.push(bytes, out);
    }

    /// Ends the text: bytes of an incomplete character become one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        self.utf8.finish(out);
    }

    /// The characters under assembly.
    pub(crate) fn utf8(&mut self) -> &mut Utf8Stream {
        &mut self.utf8
    }
}
