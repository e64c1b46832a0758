//! A pool of threads that run one closure together: an idle thread spins briefly, then parks.
//!
//! [`Pool::run`] is a fork and a join: it calls the closure once with each index from 0 to `count` − 1. Work is divided by index and count alone
//! ([`Worker::share`]). The calling thread makes the call with index 0. Worker thread i claims index i before it makes that call. When the calling thread has
//! made its own call, it claims and makes every call that no worker has claimed yet, so all calls are made even if every worker is descheduled. Timing decides
//! which thread makes a call, never what is computed (N5).
//!
//! - **T1** `run` returns after every call has ended, also if one panicked; the panic then continues in the calling thread. A worker that wakes up late finds
//!   its index claimed and does not touch the closure.
//! - **T2** Calls run in the default float environment (N6); the calling thread's own is restored.
//! - **T3** Other processes slow a job down, but boundedly. `run` does not wait for a worker that the OS has descheduled, unless it was descheduled during its
//!   call. A worker that has missed [`MISSES`] jobs in a row is only woken every [`RETRY`] jobs. A thread that waits spins for [`SPINS`] looks and then sleeps:
//!   while the calling thread sleeps, its core is idle, and the OS can run a descheduled worker there.
//! - **T4** One job at a time: concurrent callers of `run` take turns, a whole job each.
//! - **T5** In debug builds a job panics at its end if its calls took overlapping parts of a [`Shared`](crate::shared::Shared) buffer.
//!
//! Cost: about half a microsecond for a job while the workers spin.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};
#[cfg(all(test, loom))]
use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(all(test, loom))]
use loom::thread::{self, JoinHandle, Thread};
#[cfg(not(any(all(test, loom), target_arch = "x86_64")))]
use std::sync::atomic::fence;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(not(all(test, loom)))]
use std::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(all(test, loom)))]
use std::thread::{self, JoinHandle, Thread};

use quoth_kernels::env::DefaultFloats;

use crate::shared::Lent;

/// How often a waiting thread looks before it sleeps: about 30 microseconds in all, longer than any gap between the jobs of one forward.
const SPINS: usize = if cfg!(all(test, loom)) { 1 } else { 2_000 };

/// Jobs in a row that a worker may miss before `run` leaves it asleep.
const MISSES: usize = 4;
/// A worker that is left asleep is woken again for every `RETRY`-th job, about once in a step.
const RETRY: usize = 128;

/// Most threads of a pool: beyond any machine's cores, below what could exhaust a process.
pub const MAX_THREADS: usize = 256;

/// Physical cores that this process may use: the affinity mask, hyper-threads of one core counted once. At least 1.
pub fn default_threads() -> usize {
    let allowed = allowed_cpus();
    if allowed.is_empty() {
        return std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
    }
    let cores: std::collections::BTreeSet<String> = allowed
        .iter()
        .map(|cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            // Where the system says nothing of siblings, every processor counts.
            std::fs::read_to_string(path).unwrap_or_else(|_| format!("cpu {cpu}"))
        })
        .collect();
    // A container's quota can be tighter than its mask.
    let quota = std::thread::available_parallelism().map_or(usize::MAX, |n| n.get());
    cores.len().min(quota).clamp(1, MAX_THREADS)
}

/// Processors in the affinity mask; none where the system has no such thing.
fn allowed_cpus() -> Vec<usize> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return Vec::new() };
    let Some(list) = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")) else { return Vec::new() };
    parse_cpu_list(list.trim())
}

/// Processors of a list such as `0-3,8`.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?.min(1 << 16))
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// One of the threads inside a job.
#[derive(Debug, Clone, Copy)]
pub struct Worker {
    /// From 0 to `count` − 1.
    pub index: usize,
    /// Threads in the job.
    pub count: usize,
}

