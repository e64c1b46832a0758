//! Stop texts, found in a stream of bytes however tokens part them.
//!
//! S1  The hit is the stop that ends first; of those that end there, the one that begins first. Equal stops: the
//!     first of the list.
//! S2  `held` is the length of the longest tail of the text that begins a stop. No stop can begin before that tail, so
//!     everything before it may be shown.
//! S3  The state is a node, a count and the hit. A clone is a place to come back to; the automaton is shared.
//!
//! The automaton is Aho and Corasick's: a tree of all stops, where each node knows the longest proper tail of its text
//! that is a node as well. A byte costs a constant number of steps on average over any text.
//! Cost: 24 bytes for each byte of stops, 1 KiB for the first byte.

use crate::error::VocabError;
use std::sync::Arc;

/// Bytes of all stop texts of one request together: each becomes a node of an automaton, 24 bytes.
pub const MAX_STOP_BYTES: u64 = 1 << 16;

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The first of the nodes one byte deeper, and the next beside this one.
    child: u32,
    sibling: u32,
    byte: u8,
    /// The longest proper tail of this node's text that is a node.
    fail: u32,
    /// Length of this node's text.
    depth: u32,
    /// The longest stop that ends with this node's text, by index.
    stop: u32,
}

/// Stop texts, made ready for matching.
#[derive(Debug)]
pub struct StopSet {
    nodes: Vec<Node>,
    /// The child of the root for each byte; the root itself where there is none.
    first: Box<[u32; 256]>,
    lens: Vec<u32>,
}

impl StopSet {
    /// Prepares stop texts. An empty list is allowed and never matches.
    ///
    /// # Errors
    /// A stop is empty, or all together exceed the limit.
    pub fn new<S: AsRef<[u8]>>(stops: &[S]) -> Result<StopSet, VocabError> {
        let found = stops.iter().map(|stop| stop.as_ref().len() as u64).sum();
        if found > MAX_STOP_BYTES {
            return Err(VocabError::StopsTooLong { found, limit: MAX_STOP_BYTES });
        }
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(VocabError::EmptyStop { index });
        }
        let root = Node { child: NONE, sibling: NONE, byte: 0, fail: ROOT, depth: 0, stop: NONE };
        let lens = stops.iter().map(|stop| stop.as_ref().len() as u32).collect();
        let mut set = StopSet { nodes: vec![root], first: Box::new([ROOT; 256]), lens };
        for (index, stop) in (0u32..).zip(stops) {
            set.insert(stop.as_ref(), index);
        }
        set.link();
        Ok(set)
    }

    fn insert(&mut self, stop: &[u8], index: u32) {
        let mut at = ROOT;
        for &byte in stop {
            at = self.child(at, byte).unwrap_or_else(|| {
                let new = self.nodes.len() as u32;
                let parent = &mut self.nodes[at as usize];
                let (sibling, depth) = (parent.child, parent.depth + 1);
                parent.child = new;
                self.nodes.push(Node { child: NONE, sibling, byte, fail: ROOT, depth, stop: NONE });
                if at == ROOT {
                    self.first[usize::from(byte)] = new;
                }
                new
            });
        }
        let node = &mut self.nodes[at as usize];
        node.stop = node.stop.min(index);
    }

    /// Finds each node's longest tail, shallow nodes first, and the stops that end there.
    fn link(&mut self) {
        let mut queue = vec![ROOT];
        let mut next = 0;
        while let Some(&at) = queue.get(next) {
            next += 1;
            let mut child = self.nodes[at as usize].child;
            while child != NONE {
                let byte = self.nodes[child as usize].byte;
                let fail = if at == ROOT { ROOT } else { self.step(self.nodes[at as usize].fail, byte) };
                let inherited = self.nodes[fail as usize].stop;
                let node = &mut self.nodes[child as usize];
                node.fail = fail;
                if node.stop == NONE {
                    node.stop = inherited;
                }
                queue.push(child);
                child = self.nodes[child as usize].sibling;
            }
        }
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        if at == ROOT {
            return Some(self.first[usize::from(byte)]).filter(|child| *child != ROOT);
        }
        let mut child = self.nodes[at as usize].child;
        while child != NONE {
            let node = &self.nodes[child as usize];
            if node.byte == byte {
                return Some(child);
            }
            child = node.sibling;
        }
        None
    }

    /// The longest tail of (text of `at`, `byte`) that is a node.
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            if let Some(child) = self.child(at, byte) {
                return child;
            }
            if at == ROOT {
                return ROOT;
            }
            at = self.nodes[at as usize].fail;
        }
    }

    /// Number of stops.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }
}

/// A stop that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopHit {
    /// Which stop, by its place in the list.
    pub stop: usize,
    /// Bytes of the whole text before the stop.
    pub start: u64,
    /// Bytes of the whole text up to and with the stop.
    pub end: u64,
}

/// What a token has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopStep {
    /// The stop that is complete now, if any.
    pub hit: Option<StopHit>,
    /// Bytes at the end of the text that may yet become a stop; 0 once there is a hit.
    pub held: usize,
}

/// Watches a text for stops. The text begins where the matcher is made.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    set: Arc<StopSet>,
    node: u32,
    seen: u64,
    hit: Option<StopHit>,
}

impl StopMatcher {
    /// A matcher at the beginning of a text.
    pub fn new(set: Arc<StopSet>) -> StopMatcher {
        StopMatcher { set, node: ROOT, seen: 0, hit: None }
    }

    /// Takes the bytes of the next token. Once a stop was found, the hit stays and bytes are no longer looked at.
    pub fn push(&mut self, bytes: &[u8]) -> StopStep {
        if self.hit.is_none() && !self.set.is_empty() {
            for (i, &byte) in (1u64..).zip(bytes) {
                self.node = self.set.step(self.node, byte);
                let stop = self.set.nodes[self.node as usize].stop;
                if stop != NONE {
                    let end = self.seen + i;
                    let start = end - u64::from(self.set.lens[stop as usize]);
                    self.hit = Some(StopHit { stop: stop as usize, start, end });
                    break;
                }
            }
        }
        self.seen += bytes.len() as u64;
        StopStep { hit: self.hit, held: self.held() }
    }

    /// Bytes of the text so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The stop that was found.
    pub fn hit(&self) -> Option<StopHit> {
        self.hit
    }

    /// Bytes at the end of the text that may yet become a stop; 0 once there is a hit.
    pub fn held(&self) -> usize {
        if self.hit.is_some() { 0 } else { self.set.nodes[self.node as usize].depth as usize }
    }
}
