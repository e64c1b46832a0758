//! The key/value cache: append, truncate, copy a prefix.
//!
//! In: keys and values of new positions, written by the forward. Out: chunks ([`quoth_kernels::attend`]), to attention.
//!
//! The cache is a list of blocks of [`CHUNK`] positions; a block holds one chunk for every key/value head of every layer of its group, one after another.
//! Blocks are made when a position in them is first needed, so a context costs what is used of it. Layers that see only a window form groups of their
//! own, which forget blocks that no query can see any more.
//!
//! - **K1** What is cached for positions `0 .. len` is a function of the tokens alone; nothing at or after `len` is ever read (I5).
//! - **K2** `truncate` lowers `len` and touches no number. A window group keeps [`REWIND`] positions more than its window, so a truncation by
//!   less than that, or to zero, is always possible; a further one is an error and changes nothing.
//! - **K3** Memory of a window group is bounded by window + [`REWIND`] + one forward, not by the context; twice that during a forward of several passes.
//! - **K4** Between `hold` and `release`, what windows forget is kept aside, so that `restore` gives back what there was at `hold`, however far that is.

use std::collections::VecDeque;

use quoth_kernels::KernelSet;
use quoth_kernels::attend::{CHUNK, KvKind, KvLayout};

use crate::error::{Error, Result};
use crate::model::Config;
use crate::model::load::Arena;
use crate::shared::Shared;

/// Positions that a window group can be truncated by: the longest draft twice over.
pub const REWIND: usize = CHUNK;

/// Where the chunks of a layer lie.
#[derive(Debug, Clone, Copy)]
struct Place {
    group: usize,
    layout: KvLayout,
    /// Bytes before this layer's chunks in a block.
    at: usize,
    n_head_kv: usize,
}

/// Layers that keep the same positions.
#[derive(Debug)]
struct Group {
    window: Option<usize>,
    block_bytes: usize,
    /// Blocks `first .. first + blocks.len()`.
    blocks: VecDeque<Arena>,
    first: usize,
    /// Blocks from before the hold that were forgotten since, which end where `blocks` began then (K4).
    aside: VecDeque<Arena>,
}

impl Group {
    fn new(window: Option<usize>) -> Group {
        Group { window, block_bytes: 0, blocks: VecDeque::new(), first: 0, aside: VecDeque::new() }
    }
}

/// See the module.
#[derive(Debug)]
pub struct KvCache {
    kind: KvKind,
    n_ctx: usize,
    len: usize,
    /// Where a forward of several passes began, while it runs.
    held: Option<usize>,
    groups: Vec<Group>,
    /// A place for each layer; layers that share another's keys have that one's.
    places: Vec<Place>,
}

impl KvCache {
    /// An empty cache for up to `n_ctx` positions.
    ///
    /// # Errors
    /// `kind` cannot store heads of this model's width.
    pub fn new(config: &Config, kind: KvKind, n_ctx: usize) -> Result<KvCache> {
        let mut groups: Vec<Group> = Vec::new();
        let mut places: Vec<Place> = Vec::new();
        for layer in &config.layers {
            if let Some(owner) = layer.shares_kv_of {
                places.push(places[owner]);
                continue;
            }
            let layout = KvLayout::new(kind, layer.head_dim).ok_or_else(|| Error::Option {
                what: "kv_type",
                found: "q8_0".into(),
                expected: format!("f16: heads of {} numbers are no multiple of 32", layer.head_dim),
            })?;
            let group = groups.iter().position(|g| g.window == layer.window).unwrap_or_else(|| {
                groups.push(Group::new(layer.window));
                groups.len() - 1
            });
            places.push(Place { group, layout, at: groups[group].block_bytes, n_head_kv: layer.n_head_kv });
            groups[group].block_bytes += layer.n_head_kv * layout.chunk_bytes();
        }
        Ok(KvCache { kind, n_ctx, len: 0, held: None, groups, places })
    }

    /// Cached positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most positions.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// How numbers are stored.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    /// Bytes of the blocks that exist.
    pub fn memory_bytes(&self) -> usize {
        self.groups.iter().map(|g| (g.blocks.len() + g.aside.len()) * g.block_bytes).sum()
    }

