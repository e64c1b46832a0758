//! Files on disk: kinds of path, files that change, models split over several files.

use super::{GgmlType, small};
use crate::gguf::parse::parse;
use crate::gguf::source::ByteSource;
use crate::gguf::testing::{GgufBuilder, TempDir};
use crate::gguf::{Fault, GgufError, GgufFile};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

fn why(path: &Path) -> Fault {
    GgufFile::open(path).expect_err("refused").fault().expect("a fault").clone()
}

#[test]
fn a_file_reads_like_the_same_bytes_in_memory() {
    let dir = TempDir::new().expect("a folder");
    let bytes = small().build();
    let disk = GgufFile::open(dir.write("m.gguf", &bytes).expect("written")).expect("sound");
    let memory = GgufFile::from_bytes("m.gguf", bytes).expect("sound");
    assert_eq!(disk.tensors(), memory.tensors());
    assert!(disk.metadata().iter().eq(memory.metadata().iter()));
    assert_eq!(disk.file_size(), memory.file_size());
    for tensor in disk.tensors() {
        let (mut a, mut b) = (vec![0; tensor.n_bytes as usize], vec![1; tensor.n_bytes as usize]);
        disk.read_tensor(tensor, 0..tensor.n_bytes, &mut a).expect("read");
        memory.read_tensor(tensor, 0..tensor.n_bytes, &mut b).expect("read");
        assert_eq!(a, b);
    }
}

#[test]
fn a_missing_file_keeps_the_systems_error_and_the_path() {
    let dir = TempDir::new().expect("a folder");
    let wanted = dir.path().join("none.gguf");
    match GgufFile::open(&wanted).expect_err("not there") {
        GgufError::Io { path, source } => assert_eq!((path, source.kind()), (wanted, ErrorKind::NotFound)),
        other => panic!("{other}"),
    }
}

#[test]
fn a_folder_is_not_a_file() {
    let dir = TempDir::new().expect("a folder");
    match GgufFile::open(dir.path()).expect_err("a folder") {
        GgufError::NotAFile { path, found } => assert_eq!((path.as_path(), found), (dir.path(), "a directory")),
        other => panic!("{other}"),
    }
}

#[cfg(unix)]
#[test]
fn a_device_is_not_a_file() {
    for device in ["/dev/zero", "/dev/null"] {
        let error = GgufFile::open(device).expect_err("a device");
        assert!(matches!(error, GgufError::NotAFile { found: "a device or pipe", .. }), "{error}");
    }
}

#[test]
fn a_file_cut_short_after_opening_is_an_error_not_a_crash() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.write("m.gguf", &small().build()).expect("written");
    let file = GgufFile::open(&path).expect("sound");
    let expected = file.file_size();
    OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(100)).expect("cut");
    for tensor in file.tensors() {
        let mut out = vec![0; tensor.n_bytes as usize];
        let error = file.read_tensor(tensor, 0..tensor.n_bytes, &mut out).expect_err("changed");
        assert_eq!(error.fault(), Some(&Fault::Changed { expected, found: 100 }));
    }
}

#[test]
fn a_file_written_to_after_opening_is_an_error_even_at_the_same_length() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.write("m.gguf", &small().build()).expect("written");
    let file = GgufFile::open(&path).expect("sound");
    let later = SystemTime::now() + Duration::from_secs(5);
    OpenOptions::new().write(true).open(&path).and_then(|f| f.set_modified(later)).expect("touched");
    let x = file.tensor("x").expect("present");
    let error = file.read_tensor(x, 0..4, &mut [0; 4]).expect_err("changed");
    let len = file.file_size();
    assert_eq!(error.fault(), Some(&Fault::Changed { expected: len, found: len }));
}

/// A file that grows by a byte while its header is read.
struct Growing(Vec<u8>);

