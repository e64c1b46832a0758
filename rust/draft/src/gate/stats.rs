//! What the gate says about itself: its state, its figures, and why it closed.
//!
//! In: the gate's counts. Out: values for `stats`, with reasons that read as sentences.

use std::fmt;

/// Whether the gate lets drafts through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateState {
    /// Drafting pays, or has not been shown not to.
    #[default]
    Open,
    /// Drafting did not pay; plain steps until the wait is over.
    Closed,
    /// A few verifications decide.
    Probing,
}

impl fmt::Display for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Probing => "probing",
        })
    }
}

/// Why the gate last closed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GateReason {
    /// Verifications committed less than they cost.
    Loss {
        /// Verifications judged.
        verifies: usize,
        /// Tokens that they committed.
        committed: u64,
        /// What they cost, in plain steps.
        cost: f64,
    },
    /// Drafting took time and brought no drafts that paid for it.
    Idle {
        /// Share of a plain step that the last fruitless suggestion took.
        share: f64,
    },
}

impl fmt::Display for GateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss { verifies, committed, cost } => {
                write!(f, "{verifies} verifications committed {committed} tokens at the cost of {cost:.1} plain steps")
            }
            Self::Idle { share } => write!(f, "drafting took {share:.2} plain steps and found nothing to verify"),
        }
    }
}

/// What the gate has seen and decided.
#[derive(Debug, Clone, PartialEq)]
pub struct GateStats {
    /// The state now.
    pub state: GateState,
    /// Committed tokens per cost over the ring; `None` while the ring is empty.
    pub estimated_speedup: Option<f64>,
    /// How often the gate closed from open.
    pub trips: u64,
    /// Probes begun.
    pub probes: u64,
    /// Probes that opened the gate.
    pub reopened: u64,
    /// Steps that a closed gate refused a draft.
    pub closed_steps: u64,
    /// Asked steps until the next probe; 0 unless closed.
    pub probe_in: u32,
    /// Why the gate last closed.
    pub reason: Option<GateReason>,
}
