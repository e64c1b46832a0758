//! The key/value cache: append, truncate, fork.
//!
//! In: keys and values of new positions, written by the forward. Out: chunks ([`quoth_kernels::attend`]), to attention.
//!
//! The cache is a list of blocks of [`CHUNK`] positions; a block holds one chunk for every key/value head of every layer of its group, one after another.
//! Blocks are made when a position in them is first needed, so a context costs what is used of it. Layers that see only a window form groups of their
//! own, which forget blocks that no query can see any more. Blocks are shared between caches ([`Block`]) and copied when one of them writes.
//!
//! - **K1** What is cached for positions `0 .. len` is a function of the tokens alone; nothing at or after `len` is ever read (I5).
//! - **K2** `truncate` lowers `len` and touches no number. A window group keeps [`REWIND`] positions more than its window, so a truncation by
//!   less than that, to zero or to a pinned position is always possible; `nearest` says how far back any other can go. For a fork, and for a cache
//!   that was made of stored blocks, this holds from the length on that it began with.
//! - **K3** Memory of a window group is bounded by window + [`REWIND`] + one forward for the stream itself, and as much for each of at most [`MAX_PINS`] pins.
//! - **K4** A block that another cache, a pin or the prefix store holds is never written: `reserve` replaces it by a copy first.
//!
//! Cost: a fork or a pin copies no number; the first write after it copies one block a group.

mod block;

use std::collections::VecDeque;
use std::sync::Arc;

use quoth_kernels::KernelSet;
use quoth_kernels::attend::{CHUNK, KvKind, KvLayout};

use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Model};
use crate::shared::Shared;
pub(crate) use block::Block;
pub use block::Meter;

/// Positions that a window group can be truncated by: the longest draft twice over.
pub const REWIND: usize = CHUNK;

/// Positions that a cache with window groups can be asked to keep reachable; the oldest makes way.
pub const MAX_PINS: usize = 8;

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
#[derive(Debug, Clone)]
struct Group {
    window: Option<usize>,
    block_bytes: usize,
    blocks: Blocks,
}

/// Blocks `first .. first + list.len()` of a group.
#[derive(Debug, Clone, Default)]
struct Blocks {
    list: VecDeque<Arc<Block>>,
    first: usize,
}

/// The first block that a query at `n` sees in a group: it sees the `window` positions up to its own, or all.
pub(crate) fn first_seen(window: Option<usize>, n: usize) -> usize {
    window.map_or(0, |window| (n + 1).saturating_sub(window) / CHUNK)
}

/// The first block that a group keeps at length `n` (K2).
fn first_kept(window: usize, n: usize) -> usize {
    n.saturating_sub(window + REWIND) / CHUNK
}

