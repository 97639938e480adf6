//! Memory per tracked resource, in a separate program because counting allocations would slow down the other benchmarks.

use std::alloc::System;

use clap::Parser;
use lcm_bench::memory::{Subject, Timers, run};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Measures bytes per tracked resource; prints one line of JSON.
#[derive(Debug, Parser)]
struct Arguments {
    /// Controller to measure.
    subject: Subject,
    /// Number of resources.
    #[arg(long, default_value_t = 100_000)]
    size: usize,
    /// Whether every resource is requeued in an hour.
    #[arg(long, default_value = "set")]
    timers: Timers,
}

fn main() -> Result<(), lcm_bench::Error> {
    let Arguments { subject, size, timers } = Arguments::parse();
    run(subject, size, timers, || {
        let stats = ALLOCATOR.stats();
        // A reallocation counts as the difference in size.
        stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
    })
}
