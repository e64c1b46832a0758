//! Decoders side by side: one plain, others that guess, all watched row by row, and compared in everything that a caller can see.

use std::sync::{Arc, Mutex};

use quoth_draft::{CostModel, CostOptions, CostPoint, CostTable, Costs, Gate, GateOptions};
use quoth_engine::Error;
use quoth_engine::decode::probe::{Part, Probe};
use quoth_engine::decode::{Decoder, Finish, Request, Speculation, Step};
use quoth_engine::model::Model;
use quoth_engine::proposer::Drafter;
use quoth_engine::sample::Sampling;
use quoth_engine::vocab::{StopSet, Vocab};
use quoth_kernels::KernelSet;
use quoth_kernels::attend::KvKind;

use crate::batch::{Bits, bits};
use crate::cast::{Book, Role, hire};
use crate::models::{Made, Spec};

/// What happens at a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    Error,
    Panic,
}

/// What a probe has seen, and where it is to fail.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Position, row, token of each commit.
    pub(crate) rows: Vec<(usize, Bits, u32)>,
    /// All parts, in order.
    pub(crate) parts: Vec<Part>,
    /// Which part of `parts` is to fail, and how; once.
    pub(crate) plan: Option<(usize, Mishap)>,
    /// A clock for tests of time: each forward moves it.
    pub(crate) now_ns: u64,
    /// Rows are not looked at, so that greedy decoding makes none.
    pub(crate) blind: bool,
    /// Nanoseconds of a forward of so many rows.
    pub(crate) forward_ns: Option<fn(usize) -> u64>,
}

pub(crate) type Shared<T> = Arc<Mutex<T>>;

/// Sees what a decoder or a sequence does.
pub(crate) struct Eye(pub(crate) Shared<Log>);

impl Probe for Eye {
    fn wants_rows(&self) -> bool {
        !self.0.lock().unwrap().blind
    }

    fn committed(&mut self, pos: usize, row: &[f32], token: u32) {
        self.0.lock().unwrap().rows.push((pos, bits(row), token));
    }

    fn before(&mut self, part: Part) -> quoth_engine::Result<()> {
        let mut log = self.0.lock().unwrap();
        let number = log.parts.len();
        log.parts.push(part);
        if let (Part::Forward { rows }, Some(cost)) = (part, log.forward_ns) {
            log.now_ns += cost(rows);
        }
        match log.plan {
            Some((at, mishap)) if at == number => {
                log.plan = None;
                drop(log);
                match mishap {
                    Mishap::Error => Err(Error::Internal(format!("on purpose, {part:?}"))),
                    Mishap::Panic => panic!("on purpose, {part:?}"),
                }
            }
            _ => Ok(()),
        }
    }
}

/// A model and how it is used.
pub(crate) struct Rig {
    pub(crate) made: Arc<Made>,
    pub(crate) model: Arc<Model>,
    pub(crate) vocab: Arc<Vocab>,
    pub(crate) kind: KvKind,
    pub(crate) sampling: Sampling,
    /// Whether the probes do not look at rows.
    pub(crate) blind: bool,
}

/// A decoder with all that watches it.
pub(crate) struct Watched {
    pub(crate) decoder: Decoder,
    /// Of its requests.
    pub(crate) sampling: Sampling,
    pub(crate) log: Shared<Log>,
    pub(crate) book: Option<Shared<Book>>,
}

/// The tests' sampling: temperature 0.8, top-k 20.
pub(crate) fn warm(seed: u64) -> Sampling {
    Sampling { temperature: 0.8, top_k: 20, seed, ..Sampling::default() }
}

/// A gate that never closes and drafts at full length.
pub(crate) fn open_gate() -> GateOptions {
    GateOptions {
        min_draft: 1,
        adapt_budget: false,
        min_speedup: 0.5,
        max_debt: 1000.0,
        idle_share: 1.0,
        ..GateOptions::default()
    }
}

/// A cost of one plain step whatever the draft.
pub(crate) fn free() -> CostTable {
    CostTable::new(vec![CostPoint { k: 1, cost: 1.0 }], "a test").unwrap()
}

/// Costs that never ask for a plain step, and leave all timings out, so that the same run takes the same steps.
pub(crate) fn uninterrupted(table: CostTable) -> Costs {
    let never = CostOptions { warmup: u32::MAX, baseline_after: u32::MAX, baseline_every: u32::MAX };
    CostModel::with_options(table, never).unwrap().into()
}

