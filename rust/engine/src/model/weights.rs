//! The tensors of a model, by role.
//!
//! In: a [`Config`] and a [`Plan`]. Out: [`Weights`], to the forward. Names and shapes of tensors are stated here and nowhere else.

use super::config::{Config, LayerConfig};
use super::family::{Family, Presence};
use super::load::{Matrix, Plan};
use crate::error::Result;

/// A matrix and perhaps a bias.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) matrix: Matrix,
    pub(crate) bias: Option<Vec<f32>>,
}

/// Query, key and value of a layer.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) norm: Vec<f32>,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) k_norm: Option<Vec<f32>>,
    pub(crate) output: Linear,
    pub(crate) post_norm: Option<Vec<f32>>,
}

/// A gated feed-forward.
#[derive(Debug)]
pub(crate) struct FeedForward {
    pub(crate) norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) post_norm: Option<Vec<f32>>,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention: Attention,
    pub(crate) ffn: FeedForward,
}

/// All of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: Vec<f32>,
    /// The embedding itself in tied models.
    pub(crate) output: Matrix,
    /// Divisors of the rotary angles, one a pair.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

impl Weights {
    /// Asks for every tensor that the family has.
    pub(crate) fn plan(plan: &mut Plan<'_>, config: &Config, family: &Family) -> Result<Weights> {
        let (n_embd, n_vocab) = (config.n_embd, config.n_vocab);
        let embedding = plan.matrix("token_embd.weight", n_embd, n_vocab)?;
        let output_norm = plan.vector("output_norm.weight", n_embd)?;
        let output =
            if plan.has("output.weight") { plan.matrix("output.weight", n_embd, n_vocab)? } else { embedding };
        let rope_factors = match config.ropes.iter().find(|r| r.factors) {
            Some(rope) => Some(plan.vector("rope_freqs.weight", rope.dims / 2)?),
            None => None,
        };
        let layers = config.layers.iter().enumerate().map(|(i, layer)| {
            Ok(Layer {
                attention: attention(plan, config, layer, family, &format!("blk.{i}"))?,
                ffn: feed_forward(plan, config, layer, family, &format!("blk.{i}"))?,
            })
        });
        Ok(Weights { embedding, layers: layers.collect::<Result<_>>()?, output_norm, output, rope_factors })
    }
}

fn attention(plan: &mut Plan<'_>, config: &Config, layer: &LayerConfig, family: &Family, blk: &str) -> Result<Attention> {
    let n_embd = config.n_embd;
    let (dim, pairs, dims) = (layer.head_dim, family.pairs, config.ropes[layer.rope].dims);
    let (n_q, n_kv) = (layer.n_head * dim, layer.n_head_kv * dim);
    let bias = family.qkv_bias;
    let output_bias = if bias == Presence::Optional { bias } else { Presence::Never };
    Ok(Attention {
        norm: plan.vector(&format!("{blk}.attn_norm.weight"), n_embd)?,
        q: Linear {
            matrix: plan.rotary(&format!("{blk}.attn_q.weight"), n_embd, n_q, pairs, dim, dims)?,
            bias: plan.rotary_vector_if(bias, &format!("{blk}.attn_q.bias"), n_q, pairs, dim, dims)?,
        },
        k: Linear {
            matrix: plan.rotary(&format!("{blk}.attn_k.weight"), n_embd, n_kv, pairs, dim, dims)?,
            bias: plan.rotary_vector_if(bias, &format!("{blk}.attn_k.bias"), n_kv, pairs, dim, dims)?,
        },
        v: Linear {
            matrix: plan.matrix(&format!("{blk}.attn_v.weight"), n_embd, n_kv)?,
            bias: plan.vector_if(bias, &format!("{blk}.attn_v.bias"), n_kv)?,
        },
        q_norm: plan.vector_if(family.qk_norm, &format!("{blk}.attn_q_norm.weight"), dim)?,
        k_norm: plan.vector_if(family.qk_norm, &format!("{blk}.attn_k_norm.weight"), dim)?,
        output: Linear {
            matrix: plan.matrix(&format!("{blk}.attn_output.weight"), n_q, n_embd)?,
            bias: plan.vector_if(output_bias, &format!("{blk}.attn_output.bias"), n_embd)?,
        },
        post_norm: plan.vector_if(family.post_norms, &format!("{blk}.post_attention_norm.weight"), n_embd)?,
    })
}

fn feed_forward(
    plan: &mut Plan<'_>,
    config: &Config,
    layer: &LayerConfig,
    family: &Family,
    blk: &str,
) -> Result<FeedForward> {
    let (n_embd, n_ff) = (config.n_embd, layer.n_ff);
    Ok(FeedForward {
        norm: plan.vector(&format!("{blk}.ffn_norm.weight"), n_embd)?,
        gate: plan.matrix(&format!("{blk}.ffn_gate.weight"), n_embd, n_ff)?,
        up: plan.matrix(&format!("{blk}.ffn_up.weight"), n_embd, n_ff)?,
        down: plan.matrix(&format!("{blk}.ffn_down.weight"), n_ff, n_embd)?,
        post_norm: plan.vector_if(family.post_norms, &format!("{blk}.post_ffw_norm.weight"), n_embd)?,
    })
}
