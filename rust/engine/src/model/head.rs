//! The output head: final norm, output matrix, soft cap; rows of logits, or only the greatest of each.
//!
//! Where only the greatest of some rows are wanted (greedy decoding), or logits in several places, a worker computes a piece of all rows, hands it to each
//! row's sink while it is in its cache, and goes on: rows of which only the greatest are wanted are never written to memory. Where one span wants nothing but
//! logits, the product writes them in place.

use quoth_kernels::top::Best;

use super::Model;
use super::forward::Scratch;
use super::rows::{Packed, with_packed};
use crate::constraint::{Mask, PendingMasks};
use crate::error::{Error, Result};
use crate::pool::Worker;
use crate::shared::Shared;

/// What each worker does with the packed rows.
type Job<'a> = dyn Fn(Worker, &Packed, &mut Vec<f32>) + Sync + 'a;

/// Panels of a piece.
const PIECE: usize = 32;

/// What is wanted of a span's wanted rows.
#[derive(Debug)]
pub enum Output<'o> {
    /// All logits, `[rows][n_vocab]`.
    Logits(&'o mut [f32]),
    /// The greatest logits of each row; how many, each [`Best`] says.
    Best(&'o mut [Best]),
    /// The greatest of the allowed logits of each row; the masks are waited for, and the first row has this one.
    Masked(&'o mut [Best], &'o PendingMasks, usize),
}

impl Output<'_> {
    /// Whether there is room for exactly so many rows.
    pub(crate) fn check(&self, rows: usize, n_vocab: usize) -> Result<()> {
        let (found, expected) = match self {
            Output::Logits(logits) => (logits.len(), rows * n_vocab),
            Output::Best(best) | Output::Masked(best, ..) => (best.len(), rows),
        };
        if found != expected {
            return Err(Error::Internal(format!("room for {found} results of {rows} rows, expected {expected}")));
        }
        Ok(())
    }

    /// A sink for each row.
    fn sinks(&mut self, n_vocab: usize) -> Vec<Sink<'_>> {
        match self {
            Output::Logits(logits) => logits.chunks_exact_mut(n_vocab).map(Sink::Logits).collect(),
            Output::Best(best) => best.iter_mut().map(|best| Sink::Best(best, &Mask::All)).collect(),
            Output::Masked(best, masks, first) => {
                let masks = masks.wait().iter().skip(*first).chain(std::iter::repeat(&Mask::All));
                best.iter_mut().zip(masks).map(|(best, mask)| Sink::Best(best, mask)).collect()
            }
        }
    }
}

/// Where one row goes.
#[derive(Debug)]
enum Sink<'a> {
    Logits(&'a mut [f32]),
    /// Only what the mask allows.
    Best(&'a mut Best, &'a Mask),
}

/// A worker's memory for pieces.
#[derive(Debug, Default)]
pub(crate) struct WorkerBest {
    piece: Vec<f32>,
    rows: Vec<Best>,
}

