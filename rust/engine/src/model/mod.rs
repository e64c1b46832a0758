//! A model in memory: from a file to rows of logits.
//!
//! In: a [`GgufFile`], later spans of tokens. Out: logits, to sessions.
//!
//! | file | what |
//! | --- | --- |
//! | [`config`], [`keys`], [`family`] | the numbers of a model; the metadata they come from; what differs between families |
//! | [`load`], [`weights`] | tensors to panels; which tensor has which role |
//! | [`digest`] | one number for all that decides the bits of a model's rows |
//! | [`rope`], [`rows`] | rotary tables; activations packed for products |
//! | [`forward`], [`attention`], [`feed`], [`experts`], [`per_layer`], [`head`] | rows through the layers |

pub(crate) mod attention;
pub mod config;
mod digest;
pub(crate) mod experts;
pub mod family;
pub(crate) mod feed;
pub(crate) mod forward;
pub(crate) mod head;
pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod per_layer;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod weights;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use quoth_kernels::KernelSet;
use quoth_kernels::matmul::Panels;
use xxhash_rust::xxh3::Xxh3;

pub use config::Config;
pub use family::supported;
pub use forward::{MAX_ROWS, Output, Scratch, Span, Taps, Want};

use crate::cache::Meter;
use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::limits;
use crate::pool::Pool;
use load::{Arena, Matrix, Plan};
use rope::RopeTable;
use weights::Weights;

/// How a model is to be loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Longest context of a session.
    pub n_ctx: usize,
    /// Threads of a forward.
    pub threads: usize,
    /// The instruction set.
    pub kernels: KernelSet,
}

/// A model: weights as panels, threads, tables. Shared by any number of sessions.
pub struct Model {
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) arena: Arena,
    /// Of a drafter: the model that it drafts for, which lends it matrices.
    lender: Option<Arc<Model>>,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) pool: Arc<Pool>,
    /// What all caches of this model hold.
    kv_meter: Arc<Meter>,
    pub(crate) set: KernelSet,
    n_ctx: usize,
    load_ns: u64,
    digest: OnceLock<u128>,
    tokens: Tokens,
}

/// What tells one vocabulary from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// How many there are.
    pub(crate) count: usize,
    /// XXH3 of all texts, in order.
    digest: u64,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Model({}, {} layers, {:?}, {} threads)",
            self.config.arch,
            self.config.n_layer(),
            self.set,
            self.pool.count()
        )
    }
}

impl Model {
    /// Loads all tensors of a file. `progress` gets bytes done and bytes in all on the calling thread; false stops the loading.
    ///
    /// # Errors
    /// The file is not a model of a supported family, an option is out of range, or memory, threads or the disk failed.
    pub fn load(
        file: &GgufFile,
        options: &LoadOptions,
        progress: &mut (dyn FnMut(usize, usize) -> bool + Send),
    ) -> Result<Arc<Model>> {
        let start = Instant::now();
        if options.n_ctx == 0 || options.n_ctx > limits::MAX_CONTEXT {
            let expected = format!("1 to {}", limits::MAX_CONTEXT);
            return Err(Error::Option { what: "n_ctx", found: options.n_ctx.to_string(), expected });
        }
        if options.threads == 0 || options.threads > crate::pool::MAX_THREADS {
            let expected = format!("1 to {}", crate::pool::MAX_THREADS);
            return Err(Error::Option { what: "threads", found: options.threads.to_string(), expected });
        }
        let arch = file.metadata().need_str("general.architecture")?;
        let family = family::find(arch, &keys::file_name(file))?;
        let config = Config::read(file, family)?;
        let mut plan = Plan::new(file, family.arch);
        let weights = Weights::plan(&mut plan, &config, family)?;
        let pool = pool(options.threads)?;
        let arena = plan.load(&pool, progress)?;
        let factors = weights.rope_factors.as_deref();
        let ropes = config.ropes.iter().map(|rope| RopeTable::new(rope, factors, options.n_ctx)).collect();
        let (set, n_ctx) = (options.kernels, options.n_ctx);
        let load_ns = start.elapsed().as_nanos() as u64;
        let (kv_meter, digest) = (Arc::default(), OnceLock::new());
        let lender = None;
        let tokens = Model::tokens_of(file)?;
        Ok(Arc::new(Model {
            config,
            weights,
            arena,
            lender,
            ropes,
            pool,
            kv_meter,
            set,
            n_ctx,
            load_ns,
            digest,
            tokens,
        }))
    }

