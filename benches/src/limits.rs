//! The machine's limits on one thread and on all: bytes read from memory a second, eight-bit multiply-adds a second.
//!
//! They vary with the neighbours, so a bench measures them in the same run and reports shares of them.

use std::time::Instant;

/// Bytes that are read for the bandwidth: far beyond any cache.
const READ_BYTES: usize = 512 << 20;

/// Best of several passes of `threads` threads reading a large buffer, in bytes a second.
pub fn read_bandwidth(threads: usize) -> f64 {
    let buffer: Vec<u64> = (0..READ_BYTES as u64 / 8).collect();
    let part = buffer.len() / threads;
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for chunk in buffer.chunks(part).take(threads) {
                scope.spawn(move || std::hint::black_box(chunk.iter().fold(0u64, |sum, x| sum ^ x)));
            }
        });
        (part * threads * 8) as f64 / start.elapsed().as_secs_f64()
    };
    (0..7).map(|_| pass()).fold(0.0, f64::max)
}

/// Best of several passes of eight-bit multiply-adds on registers, a second; `None` if the CPU has no instruction for them.
pub fn int8_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vnni") {
        const ROUNDS: usize = 4_000_000;
        let pass = || {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    // SAFETY: the CPU has AVX-512 VNNI.
                    scope.spawn(|| std::hint::black_box(unsafe { multiply_adds(ROUNDS) }));
                }
            });
            (threads * ROUNDS * 16 * 64) as f64 / start.elapsed().as_secs_f64()
        };
        return Some((0..5).map(|_| pass()).fold(0.0, f64::max));
    }
    let _ = threads;
    None
}

/// 16 independent accumulators of 64 multiply-adds each a round.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_adds(rounds: usize) -> i32 {
    use std::arch::x86_64::*;
    let (a, b) = (std::hint::black_box(_mm512_set1_epi8(3)), std::hint::black_box(_mm512_set1_epi8(5)));
    let mut sums = [_mm512_setzero_si512(); 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
}
