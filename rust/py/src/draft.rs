//! The drafting cascade: inside a decoder, shared with it for references, or alone for other engines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quoth_draft::{
    Cascade, CascadeOptions, CostPoint, CostTable, DraftSource, Gate, GateOptions, Policy, ReferenceId, ReplayError,
    ReplayOptions, ReplayReport, SourceError, SourceStats, TopkRow, Turn,
};

use crate::convert;
use crate::errors::{busy, options};
use crate::results;

/// A cascade that a decoder and Python both hold: the decoder drafts from it, Python adds references.
#[derive(Clone)]
pub(crate) struct SharedCascade(Arc<Mutex<Cascade>>);

impl SharedCascade {
    pub(crate) fn new(cascade: Cascade) -> Self {
        SharedCascade(Arc::new(Mutex::new(cascade)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Cascade> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DraftSource for SharedCascade {
    fn suggest(&mut self, context: &[u32], max_tokens: usize, out: &mut Vec<u32>) -> Result<(), SourceError> {
        self.lock().suggest(context, max_tokens, out)
    }
    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        self.lock().observe(committed)
    }
    fn topk(&self) -> usize {
        self.lock().topk()
    }
    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.lock().observe_topk(rows)
    }
    fn truncate_pending(&mut self, n: usize) {
        self.lock().truncate_pending(n);
    }
    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.lock().rebuild(history)
    }
    fn stats(&self) -> Vec<SourceStats> {
        self.lock().stats()
    }
}

/// The fields of `quoth.Gate`.
#[derive(FromPyObject)]
pub(crate) struct GateArgs {
    window: usize,
    min_speedup: f64,
    probe_margin: f64,
    reprobe_after: u32,
    reprobe_max: u32,
    probe_steps: usize,
    adapt_budget: bool,
    first_risk: f64,
    max_debt: f64,
    credit: f64,
}

/// The fields of `quoth.Speculation`, without the source.
#[derive(FromPyObject)]
pub(crate) struct SpeculationArgs {
    pub(crate) max_draft: usize,
    min_draft: Option<usize>,
    min_match: Option<usize>,
    policy: String,
    recycling: bool,
    costs: Option<Vec<(usize, f64)>>,
    cost_provenance: String,
    gate: GateArgs,
}

impl SpeculationArgs {
    /// The measured table, or the shipped one.
    fn table(&self, py: Python<'_>) -> PyResult<CostTable> {
        match &self.costs {
            None => Ok(CostTable::default()),
            Some(points) => {
                let points = points.iter().map(|(k, cost)| CostPoint { k: *k, cost: *cost }).collect();
                CostTable::new(points, self.cost_provenance.clone()).map_err(|e| options(py, e.to_string()))
            }
        }
    }

    /// The shortest draft: as asked for, or the shortest that pays, which must not exceed the longest.
    fn shortest(&self, table: &CostTable) -> usize {
        self.min_draft.unwrap_or(table.shortest_draft().min(self.max_draft))
    }

    /// The gate that these options describe.
    pub(crate) fn gate(&self, py: Python<'_>) -> PyResult<Gate> {
        let table = self.table(py)?;
        let g = &self.gate;
        let gate = GateOptions {
            window: g.window,
            min_speedup: g.min_speedup,
            probe_margin: g.probe_margin,
            reprobe_after: g.reprobe_after,
            reprobe_max: g.reprobe_max,
            probe_steps: g.probe_steps,
            adapt_budget: g.adapt_budget,
            first_risk: g.first_risk,
            max_debt: g.max_debt,
            credit: g.credit,
            min_draft: self.shortest(&table),
            ..GateOptions::default()
        };
        Gate::new(table, gate).map_err(|e| options(py, e.to_string()))
    }

    /// The cascade that these options describe.
    pub(crate) fn cascade(&self, py: Python<'_>, n_vocab: usize) -> PyResult<Cascade> {
        let table = self.table(py)?;
        let measured = CascadeOptions::for_costs(&table);
        let policy = match self.policy.as_str() {
            "best-rate" => measured.policy.clone(),
            "fixed" => Policy::Fixed { budget_factor: 1 },
            other => return Err(options(py, format!("policy is `{other}`, expected best-rate or fixed"))),
        };
        let cascade = CascadeOptions {
            policy,
            min_match: self.min_match.unwrap_or(measured.min_match),
            min_draft: self.shortest(&table),
            recycling: self.recycling,
            chain: measured.chain.max(self.shortest(&table)),
            ..measured
        };
        Cascade::new(n_vocab, cascade).map_err(|e| options(py, e.to_string()))
    }
}

/// Checks options without a model.
#[pyfunction]
pub(crate) fn check_speculation(py: Python<'_>, args: SpeculationArgs) -> PyResult<()> {
    let most = quoth_engine::decode::MAX_DRAFT;
    if args.max_draft == 0 || args.max_draft > most {
        return Err(options(py, format!("max_draft is {}, expected 1 to {most}", args.max_draft)));
    }
    if let Some(min) = args.min_draft.filter(|min| *min > args.max_draft) {
        // Nothing would ever be drafted.
        return Err(options(py, format!("min_draft is {min}, expected at most max_draft, {}", args.max_draft)));
    }
    args.gate(py)?;
    args.cascade(py, 1)?;
    Ok(())
}

/// Adds a document; its handle as a number.
pub(crate) fn add_reference(py: Python<'_>, cascade: &SharedCascade, tokens: &[u32]) -> PyResult<u64> {
    let added = py.detach(|| cascade.lock().add_reference(tokens));
    added.map(handle).map_err(|e| options(py, e.to_string()))
}

fn handle(id: ReferenceId) -> u64 {
    id.0
}

/// The cascade without a model.
#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct DraftIndex {
    cascade: SharedCascade,
}

