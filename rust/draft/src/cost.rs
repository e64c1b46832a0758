//! The cost model: what a forward of rows of one or several sequences costs on this machine, now, at this context.
//!
//! In: a [`CostTable`] as the prior; the time of each step. Out: costs in plain steps, to `speculator`, `planner` and the engine.
//!
//! M1  Cost 1 is a plain step: one row of one sequence, at the same number of cached tokens. The rows of several sequences share the weights as the rows
//!     of one do, so the prior of r rows is the table's cost of r - 1 drafted tokens.
//! M2  One sequence: a verification costs scale * prior, at least 1. The scale follows the timed verifications, each compared with the running plain step.
//! M3  Several sequences: a step without drafts costs base * prior, at least 1; one with drafts base * scale * prior, at least what it would cost without
//!     them. The base follows the timed steps without drafts, compared with the running plain step of one sequence; until one is timed it is the scale
//!     of one sequence. This scale is apart from that of one sequence.
//! M4  What is learned is kept for each power of two of cached tokens, those under 64 together. A bucket without samples uses the nearest bucket that
//!     has some, the lower of two; its first sample continues from there.
//! M5  A verification is timed against a plain step, so there must be one: after `baseline_after` timed verifications without any, and later after
//!     `baseline_every`, [`CostModel::wants_plain_step`] asks for one. Otherwise a stream of good drafts would never show that the table is wrong, or
//!     that steps have become slower with the context. The counts of one and of several sequences are apart.
//! M6  Time comes in as numbers. The same calls give the same costs.
//!
//! Cost: constant per call. Source of the scale's step and bounds: Fucina's cost gate.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{OptionsError, check_range};
use crate::table::CostTable;

#[cfg(test)]
mod tests;

/// How much of a new verification enters the scale, and the bounds of both.
const SCALE_STEP: f64 = 0.2;
const SCALE_BOUNDS: (f64, f64) = (0.25, 4.0);
/// How much of a new plain step enters the running plain step.
const PLAIN_STEP: f64 = 0.25;
/// Cached tokens that share the first bucket, and how many buckets there are.
const FIRST_BUCKET: usize = 64;
const BUCKETS: usize = 26;

/// When the model asks for plain steps, and which timings it leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostOptions {
    /// Timings left out: of the first steps, and of the first verifications. First runs are slow.
    pub warmup: u32,
    /// Timed verifications after which a plain step is asked for if none was timed yet, at least 1.
    pub baseline_after: u32,
    /// Timed verifications after which another plain step is asked for, at least 1.
    pub baseline_every: u32,
}

impl Default for CostOptions {
    fn default() -> Self {
        Self { warmup: 1, baseline_after: 8, baseline_every: 256 }
    }
}

/// A step and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedStep {
    /// Rows of all sequences.
    pub rows: usize,
    /// Sequences.
    pub spans: usize,
    /// Cached tokens of a sequence, before the step; the mean of several.
    pub cached: usize,
    /// Rows among them that hold drafted tokens.
    pub drafted: usize,
    /// Nanoseconds of the whole step; 0 if it was not timed. Without those spent on suggestions if nothing was drafted.
    pub ns: u64,
}

/// What the cost model has learned about one number of cached tokens and sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct CostStats {
    /// Where the table comes from.
    pub provenance: String,
    /// Live correction of the table for steps with drafts.
    pub scale: f64,
    /// The running plain step of one sequence in ns; `None` before one was timed.
    pub plain_ns: Option<f64>,
}

/// What was learned in one bucket.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Nanoseconds of a step without drafts, per unit of its prior.
    plain_ns: Option<f64>,
    scale: Option<f64>,
}

/// What is known of steps of one sequence, or of steps of several.
#[derive(Debug, Clone, Default)]
struct Learned {
    cells: [Cell; BUCKETS],
    /// Timed verifications since the last step without drafts.
    unbased: u32,
}

/// The costs of one model file on one machine.
#[derive(Debug, Clone)]
pub struct CostModel {
    table: CostTable,
    options: CostOptions,
    alone: Learned,
    company: Learned,
    plain_seen: u32,
    verify_seen: u32,
}

fn bucket(cached: usize) -> usize {
    ((cached / FIRST_BUCKET).checked_ilog2().map_or(0, |log| log + 1) as usize).min(BUCKETS - 1)
}

