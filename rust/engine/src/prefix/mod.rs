//! Stored prefixes: what finished and paused sequences have cached, for later ones to begin with.
//!
//! In: tokens and the state that they left. Out: a state with the longest stored prefix of other tokens, to a sequence, which forwards only the rest.
//!
//! - **P1** A state from the store has the bits of one that forwarded its tokens (K1): rows after it are those from scratch.
//! - **P2** Blocks are shared with the sequences that made them and those that begin with them; none is copied, and none is written (K4).
//! - **P3** The store holds at most `max_bytes` of blocks. The least recently used leaf goes first; a use of a prefix is one of all its beginnings.
//! - **P4** At least one token is left to forward, since its row says what comes next.
//! - **P5** A file that is damaged or of another model, kind of cache or version is refused by name, and changes nothing.
//!
//! A windowed model's sequence forgets early blocks of its windowed layers, so a node may lack them; `longest` then gives the greatest prefix after which a
//! query finds all that it may see. `keep` adds what a node lacked.
//!
//! | file | what |
//! | --- | --- |
//! | [`tree`] | tokens to nodes, in the order of their use |
//! | [`file`] | a store on disk |
//!
//! Cost: `keep` and `longest` take some microseconds for each block of 128 tokens, whatever the store holds. Beside its blocks a node has about 1 kB.

mod file;
mod tree;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use quoth_kernels::attend::{CHUNK, KvKind};

use crate::cache::{Block, KvCache};
use crate::error::Result;
use crate::model::Model;
use crate::state::State;
use tree::{Group, ROOT, Tree};

/// See the module. It belongs to one model and kind of cache.
pub struct PrefixStore {
    model: Arc<Model>,
    kind: KvKind,
    max_bytes: usize,
    tree: Tree<Arc<Block>>,
}

impl std::fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrefixStore({} blocks of tokens, {} of {} bytes)", self.tree.len(), self.bytes(), self.max_bytes)
    }
}

impl PrefixStore {
    /// An empty store for at most `max_bytes` of blocks.
    pub fn new(model: Arc<Model>, kind: KvKind, max_bytes: usize) -> PrefixStore {
        let tree = Tree::new(groups(&model, kind));
        PrefixStore { model, kind, max_bytes, tree }
    }

    /// Keeps the whole blocks of a sequence that begins with `tokens`. The state may hold fewer positions than there are tokens, or more: what both have counts.
    ///
    /// # Panics
    /// The state is of another model or kind of cache.
    pub fn keep(&mut self, tokens: &[u32], state: &State) {
        assert!(state.kv().is_of(&self.model, self.kind), "a state of the store's model and kind");
        let cached = tokens.len().min(state.len());
        let mut path = Vec::with_capacity(cached / CHUNK);
        let mut at = ROOT;
        for (i, block) in tokens[..cached].chunks_exact(CHUNK).enumerate() {
            at = self.tree.child_or_new(at, block);
            path.push(at);
            for group in 0..self.tree.groups().len() {
                if let Some(block) = state.kv().whole_block(group, i) {
                    self.tree.fill(at, group, block.clone());
                }
            }
        }
        self.tree.touch(&path);
        self.shrink_to(self.max_bytes);
    }

    /// A state with the longest stored prefix of `tokens`: whole blocks, at most one token less than there are (P4). It shares its blocks with the store.
    pub fn longest(&mut self, tokens: &[u32]) -> Option<State> {
        let path = self.tree.longest(self.usable(tokens));
        if path.is_empty() {
            return None;
        }
        self.tree.touch(&path);
        // A kind that cannot store this model's heads has no states, so the store is empty and this line is not reached.
        State::from_blocks(&self.model, self.kind, path.len(), self.tree.blocks(&path)).ok()
    }

    /// Blocks of positions that [`Self::longest`] would give. This is no use of them.
    pub fn depth(&self, tokens: &[u32]) -> usize {
        self.tree.longest(self.usable(tokens)).len()
    }

    /// The tokens whose prefixes may be given (P4).
    fn usable<'t>(&self, tokens: &'t [u32]) -> &'t [u32] {
        &tokens[..tokens.len().saturating_sub(1).min(self.model.n_ctx())]
    }

    /// Bytes of the stored blocks. Sequences may share them.
    pub fn bytes(&self) -> usize {
        self.tree.bytes()
    }

    /// Forgets prefixes until at least `bytes` less are stored, the least recently used first; whether it had anything to forget.
    pub fn shrink(&mut self, bytes: usize) -> bool {
        let before = self.bytes();
        self.shrink_to(before.saturating_sub(bytes));
        self.bytes() < before
    }

    fn shrink_to(&mut self, bytes: usize) {
        while self.bytes() > bytes && self.tree.evict() {}
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tree = Tree::new(self.tree.groups().to_vec());
    }

    /// Writes all that is stored to a file, which only the user may read: it holds what was said. A file that was there is replaced once the new one is whole.
    /// Blocks for the time of the writing.
    ///
    /// # Errors
    /// The system refused, or the path is that of something else than a file. A file that was there is as it was.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        file::write(self, path.as_ref())
    }

    /// Adds what a file holds, the latest used first, as long as there is room beside what is stored; it counts as used before that. Gives how many nodes, that is
    /// blocks of 128 tokens, were added or got blocks that they lacked.
    ///
    /// # Errors
    /// [`Error::PrefixFile`](crate::Error::PrefixFile): the file is damaged, of another version, model or kind of cache. Or the system refused, or memory ran
    /// out. The store is as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let nodes = file::read(self, path.as_ref())?;
        let mut ids = vec![ROOT];
        let mut added = 0;
        for node in nodes {
            let before = self.tree.len();
            let id = self.tree.child_or_new(ids[node.parent], &node.tokens);
            let filled = node.blocks.into_iter().filter(|(group, block)| self.tree.fill(id, *group, block.clone()));
            let filled = filled.count() > 0;
            added += usize::from(filled || self.tree.len() > before);
            ids.push(id);
        }
        Ok(added)
    }
}

/// The groups of a model's caches; none for a kind that cannot store its heads.
fn groups(model: &Model, kind: KvKind) -> Vec<Group> {
    let cache = KvCache::new(model, kind);
    cache.iter().flat_map(KvCache::groups).map(|(window, bytes)| Group { window, bytes }).collect()
}