    /// Makes room for `n` positions after the cached ones.
    ///
    /// # Errors
    /// They do not fit the context, or memory ran out; nothing has changed for a reader.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<()> {
        if self.len + n > self.n_ctx {
            return Err(Error::ContextFull { cached: self.len, asked: n, n_ctx: self.n_ctx });
        }
        let needed = (self.len + n).div_ceil(CHUNK);
        for group in &mut self.groups {
            while group.first + group.blocks.len() < needed {
                group.blocks.push_back(Arena::new(group.block_bytes, "the key/value cache")?);
            }
        }
        Ok(())
    }

    /// Counts `n` written positions as cached, and forgets what no query can reach.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len += n;
        for group in &mut self.groups {
            let Some(window) = group.window else { continue };
            let oldest = self.len.saturating_sub(window + REWIND) / CHUNK;
            while group.first < oldest && group.blocks.len() > 1 {
                let block = group.blocks.pop_front();
                if self.held.is_some_and(|held| group.first * CHUNK < held) {
                    group.aside.extend(block);
                }
                group.first += 1;
            }
        }
    }

    /// From now on keeps aside what is needed to come back to this point (K4).
    pub(crate) fn hold(&mut self) {
        self.release();
        self.held = Some(self.len);
    }

    /// Ends a hold: nothing is kept aside any more.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.groups.iter_mut().for_each(|group| group.aside.clear());
    }

    /// Goes back to where the hold began, and ends it.
    pub(crate) fn restore(&mut self) {
        let Some(held) = self.held.take() else { return };
        for group in &mut self.groups {
            if group.first * CHUNK > held.next_multiple_of(CHUNK) {
                // Blocks in between are gone; none of them holds a position before the hold.
                group.first = held.div_ceil(CHUNK);
                group.blocks.clear();
            }
            group.first -= group.aside.len();
            while let Some(block) = group.aside.pop_back() {
                group.blocks.push_front(block);
            }
        }
        self.len = held;
    }

    /// Forgets everything after the first `n` positions (K2). More than are cached: nothing changes.
    ///
    /// # Errors
    /// A window layer has already forgotten positions that a query at `n` would see.
    pub fn truncate(&mut self, n: usize) -> Result<()> {
        if n >= self.len {
            return Ok(());
        }
        for group in &self.groups {
            let Some(window) = group.window else { continue };
            let oldest = (n + 1).saturating_sub(window);
            if n > 0 && oldest < group.first * CHUNK {
                let found = format!("layers with a window of {window} keep positions from {} on", group.first * CHUNK);
                return Err(Error::Rewind { asked: n, found });
            }
        }
        self.len = n;
        for group in &mut self.groups {
            if n == 0 && group.first > 0 {
                group.blocks.clear();
                group.first = 0;
            }
            // Blocks past the end are kept: the next positions need them again.
        }
        Ok(())
    }

    /// An independent cache with the first `n` positions of this one, byte for byte.
    ///
    /// # Errors
    /// As [`Self::truncate`], or memory ran out.
    pub fn copy_prefix(&self, n: usize) -> Result<KvCache> {
        let n = n.min(self.len);
        let mut copy = KvCache {
            kind: self.kind,
            n_ctx: self.n_ctx,
            len: self.len,
            held: None,
            groups: Vec::new(),
            places: self.places.clone(),
        };
        for group in &self.groups {
            let mut blocks = VecDeque::new();
            for block in group.blocks.iter().take(n.div_ceil(CHUNK).saturating_sub(group.first)) {
                let mut twin = Arena::new(group.block_bytes, "the key/value cache")?;
                twin.bytes_mut().copy_from_slice(block.bytes());
                blocks.push_back(twin);
            }
            copy.groups.push(Group {
                window: group.window,
                block_bytes: group.block_bytes,
                blocks,
                first: group.first,
                aside: VecDeque::new(),
            });
        }
        copy.truncate(n)?;
        Ok(copy)
    }

    /// Whether two caches hold the same bytes for the first `n` positions, as far as both still keep them.
    pub fn same_prefix(&self, other: &KvCache, n: usize) -> bool {
        if self.len < n || other.len < n || self.kind != other.kind {
            return false;
        }
        self.places.iter().all(|place| {
            let (a, b) = (&self.groups[place.group], &other.groups[place.group]);
            let first = a.first.max(b.first);
            (first..n.div_ceil(CHUNK)).all(|c| {
                let slots = (n - c * CHUNK).min(CHUNK);
                (0..place.n_head_kv).all(|head| {
                    let at = place.at + head * place.layout.chunk_bytes();
                    let range = at..at + place.layout.chunk_bytes();
                    let (a, b) = (&a.blocks[c - a.first].bytes()[range.clone()], &b.blocks[c - b.first].bytes()[range]);
                    place.layout.same(a, b, slots)
                })
            })
        })
    }

    /// Lends all blocks to the threads of a forward.
    pub(crate) fn lend(&mut self) -> Lent<'_> {
        let blocks = self
            .groups
            .iter_mut()
            .map(|g| (g.first, g.blocks.iter_mut().map(|b| Shared::new(b.bytes_mut())).collect()))
            .collect();
        Lent { places: &self.places, blocks }
    }
}

