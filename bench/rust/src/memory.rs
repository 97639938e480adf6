//! Memory per tracked resource: LCM's controller next to kube-runtime's reflector store and applier.
//!
//! Each reconciles every worker once; the bytes still allocated afterwards are divided by the number of workers. Either
//! every reconcile requests a requeue in an hour, so that both keep a timer per resource, or none does. Each controller
//! has its own process, whose peak includes the memory of a listing.
//!
//! Workers are created while they are listed, without another reference. kube-runtime keeps every object in its store:
//! that is the purpose of a reflector. LCM keeps none and fetches a record when it reconciles it.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use lcm_sdk::controller::{LeaderLease, ListRequest, Resource, ResourceList, Runner, Shutdown, WorkResult};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::FetchedWorker;
use lcm_sdk::{CallFailure, Outcome};
use serde::Serialize;
use tokio::time::Instant;

use crate::controllers::kube::KubeApplier;
use crate::controllers::{Again, lcm, worker};
use crate::{Error, report};

const CONCURRENCY: u16 = 10;
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

/// Controller to measure.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Subject {
    /// LCM's controller.
    Lcm,
    /// kube-runtime's applier and store.
    Kube,
}

/// Whether every resource has a timer.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Timers {
    /// Every resource is requeued in an hour.
    Set,
    /// No resource is requeued before it changes.
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
    /// Bytes still allocated per resource.
    bytes: f64,
    /// Peak resident bytes of the process per resource.
    peak: f64,
}

/// Resources of the worker controller, listed without a control plane.
struct Fleet {
    size: usize,
    again: Again,
}

impl Resource for Fleet {
    type Object = FetchedWorker;

    fn key<'a>(&self, read: &'a FetchedWorker) -> &'a str {
        read.worker.id.as_str()
    }

    async fn list(&self, _: &ListRequest) -> Result<ResourceList<FetchedWorker>, CallFailure> {
        let read_at = Instant::now();
        let workers: Vec<_> = (0..self.size).map(|number| FetchedWorker { worker: worker(number), read_at }).collect();
        Ok(ResourceList::from(workers))
    }

    async fn fetch(&self, _: &str) -> Result<Option<FetchedWorker>, CallFailure> {
        Ok(None)
    }

    async fn reconcile(&self, read: FetchedWorker, _: LeaderLease) -> WorkResult {
        std::hint::black_box(&read);
        lcm::work_result(self.again)
    }
}

/// Measures one controller; `allocated` returns the bytes allocated at this moment.
///
/// # Errors
/// If the runtime cannot be built or the sweep is incomplete.
pub fn run(subject: Subject, size: usize, timers: Timers, allocated: impl Fn() -> usize) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (before, began_with) = (allocated(), peak_bytes()?);
        let taken = match subject {
            Subject::Lcm => lcm(size, timers.into(), || allocated() - before).await?,
            Subject::Kube => kube(size, timers.into(), || allocated() - before).await,
        };
        let share = |bytes: usize| bytes as f64 / size as f64;
        report(&Measured { size, bytes: share(taken), peak: share(peak_bytes()?.saturating_sub(began_with)) })
    })
}

async fn lcm(size: usize, again: Again, taken: impl Fn() -> usize) -> Result<usize, Error> {
    let controller = Runner::new(
        Arc::new(Fleet { size, again }),
        lcm::without_cycles(usize::from(CONCURRENCY)),
        Telemetry::default(),
    );
    let serving = tokio::spawn({
        let controller = controller.clone();
        async move { controller.serve(&Shutdown::new()).await }
    });
    let swept = controller.sweep(SWEEP_LIMIT).await?;
    if swept.outcomes.get(Outcome::Success.as_str()) != Some(&size) {
        return Err(format!("incomplete sweep: {swept:?}").into());
    }
    drop(swept);
    let taken = taken();
    serving.abort();
    Ok(taken)
}

async fn kube(size: usize, again: Again, taken: impl Fn() -> usize) -> usize {
    let mut applier = KubeApplier::new(size, CONCURRENCY, again);
    applier.reconcile_all().await;
    let taken = taken();
    drop(applier);
    taken
}

/// Peak resident memory of this process in bytes.
fn peak_bytes() -> Result<usize, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc/self/status")?;
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
