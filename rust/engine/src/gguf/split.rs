//! Models split over several files, named `…-00001-of-00003.gguf`.
//!
//! Each file is a GGUF file of its own, with some of the tensors; keys `split.no` (from 0), `split.count` and
//! `split.tensors.count` (of the whole model) say what it is part of. The name says it too, and the two must agree.

use super::error::{Fault, GgufError};
use super::metadata::Metadata;
use super::parse::Parsed;
use super::{GgufFile, ModelFile, open_one};
use crate::limits;
use std::path::{Path, PathBuf};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

fn suffix(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

fn refuse(path: &Path, fault: Fault) -> GgufError {
    GgufError::File { path: path.to_owned(), fault: Box::new(fault) }
}

/// Number of files of the model that this file is part of; `None` for a model in one file.
pub(super) fn count(path: &Path, metadata: &Metadata) -> Result<Option<u64>, GgufError> {
    match metadata.get_u64(COUNT)? {
        None | Some(0 | 1) => Ok(None),
        Some(count) if count <= limits::MAX_SPLIT_FILES => Ok(Some(count)),
        Some(found) => {
            let what = "split files".to_owned();
            Err(refuse(path, Fault::TooMany { what, found, limit: limits::MAX_SPLIT_FILES, offset: 0 }))
        }
    }
}

/// The paths of all files of a split model, from the name of one of them.
pub(super) fn parts(path: &Path, metadata: &Metadata) -> Result<Option<Vec<PathBuf>>, GgufError> {
    let Some(count) = count(path, metadata)? else { return Ok(None) };
    let number = need(path, metadata, NO)?;
    let expected = suffix(number.saturating_add(1), count);
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(&expected)).filter(|_| number < count) else {
        return Err(refuse(path, Fault::SplitName { count, expected }));
    };
    Ok(Some((1..=count).map(|i| path.with_file_name(format!("{stem}{}", suffix(i, count)))).collect()))
}

/// Opens all files, of which one is open already.
pub(super) fn open(paths: &[PathBuf], file: ModelFile, parsed: Parsed) -> Result<GgufFile, GgufError> {
    let number = need(&file.path, &parsed.metadata, NO)? as usize;
    // Part number n was parsed as number 0; it is read again unless it is the first.
    let (file, first) = if number == 0 { (file, parsed) } else { open_one(&paths[0], 0)? };
    check_part(&file.path, &first.metadata, 0, paths.len())?;
    let expected = need(&file.path, &first.metadata, TENSORS)?;
    let mut files = vec![file];
    let mut all = first;
    for (number, path) in paths.iter().enumerate().skip(1) {
        let (file, part) = open_one(path, number)?;
        check_part(path, &part.metadata, number, paths.len())?;
        files.push(file);
        all.tensors.extend(part.tensors);
        let found = all.tensors.len() as u64;
        if found > limits::MAX_TENSORS {
            let what = "tensors in the split files".to_owned();
            return Err(refuse(path, Fault::TooMany { what, found, limit: limits::MAX_TENSORS, offset: 0 }));
        }
    }
    let found = all.tensors.len() as u64;
    if found != expected {
        return Err(refuse(&paths[0], Fault::SplitTensors { expected, found }));
    }
    GgufFile::assemble(files, all)
}

fn need(path: &Path, metadata: &Metadata, key: &'static str) -> Result<u64, GgufError> {
    metadata.get_u64(key)?.ok_or_else(|| refuse(path, Fault::MissingKey { key: key.to_owned(), expected: "u64" }))
}

fn check_part(path: &Path, metadata: &Metadata, number: usize, count: usize) -> Result<(), GgufError> {
    for (key, expected) in [(NO, number as u64), (COUNT, count as u64)] {
        let found = need(path, metadata, key)?;
        if found != expected {
            return Err(refuse(path, Fault::SplitPart { key, expected, found }));
        }
    }
    Ok(())
}
