//! The tensors of a model, by role.
//!
//! In: a [`Config`] and a [`Plan`]. Out: [`Weights`], to the forward. Names and shapes of tensors are stated here and nowhere else.

use super::config::{Config, Experts, LayerConfig};
use super::family::{ExpertStyle, Family, Presence};
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
    /// Norm of the stream's row before the products; `None`: the row goes in as it is.
    pub(crate) norm: Option<Vec<f32>>,
    /// Of a layer that reads the token's embedding beside the stream: its norm. The embedding stands first in the input of query, key and value.
    pub(crate) embed_norm: Option<Vec<f32>>,
    pub(crate) q: Linear,
    /// `None`: the layer reads another's keys and values.
    pub(crate) kv: Option<KeyValue>,
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) output: Linear,
    pub(crate) post_norm: Option<Vec<f32>>,
}

/// Key and value of a layer.
#[derive(Debug)]
pub(crate) struct KeyValue {
    pub(crate) k: Linear,
    /// The key's own matrix in layers without a value matrix.
    pub(crate) v: Linear,
    pub(crate) k_norm: Option<Vec<f32>>,
    /// Whether values are normed.
    pub(crate) v_norm: bool,
}

/// A dense gated feed-forward.
#[derive(Debug)]
pub(crate) struct Dense {
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

/// Gate and up matrices of one expert: apart, or gate rows above up rows in one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GateUp {
    Apart { gate: Matrix, up: Matrix },
    Joined(Matrix),
}

/// The experts of a layer.
#[derive(Debug)]
pub(crate) struct ExpertWeights {
    pub(crate) config: Experts,
    pub(crate) router: Matrix,
    pub(crate) gate_up: Vec<GateUp>,
    pub(crate) down: Vec<Matrix>,
    /// What only experts beside a dense feed-forward have.
    pub(crate) beside: Option<Beside>,
}

/// Norms and scales of experts beside a dense feed-forward.
#[derive(Debug)]
pub(crate) struct Beside {
    /// Scales the normed row before the router.
    pub(crate) router_scale: Vec<f32>,
    /// Scales each expert's weight.
    pub(crate) expert_scale: Vec<f32>,
    pub(crate) dense_post_norm: Vec<f32>,
    pub(crate) pre_norm: Vec<f32>,
    pub(crate) post_norm: Vec<f32>,
}

/// A feed-forward.
#[derive(Debug)]
pub(crate) struct FeedForward {
    pub(crate) norm: Vec<f32>,
    pub(crate) dense: Option<Dense>,
    pub(crate) experts: Option<ExpertWeights>,
    pub(crate) post_norm: Option<Vec<f32>>,
}

/// A token's own input to a layer.
#[derive(Debug)]
pub(crate) struct PerLayer {
    pub(crate) gate: Matrix,
    pub(crate) proj: Matrix,
    pub(crate) post_norm: Vec<f32>,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention: Attention,
    pub(crate) ffn: FeedForward,
    pub(crate) per_layer: Option<PerLayer>,
    /// Multiplies the stream at the layer's end.
    pub(crate) scale: Option<f32>,
}

/// Where the per-layer inputs come from.
#[derive(Debug)]
pub(crate) struct PerLayerSource {
    /// `[n_layer · width]` a token.
    pub(crate) embedding: Matrix,
    pub(crate) proj: Matrix,
    pub(crate) norm: Vec<f32>,
}

