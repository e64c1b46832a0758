//! A vocabulary and its tokenizer.

use std::cell::RefCell;
use std::sync::Mutex;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use quoth_engine::Error;
use quoth_engine::vocab::{self, EncodeOptions, Keys, Part, StringTable, Value};

use crate::convert::shown;
use crate::errors::{guarded, to_py, tokenizer};
use crate::gguf::GgufFile;

#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct Tokenizer {
    tokenizer: vocab::Tokenizer,
}

/// Metadata in a mapping of Python. The first exception that it raises is kept.
struct Mapping<'py> {
    mapping: &'py Bound<'py, PyAny>,
    raised: RefCell<Option<PyErr>>,
}

impl Keys for Mapping<'_> {
    fn get(&self, key: &str) -> Option<Value> {
        let found = self.mapping.call_method1("get", (key,)).and_then(|found| value(&found));
        found.unwrap_or_else(|error| {
            self.raised.borrow_mut().get_or_insert(error);
            None
        })
    }
}

/// A value as the vocabulary knows it; `None` for None.
fn value(found: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    if found.is_none() {
        return Ok(None);
    }
    let value = if let Some(text) = text(found) {
        Value::Text(text)
    } else if let Ok(flag) = found.cast::<PyBool>() {
        Value::Flag(flag.is_true())
    } else if found.is_instance_of::<PyInt>() {
        found.extract().map_or(Value::Other("a whole number beyond 128 bits".into()), Value::Int)
    } else if found.is_instance_of::<PyFloat>() {
        Value::Float(found.extract()?)
    } else if found.hasattr("tolist")? {
        return self::value(&found.call_method0("tolist")?);
    } else if found.is_instance_of::<PyList>() || found.is_instance_of::<PyTuple>() {
        array(found)?
    } else {
        Value::Other(format!("of the type {}", found.get_type().name()?))
    };
    Ok(Some(value))
}

/// Text or bytes; none of what has a lone surrogate.
fn text(value: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    match (value.cast::<PyString>(), value.cast::<PyBytes>()) {
        (Ok(text), _) => text.to_str().ok().map(|text| text.as_bytes().to_vec()),
        (_, Ok(bytes)) => Some(bytes.as_bytes().to_vec()),
        _ => None,
    }
}

