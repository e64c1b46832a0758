//! Products: every format, every set, 1 to 17 rows; weights in the first cache, and weights streamed from memory.
//!
//! `cargo bench -p quoth-benches --bench products [-- FILTER]`. Throughput is bytes of weights a second; the shares of the machine's limits are printed at the end.

use criterion::{BenchmarkId, Criterion, Throughput};
use quoth_benches::{inputs, limits};
use quoth_kernels::matmul::{Acts, Out, Panels};
use quoth_kernels::{Format, KernelSet};
use std::time::{Duration, Instant};

/// Inner size: that of a 0.6 B model.
const K: usize = 1024;

/// One product of all panels with `m` rows.
fn multiply(set: &KernelSet, w: &Panels<'_>, words: &[u32], m: usize, out: &mut [f32]) {
    let acts = Acts::new(set.act_kind(w.format()), m, w.k(), words);
    assert_eq!(out.len(), m * w.n());
    // SAFETY: `out` has m rows of n columns, and this thread alone uses it.
    unsafe { set.multiply(w, 0, w.count(), &acts, Out::new(out.as_mut_ptr(), w.n())) };
}

fn bench(c: &mut Criterion, name: &str, n: usize, rows: &[usize]) {
    let mut group = c.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400)).sample_size(20);
    for format in Format::ALL {
        let bytes = inputs::panels(format, n, K);
        let w = Panels::new(format, n, K, &bytes);
        for set in KernelSet::available() {
            if set.name() == "scalar" && n > 64 {
                continue; // the specification is not meant to be fast
            }
            for &m in rows {
                let words = inputs::packed(&set, format, m, K);
                let mut out = vec![0f32; m * n];
                // The answer is checked before the clock starts: the first panel against plain code.
                check(&set, format, &bytes, m);
                group.throughput(Throughput::Bytes(bytes.len() as u64));
                group.bench_function(BenchmarkId::new(format!("{format:?}/{}", set.detail()), m), |b| {
                    b.iter(|| multiply(&set, &w, &words, m, &mut out));
                });
            }
        }
    }
    group.finish();
}

/// The first panel's outputs equal those of plain code, bit for bit.
fn check(set: &KernelSet, format: Format, bytes: &[u8], m: usize) {
    let w = Panels::new(format, 16, K, &bytes[..16 * format.row_bytes(K)]);
    let result = |set: &KernelSet| {
        let mut out = vec![0f32; m * 16];
        multiply(set, &w, &inputs::packed(set, format, m, K), m, &mut out);
        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(result(set), result(&KernelSet::scalar()), "{set:?} {format:?}");
}

/// Shares of the limits: one thread, the best set.
fn summary() {
    let set = KernelSet::best();
    let (read, peak) = (limits::read_bandwidth(1), limits::int8_peak(1));
    println!(
        "\none thread, {}: memory {:.1} GB/s, int8 peak {:.0} G multiply-adds/s",
        set.detail(),
        read / 1e9,
        peak.unwrap_or(f64::NAN) / 1e9
    );
    println!("format   streamed, 1 row: GB/s (share)   first cache, 8 rows: G multiply-adds/s (share)");
    for format in Format::ALL {
        let best = |n: usize, m: usize| {
            let bytes = inputs::panels(format, n, K);
            let w = Panels::new(format, n, K, &bytes);
            let words = inputs::packed(&set, format, m, K);
            let mut out = vec![0f32; m * n];
            let rounds = if n > 64 { 1 } else { 50 };
            let pass = |out: &mut Vec<f32>| {
                let start = Instant::now();
                (0..rounds).for_each(|_| multiply(&set, &w, &words, m, out));
                start.elapsed().as_secs_f64() / f64::from(rounds)
            };
            ((0..9).map(|_| pass(&mut out)).fold(f64::MAX, f64::min), bytes.len())
        };
        let (streamed, bytes) = best((96 << 20) / format.row_bytes(K) / 16 * 16, 1);
        let (cached, _) = best(16, 8);
        let (rate, adds) = (bytes as f64 / streamed, (16 * 8 * K) as f64 / cached);
        let share = peak.map_or(f64::NAN, |peak| adds / peak * 100.0);
        println!(
            "{:8} {:8.1} ({:3.0} %) {:22.0} ({share:3.0} %)",
            format!("{format:?}"),
            rate / 1e9,
            rate / read * 100.0,
            adds / 1e9
        );
    }
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    bench(&mut c, "cached", 16, &[1, 5, 9]);
    bench(&mut c, "streamed", 32_768, &[1, 5, 9, 17]);
    c.final_summary();
    summary();
}
