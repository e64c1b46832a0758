//! A buffer that the threads of one job write in disjoint parts, and a check of that promise in debug builds.
//!
//! Rust cannot see that workers take different rows or columns, so [`Shared`] carries that promise: each `unsafe` call names the reason why its part overlaps no
//! other. Everything else about the buffer stays checked.
//!
//! - **H1** In debug builds, a job whose calls took overlapping parts of one buffer, at least one of them to write, panics when it ends ([`Lent`]). What counts
//!   is the index of the call, not its thread: two calls that one thread made in turn could have run at once.
//! - **H2** What is written through [`Shared::as_mut_ptr`] is not recorded.
//!
//! Cost in debug builds: a few nanoseconds for each part, and a sort of the job's parts; parts that touch count as one. Nothing in release builds.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that may be handed to several threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    data: *mut T,
    len: usize,
    /// Tells buffers apart that lay at the same address one after the other.
    #[cfg(debug_assertions)]
    id: u64,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: sending a `Shared` lets another thread take parts. It takes them by unsafe calls, whose callers promise that no element is written by one thread
// while another uses it; `T: Send + Sync` allows either way of using it from another thread.
unsafe impl<T: Send + Sync> Send for Shared<'_, T> {}
// SAFETY: a shared reference gives what a copy gives, because `Shared` is `Copy`, and copies may be sent.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes the slice for as long as this lives.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared {
            data: slice.as_mut_ptr(),
            len: slice.len(),
            #[cfg(debug_assertions)]
            id: record::next_id(),
            borrow: PhantomData,
        }
    }

    /// Elements in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first element.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.data
    }

    /// A part to write.
    ///
    /// # Panics
    /// If the range is outside the slice.
    ///
    /// # Safety
    /// Until the part is given up, no other thread may use any element of it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        #[cfg(debug_assertions)]
        record::note(self.id, &range, true);
        // SAFETY: the range is inside the slice that `new` borrowed mutably for 'a, and the caller promises that no other thread uses its elements.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// A part to read.
    ///
    /// # Panics
    /// If the range is outside the slice.
    ///
    /// # Safety
    /// Until the part is given up, no thread may write any element of it.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        #[cfg(debug_assertions)]
        record::note(self.id, &range, false);
        // SAFETY: the range is inside the slice that `new` borrowed mutably for 'a, and the caller promises that no thread writes its elements.
        unsafe { std::slice::from_raw_parts(self.data.add(range.start), range.len()) }
    }
}

/// The parts that the calls of one job took.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    #[cfg(debug_assertions)]
    parts: std::sync::Mutex<Vec<record::Part>>,
}

impl Lent {
    /// Makes the call with this index and records what it takes.
    pub(crate) fn during<R>(&self, index: usize, call: impl FnOnce() -> R) -> R {
        #[cfg(debug_assertions)]
        let _recording = record::Recording::begin(index, &self.parts);
        #[cfg(not(debug_assertions))]
        let _ = index;
        call()
    }

