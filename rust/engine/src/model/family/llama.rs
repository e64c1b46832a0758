//! Llama 2 and 3, SmolLM2, Mistral and others: adjacent rotary pairs, optional `rope_freqs`, optional biases.

use super::{COMMON, Family, Pairs, Presence};

pub(super) const FAMILY: Family =
    Family { arch: "llama", pairs: Pairs::Adjacent, qkv_bias: Presence::Optional, ..COMMON };