/// A request for so many tokens that only stops for them. [`Watched::begin`] gives it the sampling.
pub(crate) fn request(max_tokens: usize) -> Request {
    Request {
        sampling: Sampling::default(),
        max_tokens,
        stop_ids: Vec::new(),
        stop_at_eog: false,
        stops: Arc::new(StopSet::new::<&[u8]>(&[]).unwrap()),
        logprobs: None,
        trace: false,
        constraint: None,
    }
}

impl Rig {
    pub(crate) fn new(
        spec: &Spec,
        set: KernelSet,
        threads: usize,
        n_ctx: usize,
        kind: KvKind,
        sampling: Sampling,
    ) -> Rig {
        let made = Arc::new(Made::new(spec));
        let (model, vocab) = (made.load(set, threads, n_ctx), made.vocab());
        Rig { made, model, vocab, kind, sampling, blind: false }
    }

    /// The tiny model in the fastest set, one thread.
    pub(crate) fn tiny(n_ctx: usize, sampling: Sampling) -> Rig {
        Rig::new(&Spec::tiny(), KernelSet::best(), 1, n_ctx, KvKind::F16, sampling)
    }

    /// The same model and options, without a look at the rows.
    pub(crate) fn blindly(self) -> Rig {
        Rig { blind: true, ..self }
    }

    pub(crate) fn watched(&self, speculation: Option<Speculation>, book: Option<Shared<Book>>) -> Watched {
        let mut decoder = Decoder::new(self.model.clone(), self.vocab.clone(), self.kind, speculation).unwrap();
        let log = Arc::new(Mutex::new(Log { blind: self.blind, ..Log::default() }));
        decoder.set_probe(Some(Box::new(Eye(log.clone()))));
        Watched { decoder, sampling: self.sampling.clone(), log, book }
    }

    pub(crate) fn plain(&self) -> Watched {
        self.watched(None, None)
    }

    /// A decoder whose source plays a role and knows these streams; the gate stays open.
    pub(crate) fn acted(&self, role: Role, streams: &[Vec<u32>], max_draft: usize) -> Watched {
        self.gated(role, streams, max_draft, Gate::new(open_gate()).unwrap(), uninterrupted(free()))
    }

    /// The same behind a gate of its own, with costs of its own.
    pub(crate) fn gated(
        &self,
        role: Role,
        streams: &[Vec<u32>],
        max_draft: usize,
        gate: Gate,
        costs: Costs,
    ) -> Watched {
        let (source, book) = hire(role, streams, self.model.config().n_vocab);
        self.watched(Some(Speculation { source, gate, costs, max_draft, drafters: Vec::new() }), Some(book))
    }

    /// A decoder with drafters beside a source that plays a role; gates stay open, costs are nothing.
    pub(crate) fn attended(
        &self,
        role: Role,
        streams: &[Vec<u32>],
        max_draft: usize,
        drafters: Vec<Arc<dyn Drafter>>,
    ) -> Watched {
        let (source, book) = hire(role, streams, self.model.config().n_vocab);
        let (gate, costs) = (Gate::new(open_gate()).unwrap(), uninterrupted(free()));
        self.watched(Some(Speculation { source, gate, costs, max_draft, drafters }), Some(book))
    }

    /// Prompt and what plain decoding makes of it in so many tokens, without any stop: what a perfect source knows.
    pub(crate) fn stream(&self, prompt: &[u32], n: usize) -> Vec<u32> {
        let mut plain = self.plain();
        let run = plain.run(prompt, request(n));
        assert!(run.finish.is_some());
        prompt.iter().copied().chain(run.committed()).collect()
    }
}

/// All that a caller can see of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Run {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// Chosen, then ids and values of the best, by their bits.
    pub(crate) logprobs: Vec<(u32, Vec<(u32, u32)>)>,
    pub(crate) finish: Option<Finish>,
    /// Position, row and token of each commit.
    pub(crate) rows: Vec<(usize, Bits, u32)>,
    pub(crate) committed: u64,
    pub(crate) draws: u64,
    pub(crate) history: Vec<u32>,
    /// Errors by their texts, in order.
    pub(crate) errors: Vec<String>,
    /// Tokens a step, left out of the comparison.
    pub(crate) steps: Ignored<Vec<usize>>,
}

impl Run {
    /// All committed tokens, one that completed a stop included.
    pub(crate) fn committed(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.iter().map(|(_, _, token)| *token)
    }

