//! Stored prefixes on disk.
//!
//! In: a store and a path. Out: a file that a store of the same model and kind of cache can read, in any process of any machine.
//!
//! ```text
//! identity   magic, version of the format, NUMERICS, digest of the model, kind of cache, positions a block, window and bytes of each group
//! length     of the whole file; number of nodes
//! nodes      latest used first, each: number of its parent (1: the first; 0: the root), a byte for each group (1: it has a block),
//!            128 tokens, the blocks
//! checksum   XXH3, 128 bits, of all before it
//! ```
//! All numbers are little-endian.
//!
//! - **D1** A file is written under a temporary name in its folder and renamed when it is on the disk: at any time the name stands for a whole file, old or new.
//! - **D2** Each length is compared with what is left of the file before anything is allocated or read. What is read takes no more blocks than the store has room
//!   for, and no more nodes than that many bytes of tokens have; the rest only goes through the checksum.
//! - **D3** Nothing is handed on before the checksum was compared. It finds damage; it is no proof of origin: numbers in a forged file are not noticed, but
//!   all sizes, parents and tokens are checked on their own.
//!
//! Cost: one pass over the file; reading needs no memory but that of the blocks it hands on.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use quoth_kernels::NUMERICS;
use quoth_kernels::attend::CHUNK;
use xxhash_rust::xxh3::Xxh3;

use super::PrefixStore;
use super::tree::{Id, ROOT};
use crate::cache::Block;
use crate::error::{Error, Result};
use crate::gguf::{self, ByteSource, FileSource, GgufError};

const MAGIC: [u8; 8] = *b"quothpfx";

/// The version of the format.
const VERSION: u32 = 1;

/// Bytes of the checksum.
const SUM: u64 = 16;

/// Bytes of a node's tokens.
const TOKENS: usize = CHUNK * size_of::<u32>();

/// Bytes that are read at once where they are only hashed.
const PIECE: usize = 1 << 16;

/// Something that a file must say of itself to be this store's.
struct Mark {
    what: &'static str,
    bytes: Vec<u8>,
    /// How it is told.
    show: fn(&[u8]) -> String,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn identity(store: &PrefixStore) -> Vec<Mark> {
    let text = |bytes: &[u8]| format!("`{}`", bytes.trim_ascii_end().escape_ascii());
    let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
    let plain = |bytes: &[u8]| number(bytes).to_string();
    let window = |bytes: &[u8]| if number(bytes) == 0 { "none".into() } else { number(bytes).to_string() };
    let kind = format!("{:<8}", format!("{:?}", store.kind).to_lowercase());
    let groups = store.tree.groups();
    let mut marks = vec![
        Mark { what: "magic bytes", bytes: MAGIC.to_vec(), show: text },
        Mark { what: "version of the format", bytes: VERSION.to_le_bytes().to_vec(), show: plain },
        Mark { what: "version of the arithmetic", bytes: NUMERICS.to_le_bytes().to_vec(), show: plain },
        Mark { what: "digest of the model", bytes: store.model.digest().to_le_bytes().to_vec(), show: hex },
        Mark { what: "kind of cache", bytes: kind.into_bytes(), show: text },
        Mark { what: "positions a block", bytes: (CHUNK as u32).to_le_bytes().to_vec(), show: plain },
        Mark { what: "number of groups of layers", bytes: (groups.len() as u32).to_le_bytes().to_vec(), show: plain },
    ];
    for group in groups {
        let bytes = (group.window.unwrap_or(0) as u64).to_le_bytes().to_vec();
        marks.push(Mark { what: "window of a group", bytes, show: window });
        marks.push(Mark { what: "bytes of a block", bytes: (group.bytes as u64).to_le_bytes().to_vec(), show: plain });
    }
    marks
}

/// An error of the system.
fn failed(path: &Path, source: io::Error) -> Error {
    GgufError::Io { path: path.to_owned(), source }.into()
}

/// Writes a store (D1).
pub(super) fn write(store: &PrefixStore, path: &Path) -> Result<()> {
    // A rename would put a file in the place of a device.
    if let Err(error @ GgufError::NotAFile { .. }) = gguf::open_file(path) {
        return Err(error.into());
    }
    // A link stays, and the file that it points to is replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        let file = tempfile::Builder::new().prefix(".quoth-").suffix(".tmp").tempfile_in(folder)?;
        let mut out = Writer { out: BufWriter::with_capacity(1 << 20, file), hash: Xxh3::new() };
        out.store(store)?;
        let sum = out.hash.digest128();
        out.put(&sum.to_le_bytes())?;
        let file = out.out.into_inner()?;
        file.as_file().sync_all()?;
        file.persist(&target)?;
        Ok(())
    };
    write().map_err(|source| failed(path, source))
}

