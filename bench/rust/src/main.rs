//! Measures LCM next to what one would use instead: one line of JSON on stdout for each figure.

use std::time::Duration;

use clap::{Parser, Subcommand};
use lcm_bench::etcd::{Call, Effort};
use lcm_bench::{Error, decide, etcd, failover, reconciles, watch};

/// Measures LCM next to what one would use instead: one line of JSON on stdout for each figure.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Less of each, for a first impression.
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// What a decision costs, over the fleet on stdin.
    Decide,
    /// What a pass that does nothing costs, next to kube-runtime.
    Controller,
    /// How soon after a change its reconcile starts, next to etcd's own watch.
    Watch,
    /// The fake etcd next to a real one.
    Etcd {
        /// In which ways they are called; in all of them if none is named.
        calls: Vec<Call>,
    },
    /// How soon somebody else leads.
    Failover,
    /// One that competes for the lead.
    #[command(name = failover::CANDIDATE, hide = true)]
    Candidate {
        /// The etcd.
        endpoint: String,
    },
}

fn main() -> Result<(), Error> {
    let Arguments { bench, quick } = Arguments::parse();
    // As `tokio::main` makes it, which controllers use.
    let on_all_cores = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let on_one_core = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match bench {
        Bench::Decide => decide::run(std::io::stdin().lock(), if quick { 20 } else { 1000 })?,
        Bench::Controller if quick => reconciles::run(&[1_000, 10_000, 100_000], 2)?,
        Bench::Controller => reconciles::run(&[1_000, 10_000, 100_000], 9)?,
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
