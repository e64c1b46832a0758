//! The suffix index: the longest end of a growing token stream that has occurred before, and what came after it then.
//!
//! In: committed tokens, one at a time. Out: a match length and a draft, to `cascade`; `frozen` reads the same graph.
//!
//! The index is the suffix automaton of the stream, as if the stream began with a token that occurs nowhere else. A state stands for all strings that end
//! at the same places of the stream. With that first token there are two kinds of states:
//! - *Leaf* i stands for the first i tokens (and for their endings that occur only there). It occurs once, at i. So its length is i, no other state links
//!   to it, and its only edge leads to leaf i + 1 by token i + 1. None of that is stored: a leaf is a token and a link.
//! - A *node* stands for strings that occur at least twice. Node 0 is the root, the empty string.
//!
//! X1  A suffix of the stream that occurs only once belongs to the newest leaf. So the longest suffix that occurred before belongs to the state which that
//!     leaf links to: a node, whose `len` is the match length. The index needs no separate cursor for the match.
//! X2  `sample` of a node is a place before the end of the stream where its strings end. Appending token n walks along links, and sets the samples of the
//!     nodes on the way to n - 1: the place one token back. A sample set to n would be the suffix that is being looked up itself. A node that is split
//!     off another inherits its sample.
//! X3  At most 2n + 1 states (n + 1 leaves, n nodes with the root) and 3n transitions (n of leaves, 2n of nodes).
//! X4  After a failed append the index is shut: it holds nothing, matches nothing, and repeats the first error.
//!
//! Cost: 8 bytes a leaf (the copy of the stream is in it), 24 a node, 16 a slot of the edge table. `append` is O(1)
//! amortised. Arrays grow by a quarter, the table by half; one of them at a time holds its old and its new copy.
//! Sources: Blumer et al. 1985 (automaton); the late refresh and the inherited sample are Fucina's.

use crate::edges::{EdgeTable, NONE, Place};
use crate::error::IndexError;

#[cfg(test)]
mod tests;

/// The most tokens an index can hold: the upper half of the numbers belongs to nodes.
pub const MAX_INDEX_TOKENS: usize = (NODE - 2) as usize;

/// Set in a state's number when it is a node.
const NODE: u32 = 1 << 31;
/// The root, as a node.
pub(crate) const ROOT: u32 = 0;

#[derive(Debug, Clone, Copy)]
struct Leaf {
    token: u32,
    link: u32,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    len: u32,
    link: u32,
    sample: u32,
    /// First edge: token and target state; `NONE` only in a root without edges.
    token: u32,
    target: u32,
    /// Token of the newest edge in the table, `NONE` without one.
    more: u32,
}

const ROOT_NODE: Node = Node { len: 0, link: NONE, sample: 0, token: NONE, target: NONE, more: NONE };

/// Where an edge of a node is, or would be.
enum Edge {
    Inline(u32),
    Table(usize, u32),
    /// Not there; the slot of the table where it would go, if the table was searched.
    Missing(Option<usize>),
}

/// Bytes of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexBytes {
    /// Bytes that hold something.
    pub used: usize,
    /// Bytes that are allocated.
    pub capacity: usize,
}

/// A suffix automaton over a stream that grows at its end.
#[derive(Debug, Clone)]
pub struct SuffixIndex {
    leaves: Vec<Leaf>,
    nodes: Vec<Node>,
    edges: EdgeTable,
    limit: usize,
    failed: Option<IndexError>,
}

impl Default for SuffixIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl SuffixIndex {
    /// An index of an empty stream.
    pub fn new() -> Self {
        Self::with_limit(MAX_INDEX_TOKENS)
    }

    /// An index that refuses to grow past `limit` tokens (and never past [`MAX_INDEX_TOKENS`]).
    pub fn with_limit(limit: usize) -> Self {
        let leaves = vec![Leaf { token: NONE, link: ROOT }];
        let limit = limit.min(MAX_INDEX_TOKENS);
        Self { leaves, nodes: vec![ROOT_NODE], edges: EdgeTable::default(), limit, failed: None }
    }

    /// Tokens in the stream; 0 once the index is shut.
    pub fn len(&self) -> usize {
        self.leaves.len() - 1
    }

    /// Whether the stream is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stream's last token.
    pub fn last(&self) -> Option<u32> {
        if self.is_empty() { None } else { self.leaves.last().map(|leaf| leaf.token) }
    }

