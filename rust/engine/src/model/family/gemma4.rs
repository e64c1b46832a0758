//! Gemma 4, dense and with experts: head widths by kind of layer, unscaled scores, normed values, layers that share keys and values, per-layer
//! embeddings, a soft cap, experts beside a dense feed-forward.

use super::{COMMON, ExpertStyle, Family, Presence, dense, experts, windows};
use crate::limits;
use crate::model::config::Activation;

pub(super) const FAMILY: Family = Family {
    arch: "gemma4",
    qk_norm: Presence::Needed,
    post_norms: Presence::Needed,
    rope_factors: Presence::Needed,
    value_norm: true,
    value_from_key: true,
    soft_cap: true,
    activation: Activation::Gelu,
    experts: ExpertStyle::Beside,
    configure: |keys, config| {
        config.embed_scale = (config.n_embd as f32).sqrt();
        let n_layer = config.n_layer();
        let windowed = keys.per_layer_bool("attention.sliding_window_pattern", n_layer)?;
        windows(keys, config, &windowed)?;
        let local_dim = keys.bounded(
            "attention.key_length_swa",
            keys.need_uint("attention.key_length_swa")?,
            limits::MAX_HEAD_DIM,
        )?;
        if let Some(length) = keys.uint("attention.value_length_swa")?
            && length != local_dim
        {
            return Err(keys.unsupported(
                "attention.value_length_swa",
                length,
                format!("{local_dim} as the keys have"),
            ));
        }
        if let Some(scale) = keys.float("attention.scale")?
            && scale != 0.0
            && scale != 1.0
        {
            return Err(keys.unsupported("attention.scale", scale, "1: scores are not scaled"));
        }
        let local_rope = keys.uint("rope.dimension_count_swa")?.unwrap_or(local_dim);
        (config.ropes[1].dims, config.ropes[1].span) = (local_rope, local_rope);
        for (layer, windowed) in config.layers.iter_mut().zip(&windowed) {
            layer.score_scale = 1.0;
            if *windowed {
                layer.head_dim = local_dim;
            }
        }
        match keys.uint("expert_count")? {
            None | Some(0) => dense(keys, config)?,
            Some(_) => {
                let experts = experts(keys)?;
                config.layers.iter_mut().for_each(|layer| layer.experts = Some(experts));
            }
        }
        let width = keys.uint("embedding_length_per_layer_input")?.unwrap_or(0);
        config.n_embd_per_layer =
            if width > 0 { keys.bounded("embedding_length_per_layer_input", width, limits::MAX_WIDTH)? } else { 0 };
        // The last layers have no keys and values of their own: they read those of the last layer of their kind that has.
        let sharing = keys.uint("attention.shared_kv_layers")?.unwrap_or(0);
        let first = n_layer.checked_sub(sharing).filter(|first| *first > 0);
        let Some(first) = first else {
            return Err(keys.unsupported(
                "attention.shared_kv_layers",
                sharing,
                format!("fewer than {n_layer} layers"),
            ));
        };
        for i in first..n_layer {
            let Some(owner) = (0..first).rev().find(|o| windowed[*o] == windowed[i]) else {
                return Err(keys.unsupported(
                    "attention.shared_kv_layers",
                    sharing,
                    "an earlier layer of each kind with keys of its own",
                ));
            };
            config.layers[i].shares_kv_of = Some(owner);
            config.layers[i].n_head_kv = config.layers[owner].n_head_kv;
        }
        Ok(())
    },
    ..COMMON
};
