//! The five acts of the demo: records and EC2 diverge and are brought back into agreement.

use std::time::{Duration, Instant};

use fake_cloud::control_plane::Generation;
use lcm_sdk::WorkerStatus;
use lcm_sdk::lifecycle::SessionPhase;
use lcm_sdk::telemetry::Anomaly;
use lcm_tests::harness::REGION;
use serde_json::json;

use crate::Problem;
use crate::controller::LEASE;
use crate::fleet::{Fleet, PACE};
use crate::screen::Screen;
use crate::summary;

/// Timeout of every wait; longer than a busy machine needs.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Delay of the first leader's startup sweep: the first act shows discovery alone.
const SWEEP_DELAY: Duration = Duration::from_secs(12);
const ACTS: usize = 5;
/// Orphan whose launch is recent, so that EC2 may not show it yet.
const RECENT_ORPHAN: &str = "w-13";
/// Time that EC2 may take to show a new instance.
const CONSISTENCY_WINDOW: Duration = Duration::from_secs(120);

/// Runs all acts and prints the summary.
pub(crate) async fn run(generation: Generation, screen: &mut Screen) -> Result<(), Problem> {
    screen.print_labeled(
        "LCM demo",
        &format!(
            "A fake cloud on this machine, {PACE} times as fast as real time: EC2, CML, etcd and a control plane with \
             worker records. Its clients are the real ones. The demo takes less than a minute; press Ctrl-C to stop."
        ),
    )?;
    let mut story = Story { generation, fleet: Fleet::start(generation).await?, screen, act: 0 };
    story.orphans_are_terminated().await?;
    story.worker_is_provisioned().await?;
    story.worker_is_drained().await?;
    story.instances_change_in_the_console().await?;
    story.leader_crashes().await?;

    let Story { mut fleet, screen, .. } = story;
    fleet.take("bravo")?.stop().await;
    ensure(fleet.harness.cloud.etcd().leases().is_empty(), || "the last leader did not release its lease".to_owned())?;
    screen.leave();
    summary::print(&fleet, screen)
}

struct Story<'a> {
    generation: Generation,
    fleet: Fleet,
    screen: &'a mut Screen,
    act: usize,
}

