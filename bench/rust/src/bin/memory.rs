//! What a tracked resource takes. A program of its own, because counting every allocation would slow the others down.

use std::alloc::System;

use clap::Parser;
use lcm_bench::memory::{Timers, Whose, run};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes for each tracked resource, as a line of JSON.
#[derive(Debug, Parser)]
struct Arguments {
    /// Whose memory.
    whose: Whose,
    /// How many resources.
    #[arg(long, default_value_t = 100_000)]
    size: usize,
    /// Whether each is to be looked at again in an hour.
    #[arg(long, default_value = "set")]
    timers: Timers,
}

fn main() -> Result<(), lcm_bench::Error> {
    let Arguments { whose, size, timers } = Arguments::parse();
    run(whose, size, timers, || {
        let stats = ALLOCATOR.stats();
        // A reallocation is counted as what it added or gave back.
        stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
    })
}
