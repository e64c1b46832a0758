//! A decoder: requests, steps, whole answers.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use quoth_draft::DraftSource;
use quoth_engine::Error;
use quoth_engine::decode::{self, Request, Speculation};
use quoth_engine::sample::{SampleError, Sampler, Sampling};
use quoth_engine::vocab::StopSet;
use quoth_grammar::{Grammar, Start};

use crate::draft::{SharedCascade, SpeculationArgs};
use crate::errors::{busy, guarded, no_signal, options, to_py};
use crate::model::{Grammars, Model};
use crate::results::{DecodeStats, SpeculationStats, Step};
use crate::session::kv_kind;
use crate::source::{Interrupt, PySource};
use crate::{callback, convert};

/// The fields of `quoth.Sampling`.
#[derive(FromPyObject)]
pub(crate) struct SamplingArgs {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    repeat_last_n: usize,
    logit_bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
}

impl SamplingArgs {
    fn with_seed(self, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_last_n: self.repeat_last_n,
            seed,
            logit_bias: self.logit_bias,
            banned: self.banned,
        }
    }
}

/// Checks options: alone, or for a vocabulary of `n_vocab` tokens.
#[pyfunction]
pub(crate) fn check_sampling(py: Python<'_>, args: SamplingArgs, n_vocab: Option<usize>) -> PyResult<()> {
    let sampling = args.with_seed(0);
    let checked = match n_vocab {
        None => sampling.check(),
        Some(n_vocab) => Sampler::new(sampling, n_vocab).map(drop),
    };
    checked.map_err(|e: SampleError| to_py(py, e.into()))
}

/// The fields of `quoth.Constraint`.
#[derive(FromPyObject)]
pub(crate) struct ConstraintArgs {
    kind: String,
    /// The schema, expression or grammar; the texts of a choice.
    texts: Vec<String>,
    whitespace: bool,
    after: Option<String>,
}

impl ConstraintArgs {
    /// What to compile.
    pub(crate) fn grammar(&self) -> Result<Grammar, Error> {
        let text = || self.texts.concat();
        match self.kind.as_str() {
            "json_schema" => Ok(Grammar::JsonSchema { schema: text(), whitespace: self.whitespace }),
            "regex" => Ok(Grammar::Regex(text())),
            "lark" => Ok(Grammar::Lark(text())),
            "choice" => Ok(Grammar::Choice(self.texts.clone())),
            other => Err(Error::Internal(format!("a constraint of kind `{other}`"))),
        }
    }

    /// Where in an answer to `prompt` it begins.
    fn start(&self, grammars: &Grammars, prompt: &[u32]) -> Start {
        self.after.as_ref().map_or(Start::Now, |text| Start::after(text, grammars.vocab(), prompt))
    }
}

/// The fields of a request.
#[derive(FromPyObject)]
pub(crate) struct RequestArgs {
    max_tokens: usize,
    stop_ids: Vec<u32>,
    stop_at_eog: bool,
    stop_texts: Vec<Vec<u8>>,
    logprobs: Option<usize>,
    trace: bool,
    sampling: SamplingArgs,
    seed: u64,
    constraint: Option<ConstraintArgs>,
}

impl RequestArgs {
    /// The engine's request for an answer to `prompt`. A constraint is compiled, if its text is new.
    pub(crate) fn request(self, grammars: &Grammars, prompt: &[u32]) -> Result<Request, Error> {
        let constraint = match &self.constraint {
            None => None,
            Some(args) => {
                let compiled = grammars.compiler().compile(&args.grammar()?)?;
                Some(compiled.start(&args.start(grammars, prompt)))
            }
        };
        Ok(Request {
            sampling: self.sampling.with_seed(self.seed),
            max_tokens: self.max_tokens,
            stop_ids: self.stop_ids,
            stop_at_eog: self.stop_at_eog,
            stops: Arc::new(StopSet::new(&self.stop_texts)?),
            logprobs: self.logprobs,
            trace: self.trace,
            constraint,
        })
    }
}

#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct Decoder {
    decoder: Mutex<decode::Decoder>,
    cascade: Option<SharedCascade>,
    interrupt: Interrupt,
    grammars: Arc<Grammars>,
}

