//! Joining neighbours: what merges and scores have in common.
//!
//! J1  Of all pairs of neighbours that may be joined, the one with the lowest rank is joined, the leftmost of equals, until none is left.
//! J2  Short words scan all pairs for each join; long ones keep them in a heap. Both give the same symbols.
//!
//! Cost: n² / 2 looks at a rank up to 64 symbols, n log n beyond, and 60 bytes a symbol.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A piece of a word: its place in bytes, and its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) start: usize,
    /// 0 once it was joined to its left neighbour.
    pub(crate) len: usize,
    /// The token, or [`NONE`].
    pub(crate) id: u32,
}

pub(crate) const NONE: u32 = u32::MAX;
const SCANNED: usize = 64;

/// What two neighbours become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Joined {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

const NEVER: Joined = Joined { rank: u32::MAX, id: NONE };

/// Joins symbols, which lie side by side, as long as `rule` gives what two become.
pub(crate) fn join(symbols: &mut Vec<Symbol>, rule: impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
    if symbols.len() <= SCANNED { scan(symbols, rule) } else { heap(symbols, rule) }
}

fn scan(symbols: &mut Vec<Symbol>, rule: impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
    let mut pairs = [NEVER; SCANNED];
    let n = symbols.len().saturating_sub(1);
    let pair = |symbols: &[Symbol], at: usize| rule(&symbols[at], &symbols[at + 1]).unwrap_or(NEVER);
    for (at, place) in pairs[..n].iter_mut().enumerate() {
        *place = pair(symbols, at);
    }
    for n in (1..=n).rev() {
        // The first of equals: `min_by_key` keeps the first.
        let Some((at, best)) = pairs[..n].iter().copied().enumerate().min_by_key(|(_, joined)| joined.rank) else {
            return;
        };
        if best == NEVER {
            return;
        }
        symbols[at] = Symbol { len: symbols[at].len + symbols[at + 1].len, id: best.id, ..symbols[at] };
        symbols.remove(at + 1);
        pairs.copy_within(at + 1..n, at);
        if at > 0 {
            pairs[at - 1] = pair(symbols, at - 1);
        }
        if at + 1 < symbols.len() {
            pairs[at] = pair(symbols, at);
        }
    }
}

fn heap(symbols: &mut Vec<Symbol>, rule: impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
    let n = symbols.len();
    let mut before: Vec<usize> = (0..n).map(|at| at.wrapping_sub(1)).collect();
    let mut behind: Vec<usize> = (1..=n).collect();
    // Rank and place order the heap. The bytes of both tell whether either has been joined since: they only grow.
    let mut heap = BinaryHeap::with_capacity(n);
    let entry = |symbols: &[Symbol], left: usize, right: usize| {
        let joined = rule(&symbols[left], &symbols[right])?;
        Some(Reverse((joined.rank, left, right, symbols[left].len + symbols[right].len, joined.id)))
    };
    heap.extend((1..n).filter_map(|right| entry(symbols, right - 1, right)));
    while let Some(Reverse((_, left, right, len, id))) = heap.pop() {
        let (l, r) = (symbols[left].len, symbols[right].len);
        if l == 0 || r == 0 || l + r != len {
            continue;
        }
        symbols[left] = Symbol { len, id, ..symbols[left] };
        symbols[right].len = 0;
        let next = behind[right];
        behind[left] = next;
        if next < n {
            before[next] = left;
            heap.extend(entry(symbols, left, next));
        }
        if let Some(previous) = Some(before[left]).filter(|at| *at < n) {
            heap.extend(entry(symbols, previous, left));
        }
    }
    symbols.retain(|symbol| symbol.len > 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// J1 word for word.
    fn naive(symbols: &mut Vec<Symbol>, rule: impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
        loop {
            let pairs = symbols.windows(2).enumerate();
            let ranked =
                pairs.filter_map(|(at, pair)| rule(&pair[0], &pair[1]).map(|joined| (joined.rank, at, joined.id)));
            let Some((_, at, id)) = ranked.min() else { return };
            symbols[at] = Symbol { start: symbols[at].start, len: symbols[at].len + symbols[at + 1].len, id };
            symbols.remove(at + 1);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn both_ways_join_the_best_pair_first_and_the_leftmost_of_equals(
            ids in proptest::collection::vec((0u32..4, 1usize..3), 0..90),
            ranks in proptest::collection::vec(0u32..6, 64),
        ) {
            let mut start = 0;
            let symbols: Vec<Symbol> = ids.iter().map(|&(id, len)| {
                start += len;
                Symbol { start: start - len, len, id }
            }).collect();
            // A third of all pairs joins, into any token.
            let rule = |left: &Symbol, right: &Symbol| {
                let rank = ranks[(left.id * 8 + right.id) as usize % 64];
                (rank < 3).then_some(Joined { rank, id: (left.id * 3 + right.id + rank) % 8 })
            };
            let mut expected = symbols.clone();
            naive(&mut expected, rule);
            let mut found = symbols.clone();
            heap(&mut found, rule);
            prop_assert_eq!(&found, &expected);
            if symbols.len() <= SCANNED {
                let mut found = symbols;
                scan(&mut found, rule);
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