impl Model {
    /// Final norm and output matrix for some rows of the batch, `wanted` in number. The outputs have room for them, one output after another.
    pub(crate) fn head(&self, wanted: &[usize], outputs: &mut [&mut Output<'_>], scratch: &mut Scratch) {
        match outputs {
            [Output::Logits(logits)] => self.logits(wanted, logits, scratch),
            _ => {
                let sinks = outputs.iter_mut().flat_map(|output| output.sinks(self.config.n_vocab)).collect();
                self.sort(wanted, sinks, scratch);
            }
        }
    }

    /// All logits of the rows, computed where they are wanted.
    fn logits(&self, wanted: &[usize], logits: &mut [f32], scratch: &mut Scratch) {
        let (n_vocab, m) = (self.config.n_vocab, wanted.len());
        let matrix = &self.weights.output;
        let logits = Shared::new(logits);
        self.with_normed(wanted, scratch, &|worker, packed, _| {
            let panels = worker.share(matrix.panels());
            let (from, to) = (panels.start * 16, (panels.end * 16).min(n_vocab));
            // SAFETY: each worker writes the columns of its share of panels.
            unsafe { self.product(matrix, panels, packed, &logits, (0, n_vocab), &[]) };
            for r in 0..m {
                // SAFETY: these columns are of this worker's share of panels.
                self.cap(unsafe { logits.part(r * n_vocab + from..r * n_vocab + to) });
            }
        });
    }

    /// The rows piece by piece, each to its sink.
    fn sort(&self, wanted: &[usize], mut sinks: Vec<Sink<'_>>, scratch: &mut Scratch) {
        let m = wanted.len();
        let matrix = &self.weights.output;
        let mut best = std::mem::take(&mut scratch.best);
        best.resize_with(self.pool.count(), WorkerBest::default);
        {
            let workers = Shared::new(&mut best);
            let places: Vec<Place<'_>> = sinks.iter_mut().map(Place::new).collect();
            self.with_normed(wanted, scratch, &|worker, packed, _| {
                // SAFETY: element i belongs to worker i alone.
                let own = &mut unsafe { workers.part(worker.index..worker.index + 1) }[0];
                own.rows.clear();
                own.rows.extend(places.iter().map(Place::best));
                own.piece.resize(m * PIECE * 16, 0.0);
                let panels = worker.share(matrix.panels());
                for first in panels.clone().step_by(PIECE) {
                    let last = panels.end.min(first + PIECE);
                    let columns = first * 16..(last * 16).min(matrix.n);
                    self.piece(matrix, first..last, packed, &mut own.piece);
                    for ((row, best), place) in own.piece.chunks_exact_mut(PIECE * 16).zip(&mut own.rows).zip(&places) {
                        let row = &mut row[..columns.len()];
                        self.cap(row);
                        match place {
                            Place::Best(_, Mask::All) => best.scan(&self.set, row, columns.start as u32),
                            Place::Best(_, Mask::Set(words)) => {
                                best.scan_allowed(&self.set, row, columns.start as u32, words);
                            }
                            Place::Best(_, Mask::One(_)) => {}
                            // SAFETY: these columns are of this worker's share of panels.
                            Place::Logits(logits) => unsafe { logits.part(columns.clone()) }.copy_from_slice(row),
                        }
                    }
                }
            });
        }
        for (r, sink) in sinks.iter_mut().enumerate() {
            if let Sink::Best(result, mask) = sink {
                result.reset(result.k());
                match mask {
                    Mask::One(id) => result.only(*id),
                    _ => best.iter().for_each(|worker| result.merge(&worker.rows[r])),
                }
            }
        }
        scratch.best = best;
    }

    /// Runs a job with the rows' final norm, packed for the output matrix.
    fn with_normed(&self, wanted: &[usize], scratch: &mut Scratch, job: &Job<'_>) {
        let n_embd = self.config.n_embd;
        let Scratch { x, own, common, .. } = scratch;
        let x = &*x;
        let norm = |r: usize, out: &mut [f32]| {
            let row = &x[wanted[r] * n_embd..(wanted[r] + 1) * n_embd];
            self.set.rms_norm(row, Some(&self.weights.output_norm), self.config.eps, out);
        };
        let rows = (self.kinds([&self.weights.output]), wanted.len(), n_embd);
        with_packed(&self.pool, &self.set, rows, &norm, own, common, job);
    }

    /// Soft-caps logits, if the model does.
    fn cap(&self, logits: &mut [f32]) {
        if let Some(cap) = self.config.soft_cap {
            self.set.soft_cap(logits, cap);
        }
    }
}

/// A sink as the workers of a job see it.
enum Place<'a> {
    Logits(Shared<'a, f32>),
    /// So many greatest of those that the mask allows.
    Best(usize, &'a Mask),
}

impl<'a> Place<'a> {
    fn new(sink: &'a mut Sink<'_>) -> Self {
        match sink {
            Sink::Logits(logits) => Place::Logits(Shared::new(logits)),
            Sink::Best(best, mask) => Place::Best(best.k(), mask),
        }
    }

    /// What a worker collects the greatest of the row in.
    fn best(&self) -> Best {
        Best::new(if let Place::Best(k, _) = self { *k } else { 0 })
    }
}