impl ByteSource for Growing {
    fn len(&self) -> u64 {
        ByteSource::len(&self.0)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, out)
    }

    fn changed_len(&self) -> std::io::Result<Option<u64>> {
        Ok(Some(ByteSource::len(self) + 1))
    }
}

#[test]
fn a_file_written_to_while_its_header_is_read_is_an_error() {
    let bytes = small().build();
    let expected = bytes.len() as u64;
    let Err(error) = parse(Path::new("m.gguf"), &Growing(bytes), 0) else { panic!("opened") };
    assert_eq!(error.fault(), Some(&Fault::Changed { expected, found: expected + 1 }));
}

/// The files of a model with tensors t0, t1, ... of one byte each, whose value is the number.
/// A disk that fails from the n-th read on.
struct Failing {
    bytes: Vec<u8>,
    reads: AtomicUsize,
    good: usize,
}

impl ByteSource for Failing {
    fn len(&self) -> u64 {
        ByteSource::len(&self.bytes)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        if self.reads.fetch_add(1, Ordering::Relaxed) >= self.good {
            // What a read that fails half-way leaves behind.
            out.fill(0xaa);
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.bytes.read_at(offset, out)
    }

    fn changed_len(&self) -> std::io::Result<Option<u64>> {
        Ok(None)
    }
}

#[test]
fn pages_that_cannot_be_read_are_the_systems_error_with_the_path_wherever_they_are() {
    // Large enough for several reads.
    let many = (0..60).fold(small(), |b, i| b.kv(&format!("key {i}"), "x".repeat(5_000)));
    let bytes = many.build();
    let source = |good| Failing { bytes: bytes.clone(), reads: AtomicUsize::new(0), good };
    let whole = source(usize::MAX);
    parse(Path::new("m.gguf"), &whole, 0).map(drop).expect("sound");
    let reads = whole.reads.into_inner();
    assert!(reads > 2, "{reads} reads");
    for good in 0..reads {
        match parse(Path::new("m.gguf"), &source(good), 0) {
            Err(GgufError::Io { path, source }) => {
                assert_eq!((path.as_path(), source.raw_os_error()), (Path::new("m.gguf"), Some(5)));
            }
            Err(other) => panic!("{good}: {other}"),
            Ok(_) => panic!("{good}: opened"),
        }
    }
}

fn split(dir: &TempDir, sizes: &[usize], change: impl Fn(usize, GgufBuilder) -> GgufBuilder) -> Vec<PathBuf> {
    let (count, total) = (sizes.len(), sizes.iter().sum::<usize>());
    let mut next = 0u8;
    let parts = sizes.iter().enumerate().map(|(no, &n)| {
        let mut part = GgufBuilder::new();
        if no == 0 {
            part = part.kv("general.architecture", "llama");
        }
        part = change(no, part);
        for _ in 0..n {
            part = part.tensor(&format!("t{next}"), &[1], GgmlType::I8, &[next]);
            next += 1;
        }
        // Keys that `change` has written already are not written again: it writes all three or none.
        if !part.has_keys("split.") {
            part = part.kv("split.no", no as u16).kv("split.count", count as u16);
            part = part.kv("split.tensors.count", total as i32);
        }
        dir.write(&format!("m-{:05}-of-{count:05}.gguf", no + 1), &part.build()).expect("written")
    });
    parts.collect()
}

#[test]
fn every_part_of_a_split_model_opens_the_whole() {
    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[2, 0, 3], |no, part| if no == 2 { part.alignment(64) } else { part });
    for path in &paths {
        let file = GgufFile::open(path).expect("sound");
        assert_eq!(file.paths().collect::<Vec<_>>(), paths);
        assert_eq!(file.metadata().get_str("general.architecture").expect("text"), Some("llama"));
        assert_eq!(file.tensors().len(), 5);
        for (i, owner) in [0, 0, 2, 2, 2].into_iter().enumerate() {
            let tensor = file.tensor(&format!("t{i}")).expect("present");
            assert_eq!(tensor.file, owner);
            let mut out = [99];
            file.read_tensor(tensor, 0..1, &mut out).expect("read");
            assert_eq!(usize::from(out[0]), i);
        }
    }
}

