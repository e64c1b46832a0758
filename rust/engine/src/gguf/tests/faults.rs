//! One hand-made file for each way to be refused.

use super::{Fault, GgmlType, fault, small};
use crate::gguf::testing::GgufBuilder;
use crate::limits;

const F32: u32 = GgmlType::F32 as u32;
/// Where keys begin: magic, version, two counts.
const KEYS: u64 = 24;

fn new() -> GgufBuilder {
    GgufBuilder::new()
}

#[test]
fn an_empty_file() {
    assert_eq!(fault(Vec::new()), Fault::Empty);
}

#[test]
fn files_that_are_something_else() {
    let text = |start: &str| Fault::TextFile { start: start.into() };
    assert_eq!(
        fault(b"version https://git-lfs.github.com/spec/v1\noid 1\n".to_vec()),
        text("version https://git-lfs.github.com/spec/v1")
    );
    assert_eq!(fault(b"{\n \"a\": 1}".to_vec()), text("{"));
    assert_eq!(fault(b"hi".to_vec()), text("hi"));
    // A character cut at the end of what is looked at is still text.
    let long = "ä".repeat(50);
    assert_eq!(fault(format!("a{long}").into_bytes()), text(&format!("a{}", "ä".repeat(31))));
    let magic = |found: &str| Fault::BadMagic { found: found.into() };
    assert_eq!(fault(vec![0x80, 2, 0, 0, b'P', b'K']), magic("\\x80\\x02\\x00\\x00"));
    assert_eq!(fault(b"lmgg\x01\0\0\0".to_vec()), magic("lmgg"));
    assert_eq!(fault(b"GGUE\x03\0\0\0".to_vec()), magic("GGUE"));
    assert_eq!(fault(b"GGX\0".to_vec()), magic("GGX\\x00"));
    assert_eq!(fault(vec![0]), magic("\\x00"));
}

#[test]
fn versions_that_are_not_read() {
    for found in [0, 1, 4, 0xffff] {
        assert_eq!(fault(small().version(found).build()), Fault::Version { found });
    }
    for version in [1u32, 2, 3] {
        let found = version.swap_bytes();
        assert_eq!(fault(small().version(found).build()), Fault::BigEndian { found });
    }
}

#[test]
fn a_header_that_ends_in_the_middle() {
    for len in 1..24u64 {
        let end = match len {
            0..4 => 4,
            4..8 => 8,
            8..16 => 16,
            _ => 24,
        };
        let found = fault(new().build()[..len as usize].to_vec());
        assert_eq!(found, Fault::Truncated { what: "the header".into(), end, len });
    }
}

#[test]
fn counts_that_the_file_has_no_room_for() {
    for claim in [20, 1 << 40, u64::MAX] {
        let bytes = new().kv("a", 1u32).claim_keys(claim).build();
        let room = (bytes.len() as u64 - KEYS) / 13;
        assert_eq!(fault(bytes), Fault::CountPastEnd { what: "keys".into(), found: claim, room, offset: 16 });
        let bytes = new().kv("a", 1u32).claim_tensors(claim).build();
        let room = (bytes.len() as u64 - 16) / 32;
        assert_eq!(fault(bytes), Fault::CountPastEnd { what: "tensors".into(), found: claim, room, offset: 8 });
    }
}

#[test]
fn counts_beyond_the_limits() {
    let big = vec![0u8; 32 * limits::MAX_TENSORS as usize + 64];
    let claim = limits::MAX_KEYS + 1;
    let mut bytes = new().claim_keys(claim).build();
    bytes.extend(&big);
    assert_eq!(fault(bytes), Fault::TooMany { what: "keys".into(), found: claim, limit: limits::MAX_KEYS, offset: 16 });
    let claim = limits::MAX_TENSORS + 1;
    let mut bytes = new().claim_tensors(claim).build();
    bytes.extend(&big);
    let found = fault(bytes);
    assert_eq!(found, Fault::TooMany { what: "tensors".into(), found: claim, limit: limits::MAX_TENSORS, offset: 8 });
    let claim = limits::MAX_ARRAY_LEN + 1;
    let mut array = 0u32.to_le_bytes().to_vec();
    array.extend(claim.to_le_bytes());
    array.resize(claim as usize + 100, 0);
    let what = "elements of key `a`".to_owned();
    let found = fault(new().kv_raw(b"a", 9, &array).build());
    assert_eq!(found, Fault::TooMany { what, found: claim, limit: limits::MAX_ARRAY_LEN, offset: 41 });
}

