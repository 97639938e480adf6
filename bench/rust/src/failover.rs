//! Time to the next leader after a crash and after a clean stop.
//!
//! Worker controllers, one per process, campaign on a real etcd and on the fake one. The leader receives SIGKILL or
//! SIGTERM, in every round at a different moment between two lease renewals. The time runs from the signal until the
//! standby reports that it leads.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lcm_sdk::Policy;
use lcm_sdk::controller::{ElectionConfig, Readiness, Shutdown};
use lcm_sdk::ports::{Clock, Ports, SystemClock};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::providers::memory::MemoryControlPlane;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{WorkerController, WorkerControllerConfig};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::controllers::worker;
use crate::servers::{Kind, Server};
use crate::{Error, report};

/// Subcommand that runs a candidate.
pub const CANDIDATE: &str = "candidate";
const LEADING: &str = "leading";
const TTL: Duration = Duration::from_secs(3);
const WORKERS: usize = 1_000;
/// Time for a standby to find the leader's key and watch it.
const SETTLING: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
struct Measured {
    server: Kind,
    ttl: f64,
    /// Seconds from each crash to the next leader.
    after_crash: Vec<f64>,
    /// Seconds from each clean stop to the next leader.
    after_stop: Vec<f64>,
}

/// Measures on both servers at the same time: the candidates mostly wait.
///
/// # Errors
/// If a server or a candidate cannot be run.
pub async fn run(rounds: u32) -> Result<(), Error> {
    let (fake, real) = (Server::fake().await?, Server::real().await?);
    let (fake, real) = tokio::try_join!(compete(&fake, rounds), compete(&real, rounds))?;
    report(&fake)?;
    report(&real)
}

async fn compete(server: &Server, rounds: u32) -> Result<Measured, Error> {
    let (mut after_crash, mut after_stop) = (Vec::new(), Vec::new());
    let mut leader = Candidate::start(&server.endpoint)?;
    leader.leads().await?;
    for round in 0..rounds {
        for (signal, times) in [(Signal::KILL, &mut after_crash), (Signal::TERM, &mut after_stop)] {
            let mut next = Candidate::start(&server.endpoint)?;
            tokio::time::sleep(SETTLING + TTL / 3 * round / rounds).await;
            let signaled = Instant::now();
            leader.signal(signal)?;
            next.leads().await?;
            times.push(signaled.elapsed().as_secs_f64());
            leader = next;
        }
    }
    Ok(Measured { server: server.kind, ttl: TTL.as_secs_f64(), after_crash, after_stop })
}

struct Candidate {
    process: Child,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Candidate {
    fn start(endpoint: &str) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([CANDIDATE, endpoint]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let stdout = process.stdout.take().ok_or("a candidate has no stdout")?;
        Ok(Self { process, stdout: BufReader::new(stdout).lines() })
    }

    async fn leads(&mut self) -> Result<(), Error> {
        match tokio::time::timeout(PATIENCE, self.stdout.next_line()).await?? {
            Some(line) if line == LEADING => Ok(()),
            line => Err(format!("expected '{LEADING}' from a candidate, got {line:?}").into()),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let process = self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(kill_process(process.ok_or("a candidate ended early")?, signal)?)
    }
}

/// Runs a worker controller that prints a line once it leads, until SIGTERM.
///
/// # Errors
/// If the controller cannot be built.
pub async fn candidate(endpoint: &str) -> Result<(), Error> {
    let election = ElectionConfig::default().with_ttl(TTL).with_margin(TTL / 6);
    let config = WorkerControllerConfig::default().with_election(election);
    let etcd = Arc::new(Etcd::new(EtcdOptions::new([endpoint]))?);
    let controller = WorkerController::new(ports(), Policy::default(), Some(etcd), config, Telemetry::default())?;
    let shutdown = Shutdown::new();
    shutdown.on_signals()?;
    let mut readiness = controller.readiness();
    tokio::join!(controller.run(&shutdown), async {
        if readiness.wait_for(|readiness| *readiness != Readiness::Standby).await.is_ok() {
            println!("{LEADING}");
        }
    });
    Ok(())
}

fn ports() -> Ports {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let control_plane = MemoryControlPlane::new(Arc::clone(&clock));
    for number in 0..WORKERS {
        control_plane.put_worker(worker(number));
    }
    let mut ports = Ports::in_memory(clock);
    ports.control_plane = Arc::new(control_plane);
    ports
}
