//! Processor time and latency percentiles.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Processor time of this process so far.
#[must_use]
pub fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Latency percentiles in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Latency {
    /// Computes the percentiles; NaN if empty.
    #[must_use]
    pub fn from_durations(mut took: Vec<Duration>) -> Self {
        took.sort();
        let at =
            |percent: usize| took.get(took.len() * percent / 100).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3);
        Self { p50: at(50), p99: at(99) }
    }
}
