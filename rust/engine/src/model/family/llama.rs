//! Llama 2 and 3, SmolLM2, Mistral and others: adjacent rotary pairs, optional `rope_freqs`, optional biases, one window for all layers or none.

use super::{COMMON, Family, Pairs, Presence, dense};
use crate::limits;

pub(super) const FAMILY: Family = Family {
    arch: "llama",
    pairs: Pairs::Adjacent,
    qkv_bias: Presence::Optional,
    rope_factors: Presence::Optional,
    configure: |keys, config| {
        dense(keys, config)?;
        if let Some(window) = keys.uint("attention.sliding_window")?.filter(|window| *window > 0) {
            let window = keys.bounded("attention.sliding_window", window, limits::MAX_CONTEXT)?;
            config.layers.iter_mut().for_each(|layer| layer.window = Some(window));
        }
        Ok(())
    },
    ..COMMON
};