#[test]
fn a_missing_part_is_named() {
    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[1, 1, 1], |_, part| part);
    std::fs::remove_file(&paths[1]).expect("removed");
    for path in [&paths[0], &paths[2]] {
        match GgufFile::open(path).expect_err("a part is missing") {
            GgufError::Io { path, source } => {
                assert_eq!((path, source.kind()), (paths[1].clone(), ErrorKind::NotFound))
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let keys = |part: GgufBuilder, no: u16, count: u16, total: i32| {
        part.kv("split.no", no).kv("split.count", count).kv("split.tensors.count", total)
    };
    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[1, 1], |no, part| if no == 1 { keys(part, 0, 2, 2) } else { part });
    assert_eq!(why(&paths[0]), Fault::SplitPart { key: "split.no", expected: 1, found: 0 });

    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[1, 1], |no, part| if no == 1 { keys(part, 1, 3, 2) } else { part });
    assert_eq!(why(&paths[0]), Fault::SplitPart { key: "split.count", expected: 2, found: 3 });

    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[1, 1], |no, part| keys(part, no as u16, 2, 7));
    assert_eq!(why(&paths[0]), Fault::SplitTensors { expected: 7, found: 2 });

    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[1, 1], |no, part| match no {
        0 => keys(part, 0, 2, 3).tensor("t1", &[1], GgmlType::I8, &[9]),
        _ => part,
    });
    assert_eq!(why(&paths[0]), Fault::DuplicateTensor { tensor: "t1".into() });
}

#[test]
fn the_name_of_a_part_must_say_what_its_keys_say() {
    let dir = TempDir::new().expect("a folder");
    let paths = split(&dir, &[1, 1], |_, part| part);
    for (from, to) in [(0, "m.gguf"), (0, "m-00002-of-00002x.gguf"), (1, "other-00001-of-00002.gguf")] {
        let path = dir.path().join(to);
        std::fs::copy(&paths[from], &path).expect("copied");
        let expected = format!("-{:05}-of-00002.gguf", from + 1);
        assert_eq!(why(&path), Fault::SplitName { count: 2, expected });
    }
}

#[test]
fn impossible_numbers_of_parts_are_refused() {
    let lone = |no: u16, count: u16| {
        let part = GgufBuilder::new().kv("split.no", no).kv("split.count", count);
        GgufFile::from_bytes("m-00001-of-00002.gguf", part.build()).map_err(|e| e.fault().cloned())
    };
    assert!(lone(0, 0).is_ok() && lone(0, 1).is_ok());
    assert!(matches!(lone(0, 2), Err(Some(Fault::SplitName { count: 2, .. }))));
    assert!(matches!(lone(0, 257), Err(Some(Fault::TooMany { found: 257, limit: 256, .. }))));
    let dir = TempDir::new().expect("a folder");
    let part = GgufBuilder::new().kv("split.no", 2u16).kv("split.count", 2u16);
    let path = dir.write("m-00003-of-00002.gguf", &part.build()).expect("written");
    let expected = "-00003-of-00002.gguf".to_owned();
    assert_eq!(why(&path), Fault::SplitName { count: 2, expected });
    let part = GgufBuilder::new().kv("split.no", u64::MAX).kv("split.count", 2u16);
    let path = dir.write("m-00001-of-00002.gguf", &part.build()).expect("written");
    assert!(matches!(why(&path), Fault::SplitName { count: 2, .. }));
    let part = GgufBuilder::new().kv("split.count", 2u16);
    let path = dir.write("m-00001-of-00002.gguf", &part.build()).expect("written");
    assert_eq!(why(&path), Fault::MissingKey { key: "split.no".into(), expected: "u64" });
}
