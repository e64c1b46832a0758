//! Metadata keys of an architecture: which of them the engine reads, and what happens to the rest.
//!
//! In: metadata, what a family asks for. Out: checked values, to [`super::config`].
//!
//! - **Q1** Each key is read through [`Keys`], which remembers it.
//! - **Q2** In the end every key below the architecture's prefix was asked for, has no effect ([`INERT`]) or has the value that changes nothing
//!   ([`NEUTRAL`]). Any other is an error that names it: what a file says and the engine does not read would be computed wrongly in silence.

use std::cell::RefCell;
use std::collections::HashSet;

use super::config::Activation;
use crate::error::{Error, Result};
use crate::gguf::{GgufFile, Value};
use crate::limits;

/// The keys that were asked for.
#[derive(Default)]
pub(crate) struct Asked(RefCell<HashSet<String>>);

/// Metadata keys below the architecture's prefix.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) file: &'a GgufFile,
    pub(crate) arch: &'static str,
    pub(crate) asked: &'a Asked,
}

impl<'a> Keys<'a> {
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// The whole name of a key that is asked for now.
    fn ask(&self, key: &str) -> String {
        let name = self.name(key);
        self.asked.0.borrow_mut().insert(name.clone());
        name
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.file.metadata().get(&self.ask(key))
    }

    pub(crate) fn uint(&self, key: &str) -> Result<Option<usize>> {
        Ok(self.file.metadata().get_u32(&self.ask(key))?.map(|v| v as usize))
    }

