//! Gemma 3: scaled embeddings, norms before and after each block, norms of q and k, GELU; five windowed layers to each full one.

use super::{COMMON, Family, Presence, dense, windows};
use crate::gguf::Value;
use crate::model::config::Activation;

/// Every sixth layer sees everything, unless the file says otherwise.
const PERIOD: usize = 6;

/// The deepest variant scales scores by the width of a head in its embedding, not by the head's own.
const DEEPEST: usize = 62;

pub(super) const FAMILY: Family = Family {
    arch: "gemma3",
    qk_norm: Presence::Needed,
    post_norms: Presence::Needed,
    soft_cap: true,
    activation: Activation::Gelu,
    configure: |keys, config| {
        dense(keys, config)?;
        config.embed_scale = (config.n_embd as f32).sqrt();
        let n_layer = config.n_layer();
        let windowed: Vec<bool> = match keys.get("attention.sliding_window_pattern") {
            Some(Value::Array(_)) => keys.per_layer_bool("attention.sliding_window_pattern", n_layer)?,
            other => {
                let period = if other.is_some() { keys.need_uint("attention.sliding_window_pattern")? } else { PERIOD };
                let period = keys.bounded("attention.sliding_window_pattern", period, n_layer.max(PERIOD))?;
                (0..n_layer).map(|i| (i + 1) % period != 0).collect()
            }
        };
        windows(keys, config, &windowed)?;
        if n_layer == DEEPEST && keys.float("attention.scale")?.is_none_or(|scale| scale == 0.0) {
            for layer in &mut config.layers {
                layer.score_scale = 1.0 / ((config.n_embd / layer.n_head) as f32).sqrt();
            }
        }
        Ok(())
    },
    ..COMMON
};
