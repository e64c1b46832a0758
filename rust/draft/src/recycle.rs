//! Token recycling: drafts from the newest known successor of each token.
//!
//! In: committed pairs of tokens, and rows of probable tokens where another engine offers them. Out: chains, to `candidate/recycling`.
//!
//! R1  A token's successor is the newest: of the committed pair that begins with it, or the best of its row, whichever came last.
//! R2  An unseen token has none, and a chain ends there or at a token outside the vocabulary.
//! R3  `overwrite` takes the best of a row that is in the vocabulary, or empties the place; `promote` takes a committed successor.
//!
//! A chain can circle; the caller takes as much as it wants. quoth's own decoder offers no rows (`Cascade::topk` is 0): after each step the committed pairs
//! would replace them, so its drafts come from pairs alone.
//! Cost: `n_vocab` x 4 bytes, asked for at construction as zero pages, which take no memory until they are written.
//! Source: Token Recycling (Luo et al. 2024). This is the first column of its matrix: drafts follow that one alone (a test compares them with the whole
//! matrix's). Noting committed pairs is Fucina's.

/// A place without a successor. Others hold the token plus one, so that zeroed memory is an empty table.
const EMPTY: u32 = 0;

/// The newest successor of each token of a vocabulary.
#[derive(Debug, Clone)]
pub struct Recycler {
    next: Vec<u32>,
}

impl Recycler {
    /// An empty table for tokens below `n_vocab`.
    pub fn new(n_vocab: usize) -> Self {
        Self { next: vec![EMPTY; n_vocab] }
    }

    /// Size of the table in bytes.
    pub fn bytes(&self) -> usize {
        self.next.len() * size_of::<u32>()
    }

    /// The newest known successor of `token`.
    #[inline]
    pub fn first(&self, token: u32) -> Option<u32> {
        self.next.get(token as usize)?.checked_sub(1)
    }

    /// Takes the best of `top` as the successor of `token`. Ids outside the vocabulary are left out; without any other there is none.
    pub fn overwrite(&mut self, token: u32, top: &[u32]) {
        let n_vocab = self.next.len();
        if let Some(place) = self.next.get_mut(token as usize) {
            let best = top.iter().find(|&&next| (next as usize) < n_vocab);
            *place = best.map_or(EMPTY, |next| next + 1);
        }
    }

    /// Makes `next` the successor of `token`. Ids outside the vocabulary change nothing.
    #[inline]
    pub fn promote(&mut self, token: u32, next: u32) {
        if next as usize >= self.next.len() {
            return;
        }
        if let Some(place) = self.next.get_mut(token as usize) {
            *place = next + 1;
        }
    }

    /// The chain of successors from `token`.
    pub fn chain(&self, token: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(token), |&next| self.first(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft(table: &Recycler, token: u32, max: usize) -> Vec<u32> {
        table.chain(token).take(max).collect()
    }

    #[test]
    fn a_chain_follows_committed_pairs_and_ends_at_an_unseen_token() {
        let mut table = Recycler::new(100);
        for pair in [[1, 2], [2, 3], [3, 4]] {
            table.promote(pair[0], pair[1]);
        }
        assert_eq!(draft(&table, 1, 8), [2, 3, 4]);
        assert_eq!(draft(&table, 4, 8), []);
        assert_eq!(draft(&table, 100, 8), [], "a token outside the vocabulary has no place");
    }

    #[test]
    fn a_row_counts_by_its_best_token_in_the_vocabulary() {
        let mut table = Recycler::new(100);
        table.overwrite(5, &[10, 11, 12]);
        assert_eq!(table.first(5), Some(10));
        table.overwrite(5, &[100, 7, u32::MAX]);
        assert_eq!(table.first(5), Some(7), "ids outside the vocabulary are left out");
        table.overwrite(100, &[1]);
        table.promote(5, 100);
        table.promote(100, 5);
        assert_eq!(table.first(5), Some(7));
        table.overwrite(5, &[100]);
        assert_eq!(table.first(5), None);
    }

    #[test]
    fn a_circle_is_walked_to_the_limit() {
        let mut table = Recycler::new(10);
        table.promote(3, 3);
        assert_eq!(draft(&table, 3, 8), [3; 8]);
        table.promote(4, 5);
        table.promote(5, 4);
        assert_eq!(draft(&table, 4, 5), [5, 4, 5, 4, 5]);
        assert_eq!(draft(&table, 4, 0), []);
    }

    #[test]
    fn a_vocabulary_of_151936_takes_0_58_mib() {
        let mut table = Recycler::new(151_936);
        assert_eq!(table.bytes(), 607_744);
        table.promote(151_935, 0);
        table.promote(0, 151_935);
        assert_eq!(draft(&table, 0, 3), [151_935, 0, 151_935]);
    }

    /// The whole matrix: the newest distinct successors of each token, best first.
    struct Matrix(Vec<Vec<u32>>);

    impl Matrix {
        const WIDTH: usize = 8;

        fn overwrite(&mut self, token: u32, top: &[u32]) {
            let n_vocab = self.0.len() as u32;
            if token < n_vocab {
                self.0[token as usize] = top.iter().copied().filter(|&next| next < n_vocab).take(Self::WIDTH).collect();
            }
        }

        fn promote(&mut self, token: u32, next: u32) {
            if token.max(next) < self.0.len() as u32 {
                let row = &mut self.0[token as usize];
                row.retain(|&seen| seen != next);
                row.insert(0, next);
                row.truncate(Self::WIDTH);
            }
        }

        fn draft(&self, mut token: u32, max: usize) -> Vec<u32> {
            let mut out = Vec::new();
            while out.len() < max
                && let Some(&next) = self.0.get(token as usize).and_then(|row| row.first())
            {
                out.push(next);
                token = next;
            }
            out
        }
    }

    proptest! {
        #[test]
        fn drafts_are_those_of_the_whole_matrix(
            events in prop::collection::vec((0u32..14, prop::collection::vec(0u32..14, 0..12), any::<bool>()), 0..200)
        ) {
            let mut table = Recycler::new(12);
            let mut twin = Matrix(vec![Vec::new(); 12]);
            for (token, tokens, row) in events {
                if row {
                    table.overwrite(token, &tokens);
                    twin.overwrite(token, &tokens);
                } else {
                    for &next in &tokens {
                        table.promote(token, next);
                        twin.promote(token, next);
                    }
                }
                for start in 0..13 {
                    prop_assert_eq!(draft(&table, start, 9), twin.draft(start, 9));
                }
            }
        }
    }
}
