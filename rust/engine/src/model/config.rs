//! What a model is, in numbers: read from the metadata once, checked, and never looked up again.
//!
//! In: metadata, the family's description ([`super::family`]). Out: a [`Config`], to weights, cache and forward.
//!
//! - **C1** Every number is checked against [`crate::limits`] before anything is sized by it.
//! - **C2** A key that no part of the engine asks for is an error, unless it has no effect ([`super::keys`]).

use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::limits;

use super::family::{Family, Presence};
use super::keys::{Asked, Keys, file_name};

/// The nonlinearity of a gated feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU, tanh form.
    Gelu,
}

/// A rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Leading numbers of a head that rotate; even.
    pub dims: usize,
    /// Numbers over which the exponents spread; `dims` except where a family rotates a part.
    pub span: usize,
    /// Base of the angles.
    pub base: f64,
    /// How positions beyond the trained ones are treated.
    pub scaling: RopeScaling,
    /// Whether the divisors of tensor `rope_freqs.weight` apply.
    pub factors: bool,
}

/// Scaling of rotary positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Slow angles interpolated, fast ones kept. Source: YaRN (Peng et al., 2023).
    Yarn {
        /// The factor.
        factor: f64,
        /// Context of the training before extension.
        original: f64,
        /// Multiplies cosine and sine on top of `0.1 · ln(factor) + 1`.
        attention: f64,
    },
}

/// Experts of a feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many serve a row.
    pub used: usize,
    /// Width of one.
    pub n_ff: usize,
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Numbers a head.
    pub head_dim: usize,
    /// Width of the dense feed-forward; 0 if there is none.
    pub n_ff: usize,
    /// Index into [`Config::ropes`].
    pub rope: usize,
    /// Positions a query sees, itself included; `None`: all.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub score_scale: f32,
    /// The earlier layer whose keys and values this one reads, if it has none of its own.
    pub shares_kv_of: Option<usize>,
    /// Experts, if any.
    pub experts: Option<Experts>,
}

/// A model in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the architecture.
    pub arch: &'static str,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Context that the model was made for.
    pub n_ctx_train: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Factor of the token embeddings.
    pub embed_scale: f32,
    /// Bound of the logits: `c · tanh(x / c)`.
    pub soft_cap: Option<f32>,
    /// Nonlinearity of the feed-forwards.
    pub activation: Activation,
    /// Width of the per-layer embeddings; 0: none.
    pub n_embd_per_layer: usize,
    /// The layers.
    pub layers: Vec<LayerConfig>,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<RopeConfig>,
}

impl Config {
    /// Number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Reads and checks the metadata of a file of this family. The vocabulary's size is that of the embedding.
    pub(crate) fn read(file: &GgufFile, family: &Family) -> Result<Config> {
        let asked = Asked::default();
        let keys = Keys { file, arch: family.arch, asked: &asked };
        keys.refuse_parts_of_models()?;
        let n_vocab = vocabulary_size(file)?;
        if let Some(said) = keys.uint("vocab_size")?
            && said != n_vocab
        {
            return Err(keys.unsupported("vocab_size", said, format!("{n_vocab} as `token_embd.weight` has rows")));
        }
        const TOKENS: &str = "tokenizer.ggml.tokens";
        if let Some(tokens) = file.metadata().get_array_str(TOKENS)?
            && tokens.len() > n_vocab
        {
            return Err(Error::UnsupportedValue {
                file: file_name(file),
                key: TOKENS.into(),
                found: format!("{} tokens", tokens.len()),
                expected: format!("at most {n_vocab} as `token_embd.weight` has rows"),
            });
        }
        Config::of(keys, family, n_vocab)
    }

