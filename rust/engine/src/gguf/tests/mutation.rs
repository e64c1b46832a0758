//! Damaged files: whatever stands in them, they open with sound contents or are refused; nothing panics or hangs.

use super::small;
use crate::gguf::testing::{Damage, GgufBuilder, Kv};
use crate::gguf::{Fault, GgmlType, GgufFile};
use std::time::{Duration, Instant};

/// Asserts of an opened file what `open` promises, by other means than `open` uses, and touches everything in it.
fn check_sound(file: &GgufFile, len: u64) {
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for tensor in file.tensors() {
        assert!(tensor.n_dims >= 1 && tensor.n_dims <= 4 && tensor.dims.iter().all(|d| *d > 0));
        assert!(tensor.offset.is_multiple_of(file.alignment()));
        let values = tensor.dims.iter().fold(1u128, |n, d| n * u128::from(*d));
        let bytes = values / u128::from(tensor.ty.block_size()) * u128::from(tensor.ty.block_bytes());
        assert_eq!(u128::from(tensor.n_bytes), bytes);
        let end = tensor.offset + tensor.n_bytes;
        assert!(end <= len);
        assert!(taken.iter().all(|&(s, e)| end <= s || tensor.offset >= e), "{} lies over another", tensor.name);
        taken.push((tensor.offset, end));
        let found = file.tensor(&tensor.name).expect("found by its name");
        assert_eq!(found, tensor);
        let mut out = vec![0; tensor.n_bytes as usize];
        file.read_tensor(tensor, 0..tensor.n_bytes, &mut out).expect("inside the file");
    }
    let meta = file.metadata();
    for (key, value) in meta.iter() {
        assert_eq!(meta.get(key).map(|v| format!("{v:?}")), Some(format!("{value:?}")));
        let _ = (meta.get_u32(key), meta.get_u64(key), meta.get_i32(key), meta.get_f32(key), meta.get_bool(key));
        let _ = (meta.get_array_u32(key), meta.get_array_i32(key), meta.get_array_f32(key), meta.get_array_bool(key));
        if let Ok(Some(strings)) = meta.get_array_str(key) {
            assert!(strings.iter().map(<[u8]>::len).sum::<usize>() as u64 <= len);
        }
    }
}

/// Opens the bytes within a second, and checks them if they open.
fn survives(bytes: Vec<u8>) -> Result<(), Fault> {
    let (len, start) = (bytes.len() as u64, Instant::now());
    let opened = GgufFile::from_bytes("m.gguf", bytes);
    assert!(start.elapsed() < Duration::from_secs(1));
    match opened {
        Ok(file) => {
            check_sound(&file, len);
            Ok(())
        }
        Err(error) => {
            assert!(error.to_string().len() < 1000, "{error}");
            Err(error.fault().expect("memory has no system errors").clone())
        }
    }
}

/// A model with a vocabulary, large enough for many read-aheads.
fn larger() -> Vec<u8> {
    let tokens = (0..40_000).map(|i| format!("token {i}"));
    let mut builder = GgufBuilder::new()
        .kv("tokenizer.ggml.tokens", Kv::strs(tokens))
        .kv("tokenizer.ggml.token_type", vec![1i32; 40_000])
        .kv("tokenizer.ggml.scores", vec![-1.0f32; 40_000]);
    for i in 0..40 {
        builder = builder.zeros(&format!("blk.{i}.weight"), &[256, 16], GgmlType::Q4_K);
    }
    builder.build()
}

#[test]
fn thousands_of_damaged_files_open_soundly_or_are_refused() {
    let whole = small().build();
    survives(whole.clone()).expect("the whole file is sound");
    let mut damage = Damage::new(20_261_129);
    let (mut opened, mut refused) = (0, 0);
    for case in 0..30_000 {
        let head = [24, 256, whole.len(), whole.len()][case % 4];
        let bytes = damage.apply(&whole, head);
        match survives(bytes) {
            Ok(()) => opened += 1,
            Err(_) => refused += 1,
        }
    }
    // Both outcomes must be frequent, else the damage is too mild or too coarse to test anything.
    assert!(opened > 1_000 && refused > 10_000, "{opened} opened, {refused} refused");
}

#[test]
fn a_file_cut_anywhere_is_refused_as_cut() {
    let whole = small().build();
    for len in 0..whole.len() {
        let found = survives(whole[..len].to_vec()).expect_err("cut");
        let named = match len {
            0 => found == Fault::Empty,
            _ => matches!(found, Fault::Truncated { .. } | Fault::CountPastEnd { .. } | Fault::TensorPastEnd { .. }),
        };
        assert!(named, "{len}: {found}");
    }
}

#[test]
fn a_larger_file_cut_at_every_page_is_refused_as_cut() {
    let whole = larger();
    assert!(whole.len() > 1 << 20);
    survives(whole.clone()).expect("the whole file is sound");
    for len in (4096..whole.len()).step_by(4096) {
        let found = survives(whole[..len].to_vec()).expect_err("cut");
        let named = matches!(found, Fault::Truncated { .. } | Fault::CountPastEnd { .. } | Fault::TensorPastEnd { .. });
        assert!(named, "{len}: {found}");
    }
}
