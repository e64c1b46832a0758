//! The drafting cascade: inside a decoder, shared with it for references, or alone for other engines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quoth_draft::{
    Bounds, Cascade, CascadeOptions, CostModel, CostOptions, CostPoint, CostTable, Costs, Gate, GateOptions, Load,
    MAX_DRAFT, OptionsError, ReferenceId, ReplayError, ReplayOptions, ReplayReport, SourceStats, Speculator, Turn,
};

use crate::drafter::Drafter;
use crate::errors::{busy, options};
use crate::{convert, results};

/// A cascade that a decoder and Python both hold: the decoder drafts from it, Python adds references.
#[derive(Clone)]
pub(crate) struct SharedCascade(pub(crate) Arc<Mutex<Cascade>>);

impl SharedCascade {
    pub(crate) fn new(cascade: Cascade) -> Self {
        SharedCascade(Arc::new(Mutex::new(cascade)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Cascade> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    recycling: bool,
    costs: Option<Vec<(usize, f64)>>,
    cost_provenance: String,
    live_costs: bool,
    gate: GateArgs,
    pub(crate) drafters: Vec<Py<Drafter>>,
}

impl SpeculationArgs {
    /// The measured table, or the shipped one.
    fn table(&self) -> Result<CostTable, OptionsError> {
        match &self.costs {
            None => Ok(CostTable::default()),
            Some(points) => CostTable::new(as_points(points), self.cost_provenance.clone()),
        }
    }

    /// What steps cost.
    pub(crate) fn costs(&self, py: Python<'_>) -> PyResult<Costs> {
        let usual = CostOptions::default();
        // Without live costs all timings count as first ones, which are left out.
        let cost = CostOptions { warmup: if self.live_costs { usual.warmup } else { u32::MAX }, ..usual };
        let model = self.table().and_then(|table| CostModel::with_options(table, cost));
        Ok(model.map_err(|e| options(py, e.to_string()))?.into())
    }

    /// The gate that these options describe.
    pub(crate) fn gate(&self, py: Python<'_>) -> PyResult<Gate> {
        let refused = |e: OptionsError| options(py, e.to_string());
        let table = self.table().map_err(refused)?;
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
            // As asked for, or the shortest that pays, which must not exceed the longest.
            min_draft: self.min_draft.unwrap_or(table.shortest_draft().min(self.max_draft)),
            ..GateOptions::default()
        };
        Gate::new(gate).map_err(refused)
    }

    /// The cascade that these options describe.
    pub(crate) fn cascade(&self, py: Python<'_>, n_vocab: usize) -> PyResult<Cascade> {
        let usual = CascadeOptions::default();
        let cascade = CascadeOptions {
            min_match: self.min_match.unwrap_or(usual.min_match),
            recycling: self.recycling,
            chain: usual.chain.max(self.min_draft.unwrap_or(1)),
        };
        Cascade::new(n_vocab, cascade).map_err(|e| options(py, e.to_string()))
    }

    /// A speculator of a cascade.
    fn speculator(&self, py: Python<'_>, cascade: &SharedCascade, gate: Gate) -> PyResult<Speculator> {
        let made = Speculator::new(Box::new(cascade.0.clone()), gate, self.costs(py)?, self.max_draft);
        made.map_err(|e| options(py, e.to_string()))
    }
}

fn as_points(points: &[(usize, f64)]) -> Vec<CostPoint> {
    points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect()
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

pub(crate) fn source_stats(stats: Vec<SourceStats>) -> Vec<results::SourceStats> {
    stats.into_iter().map(results::SourceStats::from).collect()
}

/// Adds a document; its handle as a number.
pub(crate) fn add_reference(py: Python<'_>, cascade: &SharedCascade, tokens: &[u32]) -> PyResult<u64> {
    let added = py.detach(|| cascade.lock().add_reference(tokens));
    added.map(handle).map_err(|e| options(py, e.to_string()))
}

fn handle(id: ReferenceId) -> u64 {
    id.0
}

/// The cascade without a model, in a speculator whose gate never closes.
#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct DraftIndex {
    cascade: SharedCascade,
    speculator: Mutex<Speculator>,
    n_vocab: usize,
}

#[pymethods]
impl DraftIndex {
    #[new]
    fn new(py: Python<'_>, n_vocab: usize, args: SpeculationArgs) -> PyResult<Self> {
        let cascade = SharedCascade::new(args.cascade(py, n_vocab)?);
        let open = GateOptions { adapt_budget: false, ..*args.gate(py)?.options() };
        let gate = Gate::new(open).map_err(|e| options(py, e.to_string()))?;
        // The caller says how much it wants with each question.
        let speculator = SpeculationArgs { max_draft: MAX_DRAFT, ..args }.speculator(py, &cascade, gate)?;
        Ok(DraftIndex { cascade, speculator: Mutex::new(speculator), n_vocab })
    }

    fn observe(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens = convert::tokens(tokens)?;
        let mut speculator = self.lock(py)?;
        let speculator = &mut *speculator;
        py.detach(|| {
            let accepted = speculator.draft().accepted(&tokens);
            speculator.observe(&tokens);
            if !speculator.draft().is_empty() && !tokens.is_empty() {
                speculator.record_verify(accepted, tokens.len(), None);
            }
            speculator.cut(0);
        });
        Ok(())
    }

    fn suggest(&self, py: Python<'_>, context: Option<&Bound<'_, PyAny>>, max_tokens: usize) -> PyResult<Vec<u32>> {
        let context = context.map(convert::tokens).transpose()?;
        let mut speculator = self.lock(py)?;
        // Only the end of the context is looked at; the index knows the rest.
        let context = context.unwrap_or_else(|| self.cascade.lock().index().last().into_iter().collect());
        let bounds = Bounds {
            room: max_tokens,
            wanted: usize::MAX,
            n_vocab: self.n_vocab,
            stop_ids: &[],
            forced: &[],
            certain: 0,
        };
        Ok(speculator.propose(&context, bounds, Load::default()).tokens.clone())
    }

    fn observe_topk(&self, py: Python<'_>, rows: Vec<(u32, Vec<u32>)>) -> PyResult<()> {
        let mut speculator = self.lock(py)?;
        let inputs: Vec<u32> = rows.iter().map(|(token, _)| *token).collect();
        rows.into_iter().for_each(|(_, top)| speculator.capture(top));
        speculator.observe_topk(&inputs);
        Ok(())
    }

    fn truncate_pending(&self, py: Python<'_>, n: usize) -> PyResult<()> {
        self.lock(py)?.cut(n);
        Ok(())
    }

    fn rebuild(&self, py: Python<'_>, history: &Bound<'_, PyAny>) -> PyResult<()> {
        let history = convert::tokens(history)?;
        let mut speculator = self.lock(py)?;
        let speculator = &mut *speculator;
        py.detach(|| {
            speculator.cut(0);
            speculator.rebuild(&history);
        });
        Ok(())
    }

    fn add_reference(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<u64> {
        let tokens = convert::tokens(tokens)?;
        let _claim = self.lock(py)?;
        add_reference(py, &self.cascade, &tokens)
    }

    fn clear_references(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.cut(0);
        self.cascade.lock().clear_references();
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let _claim = self.lock(py)?;
        Ok(self.cascade.lock().index().len())
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Vec<results::SourceStats>> {
        Ok(source_stats(self.lock(py)?.stats().sources))
    }

    /// Bytes of the conversation's index.
    fn index_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let _claim = self.lock(py)?;
        Ok(self.cascade.lock().index().bytes().capacity)
    }
}

impl DraftIndex {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Speculator>> {
        match self.speculator.try_lock() {
            Ok(speculator) => Ok(speculator),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => Err(busy(py, "the index is in use by another caller")),
        }
    }
}

/// What a replay assumes: how tokens are guessed, a plain step and a suggestion in ns, what verifications truly cost.
struct Rig {
    cascade: SharedCascade,
    speculator: Speculator,
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
            None => args.table(),
            Some(points) => CostTable::new(as_points(&points), "given by the caller"),
        };
        let costs = costs.map_err(|e| options(py, e.to_string()))?;
        let mut cascade = args.cascade(py, n_vocab)?;
        for reference in references {
            cascade.add_reference(reference).map_err(|e| options(py, e.to_string()))?;
        }
        let options = ReplayOptions { prompt_tokens: 0, plain_ns, draft_ns, costs };
        let cascade = SharedCascade::new(cascade);
        let speculator = args.speculator(py, &cascade, args.gate(py)?)?;
        Ok(Rig { cascade, speculator, options })
    }

    /// Runs a replay, and gives its report with what the sources and the gate did.
    fn run<'py>(
        mut self,
        py: Python<'py>,
        replay: impl Send + FnOnce(&mut Speculator, &ReplayOptions) -> Result<ReplayReport, ReplayError>,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<results::SourceStats>)> {
        let start = std::time::Instant::now();
        let report = py.detach(|| replay(&mut self.speculator, &self.options));
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
        let gate = self.speculator.stats().gate;
        dict.set_item("gate_state", gate.state.to_string())?;
        dict.set_item("gate_trips", gate.trips)?;
        dict.set_item("gate_probes", gate.probes)?;
        dict.set_item("index_bytes", self.cascade.lock().index().bytes().capacity)?;
        let rates = self.cascade.lock().rates().into_iter();
        let rates = rates.map(|(name, rates)| (name, rates.map(|r| (r.from, r.asked, r.right)).to_vec()));
        dict.set_item("rates", rates.collect::<Vec<_>>())?;
        Ok((dict, source_stats(report.sources)))
    }
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
    let rig = Rig::new(py, n_vocab, &args, (plain_ns, draft_ns), true_costs, &references)?;
    rig.cascade.lock().quote_conversation(quote_conversation);
    rig.run(py, |speculator, options| {
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
        quoth_draft::replay_turns(&turns, speculator, options, |_| {})
    })
}
