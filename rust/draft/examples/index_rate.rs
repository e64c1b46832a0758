//! Prints what drafting costs: bytes a token, tokens a second to build, time of a suggestion with its observation, and a
//! replay for each shortest match.
//!
//! `cargo run --release -p quoth-draft --example index_rate -- [FILE]`: a file of little-endian u32 token ids, a folder of
//! Python sources, or nothing: then the sources of Python's own library. Sources are split into words, runs of blanks and
//! single symbols, numbered in order of appearance.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs, io, process};

use quoth_draft::{
    Cascade, CascadeOptions, CostTable, Gate, GateOptions, ReplayOptions, Speculator, SuffixIndex, replay,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = match env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => python_library()?,
    };
    let tokens = if path.is_dir() { split_sources(&path)? } else { read_tokens(&path)? };
    println!("{} tokens, {} distinct", tokens.len(), tokens.iter().collect::<std::collections::HashSet<_>>().len());
    println!(
        "{:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "tokens", "states", "edges", "B/token", "B/token", "build", "build"
    );
    println!(
        "{:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "", "/token", "/token", "used", "capacity", "M tok/s", "ns/token"
    );
    for len in [1_000, 10_000, 100_000, 1_000_000, 5_000_000] {
        if len <= tokens.len() {
            index(&tokens[..len])?;
        }
    }
    index(&tokens)?;
    println!();
    println!(
        "{:>9} {:>12} {:>10} {:>9} {:>8} {:>9} {:>9} {:>9}",
        "tokens", "least match", "gate", "ns/token", "ns/step", "tok/step", "accepted", "speedup"
    );
    for len in [100_000, 1_000_000] {
        let tokens = &tokens[..len.min(tokens.len())];
        for min in [1, 2] {
            replayed(tokens, min)?;
        }
    }
    Ok(())
}

/// Replays `tokens` as if a model had written them, and prints the row.
fn replayed(tokens: &[u32], min: usize) -> Result<(), Box<dyn std::error::Error>> {
    let n_vocab = tokens.iter().max().map_or(1, |&token| token as usize + 1);
    let cascade = Cascade::new(n_vocab, CascadeOptions { min_match: min, ..CascadeOptions::default() })?;
    let gate = Gate::new(GateOptions { min_draft: min, ..GateOptions::default() })?;
    let mut speculator = Speculator::new(Box::new(cascade), gate, CostTable::default().into(), 16)?;
    let start = Instant::now();
    let report = replay(tokens, &mut speculator, &ReplayOptions::default(), |_| {})?;
    let ns = start.elapsed().as_nanos() as f64;
    println!(
        "{:>9} {:>12} {:>10} {:>9.0} {:>8.0} {:>9.2} {:>9.2} {:>9.3}",
        tokens.len(),
        min,
        format!("{:.2} open", 1.0 - report.closed_steps as f64 / report.steps as f64),
        ns / report.tokens as f64,
        ns / report.steps as f64,
        report.tokens_per_step(),
        report.acceptance(),
        report.speedup()
    );
    for source in &report.sources {
        println!("{:>22} {:>9} of {:>9}", source.name, source.accepted, source.drafted);
    }
    Ok(())
}

/// Builds the index and prints its row; short streams are built often enough to time them.
fn index(tokens: &[u32]) -> Result<(), Box<dyn std::error::Error>> {
    let (mut built, mut best) = (SuffixIndex::new(), f64::INFINITY);
    for _ in 0..(3_000_000 / tokens.len()).clamp(2, 50) {
        built = SuffixIndex::new();
        let start = Instant::now();
        built.extend(tokens)?;
        best = best.min(start.elapsed().as_nanos() as f64 / tokens.len() as f64);
    }
    assert!(built.tokens().eq(tokens.iter().copied()));
    let (bytes, n) = (built.bytes(), tokens.len() as f64);
    println!(
        "{:>9} {:>7.2} {:>7.2} {:>9.1} {:>9.1} {:>9.2} {:>9.0}",
        tokens.len(),
        built.states() as f64 / n,
        built.transitions() as f64 / n,
        bytes.used as f64 / n,
        bytes.capacity as f64 / n,
        1e3 / best,
        best
    );
    Ok(())
}

fn read_tokens(path: &Path) -> io::Result<Vec<u32>> {
    Ok(fs::read(path)?.as_chunks().0.iter().map(|&four| u32::from_le_bytes(four)).collect())
}

fn python_library() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let answer = process::Command::new("python3").args(["-c", ask]).output()?;
    Ok(PathBuf::from(String::from_utf8(answer.stdout)?.trim()))
}

fn split_sources(folder: &Path) -> io::Result<Vec<u32>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    let (mut numbers, mut tokens) = (HashMap::new(), Vec::new());
    for file in files {
        let text = fs::read(file)?;
        let kind = |byte: u8| if byte.is_ascii_alphanumeric() || byte >= 128 { 1 } else { i32::from(byte == b' ') * 2 };
        for word in text.chunk_by(|&a, &b| kind(a) != 0 && kind(a) == kind(b)) {
            let next = numbers.len() as u32;
            tokens.push(*numbers.entry(word.to_vec()).or_insert(next));
        }
    }
    Ok(tokens)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "py") {
            files.push(path);
        }
    }
    Ok(())
}
