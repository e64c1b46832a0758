//! Qwen 2 and 2.5: biases of q, k and v.

use super::{COMMON, Family, Presence};

pub(super) const FAMILY: Family = Family { arch: "qwen2", qkv_bias: Presence::Needed, ..COMMON };
