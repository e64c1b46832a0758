//! Bytes in pieces of any length: the characters, joined, are what decoding all bytes at once gives, and none is held back that is whole.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quoth_engine::vocab::Utf8Stream;

fuzz_target!(|data: &[u8]| {
    let (lengths, bytes) = data.split_at(data.len() / 3);
    let (mut stream, mut text, mut at) = (Utf8Stream::new(), String::new(), 0);
    for length in lengths.iter().map(|l| usize::from(l % 6)).chain([usize::MAX]) {
        let end = at + length.min(bytes.len() - at);
        stream.push(&bytes[at..end], &mut text);
        at = end;
        let mut whole = text.clone();
        let mut copy = stream;
        copy.finish(&mut whole);
        assert_eq!(whole, String::from_utf8_lossy(&bytes[..at]));
        assert!(stream.held() <= 3);
    }
});
