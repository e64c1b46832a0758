//! A loaded model.

use std::sync::{Arc, Mutex, OnceLock};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quoth_engine::model::{self, LoadOptions};
use quoth_engine::vocab::{Tokenizer, Vocab};
use quoth_engine::{Error, pool};
use quoth_grammar::{Compiler, Tokens};
use quoth_kernels::KernelSet;

use crate::decoder::ConstraintArgs;
use crate::errors::{guarded, options};
use crate::gguf::GgufFile;
use crate::{callback, convert};

#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct Model {
    pub(crate) model: Arc<model::Model>,
    file: Arc<quoth_engine::gguf::GgufFile>,
    vocab: OnceLock<Arc<Vocab>>,
    grammars: OnceLock<Arc<Grammars>>,
}

/// What compiles grammars for a model's vocabulary; made with the first grammar.
pub(crate) struct Grammars {
    vocab: Arc<Vocab>,
    file: Arc<quoth_engine::gguf::GgufFile>,
    compiler: OnceLock<Compiler>,
}

impl Grammars {
    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        self.compiler.get_or_init(|| {
            // A file whose text cannot be encoded still has tokens with bytes.
            let tokenizer = Tokenizer::from_metadata(self.file.metadata(), None).ok();
            Compiler::new(Tokens::new(&self.vocab, tokenizer.map(Arc::new)))
        })
    }
}

/// Names of the instruction sets of this CPU, slowest first.
#[pyfunction]
pub(crate) fn kernel_sets() -> Vec<(&'static str, &'static str)> {
    KernelSet::available().iter().map(|set| (set.name(), set.detail())).collect()
}

/// Physical cores that this process may use.
#[pyfunction]
pub(crate) fn default_threads() -> usize {
    pool::default_threads()
}

/// Names of the supported architectures.
#[pyfunction]
pub(crate) fn architectures() -> Vec<&'static str> {
    model::supported().collect()
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (file, n_ctx, threads, kernels, progress))]
    fn new(
        py: Python<'_>,
        file: &GgufFile,
        n_ctx: usize,
        threads: usize,
        kernels: Option<&str>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let kernels = match kernels {
            None => KernelSet::best(),
            Some(name) => KernelSet::named(name).map_err(|names| {
                options(py, format!("kernels is `{name}`, expected one of {} on this machine", names.join(", ")))
            })?,
        };
        let load = LoadOptions { n_ctx, threads, kernels };
        let raised = Mutex::new(None);
        let model = guarded(py, &raised, || {
            let mut report = |done: usize, total: usize| callback::progress(&progress, &raised, done, total);
            model::Model::load(&file.file, &load, &mut report)
        })?;
        Ok(Model { model, file: file.file.clone(), vocab: OnceLock::new(), grammars: OnceLock::new() })
    }

    /// The model in numbers.
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let config = self.model.config();
        let dict = PyDict::new(py);
        dict.set_item("arch", config.arch)?;
        dict.set_item("n_vocab", config.n_vocab)?;
        dict.set_item("n_ctx_train", config.n_ctx_train)?;
        dict.set_item("n_layer", config.n_layer())?;
        dict.set_item("n_embd", config.n_embd)?;
        dict.set_item("n_head", config.layers[0].n_head)?;
        dict.set_item("n_head_kv", config.layers[0].n_head_kv)?;
        dict.set_item("head_dim", config.layers[0].head_dim)?;
        dict.set_item("n_ff", config.layers[0].n_ff)?;
        let experts = config.layers[0].experts;
        dict.set_item("n_expert", experts.map_or(0, |e| e.count))?;
        dict.set_item("n_expert_used", experts.map_or(0, |e| e.used))?;
        Ok(dict)
    }

    /// Compiles a constraint, or says what is wrong with it.
    fn compile(&self, py: Python<'_>, constraint: ConstraintArgs) -> PyResult<()> {
        let grammars = self.grammars(py)?;
        guarded(py, &Mutex::new(None), || Ok(grammars.compiler().compile(&constraint.grammar()?).map(drop)?))
    }

    /// Token ids of the vocabulary, checked.
    fn token_ids(&self, tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        convert::tokens_to(tokens, self.model.config().n_vocab as u32 - 1)
    }

    #[getter]
    fn n_ctx(&self) -> usize {
        self.model.n_ctx()
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.model.config().n_vocab
    }

    #[getter]
    fn threads(&self) -> usize {
        self.model.threads()
    }

    #[getter]
    fn kernels(&self) -> &'static str {
        self.model.kernels().name()
    }

    #[getter]
    fn kernels_detail(&self) -> &'static str {
        self.model.kernels().detail()
    }

    #[getter]
    fn weight_bytes(&self) -> usize {
        self.model.weight_bytes()
    }

    #[getter]
    fn load_ns(&self) -> u64 {
        self.model.load_ns()
    }
}

impl Model {
    /// The bytes of the tokens, read once. A file without a vocabulary has tokens without text.
    pub(crate) fn vocab(&self, py: Python<'_>) -> PyResult<Arc<Vocab>> {
        if let Some(vocab) = self.vocab.get() {
            return Ok(vocab.clone());
        }
        let vocab = guarded(py, &Mutex::new(None), || {
            let metadata = self.file.metadata();
            if metadata.get("tokenizer.ggml.model").is_none() {
                return Ok(Vocab::without_text(self.model.config().n_vocab));
            }
            Ok(Vocab::from_metadata(metadata)?)
        })?;
        Ok(self.vocab.get_or_init(|| Arc::new(vocab)).clone())
    }

    /// What compiles grammars for this vocabulary.
    pub(crate) fn grammars(&self, py: Python<'_>) -> PyResult<Arc<Grammars>> {
        let vocab = self.vocab(py)?;
        Ok(self
            .grammars
            .get_or_init(|| Arc::new(Grammars { vocab, file: self.file.clone(), compiler: OnceLock::new() }))
            .clone())
    }

    /// The model, if its threads live in this process.
    pub(crate) fn alive(&self) -> Result<Arc<model::Model>, Error> {
        if self.model.is_alive() { Ok(self.model.clone()) } else { Err(Error::Forked) }
    }
}