    /// The same for a vocabulary of `n_vocab` tokens. Keys that the caller asked for before are known.
    pub(crate) fn of(keys: Keys<'_>, family: &Family, n_vocab: usize) -> Result<Config> {
        let n_layer = keys.bounded("block_count", keys.need_uint("block_count")?, limits::MAX_LAYERS)?;
        let n_embd = keys.bounded("embedding_length", keys.need_uint("embedding_length")?, limits::MAX_WIDTH)?;
        let n_ctx_train = keys.bounded("context_length", keys.need_uint("context_length")?, limits::MAX_CONTEXT)?;
        let eps = keys.need_float("attention.layer_norm_rms_epsilon")?;
        if !(0.0..1.0).contains(&eps) {
            return Err(keys.unsupported("attention.layer_norm_rms_epsilon", eps, "0 to below 1"));
        }
        let mut config = Config {
            arch: family.arch,
            n_vocab,
            n_ctx_train,
            n_embd,
            eps,
            embed_scale: 1.0,
            soft_cap: soft_cap(keys, family)?,
            activation: family.activation,
            n_embd_per_layer: 0,
            layers: layers(keys, n_layer, n_embd)?,
            ropes: Vec::new(),
        };
        config.ropes.push(rope(keys, config.layers[0].head_dim, family)?);
        (family.configure)(keys, &mut config)?;
        keys.refuse_activations_other_than(family.activation)?;
        keys.refuse_what_nobody_asked_for()?;
        config.check(keys)?;
        Ok(config)
    }

    /// What must hold whatever the family.
    fn check(&self, keys: Keys<'_>) -> Result<()> {
        for (i, layer) in self.layers.iter().enumerate() {
            if layer.n_head % layer.n_head_kv != 0 {
                let expected = format!("a divisor of {} heads in layer {i}", layer.n_head);
                return Err(keys.unsupported("attention.head_count_kv", layer.n_head_kv, expected));
            }
            let rope = &self.ropes[layer.rope];
            if rope.dims > layer.head_dim || !rope.dims.is_multiple_of(2) || rope.dims == 0 {
                let expected = format!("an even number up to the head's {}", layer.head_dim);
                return Err(keys.unsupported("rope.dimension_count", rope.dims, expected));
            }
        }
        for rope in &self.ropes {
            if !(rope.base.is_finite() && rope.base > 1.0) {
                return Err(keys.unsupported("rope.freq_base", rope.base, "a finite number above 1"));
            }
        }
        Ok(())
    }
}

/// The bound of the logits, where the family has one.
fn soft_cap(keys: Keys<'_>, family: &Family) -> Result<Option<f32>> {
    match keys.float("final_logit_softcapping")? {
        None | Some(0.0) => Ok(None),
        Some(cap) if family.soft_cap && cap.is_finite() && cap > 0.0 => Ok(Some(cap)),
        Some(cap) => {
            let expected =
                if family.soft_cap { "a finite number above 0" } else { "0: this family is supported without it" };
            Err(keys.unsupported("final_logit_softcapping", cap, expected))
        }
    }
}

/// Rows of the token embedding.
fn vocabulary_size(file: &GgufFile) -> Result<usize> {
    if file.tensors().is_empty() {
        return Err(Error::VocabularyOnly { file: file_name(file) });
    }
    match file.tensor("token_embd.weight").map(|t| t.shape().to_vec()) {
        Some(shape) if shape.len() == 2 && shape[1] <= limits::MAX_VOCAB as u64 => Ok(shape[1] as usize),
        Some(found) => Err(Error::TensorShape {
            file: file_name(file),
            tensor: "token_embd.weight".into(),
            found,
            expected: vec![0, limits::MAX_VOCAB as u64],
        }),
        None => {
            Err(Error::MissingTensor { file: file_name(file), tensor: "token_embd.weight".into(), expected: vec![] })
        }
    }
}

