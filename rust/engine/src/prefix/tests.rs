//! The tree against a list of all stored prefixes with their last use, after every event.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::tree::{Group, Id, ROOT, Tree};
use quoth_kernels::attend::CHUNK;

/// A stored prefix: its tokens, what its last block holds of each group, when it was last used.
struct Entry {
    tokens: Vec<u32>,
    blocks: Vec<Option<u32>>,
    used: usize,
}

/// The slow twin.
struct List {
    groups: Vec<Group>,
    entries: Vec<Entry>,
    uses: usize,
}

impl List {
    fn find(&self, tokens: &[u32]) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tokens == tokens)
    }

    fn bytes(&self) -> usize {
        let of = |entry: &Entry| -> usize {
            entry.blocks.iter().zip(&self.groups).map(|(block, group)| usize::from(block.is_some()) * group.bytes).sum()
        };
        self.entries.iter().map(of).sum()
    }

    /// Marks all stored beginnings of `tokens` as used.
    fn touch(&mut self, tokens: &[u32]) {
        self.uses += 1;
        let begins = |entry: &&mut Entry| tokens.starts_with(&entry.tokens);
        self.entries.iter_mut().filter(begins).for_each(|entry| entry.used = self.uses);
    }

    fn keep(&mut self, tokens: &[u32], blocks: &[Vec<Option<u32>>]) {
        for (i, blocks) in blocks.iter().enumerate() {
            let prefix = &tokens[..(i + 1) * CHUNK];
            match self.entries.iter_mut().find(|entry| entry.tokens == prefix) {
                Some(entry) => entry.blocks.iter_mut().zip(blocks).for_each(|(held, block)| *held = held.or(*block)),
                None => self.entries.push(Entry { tokens: prefix.to_vec(), blocks: blocks.clone(), used: 0 }),
            }
        }
        self.touch(tokens);
    }

    /// Whether a query after `n` blocks of tokens finds every position that it may see.
    fn sees_all(&self, tokens: &[u32], n: usize) -> bool {
        let Some(prefixes) = (1..=n).map(|n| self.find(&tokens[..n * CHUNK])).collect::<Option<Vec<_>>>() else {
            return false;
        };
        self.groups.iter().enumerate().all(|(g, group)| {
            let query = n * CHUNK;
            let sees = |pos: usize| group.window.is_none_or(|window| pos + window > query);
            (0..query).filter(|pos| sees(*pos)).all(|pos| prefixes[pos / CHUNK].blocks[g].is_some())
        })
    }

    fn longest(&self, tokens: &[u32]) -> usize {
        (0..=tokens.len() / CHUNK).rev().find(|n| self.sees_all(tokens, *n)).unwrap()
    }

    /// Removes the leaf that was not used for the longest time.
    fn evict(&mut self) -> bool {
        let is_leaf = |entry: &Entry| {
            !self.entries.iter().any(|e| e.tokens.len() > entry.tokens.len() && e.tokens.starts_with(&entry.tokens))
        };
        let leaves = self.entries.iter().enumerate().filter(|(_, entry)| is_leaf(entry));
        let Some((oldest, _)) = leaves.min_by_key(|(_, entry)| entry.used) else { return false };
        self.entries.remove(oldest);
        true
    }
}

/// Blocks of tokens of which those of different symbols differ in one token.
fn tokens(symbols: &[u8]) -> Vec<u32> {
    let block = |symbol: &u8| {
        let mut block = vec![7; CHUNK];
        block[usize::from(*symbol) * 60] = 8;
        block
    };
    symbols.iter().flat_map(block).collect()
}

fn path(tree: &Tree<u32>, tokens: &[u32]) -> Option<Vec<Id>> {
    let mut at = ROOT;
    let step = |block| {
        at = tree.child(at, block)?;
        Some(at)
    };
    tokens.chunks_exact(CHUNK).map(step).collect()
}