fn follow(old: f64, sample: f64, step: f64) -> f64 {
    step * sample + (1.0 - step) * old
}

impl Learned {
    /// A figure of the nearest bucket that has it.
    fn nearest(&self, at: usize, figure: impl Fn(&Cell) -> Option<f64>) -> Option<f64> {
        let seek = |at: usize| self.cells.get(at).and_then(&figure);
        // Past the first bucket the number below wraps to one that no bucket has.
        (0..BUCKETS).find_map(|distance| seek(at.wrapping_sub(distance)).or_else(|| seek(at + distance)))
    }

    fn plain_ns(&self, cached: usize) -> Option<f64> {
        self.nearest(bucket(cached), |cell| cell.plain_ns)
    }

    fn scale(&self, cached: usize) -> Option<f64> {
        self.nearest(bucket(cached), |cell| cell.scale)
    }

    fn learn_plain(&mut self, cached: usize, sample: f64) {
        let now = self.plain_ns(cached).map_or(sample, |old| follow(old, sample, PLAIN_STEP));
        self.cells[bucket(cached)].plain_ns = Some(now);
    }

    fn learn_scale(&mut self, cached: usize, sample: f64) {
        let (low, high) = SCALE_BOUNDS;
        let old = self.scale(cached).unwrap_or(1.0);
        self.cells[bucket(cached)].scale = Some(follow(old, sample.clamp(low, high), SCALE_STEP).clamp(low, high));
    }
}

impl CostModel {
    /// A model that knows `table` and nothing else yet.
    pub fn new(table: CostTable) -> Self {
        Self {
            table,
            options: CostOptions::default(),
            alone: Learned::default(),
            company: Learned::default(),
            plain_seen: 0,
            verify_seen: 0,
        }
    }

