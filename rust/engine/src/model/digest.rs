//! One number for all that decides the bits of a model's rows, beside the version of the arithmetic ([`quoth_kernels::NUMERICS`]).
//!
//! In: configuration, weights, whether plain arithmetic was chosen. Out: 128 bits of XXH3, to files that hold what a model has computed.
//!
//! - **D1** Two models with the same digest have the same rows: instruction sets, threads and the longest context do not enter, since no row depends on them.
//! - **D2** Small parts enter as their debug text, which names every field, also one that is added later. Floats are printed so that each value has its own text.
//!
//! Cost: one pass over the weights on one thread when it is first asked for: about a fifth of a second for a gigabyte.

use std::fmt::Write;

use xxhash_rust::xxh3::Xxh3;

use super::Model;

/// Text on its way into a hash.
struct Text(Xxh3);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl Model {
    /// See the module. Blocks while it is computed for the first time.
    pub fn digest(&self) -> u128 {
        *self.digest.get_or_init(|| {
            let mut hash = Text(Xxh3::new());
            let plain = self.set.name() == "reference";
            write!(hash, "{:?}{:?}{plain}", self.config, self.weights).expect("a hash takes any text");
            hash.0.update(self.arena.bytes());
            hash.0.digest128()
        })
    }
}