struct Writer<W> {
    out: W,
    hash: Xxh3,
}

impl<W: Write> Writer<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    fn store(&mut self, store: &PrefixStore) -> io::Result<()> {
        let mut at = 0;
        for mark in identity(store) {
            at += mark.bytes.len();
            self.put(&mark.bytes)?;
        }
        let tree = &store.tree;
        let nodes = tree.len() * (size_of::<u64>() + tree.groups().len() + TOKENS) + tree.bytes();
        self.put(&((at + 2 * size_of::<u64>() + nodes) as u64 + SUM).to_le_bytes())?;
        self.put(&(tree.len() as u64).to_le_bytes())?;
        let mut numbers = std::collections::HashMap::from([(ROOT, 0u64)]);
        for (id, node) in tree.latest_first() {
            // A parent was used after its child, so it has a number.
            self.put(&numbers[&node.parent].to_le_bytes())?;
            numbers.insert(id, numbers.len() as u64);
            let has: Vec<u8> = node.blocks.iter().map(|block| u8::from(block.is_some())).collect();
            self.put(&has)?;
            let tokens: Vec<u8> = node.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            self.put(&tokens)?;
            for block in node.blocks.iter().flatten() {
                self.put(block.bytes())?;
            }
        }
        Ok(())
    }
}

/// A node of a file.
pub(super) struct Loaded {
    /// Number of its parent; 0 is the root.
    pub(super) parent: usize,
    pub(super) tokens: Vec<u32>,
    /// Groups, and their blocks that the store lacks.
    pub(super) blocks: Vec<(usize, Arc<Block>)>,
}

/// Reads the nodes of a file that a store has room for, in order (D2, D3).
pub(super) fn read(store: &PrefixStore, path: &Path) -> Result<Vec<Loaded>> {
    let mut reader = Reader { path, file: gguf::open_file(path)?, at: 0, hash: Xxh3::new() };
    for mark in identity(store) {
        let mut found = vec![0; mark.bytes.len()];
        let at = reader.take(mark.what, &mut found)?;
        if found != mark.bytes {
            return Err(reader.refused(mark.what, at, (mark.show)(&found), (mark.show)(&mark.bytes)));
        }
    }
    let (len, said) = (reader.file.len(), reader.number("length of the file")?);
    if len != said {
        return Err(reader.refused("end of the file", len, format!("{len} bytes"), format!("{said} bytes")));
    }
    let count = reader.number("number of nodes")?;
    let nodes = reader.nodes(store, count)?;
    // Where not all nodes were taken, the rest lies before the checksum; otherwise nothing does.
    let end = len.saturating_sub(SUM);
    if reader.at > end || reader.at < end && nodes.len() as u64 == count {
        let expected = format!("a checksum of {SUM} bytes at the end of the file");
        return Err(reader.refused("end of the nodes", reader.at, format!("{} bytes", len - reader.at), expected));
    }
    reader.skip(end - reader.at)?;
    let (sum, mut found) = (reader.hash.digest128(), [0; SUM as usize]);
    let at = reader.take("checksum", &mut found)?;
    let found = u128::from_le_bytes(found);
    if found != sum {
        return Err(reader.refused("checksum", at, format!("{found:032x}"), format!("{sum:032x}, as the bytes have")));
    }
    Ok(nodes)
}

/// A file that is read from its beginning to its end.
struct Reader<'p> {
    path: &'p Path,
    file: FileSource,
    at: u64,
    hash: Xxh3,
}