/// What a decoder drafts with: options, and perhaps a source of the user's.
pub(crate) fn speculation(
    py: Python<'_>,
    args: Option<SpeculationArgs>,
    source: Option<&Bound<'_, PyAny>>,
    model: &Arc<quoth_engine::model::Model>,
    interrupt: &Interrupt,
) -> PyResult<(Option<Speculation>, Option<SharedCascade>)> {
    let Some(args) = args else { return Ok((None, None)) };
    let (gate, costs) = (args.gate(py)?, args.costs(py)?);
    let drafters = args.drafters.iter().map(|drafter| drafter.get().of(model)).collect::<Result<_, _>>();
    let drafters = drafters.map_err(|e| to_py(py, e))?;
    let (source, cascade): (Box<dyn DraftSource>, _) = match source {
        Some(object) => (Box::new(PySource::new(object, interrupt.clone())?), None),
        None => {
            let cascade = SharedCascade::new(args.cascade(py, model.config().n_vocab)?);
            (Box::new(cascade.0.clone()), Some(cascade))
        }
    };
    Ok((Some(Speculation { source, gate, costs, max_draft: args.max_draft, drafters }), cascade))
}

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (model, kv_type, speculation_args, source))]
    fn new(
        py: Python<'_>,
        model: &Model,
        kv_type: &str,
        speculation_args: Option<SpeculationArgs>,
        source: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let kind = kv_kind(py, kv_type)?;
        let interrupt = Interrupt::default();
        let (speculation, cascade) = speculation(py, speculation_args, source, &model.model, &interrupt)?;
        let (vocab, grammars) = (model.vocab(py)?, model.grammars(py)?);
        let decoder =
            guarded(py, &Mutex::new(None), || decode::Decoder::new(model.alive()?, vocab, kind, speculation))?;
        Ok(Decoder { decoder: Mutex::new(decoder), cascade, interrupt, grammars })
    }

    /// Begins a request; its first step.
    fn begin(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        request: RequestArgs,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Step> {
        let prompt = convert::tokens(prompt)?;
        let mut decoder = self.lock(py)?;
        self.interrupted()?;
        let raised = Mutex::new(None);
        let decoder = &mut *decoder;
        let step = guarded(py, &raised, || {
            let request = request.request(&self.grammars, &prompt)?;
            if !decoder.model().is_alive() {
                return Err(Error::Forked);
            }
            let mut report = |done: usize, total: usize| {
                let told = Python::attach(|py| {
                    progress.as_ref().map_or(Ok(()), |p| callback::call(p.bind(py), (done, total)).map(drop))
                });
                if let Err(exception) = told {
                    if let Ok(mut raised) = raised.lock() {
                        *raised = Some(exception);
                    }
                    return false;
                }
                // After the last pass the prompt is cached: a signal then is Python's to handle.
                done == total || no_signal(&raised)
            };
            decoder.begin(&prompt, request, &mut report)
        })?;
        self.interrupted()?;
        Ok(step.into())
    }

    /// The next step of the request.
    fn step(&self, py: Python<'_>) -> PyResult<Step> {
        let mut decoder = self.lock(py)?;
        self.interrupted()?;
        let decoder = &mut *decoder;
        let step = guarded(py, &Mutex::new(None), || decoder.step())?;
        // Tokens are handed out first, unless no step follows that could raise it.
        if step.tokens.is_empty() || step.finish.is_some() {
            self.interrupted()?;
        }
        Ok(step.into())
    }

    /// All remaining steps of the request, in one call.
    fn run(&self, py: Python<'_>) -> PyResult<Step> {
        let mut decoder = self.lock(py)?;
        let raised = Mutex::new(None);
        let decoder = &mut *decoder;
        let whole = guarded(py, &raised, || {
            let mut whole = decode::Step::default();
            while whole.finish.is_none() {
                if self.interrupt.lock().is_ok_and(|i| i.is_some()) || !no_signal(&raised) {
                    return Err(Error::Cancelled);
                }
                let step = decoder.step()?;
                whole.tokens.extend(step.tokens);
                whole.text.push_str(&step.text);
                whole.logprobs.extend(step.logprobs);
                whole.drafted += step.drafted;
                whole.accepted += step.accepted;
                whole.finish = step.finish;
            }
            Ok(whole)
        });
        self.interrupted()?;
        Ok(whole?.into())
    }

    /// Counts and times of the request.
    fn stats(&self, py: Python<'_>) -> PyResult<DecodeStats> {
        Ok(self.lock(py)?.stats().into())
    }

    /// The gate's figures and each source's, or None without speculation.
    fn speculation_stats(&self, py: Python<'_>) -> PyResult<Option<SpeculationStats>> {
        Ok(self.lock(py)?.speculation_stats().map(SpeculationStats::from))
    }

    fn history(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.lock(py)?.history().to_vec())
    }

    fn cached(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.cache().len())
    }

    fn cache_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.cache().memory_bytes())
    }

    /// Whether two decoders have the same bytes cached for their first `n` tokens.
    fn same_prefix(&self, py: Python<'_>, other: &Decoder, n: usize) -> PyResult<bool> {
        if std::ptr::eq(self, other) {
            return Ok(true);
        }
        Ok(self.lock(py)?.cache().same_prefix(other.lock(py)?.cache(), n))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let mut decoder = self.lock(py)?;
        let decoder = &mut *decoder;
        guarded(py, &Mutex::new(None), || decoder.reset())
    }

    fn rewind(&self, py: Python<'_>, n: usize) -> PyResult<()> {
        let mut decoder = self.lock(py)?;
        let decoder = &mut *decoder;
        guarded(py, &Mutex::new(None), || decoder.rewind(n))
    }

    /// An independent decoder at the same point; references of the cascade come along.
    fn fork(
        &self,
        py: Python<'_>,
        speculation_args: Option<SpeculationArgs>,
        source: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decoder> {
        let mut decoder = self.lock(py)?;
        let interrupt = Interrupt::default();
        let (speculation, cascade) = speculation(py, speculation_args, source, decoder.model(), &interrupt)?;
        if let (Some(own), Some(new)) = (&self.cascade, &cascade) {
            let mut new = new.lock();
            for index in own.lock().reference_indexes() {
                new.add_index(index);
            }
        }
        let decoder = &mut *decoder;
        let fork = guarded(py, &Mutex::new(None), || decoder.fork(speculation))?;
        Ok(Decoder { decoder: Mutex::new(fork), cascade, interrupt, grammars: self.grammars.clone() })
    }

    /// Handles of the references, first added first.
    fn references(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        drop(self.lock(py)?);
        Ok(self.cascade.as_ref().map_or_else(Vec::new, |c| c.lock().references().map(|id| id.0).collect()))
    }

    fn add_reference(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<u64> {
        let tokens = convert::tokens(tokens)?;
        let Some(cascade) = &self.cascade else {
            let message = "the draft source is the caller's own, expected the built-in ones to take a reference";
            return Err(options(py, message));
        };
        // A step holds both; waiting for it while attached would block the interpreter.
        drop(self.lock(py)?);
        crate::draft::add_reference(py, cascade, &tokens)
    }

    fn remove_reference(&self, py: Python<'_>, handle: u64) -> PyResult<bool> {
        let Some(cascade) = &self.cascade else { return Ok(false) };
        drop(self.lock(py)?);
        Ok(cascade.lock().remove_reference(quoth_draft::ReferenceId(handle)))
    }

    fn clear_references(&self, py: Python<'_>) -> PyResult<()> {
        drop(self.lock(py)?);
        if let Some(cascade) = &self.cascade {
            cascade.lock().clear_references();
        }
        Ok(())
    }
}

impl Decoder {
    fn lock<'s>(&'s self, py: Python<'_>) -> PyResult<std::sync::MutexGuard<'s, decode::Decoder>> {
        match self.decoder.try_lock() {
            Ok(decoder) => Ok(decoder),
            // A panic mid-step left no request under way; the history is whole, so the decoder can go on.
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => Err(busy(py, "the decoder is in use by another caller")),
        }
    }

    /// Raises an interrupt that a source met.
    fn interrupted(&self) -> PyResult<()> {
        match self.interrupt.lock().map(|mut i| i.take()) {
            Ok(Some(exception)) => Err(exception),
            _ => Ok(()),
        }
    }
}
