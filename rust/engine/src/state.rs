//! What a model remembers of a sequence: everything that a forward reads beside the new tokens.
//!
//! In: new positions, written by the forward. Out: to the next forward. Today the state is a key/value cache; a family that also keeps a recurrent state
//! gets a second field here, and each method asks both (`docs/add-a-state.md`).
//!
//! - **A1** All parts hold the same positions `0 .. len`, and are a function of those tokens alone (I5).
//! - **A2** `nearest(n)` is a position that every part can return to; `truncate` to it succeeds. A sequence that must go further back forwards the tokens
//!   from there again, with the same bits (N5).
//! - **A3** A fork shares memory with its origin until one of them writes.
//!
//! Cost: that of the parts.

use std::collections::VecDeque;
use std::sync::Arc;

use quoth_kernels::attend::KvKind;

use crate::cache::{Block, KvCache, Lent};
use crate::error::Result;
use crate::model::Model;

/// See the module.
#[derive(Debug, Clone)]
pub struct State {
    kv: KvCache,
}

impl State {
    /// An empty state for the model's context length.
    ///
    /// # Errors
    /// `kind` cannot store heads of this model's width.
    pub fn new(model: &Model, kind: KvKind) -> Result<State> {
        Ok(State { kv: KvCache::new(model, kind)? })
    }

    /// A state of the first `n` blocks of positions, from stored blocks ([`KvCache::from_blocks`]). A recurrent part cannot be put together from blocks: the
    /// prefix store would keep a snapshot of it in nodes where the state was pinned, and give no prefix that ends in another node.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn from_blocks(
        model: &Model,
        kind: KvKind,
        n: usize,
        blocks: Vec<VecDeque<Arc<Block>>>,
    ) -> Result<State> {
        Ok(State { kv: KvCache::from_blocks(model, kind, n, blocks)? })
    }

    /// Keys and values.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// Positions that it holds.
    pub fn len(&self) -> usize {
        self.kv.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most positions.
    pub fn n_ctx(&self) -> usize {
        self.kv.n_ctx()
    }

    /// Bytes that it holds; memory shared with others counts in full.
    pub fn memory_bytes(&self) -> usize {
        self.kv.memory_bytes()
    }

    /// Makes room for `n` more positions.
    ///
    /// # Errors
    /// They do not fit the context, or memory ran out; nothing has changed for a reader.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<()> {
        self.kv.reserve(n)
    }

    /// Counts `n` written positions.
    pub(crate) fn advance(&mut self, n: usize) {
        self.kv.advance(n);
    }

    /// Keeps the present position reachable, where that costs memory only while it may be wanted ([`KvCache::pin`]).
    pub fn pin(&mut self) {
        self.kv.pin();
    }

    /// The greatest position up to `n` that [`Self::truncate`] can go to (A2).
    pub fn nearest(&self, n: usize) -> usize {
        self.kv.nearest(n)
    }

    /// Forgets everything after the first `n` positions; more than it holds changes nothing.
    ///
    /// # Errors
    /// `n` is not [`Self::nearest`] of itself; nothing changes.
    pub fn truncate(&mut self, n: usize) -> Result<()> {
        self.kv.truncate(n)
    }

    /// A state with the first `n` positions of this one (A3).
    ///
    /// # Errors
    /// As [`Self::truncate`].
    pub fn fork(&self, n: usize) -> Result<State> {
        Ok(State { kv: self.kv.fork(n)? })
    }

    /// Lends its memory to the threads of a forward.
    pub(crate) fn lend(&mut self) -> Lent<'_> {
        self.kv.lend()
    }
}