#[test]
fn keys_that_are_too_long_not_text_or_not_there() {
    let long = vec![b'k'; limits::MAX_KEY_BYTES as usize];
    assert!(crate::gguf::GgufFile::from_bytes("m", new().kv_raw(&long, 0, &[1]).build()).is_ok());
    let long = vec![b'k'; limits::MAX_KEY_BYTES as usize + 1];
    let what = "the name of key 0".to_owned();
    let limit = limits::MAX_KEY_BYTES;
    let found = fault(new().kv_raw(&long, 0, &[1]).build());
    assert_eq!(found, Fault::StringTooLong { what: what.clone(), found: limit + 1, limit, offset: KEYS });
    assert_eq!(fault(new().kv_raw(b"\xff", 0, &[1]).build()), Fault::NotUtf8 { what });
    let bytes = new().kv("a", 1u8).kv("b", 1u8).claim_keys(3).kv("pad", "0123456789").build();
    let mut short = bytes.clone();
    short.truncate(KEYS as usize + 14 + 14 + 12);
    let (len, end) = (short.len() as u64, KEYS + 28 + 8 + 3);
    let mut lie = short.clone();
    lie[16] = 3;
    // Three keys do not fit any more than the file has room for, so the file ends inside the third.
    assert_eq!(fault(lie.clone()), Fault::Truncated { what: "the value of key `pad`".into(), end: end + 4, len });
    lie.truncate(end as usize - 1);
    assert!(matches!(fault(lie), Fault::Truncated { .. } | Fault::CountPastEnd { .. }));
}

#[test]
fn a_key_that_stands_twice() {
    let found = fault(new().kv("a", 1u8).kv("b", 2u8).kv("a", 3u8).build());
    assert_eq!(found, Fault::DuplicateKey { key: "a".into() });
}

#[test]
fn values_of_no_type_nested_arrays_and_booleans_of_two() {
    let ty = |found| Fault::ValueType { key: "a".into(), found, offset: 33 };
    assert_eq!(fault(new().kv_raw(b"a", 13, &[0; 16]).build()), ty(13));
    assert_eq!(fault(new().kv_raw(b"a", u32::MAX, &[0; 16]).build()), ty(u32::MAX));
    let mut elem = 99u32.to_le_bytes().to_vec();
    elem.extend([0; 16]);
    let found = fault(new().kv_raw(b"a", 9, &elem).build());
    assert_eq!(found, Fault::ValueType { key: "a".into(), found: 99, offset: 37 });
    let mut nested = 9u32.to_le_bytes().to_vec();
    nested.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    nested.extend([0; 12]);
    assert_eq!(fault(new().kv_raw(b"a", 9, &nested).build()), Fault::NestedArray { key: "a".into(), offset: 37 });
    let found = fault(new().kv_raw(b"a", 7, &[2]).build());
    assert_eq!(found, Fault::BadBool { key: "a".into(), found: 2, offset: 37 });
    let mut bools = 7u32.to_le_bytes().to_vec();
    bools.extend([3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 255]);
    let found = fault(new().kv_raw(b"a", 9, &bools).build());
    assert_eq!(found, Fault::BadBool { key: "a".into(), found: 255, offset: 51 });
}