/// The tree holds what the list does, and nothing else.
fn assert_same(tree: &Tree<u32>, list: &List, what: &str) {
    assert_eq!((tree.len(), tree.bytes()), (list.entries.len(), list.bytes()), "{what}");
    for entry in &list.entries {
        let path = path(tree, &entry.tokens).unwrap_or_else(|| panic!("{what}: a prefix is gone"));
        let held: Vec<_> = (0..tree.groups().len()).map(|g| tree.block(path[path.len() - 1], g).copied()).collect();
        assert_eq!(held, entry.blocks, "{what}");
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// Blocks of tokens, and of each block the groups that it has, as bits.
    Keep(Vec<(u8, u8)>),
    Longest(Vec<u8>, usize),
    Evict(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop::collection::vec((0..3u8, prop_oneof![3 => Just(7u8), 1 => 0..8u8]), 0..7).prop_map(Event::Keep),
        3 => (prop::collection::vec(0..3u8, 0..7), 0..CHUNK).prop_map(|(symbols, rest)| Event::Longest(symbols, rest)),
        1 => (1usize..6).prop_map(Event::Evict),
    ]
}

fn window() -> impl Strategy<Value = Option<usize>> {
    prop::sample::select(vec![None, None, Some(1), Some(2), Some(24), Some(128), Some(129), Some(130), Some(400)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_holds_finds_and_forgets_what_a_list_does(
        windows in prop::collection::vec(window(), 1..4),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let group = |(i, window): (usize, &Option<usize>)| Group { window: *window, bytes: 10 + i };
        let groups: Vec<Group> = windows.iter().enumerate().map(group).collect();
        let mut tree = Tree::new(groups.clone());
        let mut list = List { groups: groups.clone(), entries: Vec::new(), uses: 0 };
        for (at, event) in events.iter().enumerate() {
            let what = format!("{windows:?}, event {at} of {events:?}");
            match event {
                Event::Keep(kept) => {
                    let symbols: Vec<u8> = kept.iter().map(|(symbol, _)| *symbol).collect();
                    let all = tokens(&symbols);
                    let tag = |has: u8, g: usize| (has >> g & 1 == 1).then_some(at as u32);
                    let blocks: Vec<Vec<_>> =
                        kept.iter().map(|(_, has)| (0..groups.len()).map(|g| tag(*has, g)).collect()).collect();
                    list.keep(&all, &blocks);
                    let mut path = Vec::new();
                    for (block, held) in all.chunks_exact(CHUNK).zip(&blocks) {
                        let id = tree.child_or_new(path.last().copied().unwrap_or(ROOT), block);
                        path.push(id);
                        for (group, block) in held.iter().enumerate() {
                            if let Some(block) = block {
                                tree.fill(id, group, *block);
                            }
                        }
                    }
                    tree.touch(&path);
                }
                Event::Longest(symbols, rest) => {
                    // What is no whole block counts for nothing.
                    let all = [tokens(symbols), vec![7; *rest]].concat();
                    let found = tree.longest(&all);
                    prop_assert_eq!(found.len(), list.longest(&all), "{}", what);
                    let same = path(&tree, &all[..found.len() * CHUNK]);
                    prop_assert_eq!(same.as_ref(), Some(&found), "{}", what);
                    for (g, blocks) in tree.blocks(&found).iter().enumerate() {
                        let held = |n: usize| list.find(&all[..n * CHUNK]).and_then(|entry| entry.blocks[g]);
                        let mut expected: Vec<u32> = (1..=found.len()).rev().map_while(held).collect();
                        expected.reverse();
                        prop_assert!(blocks.iter().eq(&expected), "{what}: group {g}");
                    }
                    tree.touch(&found);
                    list.touch(&all[..found.len() * CHUNK]);
                }
                Event::Evict(n) => {
                    for _ in 0..*n {
                        prop_assert_eq!(tree.evict(), list.evict(), "{}", what);
                        assert_same(&tree, &list, &what);
                    }
                }
            }
            assert_same(&tree, &list, &what);
        }
        while tree.evict() {
            prop_assert!(list.evict());
            assert_same(&tree, &list, "to the end");
        }
        prop_assert_eq!((tree.len(), tree.bytes(), list.evict()), (0, 0, false));
    }
}

#[test]
fn thousands_of_prefixes_go_in_the_order_of_their_last_use_and_no_use_scans_them() {
    let mut tree: Tree<u32> = Tree::new(vec![Group { window: None, bytes: 1 }]);
    let mut order = VecDeque::new();
    for i in 0..20_000u32 {
        let mut block = [0; CHUNK];
        block[0] = i;
        let id = tree.child_or_new(ROOT, &block);
        tree.fill(id, 0, i);
        tree.touch(&[id]);
        order.push_back(id);
    }
    // Whole turns of the order: what was used longest ago is used, and comes to the other end.
    for _ in 0..200_000 {
        let id = order.pop_front().unwrap();
        tree.touch(&[id]);
        order.push_back(id);
    }
    for id in order {
        assert!(tree.block(id, 0).is_some());
        tree.evict();
    }
    assert_eq!(tree.len(), 0);
}