impl Story<'_> {
    /// 13 records, of which 3 have an instance.
    async fn orphans_are_terminated(&mut self) -> Result<(), Problem> {
        self.act("Orphaned records")?;
        let orphans = self.fleet.orphans();
        let (records, alive) = (self.fleet.harness.cloud.workers().len(), self.fleet.active_instances().len());
        self.print(&format!(
            "{records} records reference an instance, but only {alive} instances exist: the others were terminated in the AWS console."
        ))?;
        self.pause().await?;
        self.fleet.deny("DescribeInstances");
        self.fleet.start_controller("alpha", SWEEP_DELAY)?;
        self.until("alpha leads", |fleet| fleet.is_led_by("alpha")).await?;
        self.until("a scan is denied", |fleet| fleet.anomalies(Anomaly::ScanFailed) > 0).await?;
        self.no_record_changed()?;
        self.print(
            "A controller is elected and scans. EC2 denies the request, which proves nothing: no record changes.",
        )?;
        self.pause().await?;

        let orphan = self.fleet.instance_id("w-04")?;
        let before = self.fleet.ec2_calls(&orphan, "DescribeInstances");
        self.fleet.set_launched_now(RECENT_ORPHAN)?;
        self.fleet.harness.cloud.clear_faults();
        let others = orphans.len() - 1;
        self.until("the orphans are terminated", |fleet| fleet.terminated().len() >= others).await?;
        let calls = match self.fleet.ec2_calls(&orphan, "DescribeInstances") - before {
            1 => "in one call".to_owned(),
            calls => format!("in {calls} calls"),
        };
        self.print(&format!(
            "A complete scan finds {alive} instances. The others are looked up once more, {calls} for all of them, \
             and EC2 has no such instance: {others} records are marked terminated."
        ))?;
        if self.fleet.status(RECENT_ORPHAN) == WorkerStatus::Provisioning {
            self.print(&format!(
                "{RECENT_ORPHAN} is kept for two minutes: it was launched a moment ago, and EC2 may not show it yet."
            ))?;
            self.pause().await?;
            self.fleet.harness.cloud.advance(CONSISTENCY_WINDOW).await;
        }
        self.until("all orphans are terminated", |fleet| fleet.terminated().len() >= orphans.len()).await?;
        let marked = self.fleet.terminated();
        ensure(marked == orphans, || format!("orphans: {orphans:?}, terminated: {marked:?}"))?;
        let left = records - marked.len();
        self.print(&format!(
            "{} of {records} records are terminated now, {left} are unchanged: records and EC2 agree.",
            marked.len()
        ))?;
        self.pause().await
    }

    async fn worker_is_provisioned(&mut self) -> Result<(), Problem> {
        self.act("A worker is provisioned")?;
        self.print("An operator requests a worker: ada.")?;
        self.fleet.request_worker("ada");
        self.until("ada has an instance", |fleet| fleet.instance_id("ada").is_ok()).await?;
        self.until("ada is running", |fleet| fleet.status("ada") == WorkerStatus::Running).await?;
        self.has_one_instance("ada")?;
        self.print("Template, AMI, launch, address: ada is running on one instance, which is tagged with its name.")?;
        self.pause().await
    }

    async fn scheduled_session_is_returned(&mut self) -> Result<(), Problem> {
        self.fleet.harness.add_session("lab-3", "w-01", "scheduled");
        self.print("An operator drains w-01. Two sessions are running on it, a third one is scheduled.")?;
        self.pause().await?;
        self.fleet.harness.drain("w-01");
        self.until("lab-3 is returned", |fleet| {
            fleet
                .session("lab-3")
                .is_some_and(|(state, worker)| worker.is_none() && state.phase() == SessionPhase::Waiting)
        })
        .await?;
        self.print(
            "It accepts no new sessions. The scheduled one returns to the scheduler; the running ones keep their worker.",
        )
    }

    async fn worker_is_drained(&mut self) -> Result<(), Problem> {
        self.act("A worker is drained")?;
        for session in ["lab-1", "lab-2"] {
            self.fleet.harness.add_session(session, "w-01", "running");
        }
        match self.generation {
            Generation::Extended => self.scheduled_session_is_returned().await?,
            // The server has no request that returns a session to the scheduler.
            Generation::Original => {
                self.print("An operator drains w-01. Two sessions are running on it.")?;
                self.pause().await?;
                self.fleet.harness.drain("w-01");
                self.print("It accepts no new sessions. The running ones keep their worker.")?;
            }
        }
        self.pause().await?;
        self.fleet.harness.end_session("lab-1");
        self.print("One session ends. The other one still needs w-01.")?;
        self.watch(Duration::from_millis(1500)).await?;
        let instance = self.fleet.instance_id("w-01")?;
        let (status, stops) = (self.fleet.status("w-01"), self.fleet.ec2_calls(&instance, "StopInstances"));
        ensure(status == WorkerStatus::Draining && stops == 0, || {
            format!("w-01 was {status} and was stopped {stops} times while a session was running")
        })?;
        self.fleet.harness.end_session("lab-2");
        self.until("w-01 is stopped", |fleet| fleet.status("w-01") == WorkerStatus::Stopped).await?;
        self.print("The last one ends, and only then is the instance stopped. No session was lost.")?;
        self.pause().await
    }

    async fn instances_change_in_the_console(&mut self) -> Result<(), Problem> {
        self.act("Changes in the AWS console")?;
        self.fleet.harness.add_session("lab-4", "w-02", "running");
        let instance = self.fleet.instance_id("w-02")?;
        self.print("The instance of w-02 is terminated in the console, with a running session.")?;
        self.fleet.harness.cloud.terminate_instance(REGION, &instance).map_err(|error| error.to_string())?;
        self.until("w-02 is terminated", |fleet| fleet.status("w-02") == WorkerStatus::Terminated).await?;
        self.until("lab-4 has ended", |fleet| fleet.has_ended("lab-4")).await?;
        self.print("A terminated instance cannot be restored: the record is terminated, and the session is ended.")?;
        self.pause().await?;

        let stopped = self.fleet.instance_id("ada")?;
        self.print("The instance of ada is stopped in the console. The desired status of ada is running.")?;
        self.fleet.harness.cloud.stop_instance(REGION, &stopped).map_err(|error| error.to_string())?;
        self.until("ada is not running", |fleet| fleet.status("ada") != WorkerStatus::Running).await?;
        self.until("ada is running again", |fleet| fleet.status("ada") == WorkerStatus::Running).await?;
        self.has_one_instance("ada")?;
        ensure(self.fleet.instance_id("ada")? == stopped, || "ada came back on another instance".to_owned())?;
        self.print("It is started again: the same instance, with its new address in the record.")?;
        self.pause().await
    }

    async fn leader_crashes(&mut self) -> Result<(), Problem> {
        self.act("The leader crashes")?;
        let old = self.fleet.leader().and_then(|leader| leader.fencing_token());
        self.fleet.start_controller("bravo", Duration::ZERO)?;
        self.print("A second controller is on standby. An operator requests another worker: grace.")?;
        self.pause().await?;
        self.fleet.harness.inject(json!({
            "service": "ec2", "operation": "RunInstances", "times": 1, "action": {"kind": "drop-response"},
        }));
        self.fleet.request_worker("grace");
        self.until("the launch is in progress", |fleet| fleet.harness.faults_applied() > 0).await?;
        self.fleet.take("alpha")?.crash();
        self.print(&format!(
            "During the launch the response is lost and the leader crashes. Its lease expires after {} s.",
            LEASE.as_secs()
        ))?;
        let crashed_at = Instant::now();
        self.until("bravo leads", |fleet| fleet.is_led_by("bravo")).await?;
        let gap = crashed_at.elapsed().as_secs_f64();
        let new = self.fleet.leader().and_then(|leader| leader.fencing_token());
        ensure(new > old, || format!("the fencing token of the new leader is {new:?}, of the old one {old:?}"))?;
        self.print(&format!("After {gap:.1} s the standby leads, with a higher fencing token."))?;
        self.pause().await?;
        self.until("grace is running", |fleet| fleet.status("grace") == WorkerStatus::Running).await?;
        self.has_one_instance("grace")?;
        self.print("It finds the unfinished launch and completes it: grace is running on one instance, not two.")?;
        self.pause().await
    }
}