    /// Loads what `plan` asked for as the layers of a drafter for `target`: they run on its threads, for contexts of its length, and use the matrices that it
    /// lends ([`Matrix::lent`]) where they lie.
    ///
    /// # Errors
    /// Memory or the disk failed, or `progress` said stop.
    pub(crate) fn attached(
        target: &Arc<Model>,
        (config, weights, plan): (Config, Weights, Plan<'_>),
        start: Instant,
        progress: &mut (dyn FnMut(usize, usize) -> bool + Send),
    ) -> Result<Model> {
        let (pool, set, n_ctx) = (target.pool.clone(), target.set, target.n_ctx);
        let arena = plan.load(&pool, progress)?;
        let factors = weights.rope_factors.as_deref();
        let ropes = config.ropes.iter().map(|rope| RopeTable::new(rope, factors, n_ctx)).collect();
        let load_ns = start.elapsed().as_nanos() as u64;
        let (kv_meter, digest, lender) = (Arc::default(), OnceLock::new(), Some(target.clone()));
        let tokens = target.tokens;
        Ok(Model { config, weights, arena, lender, ropes, pool, kv_meter, set, n_ctx, load_ns, digest, tokens })
    }

    /// The vocabulary of a file.
    pub(crate) fn tokens_of(file: &GgufFile) -> Result<Tokens> {
        let mut hash = Xxh3::new();
        let texts = file.metadata().get_array_str("tokenizer.ggml.tokens")?;
        let mut count = 0;
        for text in texts.iter().flat_map(|texts| texts.iter()) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text);
            count += 1;
        }
        Ok(Tokens { count, digest: hash.digest() })
    }

    /// Its vocabulary.
    pub(crate) fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// The panels of a matrix, its own or lent.
    pub(crate) fn panels(&self, matrix: &Matrix) -> Panels<'_> {
        match &self.lender {
            Some(lender) if matrix.is_lent() => lender.arena.panels(matrix),
            _ => self.arena.panels(matrix),
        }
    }

    /// The model in numbers.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Longest context of a session.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// The instruction set.
    pub fn kernels(&self) -> &KernelSet {
        &self.set
    }

    /// Threads of a forward.
    pub fn threads(&self) -> usize {
        self.pool.count()
    }

    /// Bytes of the weights in memory.
    pub fn weight_bytes(&self) -> usize {
        self.arena.bytes().len()
    }

    /// Counts the blocks of all caches of this model.
    pub fn kv_meter(&self) -> &Arc<Meter> {
        &self.kv_meter
    }

    /// What loading took.
    pub fn load_ns(&self) -> u64 {
        self.load_ns
    }

    /// Whether the model's threads live in this process (after a fork they do not).
    pub fn is_alive(&self) -> bool {
        self.pool.is_alive()
    }
}

/// The pools that models of this process hold, one for each number of threads.
static POOLS: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());
/// The process that `POOLS` belongs to; 0 before the first model.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The pool of so many threads that all models of this process share: a draft model runs on the cores of its target, and takes turns with it. A process that
/// was forked from one with models makes a pool for each of its own: the lock may have been held at the fork, and the threads are the parent's.
fn pool(threads: usize) -> Result<Arc<Pool>> {
    let new = || Pool::new(threads).map(Arc::new).map_err(|source| Error::Threads { count: threads, source });
    let process = std::process::id();
    if PROCESS.compare_exchange(0, process, Ordering::SeqCst, Ordering::SeqCst).is_err_and(|owner| owner != process) {
        return new();
    }
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools.retain(|pool| pool.strong_count() > 0);
    if let Some(pool) = pools.iter().filter_map(Weak::upgrade).find(|pool| pool.count() == threads) {
        return Ok(pool);
    }
    let pool = new()?;
    pools.push(Arc::downgrade(&pool));
    Ok(pool)
}
