//! The gate's knobs and their ranges.
//!
//! In: a user's choice, mostly none. Out: checked numbers, to the gate. The formulas that they enter are in `gate`.

use crate::error::{OptionsError, check_range};
use crate::table::{CostTable, MAX_DRAFT};

/// Knobs of the gate. The defaults are meant for everyone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateOptions {
    /// Verifications in the ring, 2 to 4096.
    pub window: usize,
    /// Least estimated speedup that keeps the gate open, 0.5 to 10.
    pub min_speedup: f64,
    /// What a probe must show above `min_speedup`, 0 to 10.
    pub probe_margin: f64,
    /// Closed steps before the first probe, at least 1.
    pub reprobe_after: u32,
    /// Most closed steps before a probe, at least `reprobe_after`.
    pub reprobe_max: u32,
    /// Verifications in a probe, 1 to `window`.
    pub probe_steps: usize,
    /// Shortest draft that the decoder verifies, 1 to 4096.
    pub min_draft: usize,
    /// Whether recent acceptance limits the next draft.
    pub adapt_budget: bool,
    /// Most plain steps that the first verification after an empty ring may cost above a plain step, 0 to 1000.
    pub first_risk: f64,
    /// Debt in plain steps that closes the gate if the estimate agrees, 0 to 1000.
    pub max_debt: f64,
    /// Gain in plain steps that a run may lose again before a bad estimate closes the gate, 0 to 1000.
    pub credit: f64,
    /// Share of the following wait that the loss of a closed phase may amount to, 0.001 to 1.
    pub loss_share: f64,
    /// Share of a plain step that drafting may take without counting as debt when no draft comes of it, 0 to 1.
    pub idle_share: f64,
}

impl Default for GateOptions {
    fn default() -> Self {
        Self {
            window: 16,
            min_speedup: 1.0,
            probe_margin: 0.10,
            reprobe_after: 128,
            reprobe_max: 1024,
            probe_steps: 4,
            min_draft: 2,
            adapt_budget: true,
            first_risk: 0.5,
            max_debt: 1.0,
            credit: 8.0,
            loss_share: 0.01,
            idle_share: 0.01,
        }
    }
}

impl GateOptions {
    /// The defaults, with the shortest draft that pays under `costs`.
    pub fn for_costs(costs: &CostTable) -> Self {
        Self { min_draft: costs.shortest_draft(), ..Self::default() }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn validate(&self) -> Result<(), OptionsError> {
        check_range("window", self.window, 2, 4096)?;
        check_range("min_speedup", self.min_speedup, 0.5, 10.0)?;
        check_range("probe_margin", self.probe_margin, 0.0, 10.0)?;
        check_range("reprobe_after", self.reprobe_after, 1, u32::MAX)?;
        check_range("reprobe_max", self.reprobe_max, self.reprobe_after, u32::MAX)?;
        check_range("probe_steps", self.probe_steps, 1, self.window)?;
        check_range("min_draft", self.min_draft, 1, MAX_DRAFT)?;
        check_range("first_risk", self.first_risk, 0.0, 1000.0)?;
        check_range("max_debt", self.max_debt, 0.0, 1000.0)?;
        check_range("credit", self.credit, 0.0, 1000.0)?;
        check_range("loss_share", self.loss_share, 0.001, 1.0)?;
        check_range("idle_share", self.idle_share, 0.0, 1.0)
    }
}