/// All of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: Matrix,
    pub(crate) per_layer: Option<PerLayerSource>,
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
        let output = if plan.has("output.weight") { plan.matrix("output.weight", n_embd, n_vocab)? } else { embedding };
        let rope_factors = match config.ropes.iter().find(|r| r.factors) {
            Some(rope) => Some(plan.vector("rope_freqs.weight", rope.dims / 2)?),
            None => None,
        };
        let per_layer = match config.n_embd_per_layer {
            0 => None,
            width => Some(PerLayerSource {
                embedding: plan.matrix("per_layer_token_embd.weight", width * config.n_layer(), n_vocab)?,
                proj: plan.matrix("per_layer_model_proj.weight", n_embd, width * config.n_layer())?,
                norm: plan.vector("per_layer_proj_norm.weight", width)?,
            }),
        };
        let layers = config.layers.iter().enumerate().map(|(i, layer)| {
            let blk = format!("blk.{i}");
            let width = config.n_embd_per_layer;
            let per_layer = if width == 0 {
                None
            } else {
                Some(PerLayer {
                    gate: plan.matrix(&format!("{blk}.inp_gate.weight"), n_embd, width)?,
                    proj: plan.matrix(&format!("{blk}.proj.weight"), width, n_embd)?,
                    post_norm: plan.vector(&format!("{blk}.post_norm.weight"), n_embd)?,
                })
            };
            let scale = format!("{blk}.layer_output_scale.weight");
            let scales = if family.value_norm { Presence::Optional } else { Presence::Never };
            Ok(Layer {
                per_layer,
                scale: plan.vector_if(scales, &scale, 1)?.map(|v| v[0]),
                ..Layer::plan(plan, config, layer, family, &blk)?
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Weights { embedding, per_layer, layers, output_norm, output, rope_factors })
    }
}

impl Layer {
    /// Asks for the tensors of attention and feed-forward.
    pub(crate) fn plan(
        plan: &mut Plan<'_>,
        config: &Config,
        layer: &LayerConfig,
        family: &Family,
        blk: &str,
    ) -> Result<Layer> {
        let attention = attention(plan, config, layer, family, blk)?;
        Ok(Layer { attention, ffn: feed_forward(plan, config, layer, family, blk)?, per_layer: None, scale: None })
    }
}

fn attention(
    plan: &mut Plan<'_>,
    config: &Config,
    layer: &LayerConfig,
    family: &Family,
    blk: &str,
) -> Result<Attention> {
    let n_embd = config.n_embd;
    let width = if family.embeds_beside { 2 * n_embd } else { n_embd };
    let (dim, pairs, dims) = (layer.head_dim, family.pairs, config.ropes[layer.rope].dims);
    let (n_q, n_kv) = (layer.n_head * dim, layer.n_head_kv * dim);
    let bias = family.qkv_bias;
    let output_bias = if bias == Presence::Optional { bias } else { Presence::Never };
    let kv = if layer.shares_kv_of.is_some() {
        plan.unused(&format!("{blk}.attn_k.weight"), &[n_embd, n_kv])?;
        plan.unused(&format!("{blk}.attn_v.weight"), &[n_embd, n_kv])?;
        plan.unused(&format!("{blk}.attn_k_norm.weight"), &[dim])?;
        None
    } else {
        let k = plan.rotary(&format!("{blk}.attn_k.weight"), width, n_kv, pairs, dim, dims)?;
        let value = format!("{blk}.attn_v.weight");
        let may_lack = family.value_from_key && layer.window.is_none();
        let lacks = may_lack && !plan.has_in_every_layer(&value, &[n_embd, n_kv])?;
        let v = if lacks { k } else { plan.matrix(&value, width, n_kv)? };
        Some(KeyValue {
            k: Linear {
                matrix: k,
                bias: plan.rotary_vector_if(bias, &format!("{blk}.attn_k.bias"), n_kv, pairs, dim, dims)?,
            },
            v: Linear { matrix: v, bias: plan.vector_if(bias, &format!("{blk}.attn_v.bias"), n_kv)? },
            k_norm: plan.vector_if(family.qk_norm, &format!("{blk}.attn_k_norm.weight"), dim)?,
            v_norm: family.value_norm,
        })
    };
    let norm = plan.vector(&format!("{blk}.attn_norm.weight"), n_embd)?;
    let (embed_norm, norm) = match family.embeds_beside {
        true => (Some(norm), plan.vector(&format!("{blk}.attn_norm_2.weight"), n_embd)?),
        false => (None, norm),
    };
    Ok(Attention {
        norm: Some(norm),
        embed_norm,
        q: Linear {
            matrix: plan.rotary(&format!("{blk}.attn_q.weight"), width, n_q, pairs, dim, dims)?,
            bias: plan.rotary_vector_if(bias, &format!("{blk}.attn_q.bias"), n_q, pairs, dim, dims)?,
        },
        kv,
        q_norm: plan.vector_if(family.qk_norm, &format!("{blk}.attn_q_norm.weight"), dim)?,
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
    let dense = if n_ff == 0 {
        None
    } else {
        Some(Dense {
            gate: plan.matrix(&format!("{blk}.ffn_gate.weight"), n_embd, n_ff)?,
            up: plan.matrix(&format!("{blk}.ffn_up.weight"), n_embd, n_ff)?,
            down: plan.matrix(&format!("{blk}.ffn_down.weight"), n_ff, n_embd)?,
        })
    };
    let experts = match layer.experts {
        Some(config) => Some(experts(plan, config, n_embd, family, blk)?),
        None => None,
    };
    Ok(FeedForward {
        norm: plan.vector(&format!("{blk}.ffn_norm.weight"), n_embd)?,
        dense,
        experts,
        post_norm: plan.vector_if(family.post_norms, &format!("{blk}.post_ffw_norm.weight"), n_embd)?,
    })
}

fn experts(plan: &mut Plan<'_>, config: Experts, n_embd: usize, family: &Family, blk: &str) -> Result<ExpertWeights> {
    let Experts { count, n_ff, .. } = config;
    let joined = format!("{blk}.ffn_gate_up_exps.weight");
    let gate_up = if plan.has(&joined) {
        plan.experts(&joined, n_embd, 2 * n_ff, count)?.into_iter().map(GateUp::Joined).collect()
    } else {
        let gates = plan.experts(&format!("{blk}.ffn_gate_exps.weight"), n_embd, n_ff, count)?;
        let ups = plan.experts(&format!("{blk}.ffn_up_exps.weight"), n_embd, n_ff, count)?;
        gates.into_iter().zip(ups).map(|(gate, up)| GateUp::Apart { gate, up }).collect()
    };
    let beside = match family.experts {
        ExpertStyle::Instead => None,
        ExpertStyle::Beside => Some(Beside {
            router_scale: plan.vector(&format!("{blk}.ffn_gate_inp.scale"), n_embd)?,
            expert_scale: plan.vector(&format!("{blk}.ffn_down_exps.scale"), count)?,
            dense_post_norm: plan.vector(&format!("{blk}.post_ffw_norm_1.weight"), n_embd)?,
            pre_norm: plan.vector(&format!("{blk}.pre_ffw_norm_2.weight"), n_embd)?,
            post_norm: plan.vector(&format!("{blk}.post_ffw_norm_2.weight"), n_embd)?,
        }),
    };
    Ok(ExpertWeights {
        config,
        router: plan.matrix(&format!("{blk}.ffn_gate_inp.weight"), n_embd, count)?,
        gate_up,
        down: plan.experts(&format!("{blk}.ffn_down_exps.weight"), n_ff, n_embd, count)?,
        beside,
    })
}
