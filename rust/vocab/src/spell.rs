//! How the text of a token, as the file spells it, stands for bytes.
//!
//! Two spellings exist. In the byte alphabet (kind `gpt2`) each character stands for a byte: the 188 printable ones of
//! Latin-1 for themselves, the other 68 bytes, in order, for U+0100 and up, as GPT-2 defined it. The others (`llama`,
//! `gemma4`) spell UTF-8, with U+2581 for a space, and bytes that are no character as `<0x0A>`.

use crate::vocab::TokenKind;

/// The character that stands for a space where text is spelled in UTF-8.
pub(crate) const MARK: &[u8] = "\u{2581}".as_bytes();

/// Byte for each character of the byte alphabet, by code point; `None` for other characters below U+0144.
const BYTE_OF: [Option<u8>; 0x144] = {
    let mut table = [None; 0x144];
    let (mut byte, mut next) = (0usize, 0x100);
    while byte < 256 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        if printable {
            table[byte] = Some(byte as u8);
        } else {
            table[next] = Some(byte as u8);
            next += 1;
        }
        byte += 1;
    }
    table
};

/// The character that stands for each byte in the byte alphabet.
pub(crate) fn byte_alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    for (character, byte) in (0u32..).zip(BYTE_OF) {
        if let (Some(byte), Some(character)) = (byte, char::from_u32(character)) {
            alphabet[usize::from(byte)] = character;
        }
    }
    alphabet
}

/// Place and length of each character of a text; a byte that belongs to none is alone.
pub(crate) fn characters(text: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    text.utf8_chunks()
        .flat_map(|chunk| {
            let valid = chunk.valid().chars().map(char::len_utf8);
            valid.chain(chunk.invalid().iter().map(|_| 1))
        })
        .map(move |len| {
            at += len;
            (at - len, len)
        })
}

/// Appends the bytes that a token stands for.
///
/// Control, user-defined and unknown tokens stand for their own text. A text with a character outside the byte
/// alphabet was added by hand and stands for itself as well.
pub(crate) fn token_bytes(text: &[u8], kind: TokenKind, byte_alphabet: bool, out: &mut Vec<u8>) {
    let byte = if kind == TokenKind::Byte { byte_name(text) } else { None };
    if let Some(byte) = byte {
        out.push(byte);
    } else if kind.is_special() {
        out.extend_from_slice(text);
    } else if byte_alphabet {
        let start = out.len();
        if !from_byte_alphabet(text, out) {
            out.truncate(start);
            out.extend_from_slice(text);
        }
    } else {
        from_marked(text, out);
    }
}

/// The byte that `<0x0A>` names.
pub(crate) fn byte_name(text: &[u8]) -> Option<u8> {
    let &[b'<', b'0', b'x', high, low, b'>'] = text else { return None };
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}

/// Appends the bytes that the characters stand for; false where one stands for none.
fn from_byte_alphabet(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    for c in text.chars() {
        match BYTE_OF.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => return false,
        }
    }
    true
}

/// Appends the text with a space for each mark.
fn from_marked(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(&first) = text.first() {
        if text.starts_with(MARK) {
            out.push(b' ');
            text = &text[MARK.len()..];
        } else {
            out.push(first);
            text = &text[1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, kind: TokenKind, byte_alphabet: bool) -> Vec<u8> {
        let mut out = b"before".to_vec();
        token_bytes(text.as_bytes(), kind, byte_alphabet, &mut out);
        out.split_off(6)
    }

    #[test]
    fn the_byte_alphabet_has_one_character_for_each_byte() {
        let mut seen = BYTE_OF.iter().flatten().copied().collect::<Vec<u8>>();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        // Facts of GPT-2's table: space, newline, delete, no-break space, soft hyphen.
        let known = [('Ġ', b' '), ('Ċ', b'\n'), ('ġ', 0x7f), ('ł', 0xa0), ('Ń', 0xad), ('a', b'a'), ('ÿ', 0xff)];
        for (character, byte) in known {
            assert_eq!(bytes(&character.to_string(), TokenKind::Normal, true), [byte], "{character}");
        }
    }

    #[test]
    fn byte_alphabet_tokens_may_be_parts_of_characters() {
        assert_eq!(bytes("Ġthe", TokenKind::Normal, true), b" the");
        assert_eq!(bytes("Ã©", TokenKind::Normal, true), "é".as_bytes());
        assert_eq!(bytes("Ã", TokenKind::Normal, true), [0xc3]);
    }

    #[test]
    fn text_outside_the_byte_alphabet_stands_for_itself() {
        assert_eq!(bytes("Ġ漢", TokenKind::Normal, true), "Ġ漢".as_bytes());
        assert_eq!(bytes("a b", TokenKind::Normal, true), b"a b");
        assert_eq!(bytes("ń", TokenKind::Normal, true), "ń".as_bytes());
    }

    #[test]
    fn special_tokens_stand_for_their_text_in_both_spellings() {
        for kind in [TokenKind::Control, TokenKind::UserDefined, TokenKind::Unknown] {
            assert_eq!(bytes("Ġ\u{2581}<0x0A>", kind, true), "Ġ\u{2581}<0x0A>".as_bytes());
            assert_eq!(bytes("<0x0A>", kind, false), b"<0x0A>");
            assert_eq!(bytes("\u{2581}<PRE>", kind, false), "\u{2581}<PRE>".as_bytes());
        }
    }

    #[test]
    fn marks_become_spaces_and_byte_names_bytes() {
        assert_eq!(bytes("\u{2581}\u{2581}a\u{2581}b", TokenKind::Normal, false), b"  a b");
        assert_eq!(bytes("\u{2580}", TokenKind::Normal, false), "\u{2580}".as_bytes());
        assert_eq!(bytes("<0x0A>", TokenKind::Byte, false), b"\n");
        assert_eq!(bytes("<0xFF>", TokenKind::Byte, true), [0xff]);
        for other in ["<0x0a>", "<0x0G>", "<0xA>", "<0x0A> ", "x"] {
            assert_eq!(bytes(other, TokenKind::Byte, false), other.as_bytes());
        }
        assert_eq!(bytes("<0x0A>", TokenKind::Normal, false), b"<0x0A>");
    }
}