/// Output and waiting.
impl Story<'_> {
    fn act(&mut self, title: &str) -> Result<(), Problem> {
        self.act += 1;
        self.fleet.fold_terminated();
        Ok(self.screen.head(&format!("Act {} of {ACTS}: {title}", self.act))?)
    }

    fn print(&mut self, sentence: &str) -> Result<(), Problem> {
        self.show()?;
        Ok(self.screen.print(sentence)?)
    }

    fn show(&mut self) -> Result<(), Problem> {
        let changes = self.fleet.new_changes();
        Ok(self.screen.show(self.fleet.view(), &changes)?)
    }

    /// Pauses for the reader.
    async fn pause(&mut self) -> Result<(), Problem> {
        self.watch(self.screen.reading_pause()).await
    }

    async fn watch(&mut self, long: Duration) -> Result<(), Problem> {
        let end = Instant::now() + long;
        while Instant::now() < end {
            self.show()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.show()
    }

    async fn until(&mut self, condition: &str, holds: impl Fn(&Fleet) -> bool) -> Result<(), Problem> {
        let started = Instant::now();
        while !holds(&self.fleet) {
            self.show()?;
            if started.elapsed() > TIMEOUT {
                let rows = self.fleet.view().rows;
                let workers: Vec<_> = rows.iter().map(|row| format!("{} {}", row.worker, row.status)).collect();
                let (act, seconds) = (self.act, TIMEOUT.as_secs());
                let workers = workers.join(", ");
                return Err(format!("act {act}: not within {seconds} s: {condition}. Fleet: {workers}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.show()
    }
}

/// Assertions on the fleet; each error text names the records that violate it.
impl Story<'_> {
    fn no_record_changed(&self) -> Result<(), Problem> {
        let terminated = self.fleet.terminated();
        ensure(terminated.is_empty(), || format!("{terminated:?} were terminated although EC2 proved nothing"))
    }

    fn has_one_instance(&self, worker: &str) -> Result<(), Problem> {
        let (recorded, active) = (self.fleet.instance_id(worker)?, self.fleet.active_instances_for(worker));
        ensure(active.iter().eq([&recorded]), || {
            format!(
                "the record of {worker} references {recorded}, but these instances were launched for it: {active:?}"
            )
        })
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err(message().into()) }
}