    /// The stream, oldest token first.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.leaves[1..].iter().map(|leaf| leaf.token)
    }

    /// The error that shut the index, if one did.
    pub fn failed(&self) -> Option<IndexError> {
        self.failed
    }

    /// States of the automaton, the leaf of the empty stream and the root included: at most 2n + 1.
    pub fn states(&self) -> usize {
        self.leaves.len() + self.nodes.len() - usize::from(self.is_empty())
    }

    /// Transitions of the automaton: at most 3n.
    pub fn transitions(&self) -> usize {
        let inline = self.nodes.iter().filter(|node| node.token != NONE).count();
        self.len() + inline + self.edges.len()
    }

    /// What it takes in memory. While an array grows, its old copy is alive too.
    pub fn bytes(&self) -> IndexBytes {
        let (leaf, node) = (size_of::<Leaf>(), size_of::<Node>());
        IndexBytes {
            used: self.leaves.len() * leaf + self.nodes.len() * node + self.edges.used_bytes(),
            capacity: self.leaves.capacity() * leaf + self.nodes.capacity() * node + self.edges.capacity_bytes(),
        }
    }

    /// Empties the stream and opens a shut index again. Memory is kept.
    pub fn clear(&mut self) {
        self.leaves.truncate(1);
        self.nodes.clear();
        self.nodes.push(ROOT_NODE);
        self.edges.clear();
        self.failed = None;
    }

    /// Replaces the stream by `history`; if that begins with the present stream, only the rest is appended.
    ///
    /// # Errors
    /// As `append`; the index is then shut.
    pub fn rebuild(&mut self, history: &[u32]) -> Result<(), IndexError> {
        let held = self.len();
        if self.failed.is_none() && history.len() >= held && self.tokens().eq(history[..held].iter().copied()) {
            return self.extend(&history[held..]);
        }
        self.clear();
        self.extend(history)
    }

    /// Appends each of `tokens`.
    ///
    /// # Errors
    /// As `append`; tokens before the failing one are gone too, as the index is shut.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<(), IndexError> {
        tokens.iter().try_for_each(|&token| self.append(token))
    }

    /// Appends one token.
    ///
    /// # Errors
    /// The token is `u32::MAX`, the limit is reached, memory is short, or an earlier append failed: the index is shut.
    pub fn append(&mut self, token: u32) -> Result<(), IndexError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let pos = self.len();
        let error = if token == NONE {
            IndexError::TokenTooLarge { token, pos }
        } else if pos >= self.limit {
            IndexError::TooLong { limit: self.limit }
        } else if self.grow(token).is_some() {
            return Ok(());
        } else {
            IndexError::OutOfMemory { tokens: pos }
        };
        *self = Self { failed: Some(error), ..Self::with_limit(self.limit) };
        Err(error)
    }

    /// Length of the longest suffix that also ends earlier in the stream; 0 if none does.
    pub fn match_len(&self) -> usize {
        self.nodes[self.match_node() as usize].len as usize
    }

    /// The token that followed the matched suffix when it was last seen. `None` without a match.
    pub fn next_token(&self) -> Option<u32> {
        let node = self.match_node();
        (node != ROOT).then(|| self.leaves[self.nodes[node as usize].sample as usize + 1].token)
    }

    /// Appends `max` tokens to `out`: what followed the matched suffix when it was last seen. Where that runs into the end
    /// of the stream it goes on with the tokens just drafted, so a repetition drafts as far as is asked. Nothing without a
    /// match.
    pub fn draft(&self, max: usize, out: &mut Vec<u32>) {
        let node = self.match_node();
        if node == ROOT {
            return;
        }
        let from = self.nodes[node as usize].sample as usize + 1;
        let stored = max.min(self.leaves.len() - from);
        out.extend(self.leaves[from..from + stored].iter().map(|leaf| leaf.token));
        // `stored` tokens, the distance to the earlier occurrence, are the period of what goes on.
        for _ in stored..max {
            out.push(out[out.len() - stored]);
        }
    }

    /// The node of the match (X1).
    #[inline]
    fn match_node(&self) -> u32 {
        self.leaves[self.leaves.len() - 1].link
    }

    /// `None` when there is no memory; the graph is then unusable.
    fn grow(&mut self, token: u32) -> Option<()> {
        reserve(&mut self.leaves)?;
        reserve(&mut self.nodes)?;
        let leaf = self.leaves.len() as u32;
        let mut p = self.match_node();
        self.leaves.push(Leaf { token, link: ROOT });
        // From the longest repeated suffix to shorter ones: where `token` is new after it, it leads to the new leaf.
        let q = loop {
            self.touch(p, leaf - 1);
            self.edges.reserve_one()?;
            match self.edge(p, token) {
                Edge::Inline(target) | Edge::Table(_, target) => break target,
                Edge::Missing(at) => self.add_edge(p, token, leaf, at)?,
            }
            if p == ROOT {
                return Some(());
            }
            p = self.nodes[p as usize].link;
        };
        let len = self.nodes[p as usize].len + 1;
        let link = if q & NODE != 0 && self.nodes[(q & !NODE) as usize].len == len {
            q & !NODE
        } else {
            self.split(p, token, q, len)?
        };
        self.leaves[leaf as usize].link = link;
        Some(())
    }

    /// Splits off the strings of `q` up to length `len` into a node of their own, as they now also end elsewhere.
    #[cold]
    fn split(&mut self, p: u32, token: u32, q: u32, len: u32) -> Option<u32> {
        let clone = self.nodes.len() as u32;
        if q & NODE == 0 {
            let (link, follower) = (self.leaves[q as usize].link, q + 1);
            let first = self.leaves[follower as usize].token;
            self.nodes.push(Node { len, link, sample: q, token: first, target: follower, more: NONE });
            self.leaves[q as usize].link = clone;
        } else {
            let node = self.nodes[(q & !NODE) as usize];
            self.nodes.push(Node { len, more: NONE, ..node });
            self.nodes[(q & !NODE) as usize].link = clone;
            let mut more = node.more;
            let mut copied = NONE;
            while more != NONE {
                let slot = self.edges.get(q & !NODE, more)?;
                self.edges.insert(clone, more, slot.target, copied)?;
                copied = more;
                more = slot.next;
            }
            self.nodes[clone as usize].more = copied;
        }
        let mut p = p;
        loop {
            match self.edge(p, token) {
                Edge::Inline(target) if target == q => self.nodes[p as usize].target = clone | NODE,
                Edge::Table(at, target) if target == q => self.edges.set_target(at, clone | NODE),
                _ => break,
            }
            self.touch(p, self.leaves.len() as u32 - 2);
            if p == ROOT {
                break;
            }
            p = self.nodes[p as usize].link;
        }
        Some(clone)
    }

    /// Notes that the strings of node `p` end at `end` (X2).
    #[inline]
    fn touch(&mut self, p: u32, end: u32) {
        self.nodes[p as usize].sample = end;
    }

    #[inline]
    fn edge(&self, node: u32, token: u32) -> Edge {
        let at = &self.nodes[node as usize];
        if at.token == token {
            return Edge::Inline(at.target);
        }
        if at.more == NONE {
            return Edge::Missing(None);
        }
        match self.edges.find(node, token) {
            Some(Place::Found(slot)) => Edge::Table(slot, self.edges.at(slot).target),
            Some(Place::Empty(slot)) => Edge::Missing(Some(slot)),
            None => Edge::Missing(None),
        }
    }

    #[inline]
    fn add_edge(&mut self, node: u32, token: u32, target: u32, at: Option<usize>) -> Option<()> {
        let from = &mut self.nodes[node as usize];
        if from.token == NONE {
            from.token = token;
            from.target = target;
            return Some(());
        }
        let next = std::mem::replace(&mut from.more, token);
        match at {
            Some(at) => self.edges.fill(at, node, token, target, next),
            None => self.edges.insert(node, token, target, next)?,
        }
        Some(())
    }

    /// The state of the longest suffix of the stream and `guessed` that occurs in the stream before its end, and its length: where the stream would stand if
    /// `guessed` had been appended, as far as earlier text is concerned.
    pub(crate) fn foresee(&self, guessed: &[u32]) -> (u32, u32) {
        let (mut state, mut len) = (self.match_node() | NODE, self.match_len() as u32);
        for &token in guessed {
            loop {
                if let Some(next) = self.follow(state, token) {
                    (state, len) = (next, len + 1);
                    break;
                }
                match self.shorten(state) {
                    Some((shorter, its)) => (state, len) = (shorter, its),
                    None => {
                        len = 0;
                        break;
                    }
                }
            }
        }
        (state, len)
    }

    // What `frozen` reads: states by number, leaves and nodes alike.

    /// The state after `state` on `token`.
    #[inline]
    pub(crate) fn follow(&self, state: u32, token: u32) -> Option<u32> {
        if state & NODE == 0 {
            let next = self.leaves.get(state as usize + 1)?;
            return (next.token == token).then_some(state + 1);
        }
        match self.edge(state & !NODE, token) {
            // A root without edges has `NONE` for its first token.
            Edge::Inline(target) | Edge::Table(_, target) if token != NONE => Some(target),
            _ => None,
        }
    }

    /// The state of the longest shorter suffix with more occurrences, and its length. `None` at the root.
    #[inline]
    pub(crate) fn shorten(&self, state: u32) -> Option<(u32, u32)> {
        let link = if state & NODE == 0 {
            self.leaves[state as usize].link
        } else if state == Self::root() {
            return None;
        } else {
            self.nodes[(state & !NODE) as usize].link
        };
        Some((link | NODE, self.nodes[link as usize].len))
    }

    /// The root's state number.
    pub(crate) const fn root() -> u32 {
        ROOT | NODE
    }

    /// The tokens after the newest noted occurrence of a state's strings.
    #[inline]
    pub(crate) fn after(&self, state: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        let end = if state & NODE == 0 { state } else { self.nodes[(state & !NODE) as usize].sample };
        self.leaves[end as usize + 1..].iter().map(|leaf| leaf.token)
    }

    pub(crate) fn shrink(&mut self) {
        self.leaves.shrink_to_fit();
        self.nodes.shrink_to_fit();
    }
}

/// Makes room for one more, by a quarter of the length.
#[inline]
fn reserve<T>(array: &mut Vec<T>) -> Option<()> {
    if array.len() < array.capacity() {
        return Some(());
    }
    array.try_reserve_exact(array.len() / 4 + 64).ok()
}