impl Reader<'_> {
    fn refused(&self, what: &str, at: u64, found: String, expected: String) -> Error {
        Error::PrefixFile { file: self.path.display().to_string(), what: what.to_owned(), at, found, expected }
    }

    /// Whether there are so many bytes.
    fn check(&self, what: &str, bytes: usize) -> Result<()> {
        let left = self.file.len() - self.at;
        if left < bytes as u64 {
            let found = format!("{left} bytes to the end of the file");
            return Err(self.refused(what, self.at, found, format!("{bytes} bytes")));
        }
        Ok(())
    }

    /// Fills `out`; gives where that was.
    fn take(&mut self, what: &str, out: &mut [u8]) -> Result<u64> {
        self.check(what, out.len())?;
        let at = self.at;
        self.file.read_at(at, out).map_err(|source| failed(self.path, source))?;
        self.hash.update(out);
        self.at += out.len() as u64;
        Ok(at)
    }

    fn number(&mut self, what: &str) -> Result<u64> {
        let mut bytes = [0; size_of::<u64>()];
        self.take(what, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Hashes so many bytes.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        let mut piece = vec![0; PIECE];
        let end = self.at + bytes;
        while self.at < end {
            let part = (end - self.at).min(PIECE as u64) as usize;
            self.take("bytes that are not taken", &mut piece[..part])?;
        }
        Ok(())
    }

    /// The first nodes, as many as the store has room for (D2).
    fn nodes(&mut self, store: &PrefixStore, count: u64) -> Result<Vec<Loaded>> {
        let tree = &store.tree;
        let most = tree.len() + store.max_bytes / TOKENS;
        let mut room = store.max_bytes.saturating_sub(tree.bytes());
        let mut nodes: Vec<Loaded> = Vec::new();
        // Which node of the store each number is, where there is one.
        let mut stored: Vec<Option<Id>> = vec![Some(ROOT)];
        while (nodes.len() as u64) < count && nodes.len() < most {
            let (start, what) = (self.at, |part: &str| format!("{part} of node {}", stored.len()));
            let parent = self.number(&what("parent"))?;
            if parent >= stored.len() as u64 {
                let expected = format!("0 to {}", stored.len() - 1);
                return Err(self.refused(&what("parent"), start, parent.to_string(), expected));
            }
            let (parent, has) = (parent as usize, self.has(&what("groups"), tree.groups().len())?);
            let tokens = self.tokens(&what("tokens"), store.model.config().n_vocab)?;
            let id = stored[parent].and_then(|parent| tree.child(parent, &tokens));
            let wanted = |group: usize| id.is_none_or(|id| tree.block(id, group).is_none());
            let groups = || tree.groups().iter().enumerate().filter(|(group, _)| has[*group]);
            let bytes: usize = groups().filter(|(group, _)| wanted(*group)).map(|(_, group)| group.bytes).sum();
            if bytes > room {
                break;
            }
            room -= bytes;
            let mut blocks = Vec::new();
            for (group, of) in groups() {
                self.check(&what("blocks"), of.bytes)?;
                if wanted(group) {
                    let mut block = Block::new(of.bytes, store.model.kv_meter())?;
                    self.take(&what("blocks"), block.bytes_mut())?;
                    blocks.push((group, Arc::new(block)));
                } else {
                    self.skip(of.bytes as u64)?;
                }
            }
            nodes.push(Loaded { parent, tokens, blocks });
            stored.push(id);
        }
        Ok(nodes)
    }

    /// Which groups a node has blocks of.
    fn has(&mut self, what: &str, groups: usize) -> Result<Vec<bool>> {
        let mut has = vec![0; groups];
        let at = self.take(what, &mut has)?;
        if let Some(i) = has.iter().position(|has| *has > 1) {
            return Err(self.refused(what, at + i as u64, has[i].to_string(), "0 or 1".into()));
        }
        Ok(has.iter().map(|has| *has == 1).collect())
    }

    fn tokens(&mut self, what: &str, n_vocab: usize) -> Result<Vec<u32>> {
        let mut bytes = [0; TOKENS];
        let at = self.take(what, &mut bytes)?;
        let tokens: Vec<u32> = bytes.chunks_exact(size_of::<u32>()).map(|token| number(token) as u32).collect();
        if let Some(i) = tokens.iter().position(|token| *token as usize >= n_vocab) {
            let (at, expected) = (at + (i * size_of::<u32>()) as u64, format!("0 to {}", n_vocab - 1));
            return Err(self.refused(what, at, tokens[i].to_string(), expected));
        }
        Ok(tokens)
    }
}
