//! The suffix index: building, and a step's worth of suggesting and observing.
//!
//! `cargo bench -p quoth-benches --bench index`. Bytes a token and rates on a real token file: `cargo run --release -p quoth-draft --example index_rate -- FILE`.

use criterion::{BatchSize, Criterion, Throughput};
use quoth_benches::inputs::Random;
use quoth_draft::{Budget, Cascade, CascadeOptions, Draft, DraftSource, SuffixIndex};
use std::time::Duration;

/// Tokens with the repetitions of a text: new ones, and runs copied from earlier.
fn stream(n: usize) -> Vec<u32> {
    let mut random = Random::new(13);
    let mut tokens: Vec<u32> = Vec::with_capacity(n);
    while tokens.len() < n {
        if tokens.len() > 1000 && random.bits().is_multiple_of(20) {
            let from = random.bits() as usize % (tokens.len() - 100);
            let run = 3 + random.bits() as usize % 40;
            tokens.extend_from_within(from..from + run);
        } else {
            // Small ids are common, as in a vocabulary.
            let spread = random.bits() % 16;
            tokens.push((random.bits() % (1 << spread.max(4))) as u32);
        }
    }
    tokens.truncate(n);
    tokens
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    let tokens = stream(200_000);
    let mut group = c.benchmark_group("suffix index");
    group.measurement_time(Duration::from_secs(2)).sample_size(20);
    group.throughput(Throughput::Elements(tokens.len() as u64));
    group.bench_function("build", |b| {
        b.iter_batched(
            SuffixIndex::new,
            |mut index| index.extend(&tokens).map(|()| index.len()),
            BatchSize::LargeInput,
        );
    });
    group.finish();
    let mut group = c.benchmark_group("cascade");
    group.throughput(Throughput::Elements(1));
    let mut cascade = Cascade::new(1 << 16, CascadeOptions::default()).expect("the defaults are valid");
    cascade.observe(&tokens).expect("the stream fits the index");
    let mut context = tokens.clone();
    let mut at = 0;
    group.bench_function("suggest and observe", |b| {
        b.iter(|| {
            let mut draft = Draft::default();
            cascade.suggest(&context, Budget::free(16), &mut draft).expect("a cascade does not fail");
            let token = tokens[at % tokens.len()];
            at += 1;
            context.push(token);
            cascade.observe(&[token]).expect("the stream fits the index");
            draft.len()
        });
    });
    group.finish();
    c.final_summary();
}
