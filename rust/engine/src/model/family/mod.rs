//! The families of models: one small file each, which says only what differs.
//!
//! In: the name of an architecture. Out: a [`Family`], to [`super::config`] and [`super::weights`].

mod gemma3;
mod gemma4;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3moe;

use super::config::{Activation, Config, Experts, RopeConfig, RopeScaling};
use super::keys::Keys;
use crate::error::{Error, Result};
use crate::limits;

/// Which numbers of a head a rotation pairs in the file's row order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// 2i with 2i + 1. Rows are reordered at load, so that everything else sees halves.
    Adjacent,
    /// i with i + half.
    Halves,
}

/// Whether a tensor belongs to a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The file must have it.
    Needed,
    /// The file may have it.
    Optional,
    /// The file must not have it.
    Never,
}

/// How a layer uses experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertStyle {
    /// In place of the dense feed-forward, from the same normed row; weights are the chosen probabilities, made to sum to 1.
    Instead,
    /// Beside it, with norms and scales of their own.
    Beside,
}

/// What a family is.
#[derive(Debug)]
pub(crate) struct Family {
    /// `general.architecture`.
    pub(crate) arch: &'static str,
    /// Layout of rotary pairs.
    pub(crate) pairs: Pairs,
    /// Biases of q, k and v.
    pub(crate) qkv_bias: Presence,
    /// Norms of q and k, a head each.
    pub(crate) qk_norm: Presence,
    /// Norms after attention and after the feed-forward.
    pub(crate) post_norms: Presence,
    /// Divisors of the rotary angles.
    pub(crate) rope_factors: Presence,
    /// Whether values are normed too, without a weight.
    pub(crate) value_norm: bool,
    /// Whether layers that see everything may have no value matrix: the value is then the key's projection.
    pub(crate) value_from_key: bool,
    /// Whether the logits may be soft-capped.
    pub(crate) soft_cap: bool,
    /// Nonlinearity of the feed-forward.
    pub(crate) activation: Activation,
    /// Whether layers read the token's embedding beside the stream: `attn_norm` is the embedding's norm then, `attn_norm_2` the stream's.
    pub(crate) embeds_beside: bool,
    /// How experts are chosen and joined to the rest, if layers have them.
    pub(crate) experts: ExpertStyle,
    /// What the common keys do not say.
    pub(crate) configure: fn(Keys<'_>, &mut Config) -> Result<()>,
}

/// What most families have; each states what it changes.
const COMMON: Family = Family {
    arch: "",
    pairs: Pairs::Halves,
    qkv_bias: Presence::Never,
    qk_norm: Presence::Never,
    post_norms: Presence::Never,
    rope_factors: Presence::Never,
    value_norm: false,
    value_from_key: false,
    soft_cap: false,
    activation: Activation::Silu,
    embeds_beside: false,
    experts: ExpertStyle::Instead,
    configure: dense,
};

/// The layer of EAGLE-3 heads (`crate::proposer`): a drafter, no model of its own.
pub(crate) const EAGLE3: Family = Family { arch: "eagle3", pairs: Pairs::Adjacent, embeds_beside: true, ..COMMON };

/// The layers of DFlash block drafters (`crate::proposer`).
pub(crate) const DFLASH: Family = Family { arch: "dflash", qk_norm: Presence::Needed, ..COMMON };

/// All families, in the order in which errors list them.
const FAMILIES: &[&Family] =
    &[&llama::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY, &qwen3moe::FAMILY, &gemma3::FAMILY, &gemma4::FAMILY];

/// Architectures whose state cannot be rewound: refused with that reason.
const RECURRENT: &[&str] = &[
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "mamba",
    "mamba2",
    "jamba",
    "rwkv6",
    "rwkv7",
    "lfm2",
    "lfm2moe",
    "falcon-h1",
    "granitehybrid",
    "nemotron_h",
    "plamo2",
    "kimi-linear",
];

/// The names of all supported architectures.
pub fn supported() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|f| f.arch)
}

/// The family of an architecture.
pub(crate) fn find(arch: &str, file: &str) -> Result<&'static Family> {
    if let Some(family) = FAMILIES.iter().find(|f| f.arch == arch) {
        return Ok(family);
    }
    let (file, found) = (file.to_owned(), arch.to_owned());
    if RECURRENT.contains(&arch) {
        return Err(Error::Recurrent { file, found });
    }
    Err(Error::UnknownArchitecture { file, found, known: supported().collect::<Vec<_>>().join(", ") })
}

/// The experts that the common keys describe.
fn experts(keys: Keys<'_>) -> Result<Experts> {
    let count = keys.bounded("expert_count", keys.need_uint("expert_count")?, limits::MAX_EXPERTS)?;
    let used = keys.bounded("expert_used_count", keys.need_uint("expert_used_count")?, count)?;
    let n_ff = keys.need_uint("expert_feed_forward_length")?;
    Ok(Experts { count, used, n_ff: keys.bounded("expert_feed_forward_length", n_ff, limits::MAX_WIDTH)? })
}

/// Splits layers into those that see a window and those that see everything; windowed ones get a rotary embedding of their own, which is not scaled.
fn windows(keys: Keys<'_>, config: &mut Config, windowed: &[bool]) -> Result<()> {
    let window = keys.need_uint("attention.sliding_window")?;
    let window = keys.bounded("attention.sliding_window", window, limits::MAX_CONTEXT)?;
    let base = f64::from(keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0));
    let local = RopeConfig { base, scaling: RopeScaling::None, factors: false, ..config.ropes[0].clone() };
    config.ropes.push(local);
    for (layer, windowed) in config.layers.iter_mut().zip(windowed) {
        (layer.window, layer.rope) = if *windowed { (Some(window), 1) } else { (None, 0) };
    }
    Ok(())
}

/// Refuses experts where a family has none.
fn dense(keys: Keys<'_>, _config: &mut Config) -> Result<()> {
    match keys.uint("expert_count")? {
        None | Some(0) => {
            // What experts would be like, if there were any.
            keys.uint("expert_feed_forward_length")?;
            Ok(())
        }
        Some(count) => Err(keys.unsupported("expert_count", count, "0: this family is supported without experts")),
    }
}
