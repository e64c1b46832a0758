//! What the sampler must do, each sentence with the slow twin or a closed form beside it.

mod agree;
mod edges;
mod histogram;
mod ranks;

use super::{Picked, SampleError, Sampler, Sampling};

/// A sampler whose options are known to be right.
fn sampler(sampling: Sampling, n_vocab: usize) -> Sampler {
    Sampler::new(sampling, n_vocab).expect("the options are in range")
}

/// Samples once with fresh scratch space.
fn once(sampling: &Sampling, row: &[f32], history: &[u32], index: u64) -> Result<Picked, SampleError> {
    sampler(sampling.clone(), row.len()).sample(&mut row.to_vec(), history, index, 0)
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Temperature 0.8 and seed 7, otherwise nothing.
fn warm() -> Sampling {
    Sampling { temperature: 0.8, seed: 7, ..Sampling::default() }
}