/// The layers as the common keys describe them.
fn layers(keys: Keys<'_>, n_layer: usize, n_embd: usize) -> Result<Vec<LayerConfig>> {
    let need = |key: &'static str, most: usize| -> Result<Vec<usize>> {
        let all = keys
            .per_layer(key, n_layer)?
            .ok_or_else(|| keys.file.metadata().missing(&keys.name(key), "u32 or array of u32"))?;
        all.iter().try_for_each(|v| keys.bounded(key, *v, most).map(drop))?;
        Ok(all)
    };
    let heads = need("attention.head_count", limits::MAX_HEADS)?;
    let kv_heads = match keys.get("attention.head_count_kv") {
        Some(_) => need("attention.head_count_kv", limits::MAX_HEADS)?,
        None => heads.clone(),
    };
    let widths = need("feed_forward_length", limits::MAX_WIDTH)?;
    let head_dim = match keys.uint("attention.key_length")? {
        Some(length) => length,
        None if n_embd.is_multiple_of(heads[0]) => n_embd / heads[0],
        None => return Err(keys.unsupported("attention.head_count", heads[0], format!("a divisor of {n_embd}"))),
    };
    keys.bounded("attention.key_length", head_dim, limits::MAX_HEAD_DIM)?;
    if let Some(value_length) = keys.uint("attention.value_length")?
        && value_length != head_dim
    {
        return Err(keys.unsupported("attention.value_length", value_length, format!("{head_dim} as the keys have")));
    }
    let score_scale = match keys.float("attention.scale")? {
        Some(scale) if scale != 0.0 => {
            if !scale.is_finite() {
                return Err(keys.unsupported("attention.scale", scale, "a finite number"));
            }
            scale
        }
        _ => 1.0 / (head_dim as f32).sqrt(),
    };
    Ok((0..n_layer)
        .map(|i| LayerConfig {
            n_head: heads[i],
            n_head_kv: kv_heads[i],
            head_dim,
            n_ff: widths[i],
            rope: 0,
            window: None,
            score_scale,
            shares_kv_of: None,
            experts: None,
        })
        .collect())
}

/// The rotary embedding as the common keys describe it.
fn rope(keys: Keys<'_>, head_dim: usize, family: &Family) -> Result<RopeConfig> {
    let dims = keys.uint("rope.dimension_count")?.unwrap_or(head_dim);
    let base = f64::from(keys.float("rope.freq_base")?.unwrap_or(10_000.0));
    let positive = |key: &'static str, value: f32| {
        if value.is_finite() && value > 0.0 {
            Ok(f64::from(value))
        } else {
            Err(keys.unsupported(key, value, "a finite number above 0"))
        }
    };
    let factor = match (keys.float("rope.scaling.factor")?, keys.float("rope.scale_linear")?) {
        (Some(0.0), _) | (None, None | Some(0.0)) => 1.0,
        (Some(factor), _) => positive("rope.scaling.factor", factor)?,
        (None, Some(factor)) => positive("rope.scale_linear", factor)?,
    };
    let scaling = match keys.text("rope.scaling.type")? {
        Some("none") => RopeScaling::None,
        None | Some("linear") if factor == 1.0 => RopeScaling::None,
        None | Some("linear") => RopeScaling::Linear { factor },
        Some("yarn") => {
            let original = match keys.uint("rope.scaling.original_context_length")? {
                Some(original) => {
                    keys.bounded("rope.scaling.original_context_length", original, limits::MAX_CONTEXT)?
                }
                None => keys.need_uint("context_length")?,
            };
            let attention =
                positive("rope.scaling.attn_factor", keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0))?;
            RopeScaling::Yarn { factor, original: original as f64, attention }
        }
        Some(other) => return Err(keys.unsupported("rope.scaling.type", format!("`{other}`"), "none, linear or yarn")),
    };
    let factors = match family.rope_factors {
        Presence::Needed => true,
        Presence::Optional => keys.file.tensor("rope_freqs.weight").is_some(),
        Presence::Never => false,
    };
    Ok(RopeConfig { dims, span: dims, base, scaling, factors })
}