#[test]
fn strings_and_arrays_longer_than_the_file() {
    let what = || "the value of key `a`".to_owned();
    for len in [9u64, 1 << 40, u64::MAX] {
        let bytes = new().kv_raw(b"a", 8, &[&len.to_le_bytes()[..], b"12345678"].concat()).build();
        let (end, total) = (45u64.saturating_add(len), bytes.len() as u64);
        assert_eq!(fault(bytes), Fault::Truncated { what: what(), end, len: total });
    }
    for count in [3u64, 1 << 61, u64::MAX] {
        let array = [&4u32.to_le_bytes()[..], &count.to_le_bytes(), &[0; 8]].concat();
        let found = fault(new().kv_raw(b"a", 9, &array).build());
        let what = "elements of key `a`".to_owned();
        assert_eq!(found, Fault::CountPastEnd { what, found: count, room: 2, offset: 41 });
    }
    // Two strings of length 8 are claimed; the second ends behind the file.
    let array =
        [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &0u64.to_le_bytes(), &8u64.to_le_bytes(), b"123"].concat();
    let found = fault(new().kv_raw(b"a", 9, &array).build());
    assert_eq!(found, Fault::Truncated { what: what(), end: 73, len: 68 });
}

#[test]
fn strings_and_headers_beyond_the_limits() {
    let limit = limits::MAX_STRING_BYTES;
    let text = |n: u64| [&n.to_le_bytes()[..], &vec![b'x'; n as usize]].concat();
    let found = fault(new().kv_raw(b"a", 8, &text(limit + 1)).build());
    let what = || "the value of key `a`".to_owned();
    assert_eq!(found, Fault::StringTooLong { what: what(), found: limit + 1, limit, offset: 37 });
    let bytes = new().kv_raw(b"b", 8, &text(limit)).kv_raw(b"a", 8, &text(limit)).build();
    let end = bytes.len() as u64;
    assert_eq!(fault(bytes), Fault::HeaderTooLarge { what: what(), end, limit: limits::MAX_HEADER_BYTES });
}

#[test]
fn tensor_names_too_long_not_text_or_twice() {
    let limit = limits::MAX_TENSOR_NAME_BYTES;
    let found = fault(new().tensor_raw(&vec![b't'; limit as usize + 1], &[1], F32, 0).build());
    let what = || "the name of tensor 0".to_owned();
    assert_eq!(found, Fault::StringTooLong { what: what(), found: limit + 1, limit, offset: KEYS });
    assert_eq!(fault(new().tensor_raw(b"\xc3", &[1], F32, 0).build()), Fault::NotUtf8 { what: what() });
    let found = fault(
        new().zeros("t", &[1], GgmlType::F32).zeros("u", &[1], GgmlType::F32).zeros("t", &[1], GgmlType::F32).build(),
    );
    assert_eq!(found, Fault::DuplicateTensor { tensor: "t".into() });
}

#[test]
fn tensors_of_impossible_shape() {
    let tensor = || "t".to_owned();
    // Room for the description of one tensor with one axis, whatever it has.
    for n_dims in [0u32, 5, u32::MAX] {
        let mut bytes = new().zeros("t", &[1], GgmlType::F32).build();
        bytes[33..37].copy_from_slice(&n_dims.to_le_bytes());
        assert_eq!(fault(bytes), Fault::DimCount { tensor: tensor(), found: n_dims });
    }
    for (axis, dims) in [(0, [0, 1]), (1, [1, 0])] {
        assert_eq!(fault(new().tensor_raw(b"t", &dims, F32, 0).build()), Fault::ZeroDim { tensor: tensor(), axis });
    }
    let overflow = |dims: &[u64], ty: GgmlType| {
        assert_eq!(
            fault(new().tensor_raw(b"t", dims, ty.id(), 0).build()),
            Fault::SizeOverflow { tensor: tensor(), dims: dims.to_vec() }
        );
    };
    overflow(&[1 << 32, 1 << 32], GgmlType::I8);
    overflow(&[1 << 62, 1], GgmlType::F32);
    overflow(&[1 << 16, 1 << 16, 1 << 16, 1 << 16], GgmlType::I8);
    overflow(&[1, u64::MAX, u64::MAX], GgmlType::I8);
    // Fewer bytes than values: the number of values alone is too large.
    overflow(&[1 << 33, 1 << 31], GgmlType::Q4_0);
    for (ty, row) in [(GgmlType::Q4_0, 33), (GgmlType::Q4_K, 128), (GgmlType::Q8_0, 1), (GgmlType::NVFP4, 32)] {
        let (block, type_name) = (ty.block_size(), ty.name());
        let found = fault(new().tensor_raw(b"t", &[row, 4], ty.id(), 0).build());
        assert_eq!(found, Fault::PartialBlock { tensor: tensor(), row, block, type_name });
    }
    for id in [4, 5, 43, u32::MAX] {
        assert_eq!(fault(new().tensor_raw(b"t", &[32], id, 0).build()), Fault::UnknownType { tensor: tensor(), id });
    }
}