/// A cache during a forward: threads write the chunks of their heads, then all read.
pub(crate) struct Lent<'a> {
    places: &'a [Place],
    blocks: Vec<(usize, Vec<Shared<'a, u8>>)>,
}

impl<'a> Lent<'a> {
    /// The geometry of a layer's chunks.
    pub(crate) fn layout(&self, layer: usize) -> &'a KvLayout {
        &self.places[layer].layout
    }

    fn block(&self, layer: usize, head: usize, chunk: usize) -> (&Shared<'a, u8>, usize) {
        let place = &self.places[layer];
        let (first, blocks) = &self.blocks[place.group];
        (&blocks[chunk - first], place.at + head * place.layout.chunk_bytes())
    }

    /// Asks for the memory of the key of a position, ahead of [`Self::write_key`].
    ///
    /// # Safety
    /// No other thread may write the keys of this layer and head meanwhile.
    pub(crate) unsafe fn fetch_key(&self, layer: usize, head: usize, pos: usize) {
        let layout = self.layout(layer);
        let (block, at) = self.block(layer, head, pos / CHUNK);
        // SAFETY: nobody writes these key bytes, by the caller.
        layout.fetch_key(unsafe { block.read(at..at + layout.key_bytes()) }, pos % CHUNK);
    }

    /// Writes the key of a position.
    ///
    /// # Safety
    /// No other thread may use the keys of this layer and head meanwhile.
    pub(crate) unsafe fn write_key(&self, set: &KernelSet, layer: usize, head: usize, pos: usize, key: &[f32]) {
        let layout = self.layout(layer);
        let (block, at) = self.block(layer, head, pos / CHUNK);
        // SAFETY: these are the key bytes of one head's chunk, which the caller has for itself.
        let keys = unsafe { block.part(at..at + layout.key_bytes()) };
        layout.write_key(set, keys, pos % CHUNK, key);
    }

    /// Writes part `part` of the value of a position: up to [`VALUE_PART`](quoth_kernels::attend::VALUE_PART) columns.
    ///
    /// # Safety
    /// No other thread may use this part of the values of this layer and head meanwhile.
    pub(crate) unsafe fn write_value(
        &self,
        set: &KernelSet,
        (layer, head, part): (usize, usize, usize),
        pos: usize,
        value: &[f32],
    ) {
        let layout = self.layout(layer);
        let (block, at) = self.block(layer, head, pos / CHUNK);
        let (codes, scales) = layout.value_part(part);
        // SAFETY: these are the bytes of one part of one head's values, which the caller has for itself; codes and scales do not overlap.
        let (codes, scales) =
            unsafe { (block.part(at + codes.start..at + codes.end), block.part(at + scales.start..at + scales.end)) };
        layout.write_value(set, (codes, scales), pos % CHUNK, value);
    }

    /// The chunk of positions `chunk · CHUNK ..`.
    ///
    /// # Safety
    /// No thread may write this layer and head meanwhile.
    pub(crate) unsafe fn chunk(&self, layer: usize, head: usize, chunk: usize) -> &'a [u8] {
        let (block, at) = self.block(layer, head, chunk);
        // SAFETY: a whole chunk, which nobody writes, by the caller.
        unsafe { block.read(at..at + self.layout(layer).chunk_bytes()) }
    }
}