#[pymethods]
impl DraftIndex {
    #[new]
    fn new(py: Python<'_>, n_vocab: usize, args: SpeculationArgs) -> PyResult<Self> {
        Ok(DraftIndex { cascade: SharedCascade::new(args.cascade(py, n_vocab)?) })
    }

    fn observe(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens = convert::tokens(tokens)?;
        let mut cascade = self.lock(py)?;
        let cascade = &mut *cascade;
        py.detach(|| cascade.observe(&tokens)).map_err(|e| options(py, e.to_string()))
    }

    fn suggest(&self, py: Python<'_>, context: Option<&Bound<'_, PyAny>>, max_tokens: usize) -> PyResult<Vec<u32>> {
        let mut cascade = self.lock(py)?;
        let context = match context {
            // Only the end of the context is looked at; the index knows the rest.
            Some(context) => convert::tokens(context)?,
            None => cascade.index().last().into_iter().collect(),
        };
        let mut draft = Vec::new();
        cascade.suggest(&context, max_tokens, &mut draft).map_err(|e| options(py, e.to_string()))?;
        Ok(draft)
    }

    fn observe_topk(&self, py: Python<'_>, rows: Vec<(u32, Vec<u32>)>) -> PyResult<()> {
        let rows: Vec<TopkRow<'_>> = rows.iter().map(|(token, top)| TopkRow { token: *token, top }).collect();
        self.lock(py)?.observe_topk(&rows).map_err(|e| options(py, e.to_string()))
    }

    fn truncate_pending(&self, py: Python<'_>, n: usize) -> PyResult<()> {
        self.lock(py)?.truncate_pending(n);
        Ok(())
    }

    fn rebuild(&self, py: Python<'_>, history: &Bound<'_, PyAny>) -> PyResult<()> {
        let history = convert::tokens(history)?;
        let mut cascade = self.lock(py)?;
        let cascade = &mut *cascade;
        py.detach(|| cascade.rebuild(&history)).map_err(|e| options(py, e.to_string()))
    }

    fn add_reference(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<u64> {
        add_reference(py, &self.cascade, &convert::tokens(tokens)?)
    }

    fn clear_references(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.clear_references();
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.index().len())
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Vec<results::SourceStats>> {
        Ok(self.lock(py)?.stats().into_iter().map(results::SourceStats::from).collect())
    }

    /// Bytes of the conversation's index.
    fn index_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.index().bytes().capacity)
    }
}

impl DraftIndex {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Cascade>> {
        match self.cascade.0.try_lock() {
            Ok(cascade) => Ok(cascade),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => Err(busy(py, "the index is in use by another caller")),
        }
    }
}

/// What a replay assumes: the cascade and the gate, a plain step and a suggestion in ns, what verifications truly cost.
struct Rig {
    gate: Gate,
    cascade: Cascade,
    options: ReplayOptions,
}

impl Rig {
    fn new(
        py: Python<'_>,
        n_vocab: usize,
        args: &SpeculationArgs,
        (plain_ns, draft_ns): (u64, u64),
        true_costs: Option<Vec<(usize, f64)>>,
        references: &[Vec<u32>],
    ) -> PyResult<Self> {
        let costs = match true_costs {
            None => args.table(py)?,
            Some(points) => {
                let points = points.into_iter().map(|(k, cost)| CostPoint { k, cost }).collect();
                CostTable::new(points, "given by the caller").map_err(|e| options(py, e.to_string()))?
            }
        };
        let mut cascade = args.cascade(py, n_vocab)?;
        for reference in references {
            cascade.add_reference(reference).map_err(|e| options(py, e.to_string()))?;
        }
        let options = ReplayOptions { max_draft: args.max_draft, prompt_tokens: 0, plain_ns, draft_ns, costs };
        Ok(Rig { gate: args.gate(py)?, cascade, options })
    }