    pub(crate) fn need_uint(&self, key: &str) -> Result<usize> {
        Ok(self.file.metadata().need_u32(&self.ask(key))? as usize)
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.file.metadata().get_f32(&self.ask(key))?)
    }

    pub(crate) fn need_float(&self, key: &str) -> Result<f32> {
        Ok(self.file.metadata().need_f32(&self.ask(key))?)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        Ok(self.file.metadata().get_str(&self.ask(key))?)
    }

    /// A boolean; absent: false.
    pub(crate) fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.file.metadata().get_bool(&self.ask(key))?.unwrap_or(false))
    }

    /// The list of layers under a key that must be there.
    pub(crate) fn need_layers(&self, key: &str) -> Result<Vec<usize>> {
        let name = self.ask(key);
        let all = self.file.metadata().get_array_u32(&name)?;
        let all = all.ok_or_else(|| self.file.metadata().missing(&name, "array of u32"))?;
        if all.is_empty() || all.len() > limits::MAX_TAPS {
            let expected = format!("1 to {}", limits::MAX_TAPS);
            return Err(self.unsupported(key, format!("{} layers", all.len()), expected));
        }
        Ok(all.into_iter().map(|layer| layer as usize).collect())
    }

    /// One number for each of `n` layers.
    pub(crate) fn per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<usize>>> {
        let all = self.file.metadata().get_per_layer_u32(&self.ask(key), n)?;
        Ok(all.map(|all| all.into_iter().map(|v| v as usize).collect()))
    }

    /// A boolean for each of `n` layers; the key must be there.
    pub(crate) fn per_layer_bool(&self, key: &str, n: usize) -> Result<Vec<bool>> {
        let name = self.ask(key);
        let all = self.file.metadata().get_array_bool(&name)?;
        let all = all.ok_or_else(|| self.file.metadata().missing(&name, "array of bool"))?;
        if all.len() != n {
            return Err(self.unsupported(key, format!("{} values", all.len()), format!("one for each of {n} layers")));
        }
        Ok(all)
    }

    /// The error that a key has a value which is not honoured.
    pub(crate) fn unsupported(
        &self,
        key: &str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> Error {
        Error::UnsupportedValue {
            file: file_name(self.file),
            key: self.name(key),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// A number that must lie in `1 ..= most`.
    pub(crate) fn bounded(&self, key: &str, value: usize, most: usize) -> Result<usize> {
        if value == 0 || value > most {
            return Err(self.unsupported(key, value, format!("1 to {most}")));
        }
        Ok(value)
    }

    /// Refuses files whose type says that they are no whole model.
    pub(crate) fn refuse_parts_of_models(&self) -> Result<()> {
        match self.file.metadata().get_str("general.type")? {
            Some(found @ ("adapter" | "mmproj" | "imatrix")) => Err(Error::UnsupportedValue {
                file: file_name(self.file),
                key: "general.type".into(),
                found: format!("`{found}`"),
                expected: "model".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a file that names another nonlinearity than the family's.
    pub(crate) fn refuse_activations_other_than(&self, activation: Activation) -> Result<()> {
        let names: &[&str] = match activation {
            Activation::Silu => &["silu", "swish"],
            Activation::Gelu => &["gelu_pytorch_tanh", "gelu_tanh", "gelu_new"],
        };
        match self.text("hidden_activation")? {
            Some(found) if !names.contains(&found) => {
                Err(self.unsupported("hidden_activation", format!("`{found}`"), names[0]))
            }
            _ => Ok(()),
        }
    }

    /// Refuses keys below the prefix that were not asked for, unless they have no effect.
    pub(crate) fn refuse_what_nobody_asked_for(&self) -> Result<()> {
        let asked = self.asked.0.borrow();
        let prefix = self.name("");
        for (name, value) in self.file.metadata().iter() {
            let Some(key) = name.strip_prefix(&prefix).filter(|key| !asked.contains(name) && !INERT.contains(key))
            else {
                continue;
            };
            let Some((_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == key) else {
                let (file, key, arch) = (file_name(self.file), name.to_owned(), self.arch.to_owned());
                return Err(Error::UnknownKey { file, key, arch });
            };
            let found = match value {
                Value::Bool(v) => f64::from(u8::from(v)),
                other => match other.as_float().or(other.as_int().map(|v| v as f64)) {
                    Some(v) => v,
                    None => return Err(self.unsupported(key, "not a number", neutral)),
                },
            };
            if found != *neutral {
                return Err(self.unsupported(key, found, neutral));
            }
        }
        Ok(())
    }
}

pub(crate) fn file_name(file: &GgufFile) -> String {
    file.paths().next().map(|p| p.display().to_string()).unwrap_or_default()
}

/// Keys that change the arithmetic where a family has them, and the value that changes nothing. A family that honours one asks for it.
const NEUTRAL: &[(&str, f64)] = &[
    ("attn_logit_softcapping", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.causal", 1.0),
    ("attention.temperature_scale", 0.0),
    ("attention.value_residual_mix_lora_rank", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("use_parallel_residual", 0.0),
    ("router_logit_softcapping", 0.0),
    ("expert_shared_count", 0.0),
    ("expert_shared_feed_forward_length", 0.0),
    ("expert_weights_scale", 1.0),
    ("expert_weights_norm", 1.0),
    ("expert_gating_func", 1.0),
    ("expert_group_count", 0.0),
    ("expert_group_used_count", 0.0),
    ("leading_dense_block_count", 0.0),
    ("nextn_predict_layers", 0.0),
    ("interleave_moe_layer_step", 1.0),
    ("pooling_type", 0.0),
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("attention.sliding_window", 0.0),
    ("attention.shared_kv_layers", 0.0),
    ("attention.output_scale", 1.0),
    ("attention.value_scale", 1.0),
    ("embedding_length_per_layer_input", 0.0),
    ("swin_norm", 0.0),
    ("rope.scaling.alpha", 0.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_beta_fast", 32.0),
    ("rope.scaling.yarn_beta_slow", 1.0),
];

/// Keys that say something about the file or its making, or repeat what tensors say.
const INERT: &[&str] = &[
    "tensor_data_layout",
    "rope.scaling.finetuned",
    // What YaRN starts from; other scalings do not.
    "rope.scaling.original_context_length",
    // Of families with another kind of norm; these have one epsilon.
    "attention.layer_norm_epsilon",
];
