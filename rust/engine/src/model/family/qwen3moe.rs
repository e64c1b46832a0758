//! Qwen 3 with experts: Qwen 3's attention; a softmax over all experts chooses some for each row, and their probabilities are made to sum to 1.

use super::{COMMON, Family, Presence, experts};

pub(super) const FAMILY: Family = Family {
    arch: "qwen3moe",
    qk_norm: Presence::Needed,
    configure: |keys, config| {
        let experts = experts(keys)?;
        for layer in &mut config.layers {
            // The key for the dense width stands in these files and means nothing.
            (layer.n_ff, layer.experts) = (0, Some(experts));
        }
        Ok(())
    },
    ..COMMON
};