    pub(crate) fn take(&mut self, step: Step) {
        self.steps.0.push(step.tokens.len());
        self.tokens.extend(step.tokens);
        self.text.push_str(&step.text);
        self.logprobs.extend(
            step.logprobs
                .into_iter()
                .map(|l| (l.chosen.to_bits(), l.top.into_iter().map(|(id, x)| (id, x.to_bits())).collect())),
        );
        self.finish = step.finish;
    }
}

/// Equal to every other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ignored<T>(pub(crate) T);

impl<T> PartialEq for Ignored<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Watched {
    /// Runs a request to its end. Errors are noted, and the request is taken up again.
    pub(crate) fn run(&mut self, prompt: &[u32], request: Request) -> Run {
        let mut run = Run::default();
        self.log.lock().unwrap().rows.clear();
        match self.begin(prompt, request, &mut |_, _| true) {
            Ok(step) => run.take(step),
            Err(error) => {
                run.errors.push(error.to_string());
                self.finish(&mut run);
                return run;
            }
        }
        self.go_on(&mut run, usize::MAX);
        run
    }

    /// Begins a request with this decoder's sampling.
    pub(crate) fn begin(
        &mut self,
        prompt: &[u32],
        request: Request,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> quoth_engine::Result<Step> {
        self.decoder.begin(prompt, Request { sampling: self.sampling.clone(), ..request }, progress)
    }

    /// Takes up to so many steps; checks I1 after each.
    pub(crate) fn go_on(&mut self, run: &mut Run, steps: usize) {
        for _ in 0..steps {
            if run.finish.is_some() || run.errors.len() > 20 {
                break;
            }
            match self.decoder.step() {
                Ok(step) => run.take(step),
                Err(error) => run.errors.push(error.to_string()),
            }
            assert_eq!(self.decoder.history().len(), self.decoder.cache().len() + 1, "I1");
        }
        self.finish(run);
    }

    fn finish(&self, run: &mut Run) {
        run.rows.clone_from(&self.log.lock().unwrap().rows);
        run.history = self.decoder.history().to_vec();
        (run.committed, run.draws) = (self.decoder.stats().committed, self.decoder.stats().draws);
    }

    /// The source saw what the decoder holds, and the decoder kept its side of the contract.
    pub(crate) fn assert_contract(&self, what: &str) {
        let Some(book) = &self.book else { return };
        let book = book.lock().unwrap();
        assert!(book.faults.is_empty(), "{what}: {:?}", book.faults);
        assert_eq!(book.calls_after, 0, "{what}: a source that failed was called again");
        if !book.failed {
            assert_eq!(book.seen, self.decoder.history(), "{what}: what the source saw is not the history");
            let settled = book.pending.as_ref().is_none_or(|(_, _, draft)| draft.is_empty());
            assert!(settled, "{what}: a draft was left pending: {:?}", book.pending);
        }
    }

    /// Both hold the same, bit for bit.
    pub(crate) fn assert_same_state(&self, other: &Watched, what: &str) {
        let (a, b) = (self.decoder.cache(), other.decoder.cache());
        assert_eq!(self.decoder.history(), other.decoder.history(), "{what}: history");
        assert_eq!((a.len(), a.len() + 1), (b.len(), self.decoder.history().len()), "{what}: I1");
        assert!(a.same_prefix(b, a.len()), "{what}: other bytes in the cache");
    }
}

/// Two runs are equal; otherwise says where they part.
pub(crate) fn assert_same_run(plain: &Run, other: &Run, what: &str) {
    for (i, (a, b)) in plain.rows.iter().zip(&other.rows).enumerate() {
        assert_eq!((a.0, a.2), (b.0, b.2), "{what}: commit {i}: position, token");
        assert!(a.1 == b.1, "{what}: commit {i}: row {} differs in bits", a.0);
    }
    assert_eq!(plain.rows.len(), other.rows.len(), "{what}: commits");
    assert_eq!(plain.tokens, other.tokens, "{what}: tokens");
    assert_eq!(plain.text, other.text, "{what}: text");
    assert_eq!(plain.finish, other.finish, "{what}: finish");
    assert_eq!((plain.committed, plain.draws), (other.committed, other.draws), "{what}: committed, draws");
    assert_eq!(plain.errors, other.errors, "{what}: errors");
    assert!(plain == other, "{what}: log-probabilities or history");
}