    /// The same with other options.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn with_options(table: CostTable, options: CostOptions) -> Result<Self, OptionsError> {
        check_range("baseline_after", options.baseline_after, 1, u32::MAX)?;
        check_range("baseline_every", options.baseline_every, 1, u32::MAX)?;
        Ok(Self { options, ..Self::new(table) })
    }

    /// The prior.
    pub fn table(&self) -> &CostTable {
        &self.table
    }

    fn prior(&self, rows: usize, cached: usize) -> f64 {
        self.table.cost(rows.saturating_sub(1), cached)
    }

    /// Cost of a step that forwards `rows` rows of `spans` sequences with `cached` cached tokens each, in plain steps. More rows than sequences: the step
    /// holds drafts or parts of prompts.
    pub fn cost(&self, rows: usize, spans: usize, cached: usize) -> f64 {
        self.priced(spans, cached).cost(rows)
    }

    /// Cost of the `drafted` rows of one sequence in a step of `rows` rows in all, as this sequence feels it: a step of its own in plain steps of its own.
    ///
    /// Let c be [`Self::cost`], B the sequences of the step, d = c(rows) - c(rows - drafted) what the draft adds. Without any draft the step would commit B
    /// tokens for c(B), so a time of 1 is worth B / c(B) tokens to the batch. The draft pays if it is expected to bring more tokens than d is worth, so the
    /// step counts as 1 + d * B / c(B). For one sequence that is the cost of its verification.
    pub fn draft_cost(&self, drafted: usize, rows: usize, spans: usize, cached: usize) -> f64 {
        self.priced(spans, cached).draft_cost(drafted, rows)
    }

    /// Writes to `extra` what drafts of 0 to `most` tokens add to a plain step of one sequence ([`Self::draft_cost`] less 1), in a step that holds
    /// `other_rows` rows of other sequences, `spans` sequences in all.
    pub(crate) fn extras(&self, other_rows: usize, spans: usize, cached: usize, most: usize, extra: &mut Vec<f64>) {
        let priced = self.priced(spans, cached);
        extra.clear();
        extra.extend((0..=most).map(|d| priced.draft_cost(d, other_rows + 1 + d) - 1.0));
    }

    /// The rule for one number of sequences and cached tokens, looked up once.
    pub(crate) fn priced(&self, spans: usize, cached: usize) -> Priced<'_> {
        let scale = self.alone.scale(cached).unwrap_or(1.0);
        if spans <= 1 {
            return Priced { model: self, spans: 1, cached, base: 1.0, scale, plain: 1.0 };
        }
        let base = match (self.company.plain_ns(cached), self.alone.plain_ns(cached)) {
            (Some(company), Some(alone)) => company / alone,
            // Without a plain step of one sequence nothing is known about the base; only the ratio of costs counts then.
            (Some(_), None) => 1.0,
            (None, _) => scale,
        };
        let plain = (base * self.prior(spans, cached)).max(1.0);
        Priced { model: self, spans, cached, base, scale: self.company.scale(cached).unwrap_or(1.0), plain }
    }

    /// Whether a step should go without drafts, because a verification can only be timed against a plain step.
    pub fn wants_plain_step(&self, spans: usize) -> bool {
        let learned = if spans > 1 { &self.company } else { &self.alone };
        let timed = learned.plain_ns(0).is_some();
        learned.unbased >= if timed { self.options.baseline_every } else { self.options.baseline_after }
    }

    /// Learns from a step. One that holds rows of a prompt (`rows` other than `spans` + `drafted`) teaches no cost.
    pub fn observe(&mut self, step: TimedStep) {
        let TimedStep { rows, spans, cached, drafted, ns } = step;
        let (base, prior) = (self.prior(spans, cached), self.prior(rows, cached));
        let learned = if spans > 1 { &mut self.company } else { &mut self.alone };
        if drafted == 0 {
            learned.unbased = 0;
        }
        if ns == 0 || rows != spans + drafted {
            return;
        }
        if drafted == 0 {
            self.plain_seen = self.plain_seen.saturating_add(1);
            if self.plain_seen.saturating_add(self.verify_seen) > self.options.warmup {
                learned.learn_plain(cached, ns as f64 / base);
            }
        } else {
            self.verify_seen = self.verify_seen.saturating_add(1);
            learned.unbased = learned.unbased.saturating_add(1);
            if self.verify_seen > self.options.warmup
                && let Some(plain_ns) = learned.plain_ns(cached)
            {
                learned.learn_scale(cached, (ns as f64 / plain_ns).max(base) / prior);
            }
        }
    }

    /// The running plain step of one sequence with `cached` cached tokens, in ns; `None` before one was timed.
    pub fn plain_ns(&self, cached: usize) -> Option<f64> {
        self.alone.plain_ns(cached)
    }

    /// What was learned about steps of `spans` sequences with `cached` cached tokens each.
    pub fn stats(&self, spans: usize, cached: usize) -> CostStats {
        let learned = if spans > 1 { &self.company } else { &self.alone };
        CostStats {
            provenance: self.table.provenance().to_owned(),
            scale: learned.scale(cached).unwrap_or(1.0),
            plain_ns: self.plain_ns(cached),
        }
    }
}

/// The costs of rows for one number of sequences and cached tokens.
pub(crate) struct Priced<'a> {
    model: &'a CostModel,
    spans: usize,
    cached: usize,
    base: f64,
    scale: f64,
    /// Cost of the step without drafts.
    plain: f64,
}

impl Priced<'_> {
    pub(crate) fn cost(&self, rows: usize) -> f64 {
        if rows <= self.spans {
            return self.plain;
        }
        (self.base * self.scale * self.model.prior(rows, self.cached)).max(self.plain)
    }

    fn draft_cost(&self, drafted: usize, rows: usize) -> f64 {
        if self.spans == 1 && rows == drafted + 1 {
            return self.cost(rows);
        }
        let added = self.cost(rows) - self.cost(rows.saturating_sub(drafted));
        1.0 + added.max(0.0) * self.spans as f64 / self.plain
    }
}

/// A cost model that the sequences of an engine share. A clone is another handle to the same model.
#[derive(Clone)]
pub struct Costs(Arc<Mutex<CostModel>>);

impl fmt::Debug for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Costs({})", self.lock().table.provenance())
    }
}

impl From<CostModel> for Costs {
    fn from(model: CostModel) -> Self {
        Self(Arc::new(Mutex::new(model)))
    }
}

impl From<CostTable> for Costs {
    fn from(table: CostTable) -> Self {
        CostModel::new(table).into()
    }
}

impl Costs {
    /// The model, for several questions at once. Others wait meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, CostModel> {
        // A model is whole after every statement, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