/// What window groups need to return to a position.
#[derive(Debug, Clone)]
struct Pin {
    len: usize,
    /// For each group; empty where the group has no window.
    groups: Vec<Blocks>,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct KvCache {
    kind: KvKind,
    n_ctx: usize,
    len: usize,
    groups: Vec<Group>,
    /// A place for each layer; layers that share another's keys have that one's.
    places: Arc<[Place]>,
    /// Ascending.
    pins: Vec<Pin>,
    meter: Arc<Meter>,
}

impl KvCache {
    /// An empty cache for up to the model's `n_ctx` positions.
    ///
    /// # Errors
    /// `kind` cannot store heads of this model's width.
    pub fn new(model: &Model, kind: KvKind) -> Result<KvCache> {
        let mut groups: Vec<Group> = Vec::new();
        let mut places: Vec<Place> = Vec::new();
        for layer in &model.config().layers {
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
                groups.push(Group { window: layer.window, block_bytes: 0, blocks: Blocks::default() });
                groups.len() - 1
            });
            places.push(Place { group, layout, at: groups[group].block_bytes, n_head_kv: layer.n_head_kv });
            groups[group].block_bytes += layer.n_head_kv * layout.chunk_bytes();
        }
        let (n_ctx, places, meter) = (model.n_ctx(), places.into(), model.kv_meter().clone());
        Ok(KvCache { kind, n_ctx, len: 0, groups, places, pins: Vec::new(), meter })
    }

    /// A cache of the first `n` blocks of positions, from blocks that may be shared. Of each group `blocks` has the last ones up to block `n`, as many as there
    /// are and at least those that a query after them sees; a group takes no more than it would have kept.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn from_blocks(
        model: &Model,
        kind: KvKind,
        n: usize,
        blocks: Vec<VecDeque<Arc<Block>>>,
    ) -> Result<KvCache> {
        let mut cache = KvCache::new(model, kind)?;
        cache.len = n * CHUNK;
        for (group, mut list) in cache.groups.iter_mut().zip(blocks) {
            let oldest = group.window.map_or(0, |window| first_kept(window, cache.len));
            list.drain(..list.len().saturating_sub(n - oldest));
            group.blocks = Blocks { first: n - list.len(), list };
        }
        assert!(cache.reaches(cache.len, cache.groups.iter().map(|g| &g.blocks)), "blocks that a query needs");
        Ok(cache)
    }

    /// Block `i` of a group, where all of its positions are cached, and the stream or a pin still keeps it.
    pub(crate) fn whole_block(&self, group: usize, i: usize) -> Option<&Arc<Block>> {
        let end = (i + 1) * CHUNK;
        let own = (end <= self.len).then(|| &self.groups[group].blocks);
        let pinned = self.pins.iter().filter(|pin| end <= pin.len).map(|pin| &pin.groups[group]);
        own.into_iter().chain(pinned).find_map(|blocks| blocks.list.get(i.checked_sub(blocks.first)?))
    }

    /// Of each group: its window, and the bytes of a block.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (Option<usize>, usize)> {
        self.groups.iter().map(|group| (group.window, group.block_bytes))
    }

    /// Whether it is of this model and kind.
    pub(crate) fn is_of(&self, model: &Model, kind: KvKind) -> bool {
        self.kind == kind && Arc::ptr_eq(&self.meter, model.kv_meter())
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

    /// Bytes of the blocks that this cache holds, pins included; those that it shares with others count in full.
    pub fn memory_bytes(&self) -> usize {
        let held = |blocks: &Blocks, pin: Option<&Blocks>| {
            let shared = |b: &&Arc<Block>| pin.is_none_or(|pin| !pin.list.iter().any(|p| Arc::ptr_eq(p, b)));
            blocks.list.iter().filter(shared).count()
        };
        let own: usize = self.groups.iter().map(|g| g.blocks.list.len() * g.block_bytes).sum();
        let pinned = self.pins.iter().flat_map(|pin| pin.groups.iter().zip(&self.groups));
        own + pinned.map(|(blocks, group)| held(blocks, Some(&group.blocks)) * group.block_bytes).sum::<usize>()
    }

    /// Bytes of blocks that `n` more positions need at most, beside those that there are.
    pub fn bytes_for(&self, n: usize) -> usize {
        let needed = (self.len + n).div_ceil(CHUNK);
        let missing = |g: &Group| {
            let held = g.blocks.list.len();
            // A window group never holds more than its window, what can be gone back, and one forward.
            let most = g.window.map_or(usize::MAX, |w| (w + REWIND + MAX_ROWS).div_ceil(CHUNK) + 1);
            needed.saturating_sub(g.blocks.first).min(most).saturating_sub(held) * g.block_bytes
        };
        self.groups.iter().map(missing).sum()
    }

    /// Makes room for `n` positions after the cached ones, in blocks that no other cache holds (K4).
    ///
    /// # Errors
    /// They do not fit the context, or memory ran out; nothing has changed for a reader.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<()> {
        if self.len + n > self.n_ctx {
            return Err(Error::ContextFull { cached: self.len, asked: n, n_ctx: self.n_ctx });
        }
        let (written, needed) = (self.len / CHUNK, (self.len + n).div_ceil(CHUNK));
        for group in &mut self.groups {
            let Blocks { list, first } = &mut group.blocks;
            while *first + list.len() < needed {
                list.push_back(Arc::new(Block::new(group.block_bytes, &self.meter)?));
            }
            for block in list.range_mut(written.saturating_sub(*first)..needed - *first) {
                if Arc::get_mut(block).is_none() {
                    *block = Arc::new(block.copy(&self.meter)?);
                }
            }
        }
        Ok(())
    }

    /// Counts `n` written positions as cached, and forgets what no query can reach.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len += n;
        for group in &mut self.groups {
            let Some(window) = group.window else { continue };
            let oldest = first_kept(window, self.len);
            while group.blocks.first < oldest && group.blocks.list.len() > 1 {
                group.blocks.list.pop_front();
                group.blocks.first += 1;
            }
        }
    }

    /// Keeps the present position reachable until the cache is truncated below it, or until [`MAX_PINS`] newer ones are pinned.
    pub fn pin(&mut self) {
        if self.groups.iter().all(|g| g.window.is_none()) || self.pins.last().is_some_and(|p| p.len == self.len) {
            return;
        }
        let kept = |g: &Group| if g.window.is_some() { g.blocks.clone() } else { Blocks::default() };
        self.pins.push(Pin { len: self.len, groups: self.groups.iter().map(kept).collect() });
        if self.pins.len() > MAX_PINS {
            self.pins.remove(0);
        }
    }

    /// Whether a query at `n` finds all that it may see among these blocks of each group.
    fn reaches<'b>(&self, n: usize, blocks: impl IntoIterator<Item = &'b Blocks>) -> bool {
        n == 0 || self.groups.iter().zip(blocks).all(|(g, blocks)| blocks.first <= first_seen(g.window, n))
    }

    /// The pin from which the cache can return to `n`.
    fn pin_for(&self, n: usize) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.len >= n && self.reaches(n, &pin.groups))
    }

    /// The greatest position up to `n` that [`Self::truncate`] can go to.
    pub fn nearest(&self, n: usize) -> usize {
        let n = n.min(self.len);
        if self.reaches(n, self.groups.iter().map(|g| &g.blocks)) || self.pin_for(n).is_some() {
            return n;
        }
        self.pins.iter().map(|pin| pin.len).filter(|len| *len <= n).max().unwrap_or(0)
    }

    /// Forgets everything after the first `n` positions (K2). More than are cached: nothing changes.
    ///
    /// # Errors
    /// A window layer has already forgotten positions that a query at `n` would see.
    pub fn truncate(&mut self, n: usize) -> Result<()> {
        if n >= self.len {
            return Ok(());
        }
        if !self.reaches(n, self.groups.iter().map(|g| &g.blocks)) {
            let Some(pin) = self.pin_for(n) else {
                let (window, first) =
                    self.groups.iter().find_map(|g| Some((g.window?, g.blocks.first))).unwrap_or_default();
                let found = format!("layers with a window of {window} keep positions from {} on", first * CHUNK);
                return Err(Error::Rewind { asked: n, found });
            };
            let pinned = pin.groups.clone();
            for (group, blocks) in self.groups.iter_mut().zip(pinned).filter(|(group, _)| group.window.is_some()) {
                group.blocks = blocks;
            }
        }
        self.len = n;
        self.pins.retain(|pin| pin.len <= n);
        for group in &mut self.groups {
            if n == 0 && group.blocks.first > 0 {
                group.blocks = Blocks::default();
            }
            // Blocks past the end are kept: the next positions need them again.
        }
        Ok(())
    }

    /// A cache with the first `n` positions of this one, which goes its own way from there. The two share blocks until one writes.
    ///
    /// # Errors
    /// As [`Self::truncate`].
    pub fn fork(&self, n: usize) -> Result<KvCache> {
        let mut fork = self.clone();
        fork.truncate(n)?;
        for group in &mut fork.groups {
            group.blocks.list.truncate(fork.len.div_ceil(CHUNK).saturating_sub(group.blocks.first));
        }
        Ok(fork)
    }

    /// Whether two caches hold the same bytes for the first `n` positions, as far as both still keep them.
    pub fn same_prefix(&self, other: &KvCache, n: usize) -> bool {
        if self.len < n || other.len < n || self.kind != other.kind {
            return false;
        }
        self.places.iter().all(|place| {
            let (a, b) = (&self.groups[place.group].blocks, &other.groups[place.group].blocks);
            let first = a.first.max(b.first);
            (first..n.div_ceil(CHUNK)).all(|c| {
                let slots = (n - c * CHUNK).min(CHUNK);
                (0..place.n_head_kv).all(|head| {
                    let at = place.at + head * place.layout.chunk_bytes();
                    let range = at..at + place.layout.chunk_bytes();
                    let (a, b) = (&a.list[c - a.first].bytes()[range.clone()], &b.list[c - b.first].bytes()[range]);
                    place.layout.same(a, b, slots)
                })
            })
        })
    }

    /// Lends all blocks to the threads of a forward: those with room for new positions to write, after [`Self::reserve`], the others to read.
    pub(crate) fn lend(&mut self) -> Lent<'_> {
        let written = self.len / CHUNK;
        let blocks = self.groups.iter_mut().map(|group| {
            let Blocks { list, first } = &mut group.blocks;
            let first = *first;
            let blocks = list.iter_mut().enumerate().map(|(i, block)| Lending::of(block, first + i >= written));
            (first, blocks.collect())
        });
        Lent { blocks: blocks.collect(), places: &self.places }
    }
}

