//! Time for the gate and the statistics, injectable so that tests are exact.

use std::time::Instant;

/// A clock that never goes back.
pub trait Clock: Send {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&mut self) -> u64;
}

/// The system's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now_ns(&mut self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
