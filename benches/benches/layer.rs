//! The rest of a layer: packing, norm, rotation, gate, attention, the greatest of a row; every set.
//!
//! `cargo bench -p quoth-benches --bench layer [-- FILTER]`.

use criterion::{BenchmarkId, Criterion, Throughput};
use quoth_benches::inputs::Random;
use quoth_kernels::KernelSet;
use quoth_kernels::act::ActKind;
use quoth_kernels::attend::{CHUNK, KvKind, KvLayout, Partial, Queries, chunk, pack_queries};
use quoth_kernels::top::Best;
use std::time::Duration;

fn settings(
    c: &mut Criterion,
    name: &str,
    each: impl Fn(&mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>, &KernelSet),
) {
    let mut group = c.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(300)).sample_size(20);
    for set in KernelSet::available() {
        each(&mut group, &set);
    }
    group.finish();
}

fn pack(c: &mut Criterion) {
    settings(c, "pack", |group, set| {
        for kind in [ActKind::Q32, ActKind::Q256] {
            for m in [1, 9] {
                let k = 3072;
                let x = Random::new(3).floats(m * k);
                let mut tile = vec![0; m * kind.row_words(k)];
                group.throughput(Throughput::Elements((m * k) as u64));
                group.bench_function(BenchmarkId::new(format!("{kind:?}/{}", set.detail()), m), |b| {
                    b.iter(|| set.pack(kind, &x, k, &mut tile));
                });
            }
        }
    });
}

fn elementwise(c: &mut Criterion) {
    settings(c, "elementwise", |group, set| {
        let (x, w) = (Random::new(3).floats(3072), Random::new(4).floats(3072));
        let mut out = x.clone();
        group.throughput(Throughput::Elements(3072));
        group.bench_function(format!("rms norm/{}", set.detail()), |b| {
            b.iter(|| set.rms_norm(&x, Some(&w), 1e-5, &mut out))
        });
        let mut up = x.clone();
        group.bench_function(format!("silu/{}", set.detail()), |b| b.iter(|| set.silu_mul(&w, &mut up)));
        let mut up = x.clone();
        group.bench_function(format!("gelu/{}", set.detail()), |b| b.iter(|| set.gelu_mul(&w, &mut up)));
        let (cos, sin) = (Random::new(5).floats(64), Random::new(6).floats(64));
        let mut head = x[..128].to_vec();
        group.throughput(Throughput::Elements(128));
        group.bench_function(format!("rotate/{}", set.detail()), |b| b.iter(|| set.rotate(&mut head, &cos, &sin)));
    });
}

fn attention(c: &mut Criterion) {
    settings(c, "attention chunk", |group, set| {
        for kind in [KvKind::F16, KvKind::Q8_0] {
            let Some(layout) = KvLayout::new(kind, 128) else { continue };
            let mut bytes = vec![0u8; layout.chunk_bytes()];
            let mut random = Random::new(9);
            for slot in 0..CHUNK {
                layout.write(set, &mut bytes, slot, &random.floats(128), &random.floats(128));
            }
            for rows in [1, 2, 9] {
                let q = random.floats(rows * 128);
                let mut tile = vec![0; rows * layout.query_kind().row_words(128)];
                pack_queries(set, &layout, &q, &mut tile);
                let visible = vec![(0, CHUNK); rows];
                let mut partial = Partial::new(&layout);
                group.throughput(Throughput::Bytes(layout.chunk_bytes() as u64));
                group.bench_function(BenchmarkId::new(format!("{kind:?}/{}", set.detail()), rows), |b| {
                    b.iter(|| chunk(set, &layout, &bytes, Queries { tile: &tile, rows }, &visible, &mut partial, &[]));
                });
            }
        }
    });
}

fn top(c: &mut Criterion) {
    settings(c, "greatest of a row", |group, set| {
        let row = Random::new(2).floats(151_936);
        for k in [1, 8] {
            let mut best = Best::new(k);
            group.throughput(Throughput::Elements(row.len() as u64));
            group.bench_function(BenchmarkId::new(set.detail(), k), |b| {
                b.iter(|| {
                    best.reset(k);
                    best.scan(set, &row, 0);
                });
            });
        }
    });
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    pack(&mut c);
    elementwise(&mut c);
    attention(&mut c);
    top(&mut c);
    c.final_summary();
}
