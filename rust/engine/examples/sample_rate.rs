//! Times the sampler over a row of 151,936 logits: `cargo run --release -p quoth-engine --example sample_rate`.
//!
//! Two rows: one shaped like a model's (a bell, a few far above it), one flat, where no token stands out and every filter has
//! the most to look at. Each figure is the median of many calls, in microseconds.

use std::hint::black_box;
use std::time::Instant;

use quoth_engine::sample::{Sampler, Sampling, logprobs, topk_ids, uniform};

const N_VOCAB: usize = 151_936;
const CALLS: usize = 200;

fn median_us(mut call: impl FnMut(u64)) -> f64 {
    let mut times: Vec<f64> = (0..CALLS as u64)
        .map(|i| {
            let start = Instant::now();
            call(i);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[CALLS / 2]
}

fn rows() -> [(&'static str, Vec<f32>); 2] {
    let at = |i: usize, k: u64| uniform(k, i as u64);
    let bell = |i: usize| ((0..4).map(|k| at(i, k)).sum::<f64>() - 2.0) * 4.0;
    let lift = |i: usize| if at(i, 5) < 0.001 { at(i, 6) * 14.0 } else { 0.0 };
    let model = (0..N_VOCAB).map(|i| (bell(i) + lift(i)) as f32).collect();
    let flat = (0..N_VOCAB).map(|i| at(i, 7) as f32).collect();
    [("model", model), ("flat", flat)]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let warm = Sampling { temperature: 0.8, seed: 7, ..Sampling::default() };
    let runners = [
        ("greedy", Sampling::default()),
        ("greedy, penalties", Sampling { repeat_penalty: 1.1, presence_penalty: 0.5, ..Sampling::default() }),
        ("temperature", warm.clone()),
        ("top-k 20", Sampling { top_k: 20, ..warm.clone() }),
        ("top-k 1000", Sampling { top_k: 1000, ..warm.clone() }),
        ("top-p 0.95", Sampling { top_p: 0.95, ..warm.clone() }),
        ("min-p 0.05", Sampling { min_p: 0.05, ..warm.clone() }),
        ("top-k 40, top-p 0.95, min-p 0.05", Sampling { top_k: 40, top_p: 0.95, min_p: 0.05, ..warm }),
    ];
    let history: Vec<u32> = (0..64).map(|i| i * 37).collect();
    for (shape, mut row) in rows() {
        println!("{shape} row, {N_VOCAB} logits, median of {CALLS}, us");
        for (name, sampling) in &runners {
            let mut sampler = Sampler::new(sampling.clone(), N_VOCAB)?;
            let first = sampler.sample(&mut row, &history, 3, 0)?;
            assert_eq!(first, sampler.sample(&mut row, &history, 3, 0)?);
            let us = median_us(|i| {
                let _ = black_box(sampler.sample(black_box(&mut row), &history, i, 0));
            });
            println!("  {name:34}{us:9.1}");
        }
        let mut ids = [0; 8];
        println!(
            "  {:34}{:9.1}",
            "ids of the 8 highest",
            median_us(|_| {
                black_box(topk_ids(black_box(&row), &mut ids));
            })
        );
        println!(
            "  {:34}{:9.1}",
            "log-probabilities of the 5 best",
            median_us(|_| {
                let _ = black_box(logprobs(black_box(&row), 7, 5, 0));
            })
        );
    }
    Ok(())
}
