//! The output head: final norm, output matrix, soft cap; rows of logits, or only the greatest of each.
//!
//! Where only the greatest are wanted (greedy decoding, and the tokens that recycling learns from), a worker computes a piece of all rows, looks at it while
//! it is in its cache, and goes on: no row is ever written to memory.

use quoth_kernels::top::Best;

use super::Model;
use super::forward::Scratch;
use super::rows::with_packed;
use crate::error::{Error, Result};
use crate::shared::Shared;

/// Panels of a piece.
const PIECE: usize = 32;

/// What is wanted of the wanted rows.
#[derive(Debug)]
pub enum Output<'o> {
    /// All logits, `[rows][n_vocab]`.
    Logits(&'o mut [f32]),
    /// The greatest logits of each row; how many, each [`Best`] says.
    Best(&'o mut [Best]),
}

impl Output<'_> {
    /// Whether there is room for exactly so many rows.
    pub(crate) fn check(&self, rows: usize, n_vocab: usize) -> Result<()> {
        let (found, expected) = match self {
            Output::Logits(logits) => (logits.len(), rows * n_vocab),
            Output::Best(best) => (best.len(), rows),
        };
        if found != expected {
            return Err(Error::Internal(format!("room for {found} results of {rows} rows, expected {expected}")));
        }
        Ok(())
    }
}

/// A worker's memory for pieces.
#[derive(Debug, Default)]
pub(crate) struct WorkerBest {
    piece: Vec<f32>,
    rows: Vec<Best>,
}

impl Model {
    /// Final norm and output matrix for the wanted rows.
    pub(crate) fn head(&self, wanted: &[usize], scratch: &mut Scratch, output: &mut Output<'_>) {
        let (n_embd, m) = (self.config.n_embd, wanted.len());
        let Scratch { x, own, common, best, .. } = scratch;
        let x = &*x;
        let norm = |r: usize, out: &mut [f32]| {
            let row = &x[wanted[r] * n_embd..(wanted[r] + 1) * n_embd];
            self.set.rms_norm(row, Some(&self.weights.output_norm), self.config.eps, out);
        };
        let matrix = &self.weights.output;
        let rows = (self.kinds([matrix]), m, n_embd);
        match output {
            Output::Logits(logits) => {
                let n_vocab = self.config.n_vocab;
                let logits = Shared::new(logits);
                with_packed(&self.pool, &self.set, rows, &norm, own, common, &|worker, packed, _| {
                    let panels = worker.share(matrix.panels());
                    let (from, to) = (panels.start * 16, (panels.end * 16).min(n_vocab));
                    // SAFETY: each worker writes the columns of its share of panels.
                    unsafe { self.product(matrix, panels, packed, &logits, (0, n_vocab), &[]) };
                    for r in 0..m {
                        // SAFETY: as above.
                        self.cap(unsafe { logits.part(r * n_vocab + from..r * n_vocab + to) });
                    }
                });
            }
            Output::Best(results) => {
                best.resize_with(self.pool.count(), WorkerBest::default);
                let workers = Shared::new(best);
                let wanted = &**results;
                with_packed(&self.pool, &self.set, rows, &norm, own, common, &|worker, packed, _| {
                    // SAFETY: element i belongs to worker i alone.
                    let own = &mut unsafe { workers.part(worker.index..worker.index + 1) }[0];
                    own.rows.clear();
                    own.rows.extend(wanted.iter().map(|best| Best::new(best.k())));
                    own.piece.resize(m * PIECE * 16, 0.0);
                    let panels = worker.share(matrix.panels());
                    for first in panels.clone().step_by(PIECE) {
                        let last = panels.end.min(first + PIECE);
                        let columns = (last * 16).min(matrix.n) - first * 16;
                        self.piece(matrix, first..last, packed, &mut own.piece);
                        for (row, best) in own.piece.chunks_exact_mut(PIECE * 16).zip(&mut own.rows) {
                            self.cap(&mut row[..columns]);
                            best.scan(&self.set, &row[..columns], (first * 16) as u32);
                        }
                    }
                });
                for (r, result) in results.iter_mut().enumerate() {
                    result.reset(result.k());
                    best.iter().for_each(|worker| result.merge(&worker.rows[r]));
                }
            }
        }
    }

    /// Soft-caps logits, if the model does.
    fn cap(&self, logits: &mut [f32]) {
        if let Some(cap) = self.config.soft_cap {
            self.set.soft_cap(logits, cap);
        }
    }
}
