//! Benchmarks LCM next to its Rust alternatives; prints one line of JSON per measurement.

use std::time::Duration;

use clap::{Parser, Subcommand};
use lcm_bench::etcd::{Call, Effort};
use lcm_bench::{Error, decide, etcd, failover, reconciles, recording, watch};

/// Benchmarks LCM next to its Rust alternatives; prints one line of JSON per measurement.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Fewer rounds, for a first impression.
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Cost of a decision, over the fleet on stdin.
    Decide,
    /// Cost of a no-op reconcile, next to kube-runtime.
    Controller,
    /// Cost of a recording of a no-op sweep, and of a replay.
    Recording,
    /// Delay from a change to its reconcile, next to the etcd client's watch.
    Watch,
    /// Throughput of the fake etcd, next to a real one.
    Etcd {
        /// Kinds of calls to measure; default: all.
        calls: Vec<Call>,
    },
    /// Time to the next leader after a crash and a clean stop.
    Failover,
    /// A candidate process of the fail-over benchmark.
    #[command(name = failover::CANDIDATE, hide = true)]
    Candidate {
        /// Address of the etcd server.
        endpoint: String,
    },
}

fn main() -> Result<(), Error> {
    let Arguments { bench, quick } = Arguments::parse();
    // The runtime of `tokio::main`, which controllers use.
    let on_all_cores = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let on_one_core = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match bench {
        Bench::Decide => decide::run(std::io::stdin().lock(), if quick { 2 } else { 100 })?,
        Bench::Controller if quick => reconciles::run(&[1_000, 10_000, 100_000], 2)?,
        Bench::Controller => reconciles::run(&[1_000, 10_000, 100_000], 9)?,
        Bench::Recording => on_one_core()?.block_on(recording::run(if quick { 5 } else { 51 }))?,
        Bench::Watch => {
            let writes = if quick { 1_000 } else { 5_000 };
            on_all_cores()?.block_on(watch::run(10_000, writes, Duration::from_millis(3)))?;
        }
        Bench::Etcd { calls } => {
            let effort = match quick {
                true => Effort { duration: Duration::from_millis(50), rounds: 6 },
                false => Effort { duration: Duration::from_millis(200), rounds: 20 },
            };
            on_one_core()?.block_on(etcd::run(&calls, effort))?;
        }
        Bench::Failover => on_all_cores()?.block_on(failover::run(if quick { 1 } else { 4 }))?,
        Bench::Candidate { endpoint } => on_all_cores()?.block_on(failover::candidate(&endpoint))?,
    }
    Ok(())
}