    /// Runs a replay, and gives its report with what the sources and the gate did.
    fn run<'py>(
        mut self,
        py: Python<'py>,
        replay: impl Send + FnOnce(&mut Cascade, &mut Gate, &ReplayOptions) -> Result<ReplayReport, ReplayError>,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<results::SourceStats>)> {
        let start = std::time::Instant::now();
        let report = py.detach(|| replay(&mut self.cascade, &mut self.gate, &self.options));
        let elapsed_ns = start.elapsed().as_nanos() as u64;
        let report = report.map_err(|e| options(py, e.to_string()))?;
        let dict = PyDict::new(py);
        dict.set_item("tokens", report.tokens)?;
        dict.set_item("steps", report.steps)?;
        dict.set_item("verify_steps", report.verify_steps)?;
        dict.set_item("closed_steps", report.closed_steps)?;
        dict.set_item("drafted", report.drafted)?;
        dict.set_item("accepted", report.accepted)?;
        dict.set_item("cost", report.cost)?;
        dict.set_item("tokens_per_step", report.tokens_per_step())?;
        dict.set_item("acceptance", report.acceptance())?;
        dict.set_item("speedup", report.speedup())?;
        dict.set_item("elapsed_ns", elapsed_ns)?;
        let gate = self.gate.stats();
        dict.set_item("gate_state", gate.state.to_string())?;
        dict.set_item("gate_trips", gate.trips)?;
        dict.set_item("gate_probes", gate.probes)?;
        dict.set_item("index_bytes", self.cascade.index().bytes().capacity)?;
        let rates = self.cascade.rates().into_iter();
        let rates = rates.map(|(name, rates)| (name, rates.map(|r| (r.from, r.asked, r.right)).to_vec()));
        dict.set_item("rates", rates.collect::<Vec<_>>())?;
        Ok((dict, self.cascade.stats().into_iter().map(results::SourceStats::from).collect()))
    }
}

/// Replays a token trace through a cascade and a gate as if a model had produced it.
#[pyfunction]
#[pyo3(signature = (trace, n_vocab, args, prompt_tokens, plain_ns, draft_ns, true_costs, references))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    trace: &Bound<'py, PyAny>,
    n_vocab: usize,
    args: SpeculationArgs,
    prompt_tokens: usize,
    plain_ns: u64,
    draft_ns: u64,
    true_costs: Option<Vec<(usize, f64)>>,
    references: Vec<Vec<u32>>,
) -> PyResult<(Bound<'py, PyDict>, Vec<results::SourceStats>)> {
    let trace = convert::tokens(trace)?;
    let mut rig = Rig::new(py, n_vocab, &args, (plain_ns, draft_ns), true_costs, &references)?;
    rig.options.prompt_tokens = prompt_tokens;
    rig.run(py, |cascade, gate, options| quoth_draft::replay(&trace, cascade, gate, options, |_| {}))
}

/// Prompt, answer, the most probable tokens of the answer's rows one row after the other (or nothing), tokens a row, whether the answer's last token is a
/// stop.
type TurnArgs<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, usize, bool);

/// Replays the turns of a recorded session.
#[pyfunction]
#[pyo3(signature = (turns, stops, n_vocab, args, plain_ns, draft_ns, true_costs, references, quote_conversation))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn replay_turns<'py>(
    py: Python<'py>,
    turns: Vec<TurnArgs<'py>>,
    stops: Vec<u32>,
    n_vocab: usize,
    args: SpeculationArgs,
    plain_ns: u64,
    draft_ns: u64,
    true_costs: Option<Vec<(usize, f64)>>,
    references: Vec<Vec<u32>>,
    quote_conversation: bool,
) -> PyResult<(Bound<'py, PyDict>, Vec<results::SourceStats>)> {
    let convert = |(prompt, answer, top, width, stopped): &TurnArgs<'py>| -> PyResult<_> {
        Ok(([convert::tokens(prompt)?, convert::tokens(answer)?, convert::tokens(top)?], *width, *stopped))
    };
    let owned = turns.iter().map(convert).collect::<PyResult<Vec<_>>>()?;
    if let Some(token) = owned.iter().flat_map(|(parts, ..)| parts.iter().flatten()).find(|&&t| t as usize >= n_vocab) {
        return Err(options(py, format!("a token of the trace is {token}, expected 0 to {}", n_vocab - 1)));
    }
    let mut rig = Rig::new(py, n_vocab, &args, (plain_ns, draft_ns), true_costs, &references)?;
    rig.cascade.quote_conversation(quote_conversation);
    rig.run(py, |cascade, gate, options| {
        let turns: Vec<_> = owned
            .iter()
            .map(|([prompt, answer, top], width, stopped)| Turn {
                prompt,
                answer,
                top,
                width: *width,
                stopped: *stopped,
                stops: &stops,
            })
            .collect();
        quoth_draft::replay_turns(&turns, cascade, gate, options, |_| {})
    })
}
