//! Processor time, and how long things take.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The processor time of this process so far: what other processes do does not count.
#[must_use]
pub fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// How long things took, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// What half of them did not exceed.
    pub p50: f64,
    /// What 99 of 100 did not exceed.
    pub p99: f64,
}

impl Latency {
    /// What is typical of these.
    #[must_use]
    pub fn of(mut took: Vec<Duration>) -> Self {
        took.sort();
        let at =
            |percent: usize| took.get(took.len() * percent / 100).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3);
        Self { p50: at(50), p99: at(99) }
    }
}