/// A list of text, of whole numbers or of numbers, by its first entry.
fn array(list: &Bound<'_, PyAny>) -> PyResult<Value> {
    let mut ints = Vec::new();
    let mut floats = Vec::new();
    let mut texts = StringTable::default();
    for (at, item) in list.try_iter()?.enumerate() {
        let item = item?;
        if let Some(text) = text(&item) {
            texts.push(|blob| blob.extend(text));
        } else if item.is_instance_of::<PyBool>() {
        } else if let Ok(number) = item.extract::<i128>() {
            ints.push(number.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
            floats.push(number as f32);
        } else if item.is_instance_of::<PyFloat>() {
            floats.push(item.extract()?);
        }
        if [texts.len(), floats.len()].iter().all(|n| *n != at + 1) {
            return Ok(Value::Other(format!("an array with an entry {at} of the type {}", item.get_type().name()?)));
        }
    }
    Ok(match floats.len() {
        0 => Value::Texts(texts),
        n if n == ints.len() => Value::Ints(ints),
        _ => Value::Floats(floats),
    })
}

impl Tokenizer {
    fn vocab(&self) -> &vocab::Vocab {
        self.tokenizer.vocab()
    }

    /// A token id of the vocabulary.
    fn id(&self, id: &Bound<'_, PyAny>) -> PyResult<u32> {
        let n_vocab = self.vocab().n_vocab();
        // True and False are whole numbers to Python; as token ids they are a mistake.
        let number = if id.is_instance_of::<PyBool>() { None } else { id.extract::<u32>().ok() };
        match number.filter(|id| (*id as usize) < n_vocab) {
            Some(id) => Ok(id),
            None => {
                let message = format!("expected a token id in 0 to {}, found {}", n_vocab - 1, shown(id)?);
                Err(tokenizer(id.py(), message))
            }
        }
    }

    fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.vocab().token_text(id)).into_owned()
    }
}

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, metadata: &Bound<'_, PyAny>, pre: Option<&str>) -> PyResult<Self> {
        if let Ok(file) = metadata.cast::<GgufFile>() {
            let file = file.get().file.clone();
            let tokenizer =
                guarded(py, &Mutex::new(None), || Ok(vocab::Tokenizer::from_metadata(file.metadata(), pre)?))?;
            return Ok(Tokenizer { tokenizer });
        }
        let keys = Mapping { mapping: metadata, raised: RefCell::new(None) };
        let tokenizer = vocab::Tokenizer::from_metadata(&keys, pre);
        match keys.raised.into_inner() {
            Some(error) => Err(error),
            None => Ok(Tokenizer { tokenizer: tokenizer.map_err(|error| to_py(py, Error::Vocab(error)))? }),
        }
    }

    #[getter]
    fn model(&self) -> &'static str {
        self.vocab().model().name()
    }

    #[getter]
    fn pre(&self) -> Option<&str> {
        self.tokenizer.pre()
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.vocab().n_vocab()
    }

    #[getter]
    fn add_bos(&self) -> bool {
        self.tokenizer.add_bos()
    }

    #[getter]
    fn add_eos(&self) -> bool {
        self.tokenizer.add_eos()
    }

    #[getter]
    fn add_space_prefix(&self) -> bool {
        self.vocab().add_space_prefix()
    }

    #[getter]
    fn eog_ids(&self) -> Vec<u32> {
        self.vocab().eog_ids().to_vec()
    }

    #[getter]
    fn suppressed_ids(&self) -> Vec<u32> {
        self.vocab().suppressed().to_vec()
    }

    /// Names and ids of the tokens that keys name.
    #[getter]
    fn roles(&self) -> Vec<(&'static str, u32)> {
        self.vocab().roles().iter().map(|role| (role.name, role.id)).collect()
    }

    /// Texts of control and unknown tokens.
    #[getter]
    fn control_texts(&self) -> Vec<String> {
        let hidden = self.vocab().special_ids().filter(|(_, kind)| kind.is_hidden());
        hidden.map(|(id, _)| self.text(id)).filter(|text| !text.is_empty()).collect()
    }

    fn token_id(&self, py: Python<'_>, text: &str) -> PyResult<Option<u32>> {
        self.vocab().id_of(text.as_bytes()).map_err(|error| to_py(py, Error::Vocab(error)))
    }

    fn token_text(&self, id: &Bound<'_, PyAny>) -> PyResult<String> {
        Ok(self.text(self.id(id)?))
    }

    fn token_bytes<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(id.py(), self.vocab().token_bytes(self.id(id)?)))
    }

    fn is_control(&self, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.vocab().kind(self.id(id)?).is_some_and(|kind| kind.is_hidden()))
    }

    #[allow(clippy::too_many_arguments, reason = "the keywords of one call")]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        special: bool,
        add_bos: Option<bool>,
        add_eos: Option<bool>,
        add_space_prefix: Option<bool>,
        lossy: bool,
    ) -> PyResult<Vec<u32>> {
        let options = EncodeOptions { special, add_bos, add_eos, add_space_prefix, lossy };
        guarded(py, &Mutex::new(None), || Ok(self.tokenizer.encode(text, &options)?))
    }

    /// The ids of bytes that may stand anywhere in a text.
    fn tokenize_bytes(&self, py: Python<'_>, data: &[u8]) -> PyResult<Vec<u32>> {
        guarded(py, &Mutex::new(None), || Ok(self.tokenizer.tokenize_bytes(data)?))
    }

    /// Stretches of text, none empty, and special tokens, in order.
    fn split<'py>(&self, py: Python<'py>, text: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let parts = guarded(py, &Mutex::new(None), || Ok(self.tokenizer.split(text.as_bytes())?))?;
        let one = |part| match part {
            Part::Token(id) => u32::into_bound_py_any(id, py),
            // Special tokens are whole characters, so what is between them is as well.
            Part::Text(range) => text[range].into_bound_py_any(py),
        };
        parts.into_iter().map(one).collect()
    }

    /// The bytes of tokens, joined; control tokens only if `control` says so.
    fn decode<'py>(&self, tokens: &Bound<'py, PyAny>, control: bool) -> PyResult<Bound<'py, PyBytes>> {
        let mut data = Vec::new();
        for id in tokens.try_iter()? {
            let id = self.id(&id?)?;
            if control || !self.vocab().kind(id).is_some_and(|kind| kind.is_hidden()) {
                data.extend_from_slice(self.vocab().token_bytes(id));
            }
        }
        Ok(PyBytes::new(tokens.py(), &data))
    }
}
