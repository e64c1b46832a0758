//! Qwen 3: norms of q and k before the rotation, a head width that is free of the embedding's.

use super::{COMMON, Family, Presence};

pub(super) const FAMILY: Family = Family { arch: "qwen3", qk_norm: Presence::Needed, ..COMMON };
