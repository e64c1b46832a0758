//! What one case may cost: the bytes that its thread holds at once, and the time that its thread computes.
//!
//! - **B1** The allocator counts for each thread what it has taken and not given back. A case runs on one thread, so other tests do not count against it.
//! - **B2** Time is looked at twice: on the wall, and only if that is too long, on the processor, because a machine may stop a process for a while.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Most bytes of a case.
pub(crate) const BYTES: usize = 100_000_000;
/// Most time of a case.
pub(crate) const TIME: Duration = Duration::from_secs(1);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes held, which another thread may have taken, and the most so far.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call goes to the system's allocator as it came; the counters are plain numbers of this thread without a destructor, so reaching them
// neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist for a moment.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: `at` came from the system's allocator with this layout, and the caller's promise about `size` is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// What a case has cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

/// Runs a case on this thread.
pub(crate) fn measured<T>(case: impl FnOnce() -> T) -> (T, Cost) {
    let before = HELD.get();
    PEAK.set(before);
    let (start, computed) = (Instant::now(), computed_ns());
    let result = case();
    let bytes = (PEAK.get() - before).max(0) as usize;
    let wall = start.elapsed();
    let time = match (wall > TIME, computed, computed_ns()) {
        (true, Some(a), Some(b)) => Duration::from_nanos(b - a).min(wall),
        _ => wall,
    };
    (result, Cost { bytes, time })
}

/// Nanoseconds that this thread has computed, where the system says it.
fn computed_ns() -> Option<u64> {
    // Read for every case, it costs a few microseconds.
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_case_is_charged_for_what_it_held_at_its_worst_and_not_for_what_others_hold() {
    let (kept, cost) = measured(|| {
        drop(vec![1u8; 5_000_000]);
        vec![1u8; 1_000_000]
    });
    assert!((5_000_000..5_100_000).contains(&cost.bytes), "{cost:?}");
    let (_, cost) = measured(|| kept.len());
    assert!(cost.bytes < 1_000, "{cost:?}");
    let (_, cost) = measured(|| std::thread::spawn(|| drop(vec![1u8; 3_000_000])).join().unwrap());
    assert!(cost.bytes < 1_000_000, "{cost:?}");
}