impl Worker {
    /// This worker's part of `0 .. n`: consecutive, disjoint, in order, and as even as whole numbers allow.
    pub fn share(&self, n: usize) -> std::ops::Range<usize> {
        n * self.index / self.count..n * (self.index + 1) / self.count
    }
}

type Job<'a> = &'a (dyn Fn(Worker) + Sync);

/// A number with a cache line of its own.
#[repr(align(128))]
struct Alone(AtomicUsize);

/// What the threads of a pool share.
struct Control {
    /// Number of the current job; a change starts it.
    epoch: AtomicUsize,
    /// The last job whose index i + 1 was claimed.
    claimed: Vec<Alone>,
    /// Calls of the closure that have not ended, the caller's first apart.
    running: AtomicUsize,
    /// The caller, while it sleeps.
    sleeper: Mutex<Option<Thread>>,
    asleep: AtomicBool,
    stop: AtomicBool,
    /// The job of this epoch.
    job: Mutex<Option<Job<'static>>>,
    /// Whether worker i is parked or about to be.
    parked: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands between a store to one variable and a load of another, where a second thread stores and loads the same two the other way round: at least one of the
/// threads must see the other's store. Sequentially consistent operations guarantee that, and on x86-64 at no further cost. But loom treats them as acquire and
/// release, and so does an emulator of aarch64 that translates ordered stores and loads one by one: under it a thread was never woken. A fence gives the order
/// everywhere.
fn in_order() {
    #[cfg(any(all(test, loom), not(target_arch = "x86_64")))]
    fence(Ordering::SeqCst);
}

/// See the module.
pub struct Pool {
    control: Arc<Control>,
    handles: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
    /// Jobs in a row that worker i + 1 has missed; the lock is the caller's turn.
    caller: Mutex<Vec<usize>>,
    /// Process that made the threads: they do not survive a fork.
    process: u32,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.count())
    }
}

