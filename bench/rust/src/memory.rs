//! What a tracked resource takes: LCM's controller next to kube-runtime's reflector store and applier.
//!
//! Each gets to know so many workers, looks at every one once, and is then left alone with all of them; what is still
//! allocated is divided by their number. Either every pass asks for another one in an hour, so that both keep a timer
//! for it, or none does. A controller has a process of its own, and the peak is that process's: it includes what a
//! listing brings along.
//!
//! The workers are made while they are listed and nobody else keeps them. kube-runtime keeps every object in its store:
//! that is what a reflector is for. LCM keeps none: it reads a record again when it has to look at it.

use std::time::Duration;

use clap::ValueEnum;
use lcm_sdk::controller::{Controller, Fetched, ListScope, Listing, Reconcile};
use lcm_sdk::workers::fleet::ReadWorker;
use lcm_sdk::controller::queue::WorkResult;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Outcome};
use serde::Serialize;
use tokio::time::Instant;

use crate::controllers::kube::KubeApplier;
use crate::controllers::{Again, lcm, worker};
use crate::{Error, tell};

const CONCURRENCY: u16 = 10;
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

/// Whose memory is looked at.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Whose {
    /// LCM's.
    Lcm,
    /// kube-runtime's.
    Kube,
}

/// Whether every resource has a timer.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Timers {
    /// Each is to be looked at again in an hour.
    Set,
    /// None is, until it changes.
    None,
}

impl From<Timers> for Again {
    fn from(timers: Timers) -> Self {
        match timers {
            Timers::Set => Self::After(Duration::from_secs(3600)),
            Timers::None => Self::OnChange,
        }
    }
}

#[derive(Debug, Serialize)]
struct Measured {
    size: usize,
    /// Bytes that are still allocated for each resource.
    bytes: f64,
    /// The most the process ever took for each resource.
    peak: f64,
}

/// The real fleet's resource, listed without a control plane.
struct Fleet {
    size: usize,
    again: Again,
}

impl Reconcile for Fleet {
    type Resource = ReadWorker;

    fn key<'a>(&self, read: &'a ReadWorker) -> &'a str {
        read.worker.id.as_str()
    }

    async fn list(&self, _: ListScope) -> Result<Listing<ReadWorker>, CallFailure> {
        let read_at = Instant::now();
        let resources = (0..self.size).map(|number| ReadWorker { worker: worker(number), read_at }).collect();
        Ok(Listing { resources, resting: Vec::new() })
    }

    async fn fetch(&self, _: &str) -> Result<Fetched<ReadWorker>, CallFailure> {
        Ok(Fetched::Gone)
    }

    async fn reconcile(&self, read: ReadWorker) -> WorkResult {
        std::hint::black_box(&read);
        lcm::ending(self.again)
    }
}

/// Measures one of them; `allocated` says how many bytes are allocated at this moment.
///
/// # Errors
/// If something cannot be run.
pub fn run(whose: Whose, size: usize, timers: Timers, allocated: impl Fn() -> usize) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (before, began_with) = (allocated(), peak_of_process()?);
        let taken = match whose {
            Whose::Lcm => lcm(size, timers.into(), || allocated() - before).await?,
            Whose::Kube => kube(size, timers.into(), || allocated() - before).await,
        };
        let share = |bytes: usize| bytes as f64 / size as f64;
        tell(&Measured { size, bytes: share(taken), peak: share(peak_of_process()?.saturating_sub(began_with)) })
    })
}

async fn lcm(size: usize, again: Again, taken: impl Fn() -> usize) -> Result<usize, Error> {
    let controller = Controller::new(Fleet { size, again }, lcm::quiet(usize::from(CONCURRENCY)), Telemetry::default());
    let serving = tokio::spawn({
        let controller = controller.clone();
        async move { controller.serve(&Shutdown::new()).await }
    });
    let swept = controller.sweep(SWEEP_LIMIT).await?;
    if swept.outcomes.get(Outcome::Success.as_str()) != Some(&size) {
        return Err(format!("not everything was looked at: {swept:?}").into());
    }
    drop(swept);
    let taken = taken();
    serving.abort();
    Ok(taken)
}

async fn kube(size: usize, again: Again, taken: impl Fn() -> usize) -> usize {
    let mut applier = KubeApplier::new(size, CONCURRENCY, again);
    applier.look_at_all().await;
    let taken = taken();
    drop(applier);
    taken
}

/// The most this process ever had in memory, in bytes.
fn peak_of_process() -> Result<usize, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the system does not tell its peak")?;
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
