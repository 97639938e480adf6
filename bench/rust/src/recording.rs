//! Cost of recording a no-op sweep, and of replaying a recording.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::history::{HistoryEncoder, HistoryLimits, HistoryWriter, ReplayPolicy, replay_paths};
use lcm_sdk::ports::{Ports, SystemClock};
use lcm_sdk::providers::memory::{MemoryCompute, MemoryControlPlane};
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::{DesiredStatus, Ec2State, Instance, Policy, RegionConfig, RegionConfigs, Worker, WorkerStatus};
use serde::Serialize;

use crate::measure::processor_time;
use crate::{Error, report};

#[path = "../../../lcm-sdk/tests/support/recorded_day.rs"]
mod recorded_day;

/// Number of workers of the sweep.
const FLEET: usize = 1_000;
/// Number of workers of the recorded day.
const RECORDED: u32 = 500;
const REGION: &str = "us-east-1";

/// Processor time of one variant, all threads together.
#[derive(Debug, Serialize)]
struct Measured {
    who: &'static str,
    /// Number of reconciles or decisions of a round.
    size: usize,
    /// Processor time per reconcile or decision in nanoseconds, one value per round.
    processor_ns: Vec<f64>,
}

impl Measured {
    const fn new(who: &'static str, size: usize) -> Self {
        Self { who, size, processor_ns: Vec::new() }
    }

    fn add(&mut self, spent: Duration) {
        self.processor_ns.push(spent.as_secs_f64() * 1e9 / self.size as f64);
    }
}

/// Measures in the given number of rounds.
///
/// # Errors
/// If a file cannot be written or read.
pub async fn run(rounds: usize) -> Result<(), Error> {
    let directory = tempfile::tempdir()?;
    recording(&directory.path().join("sweep"), rounds).await?;
    replaying(&directory.path().join("day.ndjson"), rounds)
}

/// No-op sweeps over workers in memory: without a recording, with one of changes only, and with a sample of the others.
async fn recording(directory: &std::path::Path, rounds: usize) -> Result<(), Error> {
    let changes = HistoryLimits::default().with_sample(0);
    let [changes, sample] = [("changes", changes), ("sample", HistoryLimits::default())]
        .map(|(name, limits)| HistoryWriter::new(&directory.join(name), limits));
    let mut variants = [("off", None), ("changes", Some(changes?)), ("sample", Some(sample?))]
        .map(|(who, writer)| (fleet(writer), Measured::new(who, FLEET)));
    // Fills the caches.
    for ((reconciler, workers), _) in &variants {
        sweep(reconciler, workers).await;
    }
    for _ in 0..rounds {
        for ((reconciler, workers), measured) in &mut variants {
            let began = processor_time();
            sweep(reconciler, workers).await;
            reconciler.flush(Duration::from_secs(10)).await;
            measured.add(processor_time().saturating_sub(began));
        }
    }
    variants.iter().try_for_each(|(_, measured)| report(measured))
}

async fn sweep(reconciler: &Reconciler, workers: &[Worker]) {
    for worker in workers {
        drop(black_box(reconciler.reconcile(worker).await));
    }
}

/// Parked workers, each with its instance.
fn fleet(writer: Option<HistoryWriter>) -> (Reconciler, Vec<Worker>) {
    let clock = Arc::new(SystemClock);
    let compute = Arc::new(MemoryCompute::new(Arc::clone(&clock) as _));
    let control_plane = Arc::new(MemoryControlPlane::new(Arc::clone(&clock) as _));
    let workers: Vec<Worker> = (0..FLEET)
        .map(|number| {
            let id = format!("i-{number:017x}");
            let mut worker = Worker::new(format!("worker-{number:08}"), WorkerStatus::Stopped);
            worker.desired_status = Some(DesiredStatus::Stopped);
            worker.ec2_instance_id = Some(id.as_str().into());
            worker.aws_region = Some(REGION.to_owned());
            worker.template_name = Some("metal".to_owned());
            compute.put(REGION, Instance::new(id, Ec2State::Stopped));
            control_plane.put_worker(worker.clone());
            worker
        })
        .collect();
    let mut ports = Ports::in_memory(clock);
    ports.compute = compute;
    ports.control_plane = control_plane;
    let regions = RegionConfigs::default().with_region(REGION, RegionConfig::new("subnet-1", ["sg-1"]));
    let policy = Policy { regions, ..Policy::default() };
    (Reconciler::builder(ports, policy).history(writer).build().expect("a supported policy"), workers)
}

/// Replays the file of a recorded day.
fn replaying(file: &std::path::Path, rounds: usize) -> Result<(), Error> {
    let recorded = recorded_day::recorded_day(RECORDED);
    let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
    encoder.header(recorded[0].at, &mut lines)?;
    for reconcile in &recorded {
        encoder.reconcile(reconcile, &mut lines)?;
    }
    std::fs::write(file, lines)?;
    let mut measured = Measured::new("replay", recorded.len());
    for _ in 0..rounds {
        let began = processor_time();
        let replayed = black_box(replay_paths(&[file], &ReplayPolicy::AsRecorded)?);
        measured.add(processor_time().saturating_sub(began));
        if !replayed.is_same() {
            return Err("the same version decides the recording differently".into());
        }
    }
    report(&measured)
}
