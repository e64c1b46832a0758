//! A radix tree of token blocks: finds the longest prefix, forgets the least recently used leaf.
//!
//! In: prefixes as whole blocks of tokens, and what each block has cached. Out: paths of nodes. The tree knows nothing of models; what a node holds of a group
//! of layers is any `B` that counts for the group's bytes.
//!
//! - **T1** A node stands for the tokens on the path from the root to its end. What it holds of a group, if anything, belongs to exactly these tokens.
//! - **T2** A use counts for all nodes on its path, and for the parent as later than for the child. So the least recently used node is always a leaf, and
//!   `evict` needs no search.
//! - **T3** `bytes` is the sum of what the nodes hold.
//!
//! Cost: one hash lookup of 512 bytes a block on the way down; O(log n) for each node that is used, added or evicted, of n nodes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use quoth_kernels::attend::CHUNK;

use crate::cache::first_seen;

/// What all nodes hold of one group of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// Positions that a query of this group sees; `None`: all.
    pub(super) window: Option<usize>,
    /// Bytes of a block.
    pub(super) bytes: usize,
}

/// A node. No number is given twice.
pub(super) type Id = u64;

/// Stands for the empty prefix.
pub(super) const ROOT: Id = 0;

/// A block of tokens behind others.
#[derive(Debug)]
pub(super) struct Node<B> {
    pub(super) parent: Id,
    pub(super) tokens: Arc<[u32]>,
    children: HashMap<Arc<[u32]>, Id>,
    /// One for each group; `None` where the sequence had already forgotten it.
    pub(super) blocks: Vec<Option<B>>,
    /// When it was last used; the root is in no order.
    used: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tree<B> {
    groups: Vec<Group>,
    nodes: HashMap<Id, Node<B>>,
    /// All nodes but the root, by `used`.
    order: BTreeMap<i64, Id>,
    bytes: usize,
    next: Id,
    /// The latest use.
    now: i64,
    /// Earlier than all uses.
    before: i64,
}

impl<B: Clone> Tree<B> {
    pub(super) fn new(groups: Vec<Group>) -> Self {
        let root = Node { parent: ROOT, tokens: Arc::default(), children: HashMap::new(), blocks: Vec::new(), used: 0 };
        let nodes = HashMap::from([(ROOT, root)]);
        Tree { groups, nodes, order: BTreeMap::new(), bytes: 0, next: ROOT + 1, now: 0, before: 0 }
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Bytes that the nodes hold (T3).
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Nodes beside the root.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The child of a node for the next block of tokens.
    pub(super) fn child(&self, parent: Id, tokens: &[u32]) -> Option<Id> {
        self.nodes[&parent].children.get(tokens).copied()
    }

    /// The same; a new child holds nothing, and counts as used before all others.
    pub(super) fn child_or_new(&mut self, parent: Id, tokens: &[u32]) -> Id {
        if let Some(id) = self.child(parent, tokens) {
            return id;
        }
        let (id, tokens) = (self.next, Arc::<[u32]>::from(tokens));
        self.next += 1;
        self.before -= 1;
        let blocks = vec![None; self.groups.len()];
        let node = Node { parent, tokens: tokens.clone(), children: HashMap::new(), blocks, used: self.before };
        self.order.insert(node.used, id);
        self.nodes.insert(id, node);
        self.node(parent).children.insert(tokens, id);
        id
    }

    fn node(&mut self, id: Id) -> &mut Node<B> {
        self.nodes.get_mut(&id).expect("ids come from the tree and are used before a node is evicted")
    }

    /// What a node holds of a group.
    pub(super) fn block(&self, id: Id, group: usize) -> Option<&B> {
        self.nodes[&id].blocks[group].as_ref()
    }

    /// Gives a node what it lacks of a group; whether it did lack it.
    pub(super) fn fill(&mut self, id: Id, group: usize, block: B) -> bool {
        let bytes = self.groups[group].bytes;
        let held = &mut self.node(id).blocks[group];
        if held.is_some() {
            return false;
        }
        *held = Some(block);
        self.bytes += bytes;
        true
    }

    /// The nodes of the longest prefix of `tokens` after which a query finds all that it may see: in each group, the blocks from the first that it sees to
    /// the prefix's end.
    pub(super) fn longest(&self, tokens: &[u32]) -> Vec<Id> {
        let (mut path, mut depth) = (Vec::new(), 0);
        // For each group, where the blocks begin that reach without a gap up to here.
        let mut first = vec![0; self.groups.len()];
        let mut at = ROOT;
        for block in tokens.chunks_exact(CHUNK) {
            let Some(id) = self.child(at, block) else { break };
            path.push(id);
            at = id;
            let n = path.len() * CHUNK;
            let held = first.iter_mut().zip(&self.nodes[&id].blocks);
            held.filter(|(_, block)| block.is_none()).for_each(|(first, _)| *first = path.len());
            if first.iter().zip(&self.groups).all(|(first, group)| *first <= first_seen(group.window, n)) {
                depth = path.len();
            }
        }
        path.truncate(depth);
        path
    }

    /// Of each group, what the last nodes of a path hold without a gap.
    pub(super) fn blocks(&self, path: &[Id]) -> Vec<VecDeque<B>> {
        let last = |group| {
            let mut list: VecDeque<B> = path.iter().rev().map_while(|id| self.block(*id, group).cloned()).collect();
            list.make_contiguous().reverse();
            list
        };
        (0..self.groups.len()).map(last).collect()
    }

    /// All nodes but the root, the latest used first: each after its parent (T2).
    pub(super) fn latest_first(&self) -> impl Iterator<Item = (Id, &Node<B>)> {
        self.order.values().rev().map(|id| (*id, &self.nodes[id]))
    }

    /// Counts a use of all nodes on a path from the root (T2).
    pub(super) fn touch(&mut self, path: &[Id]) {
        self.now += path.len() as i64;
        for (depth, id) in path.iter().enumerate() {
            let used = self.now - depth as i64;
            let before = std::mem::replace(&mut self.node(*id).used, used);
            self.order.remove(&before);
            self.order.insert(used, *id);
        }
    }

    /// Forgets the least recently used leaf; false if there is none.
    pub(super) fn evict(&mut self) -> bool {
        let Some(node) = self.order.pop_first().and_then(|(_, id)| self.nodes.remove(&id)) else { return false };
        let held = node.blocks.iter().zip(&self.groups).filter(|(block, _)| block.is_some());
        self.bytes -= held.map(|(_, group)| group.bytes).sum::<usize>();
        self.node(node.parent).children.remove(&node.tokens);
        true
    }
}
