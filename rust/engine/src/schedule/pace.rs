//! How many rows of prompts a step may read while other sequences decode.
//!
//! In: what steps with prompts took. Out: the rows of the next.
//!
//! - **B1** While a sequence decodes, a step with prompt rows takes about [`STEPS`] plain steps, so tokens keep coming; where no sequence decodes, a prompt
//!   gets all rows of a pass.
//! - **B2** A prompt always gets [`FEWEST`] rows, or it would never be read.
//!
//! Cost: constant.

use quoth_draft::Costs;

use crate::model::MAX_ROWS;

/// The longest step while others wait, in plain steps.
pub(crate) const STEPS: f64 = 5.0;
/// Rows that a prompt gets in any case, and until a row has been timed.
const FEWEST: usize = 16;
const UNTIMED: usize = 32;
/// How much of a new timing enters the time of a row.
const FOLLOW: f64 = 0.25;

/// What a prompt's row costs here.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    row_ns: Option<f64>,
}

impl Pace {
    /// Rows of prompts for a step in which so many sequences decode.
    pub(crate) fn prompt_rows(&self, decoding: usize, costs: &Costs) -> usize {
        if decoding == 0 {
            return MAX_ROWS;
        }
        let Some((row_ns, plain_ns)) = self.row_ns.zip(plain_ns(costs)) else { return UNTIMED };
        let left = STEPS * plain_ns - decode_ns(decoding, costs);
        ((left / row_ns) as usize).clamp(FEWEST, MAX_ROWS)
    }

    /// A step with `decoding` decoding sequences that read `read` tokens of prompts took `ns`.
    pub(crate) fn record(&mut self, decoding: usize, read: usize, ns: u64, costs: &Costs) {
        if read == 0 {
            return;
        }
        let row_ns = (ns as f64 - decode_ns(decoding, costs)).max(0.0) / read as f64;
        self.row_ns = Some(self.row_ns.map_or(row_ns, |old| old + FOLLOW * (row_ns - old)));
    }
}

/// A plain step of one sequence.
fn plain_ns(costs: &Costs) -> Option<f64> {
    costs.lock().plain_ns(0)
}

/// What the carried rows of decoding sequences take; 0 where nothing is known.
fn decode_ns(decoding: usize, costs: &Costs) -> f64 {
    let costs = costs.lock();
    costs.plain_ns(0).map_or(0.0, |ns| if decoding == 0 { 0.0 } else { ns * costs.cost(decoding, decoding, 0) })
}
