//! A lying file costs less than 100 MB and less than 1 s, measured on this process as the system sees it.
//!
//! One test in a process of its own: the figure is the peak of the whole process. The files are sparse, so they take
//! no room on disk.
#![cfg(target_os = "linux")]

use quoth_engine::gguf::testing::{GgufBuilder, TempDir};
use quoth_engine::gguf::{Fault, GgmlType, GgufFile};
use quoth_engine::limits;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The most memory that this process has held so far, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("linux has it");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("linux has it");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("a number of kB") << 10
}

/// `pieces` at their places in a file of `len` bytes, zeros between.
fn sparse(dir: &TempDir, len: u64, pieces: &[(u64, Vec<u8>)]) -> std::path::PathBuf {
    let path = dir.write("m.gguf", &[]).expect("made");
    let file = OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(len).expect("sized");
    for (at, bytes) in pieces {
        file.write_all_at(bytes, *at).expect("written");
    }
    path
}

/// What a case writes, and where.
type Pieces = Vec<(u64, Vec<u8>)>;

/// A header that claims `keys` keys, up to the first key.
fn head(keys: u64, tensors: u64) -> Vec<u8> {
    GgufBuilder::new().claim_keys(keys).claim_tensors(tensors).build()
}

/// A key of one letter that begins an array of `n` elements.
fn array(key: u8, elem: u32, n: u64) -> Vec<u8> {
    let mut out = 1u64.to_le_bytes().to_vec();
    out.push(key);
    out.extend(9u32.to_le_bytes());
    out.extend(elem.to_le_bytes());
    out.extend(n.to_le_bytes());
    out
}

#[test]
fn files_that_claim_all_they_may_cost_less_than_100_mb_and_a_second() {
    const STRING: u32 = 8;
    let dir = TempDir::new().expect("a folder");
    let max = limits::MAX_ARRAY_LEN;
    let big = 1 << 36;
    // Empty strings are the most that a header can hold. Two arrays of them fill it.
    let two_arrays = |n: u64| {
        let first = [head(2, 0), array(b'a', STRING, n)].concat();
        let second_at = first.len() as u64 + 8 * n;
        vec![(0, first), (second_at, array(b'b', STRING, n))]
    };
    let many_keys: Vec<u8> = (0..limits::MAX_KEYS)
        .flat_map(|i| [&8u64.to_le_bytes()[..], format!("{i:08}").as_bytes(), &[0; 5]].concat())
        .collect();
    let many_tensors = (0..limits::MAX_TENSORS).fold(GgufBuilder::new(), |b, i| {
        b.tensor_raw(format!("{i:0255}").as_bytes(), &[32, 1, 1, 1], GgmlType::I8.id(), 32 * i)
    });
    let cases: [(&str, Pieces, bool); 7] = [
        ("strings beyond the header", two_arrays(max), false),
        ("strings that fill the header", two_arrays((limits::MAX_HEADER_BYTES - 100) / 16), true),
        (
            "one string too long",
            vec![(0, [head(1, 0), array(b'a', STRING, 1), (1u64 << 35).to_le_bytes().to_vec()].concat())],
            false,
        ),
        ("numbers", vec![(0, [head(9, 0), array(b'a', 12, max)].concat())], false),
        ("keys", vec![(0, [head(limits::MAX_KEYS, 0), many_keys].concat())], true),
        ("tensors", vec![(0, many_tensors.build())], true),
        ("counts", vec![(0, head(u64::MAX, u64::MAX))], false),
    ];
    let before = peak_bytes();
    for (name, pieces, sound) in cases {
        let path = sparse(&dir, big, &pieces);
        let start = Instant::now();
        let opened = GgufFile::open(&path);
        let took = start.elapsed();
        assert_eq!(opened.is_ok(), sound, "{name}: {opened:?}");
        drop(opened);
        let cost = peak_bytes().saturating_sub(before);
        eprintln!("{name}: {took:?}, peak {} MB above the start", cost >> 20);
        assert!(took < Duration::from_secs(1), "{name}: {took:?}");
        assert!(cost < 100_000_000, "{name}: {cost}");
    }
    let path = sparse(&dir, big, &[(0, [head(1, 0), array(b'a', 12, max)].concat())]);
    OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(1 << 20)).expect("cut");
    let fault = GgufFile::open(&path).expect_err("cut").fault().cloned();
    assert!(matches!(fault, Some(Fault::CountPastEnd { .. })), "{fault:?}");
}