#[test]
fn tensors_of_impossible_place() {
    let tensor = || "t".to_owned();
    let found = fault(new().zeros("a", &[16], GgmlType::F32).tensor_raw(b"t", &[1], F32, 4).build());
    assert_eq!(found, Fault::Misaligned { tensor: tensor(), offset: 4, alignment: 32 });
    // 24 bytes of header, 33 of description, 7 of padding.
    for (offset, end) in [(32, 100), (0, 68), (1 << 40, (1 << 40) + 68), (u64::MAX - 31, u64::MAX)] {
        let found = fault(new().tensor_raw(b"t", &[1], F32, offset).build());
        assert_eq!(found, Fault::TensorPastEnd { tensor: tensor(), end, len: 57 });
    }
    let found = fault(new().tensor_raw(b"t", &[1 << 61], F32 - F32 + GgmlType::I8.id(), 0).build());
    assert_eq!(found, Fault::TensorPastEnd { tensor: tensor(), end: (1 << 61) + 64, len: 57 });
}

#[test]
fn tensors_over_one_another() {
    let two = |offset| new().zeros("a", &[16], GgmlType::F32).tensor_raw(b"t", &[1], F32, offset).build();
    let data = 24 + 33 + 33 + 6;
    let overlap = |offset: u64| Fault::Overlap { tensor: "t".into(), other: "a".into(), offset: data + offset };
    assert_eq!(fault(two(0)), overlap(0));
    assert_eq!(fault(two(32)), overlap(32));
    let mut behind = two(64);
    behind.extend([0; 4]);
    assert!(crate::gguf::GgufFile::from_bytes("m", behind).is_ok());
    // One byte is enough.
    let found = fault(new().zeros("a", &[33], GgmlType::I8).tensor_raw(b"t", &[1], GgmlType::I8.id(), 32).build());
    assert_eq!(found, overlap(32));
    // The order of the descriptions does not matter.
    let found = fault(new().tensor_raw(b"t", &[1], F32, 32).zeros("a", &[16], GgmlType::F32).build());
    assert_eq!(found, overlap(32));
}

#[test]
fn a_description_that_ends_in_the_middle() {
    let whole = new().tensor_raw(b"tensor name of thirty-two bytes!", &[4, 4, 4, 4], F32, 0).build();
    for len in 56..whole.len() {
        match fault(whole[..len].to_vec()) {
            Fault::Truncated { what, end, len: found } => {
                assert_eq!(found, len as u64);
                assert!(end > found);
                let place = if len < 64 { "the name of tensor 0" } else { "the description of tensor `tensor name of" };
                assert!(what.starts_with(place), "{len}: {what}");
            }
            other => panic!("{len}: {other}"),
        }
    }
}

#[test]
fn long_names_are_clipped_in_messages() {
    let key = "k".repeat(60_000);
    let text = fault(new().kv_raw(key.as_bytes(), 99, &[0; 8]).build()).to_string();
    assert!(text.len() < 300, "{text}");
}