    /// Compares what the calls took, after all of them ended.
    ///
    /// # Panics
    /// If parts of two calls overlap and one of them was to be written; debug builds only.
    pub(crate) fn check(self) {
        #[cfg(debug_assertions)]
        record::check(self.parts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

/// What debug builds write down for [`Lent`].
#[cfg(debug_assertions)]
mod record {
    use std::cell::RefCell;
    use std::ops::Range;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// Elements of a buffer that one call took.
    #[derive(Debug, Clone)]
    pub(super) struct Part {
        buffer: u64,
        elements: Range<usize>,
        writes: bool,
        /// Index of the call.
        index: usize,
    }

    thread_local! {
        /// What the call on this thread took so far; `None` outside a job.
        static CALL: RefCell<Option<(usize, Vec<Part>)>> = const { RefCell::new(None) };
    }

    pub(super) fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes a part down for the call that takes it.
    pub(super) fn note(buffer: u64, elements: &Range<usize>, writes: bool) {
        CALL.with_borrow_mut(|call| {
            let Some((index, parts)) = call else { return };
            match parts.last_mut() {
                Some(last)
                    if last.buffer == buffer
                        && last.writes == writes
                        && elements.start <= last.elements.end
                        && last.elements.start <= elements.end =>
                {
                    let start = last.elements.start.min(elements.start);
                    last.elements = start..last.elements.end.max(elements.end);
                }
                _ if elements.is_empty() => {}
                _ => parts.push(Part { buffer, elements: elements.clone(), writes, index: *index }),
            }
        });
    }

    /// A call under way on this thread. Its end, also by a panic, hands over what it took.
    pub(super) struct Recording<'a>(&'a Mutex<Vec<Part>>);

    impl<'a> Recording<'a> {
        pub(super) fn begin(index: usize, parts: &'a Mutex<Vec<Part>>) -> Self {
            CALL.set(Some((index, Vec::new())));
            Recording(parts)
        }
    }

    impl Drop for Recording<'_> {
        fn drop(&mut self) {
            if let Some((_, mut own)) = CALL.take() {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
            }
        }
    }

    /// Walks the parts by their first elements, and compares each with how far earlier parts of other calls reach.
    pub(super) fn check(mut parts: Vec<Part>) {
        parts.sort_unstable_by_key(|part| (part.buffer, part.elements.start));
        let count = parts.iter().map(|part| part.index + 1).max().unwrap_or(0);
        for buffer in parts.chunk_by(|a, b| a.buffer == b.buffer) {
            let (mut taken, mut written) = (vec![0; count], vec![0; count]);
            for part in buffer {
                let others = if part.writes { &taken } else { &written };
                for (index, end) in others.iter().enumerate() {
                    assert!(
                        index == part.index || *end <= part.elements.start,
                        "call {index} of a job took elements up to {end} of a buffer, of which call {} took {:?}",
                        part.index,
                        part.elements
                    );
                }
                let end = part.elements.end;
                taken[part.index] = end.max(taken[part.index]);
                if part.writes {
                    written[part.index] = end.max(written[part.index]);
                }
            }
        }
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::pool::Pool;

    /// Parts that two calls take, each `(from, to, writes)`.
    type Taken = [(usize, usize, bool)];

    /// Whether a job whose calls take these parts ends without a panic.
    fn accepted(pool: &Pool, calls: [&Taken; 2]) -> bool {
        let mut buffer = vec![0u8; 64];
        let shared = Shared::new(&mut buffer);
        let run = || {
            pool.run(|worker| {
                for (from, to, writes) in calls[worker.index] {
                    // SAFETY: only the length of what is lent is looked at, no element.
                    let len =
                        unsafe { if *writes { shared.part(*from..*to).len() } else { shared.read(*from..*to).len() } };
                    assert_eq!(len, to - from);
                }
            });
        };
        catch_unwind(AssertUnwindSafe(run)).is_ok()
    }

    /// The twin: looks at every pair of parts and every element.
    fn disjoint(calls: [&Taken; 2]) -> bool {
        calls[0].iter().all(|(a, b, writes)| {
            calls[1]
                .iter()
                .all(|(c, d, also)| !(*writes || *also) || (*a..*b).all(|element| !(*c..*d).contains(&element)))
        })
    }

    #[test]
    fn a_job_panics_exactly_if_calls_took_overlapping_parts_and_one_writes() {
        let pool = Pool::new(2).unwrap();
        assert!(accepted(&pool, [&[(0, 8, true), (8, 16, true)], &[(16, 64, true)]]));
        assert!(accepted(&pool, [&[(0, 64, false)], &[(0, 64, false)]]));
        assert!(!accepted(&pool, [&[(0, 9, true)], &[(8, 16, true)]]));
        assert!(!accepted(&pool, [&[(0, 64, false)], &[(8, 9, true)]]));
        assert!(accepted(&pool, [&[(0, 9, true)], &[(9, 9, true)]]));
        let mut state = 1u32;
        let mut below = |n: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % n
        };
        let mut outcomes = [0; 2];
        for _ in 0..400 {
            let mut taken = || -> Vec<(usize, usize, bool)> {
                (0..1 + below(4))
                    .map(|_| {
                        let from = below(60);
                        (from, from + below(5), below(3) > 0)
                    })
                    .collect()
            };
            let (a, b) = (taken(), taken());
            let expected = disjoint([&a, &b]);
            assert_eq!(accepted(&pool, [&a, &b]), expected, "{a:?} {b:?}");
            outcomes[usize::from(expected)] += 1;
        }
        assert!(outcomes.iter().all(|n| *n > 50), "{outcomes:?}");
    }

    #[test]
    fn each_job_and_each_buffer_begins_with_nothing_taken() {
        let pool = Pool::new(2).unwrap();
        let mut buffer = vec![0u8; 8];
        for round in 0..4 {
            let shared = Shared::new(&mut buffer);
            pool.run(|worker| {
                let half = (worker.index + round) % 2 * 4;
                // SAFETY: the two calls take different halves.
                unsafe { shared.part(half..half + 4) }.fill(worker.index as u8);
                // A buffer of the call's own: the same elements as in the other call, of another buffer.
                let mut own = [0u8; 4];
                // SAFETY: no other thread knows of `own`.
                unsafe { Shared::new(&mut own).part(0..4) }.fill(1);
            });
        }
        assert_eq!(buffer, [1, 1, 1, 1, 0, 0, 0, 0]);
    }
}
