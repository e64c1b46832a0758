//! The families of models: one small file each, which says only what differs.
//!
//! In: the name of an architecture. Out: a [`Family`], to [`super::config`] and [`super::weights`].

mod llama;
mod qwen2;
mod qwen3;

use super::config::{Activation, Config, Keys};
use crate::error::{Error, Result};

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
    /// Nonlinearity of the feed-forward.
    pub(crate) activation: Activation,
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
    activation: Activation::Silu,
    configure: dense,
};

/// All families, in the order in which errors list them.
const FAMILIES: &[&Family] = &[&llama::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY];

/// Architectures whose state cannot be rewound: refused with that reason.
const RECURRENT: &[&str] = &[
    "qwen35", "qwen35moe", "qwen3next", "mamba", "mamba2", "jamba", "rwkv6", "rwkv7", "lfm2", "lfm2moe", "falcon-h1", "granitehybrid",
    "nemotron_h", "plamo2", "kimi-linear",
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

/// Refuses experts where a family has none.
fn dense(keys: Keys<'_>, _config: &mut Config) -> Result<()> {
    match keys.uint("expert_count")? {
        None | Some(0) => Ok(()),
        Some(count) => Err(keys.unsupported("expert_count", count, "0: this family is supported without experts")),
    }
}
