//! The rows of a head: those that wait, and the positions of those that its cache holds.
//!
//! In: kept positions with their hidden rows. Out: batches of rows, to the head.
//!
//! - **W1** A row belongs to a position P of the target: the token at P + 1, which the head embeds, and the hidden rows of P. It predicts the token at P + 2.
//! - **W2** Positions ascend, first those in the cache, then those that wait. Some may be missing (R3 of the parent).
//! - **W3** Rows wait until they are needed or are many, so that those of a step are computed together with the first guess after it.
//!
//! Cost: 4 bytes a cached row; `taps · n_embd · 4` bytes a waiting one.

use super::Kept;

/// So many waiting rows are computed at once, without waiting for a guess.
pub(super) const MANY: usize = 64;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    /// Positions of the rows in the cache.
    cached: Vec<u32>,
    /// Those of waiting rows.
    waiting: Vec<u32>,
    /// The tokens after them.
    tokens: Vec<u32>,
    /// Their hidden rows, one after another, each with the layers side by side.
    hidden: Vec<f32>,
}

impl Rows {
    /// Takes in kept positions.
    pub(super) fn settle(&mut self, kept: Kept<'_>) {
        self.rewind(kept.first);
        for i in 0..kept.n {
            let pos = kept.first + i;
            self.waiting.push(pos as u32);
            self.tokens.push(kept.history[pos + 1]);
            kept.hidden.row(i).for_each(|row| self.hidden.extend_from_slice(row));
        }
    }

    /// Whether the newest waiting row predicts what follows `history`.
    pub(super) fn is_ready(&self, history: &[u32]) -> bool {
        self.waiting.last().is_some_and(|pos| *pos as usize + 2 == history.len())
    }

    /// How many rows wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The tokens of the first `n` waiting rows.
    pub(super) fn tokens(&self, n: usize) -> &[u32] {
        &self.tokens[..n]
    }

    /// Their positions.
    pub(super) fn positions(&self, n: usize) -> &[u32] {
        &self.waiting[..n]
    }

    /// The hidden rows of waiting row `i`.
    pub(super) fn hidden(&self, i: usize) -> &[f32] {
        let width = self.hidden.len() / self.waiting.len().max(1);
        &self.hidden[i * width..(i + 1) * width]
    }

    /// The first `n` waiting rows are in the cache now.
    pub(super) fn cached(&mut self, n: usize) {
        let width = self.hidden.len() / self.waiting.len().max(1);
        self.cached.extend(self.waiting.drain(..n));
        self.tokens.drain(..n);
        self.hidden.drain(..n * width);
    }

    /// Forgets rows of positions from `n` on. Gives how many rows the cache keeps.
    pub(super) fn rewind(&mut self, n: usize) -> usize {
        let width = self.hidden.len() / self.waiting.len().max(1);
        let before = |positions: &[u32]| positions.partition_point(|pos| (*pos as usize) < n);
        let kept = before(&self.waiting);
        self.waiting.truncate(kept);
        self.tokens.truncate(kept);
        self.hidden.truncate(kept * width);
        let cached = before(&self.cached);
        self.cached.truncate(cached);
        cached
    }

    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        (self.cached.len() + 2 * self.waiting.len() + self.hidden.len()) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::super::Hidden;
    use super::*;

    /// Rows of two layers of two numbers: 100 · layer + position, twice.
    fn settle(rows: &mut Rows, history: &[u32], first: usize, n: usize) {
        let values: Vec<f32> = (0..2)
            .flat_map(|layer| (0..n).map(move |i| (100 * layer + first + i) as f32))
            .flat_map(|v| [v, v])
            .collect();
        rows.settle(Kept { history, first, n, hidden: Hidden { values: &values, stride: n, n_embd: 2 } });
    }

    #[test]
    fn a_row_pairs_a_position_with_the_token_after_it_and_all_its_layers() {
        let (mut rows, history) = (Rows::default(), [7, 8, 9, 10, 11]);
        settle(&mut rows, &history[..4], 0, 3);
        assert_eq!((rows.tokens(3), rows.positions(3)), (&[8, 9, 10][..], &[0, 1, 2][..]));
        assert_eq!(rows.hidden(2), [2.0, 2.0, 102.0, 102.0]);
        assert!(rows.is_ready(&history[..4]) && !rows.is_ready(&history[..5]) && !rows.is_ready(&history[..3]));
        rows.cached(2);
        assert_eq!((rows.tokens(1), rows.hidden(0)), (&[10][..], &[2.0, 2.0, 102.0, 102.0][..]));
        settle(&mut rows, &history, 3, 1);
        assert!(rows.is_ready(&history) && rows.waiting() == 2);
    }

    #[test]
    fn going_back_leaves_the_rows_before_and_a_gap_stays_a_gap() {
        let (mut rows, history) = (Rows::default(), [7; 12]);
        settle(&mut rows, &history, 0, 4);
        rows.cached(4);
        settle(&mut rows, &history, 8, 3);
        assert_eq!(rows.positions(3), [8, 9, 10]);
        assert_eq!((rows.rewind(9), rows.waiting()), (4, 1));
        assert_eq!(rows.hidden(0), [8.0, 8.0, 108.0, 108.0]);
        assert_eq!((rows.rewind(2), rows.waiting()), (2, 0));
        settle(&mut rows, &history, 1, 1);
        assert_eq!(
            (rows.rewind(9), rows.positions(1)),
            (1, &[1][..]),
            "a position that comes again replaces what came from it on"
        );
    }
}