impl Pool {
    /// Starts `count` − 1 threads; the caller of [`Self::run`] is the last one.
    ///
    /// # Errors
    /// The system refused a thread.
    ///
    /// # Panics
    /// If `count` is zero or above [`MAX_THREADS`].
    pub fn new(count: usize) -> std::io::Result<Pool> {
        assert!((1..=MAX_THREADS).contains(&count), "1 to {MAX_THREADS} threads");
        let control = Arc::new(Control {
            epoch: AtomicUsize::new(0),
            claimed: (1..count).map(|_| Alone(AtomicUsize::new(0))).collect(),
            running: AtomicUsize::new(0),
            sleeper: Mutex::new(None),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            job: Mutex::new(None),
            parked: (1..count).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            control,
            handles: Vec::new(),
            threads: Vec::new(),
            caller: Mutex::new(vec![0; count - 1]),
            process: std::process::id(),
        };
        for index in 1..count {
            let control = pool.control.clone();
            let builder = thread::Builder::new().name(format!("quoth-{index}"));
            let handle = builder.spawn(move || work(&control, Worker { index, count }))?;
            pool.threads.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Threads of a job.
    pub fn count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Whether the threads live in this process: after a fork they do not, and the pool must not be used.
    pub fn is_alive(&self) -> bool {
        self.process == std::process::id()
    }

    /// Calls `job` once with every index and returns when all calls have ended.
    ///
    /// # Panics
    /// With the panic of a call, after all have ended.
    pub fn run(&self, job: impl Fn(Worker) + Sync) {
        let mut missed = lock(&self.caller);
        let _floats = DefaultFloats::set();
        let count = self.count();
        if count == 1 {
            return job(Worker { index: 0, count });
        }
        let lent = Lent::default();
        let job = |worker: Worker| lent.during(worker.index, || job(worker));
        let borrowed: Job<'_> = &job;
        // SAFETY: only the lifetime changes. The closure lives until this function returns. It returns, by value or by panic, only after `running` has fallen
        // to zero, that is after every index was claimed and every call has ended, and a worker touches the closure only between claim and end (T1).
        let shared = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(borrowed) };
        let control = &*self.control;
        *lock(&control.job) = Some(shared);
        control.running.store(count - 1, Ordering::Relaxed);
        let epoch = control.epoch.load(Ordering::Relaxed) + 1;
        control.epoch.store(epoch, Ordering::SeqCst);
        in_order();
        for ((parked, thread), missed) in control.parked.iter().zip(&self.threads).zip(&*missed) {
            if parked.load(Ordering::SeqCst) && (*missed < MISSES || epoch.is_multiple_of(RETRY)) {
                thread.unpark();
            }
        }
        let mut own = catch_unwind(AssertUnwindSafe(|| job(Worker { index: 0, count })));
        for (index, missed) in (1..count).zip(&mut *missed) {
            if control.claim(index, epoch) {
                *missed += 1;
                if own.is_ok() {
                    own = catch_unwind(AssertUnwindSafe(|| job(Worker { index, count })));
                }
                control.leave();
            } else {
                *missed = 0;
            }
        }
        control.wait_for_workers();
        *lock(&control.job) = None;
        let theirs = lock(&control.panic).take();
        match (own, theirs) {
            (Err(panic), _) | (Ok(()), Some(panic)) => resume_unwind(panic),
            (Ok(()), None) => lent.check(),
        }
    }
}

impl Control {
    /// Takes an index of a job for the calling thread; false if another thread has it.
    fn claim(&self, index: usize, epoch: usize) -> bool {
        // Every index of a job is claimed before the next job begins, so the number before is that of the job before.
        self.claimed[index - 1].0.compare_exchange(epoch - 1, epoch, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns when no worker is inside the job.
    fn wait_for_workers(&self) {
        for _ in 0..SPINS {
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        *lock(&self.sleeper) = Some(thread::current());
        // First the flag, then another look, then sleep: either the last worker to leave sees the flag, or this thread sees that it has left.
        self.asleep.store(true, Ordering::SeqCst);
        in_order();
        while self.running.load(Ordering::SeqCst) > 0 {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
        *lock(&self.sleeper) = None;
    }

    /// A call of the closure, not the caller's first, has ended.
    fn leave(&self) {
        let last = self.running.fetch_sub(1, Ordering::SeqCst) == 1;
        in_order();
        if last
            && self.asleep.load(Ordering::SeqCst)
            && let Some(caller) = &*lock(&self.sleeper)
        {
            caller.unpark();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.is_alive() {
            // The threads belong to the parent process; joining them here would never return.
            self.handles.drain(..).for_each(std::mem::forget);
            return;
        }
        self.control.stop.store(true, Ordering::SeqCst);
        self.threads.iter().for_each(Thread::unpark);
        for handle in self.handles.drain(..) {
            // A worker catches its jobs' panics, so it ends normally.
            let _ = handle.join();
        }
    }
}

fn work(control: &Control, worker: Worker) {
    let _floats = DefaultFloats::set();
    let mut seen = 0;
    loop {
        let Some(epoch) = wait(control, worker, seen) else { return };
        seen = epoch;
        if !control.claim(worker.index, epoch) {
            continue;
        }
        let job = *lock(&control.job);
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(worker)))
        {
            lock(&control.panic).get_or_insert(panic);
        }
        control.leave();
    }
}

/// The next epoch after `seen`, or `None` when the pool ends.
fn wait(control: &Control, worker: Worker, seen: usize) -> Option<usize> {
    let parked = &control.parked[worker.index - 1];
    let mut looks = 0;
    loop {
        let epoch = control.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            return Some(epoch);
        }
        if control.stop.load(Ordering::SeqCst) {
            return None;
        }
        looks += 1;
        if looks < SPINS {
            std::hint::spin_loop();
            continue;
        }
        // First the flag, then another look, then sleep: a caller that changes the epoch after this look sees the flag and wakes this thread.
        parked.store(true, Ordering::SeqCst);
        in_order();
        if control.epoch.load(Ordering::SeqCst) == seen && !control.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        parked.store(false, Ordering::SeqCst);
        looks = 0;
    }
}

/// Loom tries every order in which threads can take their steps: `tools/sanitize pool`. A thread that is never woken is an error there.
#[cfg(all(test, loom))]
mod orders {
    use super::*;

    fn in_every_order(run: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.max_branches = 10_000;
        model.check(run);
    }

    fn job(pool: &Pool) {
        let calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)]);
        pool.run(|worker| {
            calls[worker.index].fetch_add(1, Ordering::Relaxed);
        });
        // T1: all have left, and what they wrote is seen.
        assert!((0..pool.count()).all(|i| calls[i].load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn jobs_run_once_on_each_of_two_threads_and_the_pool_ends() {
        in_every_order(|| {
            let pool = Pool::new(2).unwrap();
            job(&pool);
            job(&pool);
        });
    }

    #[test]
    fn a_job_runs_once_on_each_of_three_threads_and_the_pool_ends() {
        in_every_order(|| job(&Pool::new(3).unwrap()));
    }

    #[test]
    fn a_pool_that_never_ran_ends() {
        in_every_order(|| drop(Pool::new(3).unwrap()));
    }

    #[test]
    fn two_callers_take_turns() {
        in_every_order(|| {
            let pool = Arc::new(Pool::new(2).unwrap());
            let other = pool.clone();
            let caller = thread::spawn(move || job(&other));
            job(&pool);
            caller.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn shares_are_disjoint_ordered_and_even() {
        for count in 1..9 {
            for n in [0, 1, 7, 60, 1000] {
                let parts: Vec<_> = (0..count).map(|index| Worker { index, count }.share(n)).collect();
                assert_eq!(parts.iter().flat_map(|p| p.clone()).collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
                let sizes: Vec<_> = parts.iter().map(|p| p.len()).collect();
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn lists_of_processors_are_read_as_linux_writes_them() {
        assert_eq!(parse_cpu_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpu_list("5"), [5]);
        assert_eq!(parse_cpu_list(""), []);
        assert!(default_threads() >= 1);
    }

    /// Returns when every worker sleeps, or is about to.
    fn until_parked(pool: &Pool) {
        while !pool.control.parked.iter().all(|parked| parked.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn every_worker_runs_every_job_once_also_after_it_slept() {
        for count in [1, 2, 3, 8] {
            let pool = Pool::new(count).unwrap();
            let calls: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
            for round in 0..3000 {
                if round % 1000 == 999 {
                    until_parked(&pool);
                }
                pool.run(|w| {
                    calls[w.index].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 3000));
        }
    }

    #[test]
    fn the_caller_does_what_a_sleeping_worker_does_not_begin() {
        let pool = Pool::new(2).unwrap();
        let caller = std::thread::current().id();
        let (taken, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for _ in 0..20 {
            // Waking takes a worker longer than an empty job takes the caller.
            until_parked(&pool);
            pool.run(|w| {
                calls.fetch_add(1, Ordering::Relaxed);
                taken.fetch_add(usize::from(w.index == 1 && std::thread::current().id() == caller), Ordering::Relaxed);
            });
        }
        assert_eq!(calls.into_inner(), 40, "each index once, whichever thread takes it");
        assert!(taken.into_inner() > 0, "the caller waited for a sleeping worker every time");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for guilty in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(|w| assert!(w.index != guilty, "worker {guilty}"))));
            let text = caught.unwrap_err();
            assert!(text.downcast_ref::<String>().unwrap().contains(&format!("worker {guilty}")));
            let sum = AtomicUsize::new(0);
            pool.run(|w| {
                sum.fetch_add(w.index, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 3);
        }
    }

    #[test]
    fn callers_from_several_threads_take_turns() {
        let pool = Pool::new(2).unwrap();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(|_| {
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 2, "two jobs at once");
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
    }
}
