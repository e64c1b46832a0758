//! The edge table of the suffix index: where a branching node goes on a token, all nodes in one array.
//!
//! In: (node, token) pairs from `suffix`. Out: targets. A node's first edge lies in the node; this holds the others.
//!
//! T1  An entry lies at or after its home slot with no empty slot between; nothing is ever removed.
//! T2  Entries of a node form a list: each names the *token* of the next, so the list survives when entries move.
//! T3  At most 3/4 of the slots are in use; growth is by half. 16 bytes a slot, so 21 to 32 bytes an edge.
//!
//! A home slot is the hash scaled down to the table size, not masked: growing keeps the order of the entries, so it reads
//! and writes both tables from one end to the other.

/// "No token", "no node": a value that neither can have.
pub(crate) const NONE: u32 = u32::MAX;

const FIRST_SLOTS: usize = 64;
const EMPTY: Slot = Slot { node: NONE, token: NONE, target: NONE, next: NONE };

/// One edge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    node: u32,
    token: u32,
    /// Where the edge goes, in the index's own numbering.
    pub(crate) target: u32,
    /// The token of the node's next edge in this table, or `NONE`.
    pub(crate) next: u32,
}

/// A hash table from (node, token) to an edge.
#[derive(Debug, Clone, Default)]
pub(crate) struct EdgeTable {
    slots: Vec<Slot>,
    used: usize,
}

/// A place in the table: an entry, or the empty slot where it would go.
pub(crate) enum Place {
    Found(usize),
    Empty(usize),
}

fn home(node: u32, token: u32, slots: usize) -> usize {
    // Two odd multipliers and one fold: neighbours in either number land far apart.
    let mixed = (u64::from(node) << 32 | u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
    ((hash * slots as u64) >> 32) as usize
}

impl EdgeTable {
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used * size_of::<Slot>()
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.used = 0;
    }

    /// The entry of (`node`, `token`), or where it would go. `None` if the table has no slots yet.
    #[inline]
    pub(crate) fn find(&self, node: u32, token: u32) -> Option<Place> {
        let slots = self.slots.as_slice();
        let mut at = home(node, token, slots.len());
        loop {
            // The load (T3) leaves empty slots, so the walk ends.
            let slot = slots.get(at)?;
            if slot.node == node && slot.token == token {
                return Some(Place::Found(at));
            }
            if slot.node == NONE {
                return Some(Place::Empty(at));
            }
            at += 1;
            if at == slots.len() {
                at = 0;
            }
        }
    }

    pub(crate) fn get(&self, node: u32, token: u32) -> Option<Slot> {
        match self.find(node, token) {
            Some(Place::Found(at)) => Some(self.slots[at]),
            _ => None,
        }
    }

    pub(crate) fn at(&self, at: usize) -> Slot {
        self.slots[at]
    }

    pub(crate) fn set_target(&mut self, at: usize, target: u32) {
        self.slots[at].target = target;
    }

    /// Makes room for one more entry. `None` when there is no memory; the table is as it was.
    #[inline]
    pub(crate) fn reserve_one(&mut self) -> Option<()> {
        if (self.used + 1) * 4 <= self.slots.len() * 3 {
            return Some(());
        }
        self.grow()
    }

    #[cold]
    fn grow(&mut self) -> Option<()> {
        let len = (self.slots.len() + self.slots.len() / 2).max(FIRST_SLOTS);
        let mut slots = Vec::new();
        slots.try_reserve_exact(len).ok()?;
        slots.resize(len, EMPTY);
        let old = std::mem::replace(&mut self.slots, slots);
        self.used = 0;
        for slot in old.iter().filter(|slot| slot.node != NONE) {
            if let Some(Place::Empty(at)) = self.find(slot.node, slot.token) {
                self.put(at, *slot);
            }
        }
        Some(())
    }

    fn put(&mut self, at: usize, slot: Slot) {
        self.slots[at] = slot;
        self.used += 1;
    }

    /// Fills the empty slot `at` that `find` named, after `reserve_one` and with nothing in between.
    #[inline]
    pub(crate) fn fill(&mut self, at: usize, node: u32, token: u32, target: u32, next: u32) {
        self.put(at, Slot { node, token, target, next });
    }

    /// Adds an entry that is not there yet. `None` when there is no memory.
    pub(crate) fn insert(&mut self, node: u32, token: u32, target: u32, next: u32) -> Option<()> {
        self.reserve_one()?;
        if let Some(Place::Empty(at)) = self.find(node, token) {
            self.fill(at, node, token, target, next);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Dice;
    use std::collections::HashMap;

    #[test]
    fn the_table_equals_a_map_while_it_grows() {
        let (mut table, mut map, mut dice) = (EdgeTable::default(), HashMap::new(), Dice(3));
        assert!(table.get(1, 1).is_none());
        for round in 0..20_000 {
            let (node, token) = (dice.below(300), dice.below(300));
            match table.find(node, token) {
                Some(Place::Found(at)) => {
                    assert_eq!(Some(&table.at(at).target), map.get(&(node, token)));
                    table.set_target(at, round);
                }
                _ => {
                    assert!(!map.contains_key(&(node, token)));
                    table.insert(node, token, round, token + 1).unwrap();
                }
            }
            map.insert((node, token), round);
            assert_eq!(table.len(), map.len());
            assert!(table.len() * 4 <= table.slots.len() * 3, "T3 at {} entries", table.len());
        }
        for (&(node, token), &target) in &map {
            let slot = table.get(node, token).unwrap();
            assert_eq!((slot.target, slot.next), (target, token + 1));
        }
        assert_eq!(table.used_bytes(), map.len() * 16);
        assert!(table.capacity_bytes() <= map.len() * 32);
        table.clear();
        assert!(table.len() == 0 && map.keys().all(|&(node, token)| table.get(node, token).is_none()));
    }

    #[test]
    fn growing_keeps_entries_near_their_home_slots() {
        let mut table = EdgeTable::default();
        for i in 0..50_000u32 {
            table.insert(i / 3, i % 3, i, NONE).unwrap();
        }
        let len = table.slots.len();
        let used = table.slots.iter().enumerate().filter(|(_, slot)| slot.node != NONE);
        let way = used.map(|(at, slot)| (at + len - home(slot.node, slot.token, len)) % len).sum::<usize>();
        assert!(way < 3 * table.len(), "{way} slots of way for {} entries", table.len());
    }
}