/// A block during a forward.
enum Lending<'a> {
    /// Its positions are all cached.
    Read(&'a [u8]),
    /// It has room for new positions, and no other cache holds it.
    Own(Shared<'a, u8>),
    /// It lies past what was reserved, and another cache holds it: no row of this forward has to do with it.
    Past,
}

impl<'a> Lending<'a> {
    fn of(block: &'a mut Arc<Block>, open: bool) -> Self {
        if !open {
            return Lending::Read(block.bytes());
        }
        Arc::get_mut(block).map_or(Lending::Past, |own| Lending::Own(Shared::new(own.bytes_mut())))
    }
}

/// A cache during a forward: threads write the chunks of their heads, then all read.
pub(crate) struct Lent<'a> {
    places: &'a [Place],
    blocks: Vec<(usize, Vec<Lending<'a>>)>,
}

impl<'a> Lent<'a> {
    /// The geometry of a layer's chunks.
    pub(crate) fn layout(&self, layer: usize) -> &'a KvLayout {
        &self.places[layer].layout
    }

    fn block(&self, layer: usize, head: usize, chunk: usize) -> (&Lending<'a>, usize) {
        let place = &self.places[layer];
        let (first, blocks) = &self.blocks[place.group];
        (&blocks[chunk - first], place.at + head * place.layout.chunk_bytes())
    }

    /// The block of a new position.
    fn own(&self, layer: usize, head: usize, chunk: usize) -> (&Shared<'a, u8>, usize) {
        match self.block(layer, head, chunk) {
            (Lending::Own(block), at) => (block, at),
            _ => unreachable!("reserve made the block of a new position the cache's own"),
        }
    }

    /// Asks for the memory of the key of a position, ahead of [`Self::write_key`].
    ///
    /// # Safety
    /// No other thread may write the keys of this layer and head meanwhile.
    pub(crate) unsafe fn fetch_key(&self, layer: usize, head: usize, pos: usize) {
        let layout = self.layout(layer);
        let (block, at) = self.own(layer, head, pos / CHUNK);
        // SAFETY: the caller promises that no thread writes these key bytes.
        layout.fetch_key(unsafe { block.read(at..at + layout.key_bytes()) }, pos % CHUNK);
    }

    /// Writes the key of a position.
    ///
    /// # Safety
    /// No other thread may use the keys of this layer and head meanwhile.
    pub(crate) unsafe fn write_key(&self, set: &KernelSet, layer: usize, head: usize, pos: usize, key: &[f32]) {
        let layout = self.layout(layer);
        let (block, at) = self.own(layer, head, pos / CHUNK);
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
        let (block, at) = self.own(layer, head, pos / CHUNK);
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
        let range = at..at + self.layout(layer).chunk_bytes();
        match block {
            Lending::Read(bytes) => &bytes[range],
            // SAFETY: the caller promises that no thread writes this chunk.
            Lending::Own(block) => unsafe { block.read(range) },
            Lending::Past => unreachable!("no query sees a position past the new ones"),
        }
    }
}
