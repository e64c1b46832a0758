//! Token recycling: drafts from the newest known successors of each token.
//!
//! In: committed bigrams, and top-k rows where somebody offers them. Out: drafts, to `cascade`, where no longer match exists.
//!
//! R1  Row t holds the newest known successors of token t, best first: at most `WIDTH`, each once if its source was so.
//! R2  An unseen place is empty, and a walk ends there, at a token outside the vocabulary, or at the caller's limit.
//! R3  `overwrite` replaces a row whole; `promote` moves a committed successor to the front, pushing out the last.
//!
//! The walk follows first columns, so it can circle; the limit is what bounds it. quoth's own decoder offers no rows (`Cascade::topk` is 0): after each
//! step the committed bigrams would stand before them (D5 in `cascade`), so its drafts come from bigrams alone.
//! Cost: `n_vocab` x 8 x 4 bytes, asked for at construction as zero pages, which take no memory until they are written.
//! Source: Token Recycling (Luo et al. 2024). The promotion of committed bigrams is Fucina's.

/// Successors kept for each token.
pub const WIDTH: usize = 8;

/// A place without a successor. Others hold the token plus one, so that zeroed memory is an empty matrix.
const EMPTY: u32 = 0;

/// The successors of each token of a vocabulary.
#[derive(Debug, Clone)]
pub struct Recycler {
    rows: Vec<[u32; WIDTH]>,
}

impl Recycler {
    /// An empty matrix for tokens below `n_vocab`.
    pub fn new(n_vocab: usize) -> Self {
        Self { rows: vec![[EMPTY; WIDTH]; n_vocab] }
    }

    /// Size of the matrix in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() * size_of::<[u32; WIDTH]>()
    }

    /// The known successors of `token`, best first.
    pub fn successors(&self, token: u32) -> impl Iterator<Item = u32> + '_ {
        let row = self.rows.get(token as usize).map_or(&[][..], |row| row);
        row.iter().take_while(|&&stored| stored != EMPTY).map(|stored| stored - 1)
    }

    /// The best known successor of `token`.
    #[inline]
    pub fn first(&self, token: u32) -> Option<u32> {
        self.rows.get(token as usize)?[0].checked_sub(1)
    }

    /// Replaces the successors of `token` by the first `WIDTH` of `top`. Ids outside the vocabulary are left out.
    pub fn overwrite(&mut self, token: u32, top: &[u32]) {
        let n_vocab = self.rows.len();
        if let Some(row) = self.rows.get_mut(token as usize) {
            *row = [EMPTY; WIDTH];
            let valid = top.iter().filter(|&&next| (next as usize) < n_vocab);
            for (place, next) in row.iter_mut().zip(valid) {
                *place = next + 1;
            }
        }
    }

    /// Makes `next` the best successor of `token`. Ids outside the vocabulary change nothing.
    #[inline]
    pub fn promote(&mut self, token: u32, next: u32) {
        if next as usize >= self.rows.len() {
            return;
        }
        if let Some(row) = self.rows.get_mut(token as usize) {
            let stored = next + 1;
            if row[0] != stored {
                let last = row.iter().position(|&place| place == stored).unwrap_or(WIDTH - 1);
                row[..=last].rotate_right(1);
                row[0] = stored;
            }
        }
    }

    /// Appends to `out` the chain of best successors from `token`, at most `max`.
    pub fn draft(&self, token: u32, max: usize, out: &mut Vec<u32>) {
        let chain = std::iter::successors(self.first(token), |&next| self.first(next));
        out.extend(chain.take(max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft(matrix: &Recycler, token: u32, max: usize) -> Vec<u32> {
        let mut out = Vec::new();
        matrix.draft(token, max, &mut out);
        out
    }

    #[test]
    fn a_walk_follows_committed_bigrams_and_ends_at_an_unseen_token() {
        let mut matrix = Recycler::new(100);
        for pair in [[1, 2], [2, 3], [3, 4]] {
            matrix.promote(pair[0], pair[1]);
        }
        assert_eq!(draft(&matrix, 1, 8), [2, 3, 4]);
        assert_eq!(draft(&matrix, 4, 8), []);
        assert_eq!(draft(&matrix, 100, 8), [], "a token outside the vocabulary has no row");
    }

    #[test]
    fn overwriting_keeps_the_first_eight_and_empties_the_rest() {
        let mut matrix = Recycler::new(100);
        matrix.overwrite(5, &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!(matrix.successors(5).collect::<Vec<_>>(), [10, 11, 12, 13, 14, 15, 16, 17]);
        matrix.overwrite(5, &[20, 21]);
        assert_eq!(matrix.successors(5).collect::<Vec<_>>(), [20, 21]);
        matrix.overwrite(5, &[100, 7, u32::MAX]);
        assert_eq!(matrix.successors(5).collect::<Vec<_>>(), [7], "ids outside the vocabulary are left out");
        matrix.overwrite(100, &[1]);
        matrix.promote(5, 100);
        matrix.promote(100, 5);
        assert_eq!(matrix.successors(5).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_circle_is_walked_to_the_limit() {
        let mut matrix = Recycler::new(10);
        matrix.promote(3, 3);
        assert_eq!(draft(&matrix, 3, 8), [3; 8]);
        matrix.promote(4, 5);
        matrix.promote(5, 4);
        assert_eq!(draft(&matrix, 4, 5), [5, 4, 5, 4, 5]);
        assert_eq!(draft(&matrix, 4, 0), []);
    }

    #[test]
    fn a_vocabulary_of_151936_takes_4_64_mib() {
        let mut matrix = Recycler::new(151_936);
        assert_eq!(matrix.bytes(), 4_861_952);
        matrix.promote(151_935, 0);
        matrix.promote(0, 151_935);
        assert_eq!(draft(&matrix, 0, 3), [151_935, 0, 151_935]);
    }

    proptest! {
        #[test]
        fn a_row_is_the_newest_distinct_successors(next in prop::collection::vec(0u32..12, 0..200)) {
            let mut matrix = Recycler::new(12);
            let mut twin: Vec<u32> = Vec::new();
            for &token in &next {
                matrix.promote(0, token);
                twin.retain(|&seen| seen != token);
                twin.insert(0, token);
                twin.truncate(WIDTH);
                prop_assert_eq!(matrix.successors(0).collect::<Vec<_>>(), &twin[..]);
            }
        }
    }
}
