//! The story: five acts in which records and reality part, and come together again.

use std::time::{Duration, Instant};

use lcm_sdk::WorkerStatus;
use lcm_sdk::lifecycle::SessionStanding;
use lcm_sdk::telemetry::Anomaly;
use serde_json::json;

use crate::Problem;
use crate::controller::LEASE;
use crate::screen::Screen;
use crate::stage::{PACE, REGION, Stage};
use crate::summary;

/// Longer than any busy machine needs for anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first leader sweeps late: the first act is about what discovery alone does.
const LATE: Duration = Duration::from_secs(12);
const ACTS: usize = 5;
/// The orphan that might be none.
const LATECOMER: &str = "w-13";
/// How long EC2 may take to show an instance that was launched.
const WINDOW: Duration = Duration::from_secs(120);
/// What no AMI is called.
const MISSPELLED: &str = "cisco-clm2.9*";

/// Tells all of it.
pub(crate) async fn tell(screen: &mut Screen) -> Result<(), Problem> {
    screen.note(
        "LCM demo",
        &format!(
            "A cloud on this machine, {PACE} times as fast as real time: EC2, CML, etcd, and a control plane with records \
             of workers. Whatever talks to it is the real thing. It takes less than a minute; Ctrl-C ends it."
        ),
    )?;
    let mut story = Story { stage: Stage::set().await?, screen, act: 0 };
    story.records_that_lie().await?;
    story.a_worker_is_provisioned().await?;
    story.a_worker_is_drained().await?;
    story.strangers_in_the_console().await?;
    story.a_leader_dies().await?;

    let Story { mut stage, screen, .. } = story;
    stage.take("bravo")?.stop().await?;
    ensure(stage.cloud.etcd().leases().is_empty(), || "the last leader did not give its lease up".to_owned())?;
    screen.leave();
    summary::tell(&stage, screen)?;
    stage.strike().await;
    Ok(())
}

struct Story<'a> {
    stage: Stage,
    screen: &'a mut Screen,
    act: usize,
}

/// The acts.
impl Story<'_> {
    /// ADR-014's night: 13 records, 3 instances.
    async fn records_that_lie(&mut self) -> Result<(), Problem> {
        self.act("Records that lie")?;
        let orphans = self.stage.orphans();
        let (records, alive) = (self.stage.cloud.workers().len(), self.stage.living_instances().len());
        self.tell(&format!(
            "{records} records say that they have an instance. Somebody cleaned up in the console: only {alive} exist."
        ))?;
        self.beat().await?;
        let refusal = self.stage.refuse("DescribeInstances")?;
        self.stage.enter("alpha", LATE)?;
        self.until("alpha leads", |stage| stage.is_led_by("alpha")).await?;
        self.until("a scan is refused", |stage| stage.anomalies(Anomaly::ScanFailed) > 0).await?;
        self.nobody_was_touched()?;
        self.tell(
            "A controller is elected and looks. EC2 refuses to answer, which is not a \"no\": nobody is touched.",
        )?;
        self.beat().await?;

        self.stage.refuse("DescribeSubnets")?;
        self.stage.set_ami_pattern(MISSPELLED)?;
        // Not before that is what is looked for: a scan by the right name would see through it.
        self.until("that is looked for", |stage| stage.was_asked_for_images(MISSPELLED)).await?;
        self.stage.cloud.world().faults().remove(refusal);
        self.until("the region is frozen", |stage| stage.anomalies(Anomaly::RegionFrozen) > 0).await?;
        self.nobody_was_touched()?;
        self.tell(
            "Somebody misspells what to look for, and the scan shows nothing at all. That looks like the wrong account: \
             the region is frozen, and still nobody is touched.",
        )?;
        self.beat().await?;

        let orphan = self.stage.instance_of("w-04")?;
        let before = self.stage.calls_about(&orphan, "DescribeInstances");
        self.stage.launched_just_now(LATECOMER)?;
        self.stage.cloud.clear_faults();
        self.stage.set_ami_pattern("cisco-cml2.9*")?;
        let others = orphans.len() - 1;
        self.until("the orphans are marked", |stage| stage.terminated().len() >= others).await?;
        let calls = match self.stage.calls_about(&orphan, "DescribeInstances") - before {
            1 => "in one call".to_owned(),
            calls => format!("in {calls} calls"),
        };
        self.tell(&format!(
            "A scan that can be trusted sees {alive}. EC2 is asked about the others once more, {calls} for all of them, \
             and says \"no such instance\": {others} records are marked terminated."
        ))?;
        if self.stage.status(LATECOMER) == WorkerStatus::Provisioning {
            self.tell(&format!(
                "Not {LATECOMER}: it was launched a moment ago, and EC2 may only be late to show it. It gets two minutes."
            ))?;
            self.beat().await?;
            self.stage.cloud.advance(WINDOW).await;
        }
        self.until("all orphans are marked", |stage| stage.terminated().len() >= orphans.len()).await?;
        let marked = self.stage.terminated();
        ensure(marked == orphans, || format!("{orphans:?} are orphans, and marked were {marked:?}"))?;
        let left = records - marked.len();
        self.tell(&format!(
            "{} of {records} records are terminated now, {left} stay as they are: the truth.",
            marked.len()
        ))?;
        self.beat().await
    }

    async fn a_worker_is_provisioned(&mut self) -> Result<(), Problem> {
        self.act("A worker is provisioned")?;
        self.tell("An operator asks for a worker: ada.")?;
        self.stage.ask_for_worker("ada")?;
        self.until("ada has an instance", |stage| stage.instance_of("ada").is_ok()).await?;
        self.until("ada runs", |stage| stage.status("ada") == WorkerStatus::Running).await?;
        self.has_one_instance("ada")?;
        self.tell("Template, AMI, launch, address: ada runs, on one instance that carries her name.")?;
        self.beat().await
    }

    async fn a_worker_is_drained(&mut self) -> Result<(), Problem> {
        self.act("A worker is drained")?;
        for (session, status) in [("lab-1", "running"), ("lab-2", "running"), ("lab-3", "scheduled")] {
            self.stage.add_session(session, "w-01", status)?;
        }
        self.tell("w-01 is to be drained. Two sessions run on it, a third one is scheduled.")?;
        self.beat().await?;
        self.stage.drain("w-01")?;
        self.until("lab-3 is handed back", |stage| {
            stage
                .session("lab-3")
                .is_some_and(|(state, worker)| worker.is_none() && state.standing() == SessionStanding::Waiting)
        })
        .await?;
        self.tell(
            "It takes no new ones. The scheduled one goes back to the scheduler; those that run keep their worker.",
        )?;
        self.beat().await?;
        self.stage.end_session("lab-1")?;
        self.tell("One session ends. The other one still needs w-01.")?;
        self.watch(Duration::from_millis(1500)).await?;
        let instance = self.stage.instance_of("w-01")?;
        let (status, stops) = (self.stage.status("w-01"), self.stage.calls_about(&instance, "StopInstances"));
        ensure(status == WorkerStatus::Draining && stops == 0, || {
            format!("w-01 was {status}, and stopped {stops} times, while a session ran on it")
        })?;
        self.stage.end_session("lab-2")?;
        self.until("w-01 is stopped", |stage| stage.status("w-01") == WorkerStatus::Stopped).await?;
        self.tell("The last one ends, and only then the instance is stopped. Nothing was lost.")?;
        self.beat().await
    }

    async fn strangers_in_the_console(&mut self) -> Result<(), Problem> {
        self.act("Killed from outside")?;
        self.stage.add_session("lab-4", "w-02", "running")?;
        let doomed = self.stage.instance_of("w-02")?;
        self.tell("Somebody terminates w-02's instance in the console, with a session on it.")?;
        self.stage.cloud.terminate_instance(REGION, &doomed).map_err(|error| error.to_string())?;
        self.until("w-02's record says so", |stage| stage.status("w-02") == WorkerStatus::Terminated).await?;
        self.until("lab-4 is over", |stage| stage.is_over("lab-4")).await?;
        self.tell("What is gone cannot be brought back: the record says so now, and the session does not hang on.")?;
        self.beat().await?;

        let stopped = self.stage.instance_of("ada")?;
        self.tell("Somebody stops ada's instance, too. Ada is wanted.")?;
        self.stage.cloud.stop_instance(REGION, &stopped).map_err(|error| error.to_string())?;
        self.until("ada's record says so", |stage| stage.status("ada") != WorkerStatus::Running).await?;
        self.until("ada is back", |stage| stage.status("ada") == WorkerStatus::Running).await?;
        self.has_one_instance("ada")?;
        ensure(self.stage.instance_of("ada")? == stopped, || "ada came back on another instance".to_owned())?;
        self.tell("She was started again: the same instance, with its new address on record.")?;
        self.beat().await
    }

    async fn a_leader_dies(&mut self) -> Result<(), Problem> {
        self.act("A leader dies")?;
        let old = self.stage.leader().and_then(|leader| leader.fencing_token());
        self.stage.enter("bravo", Duration::ZERO)?;
        self.tell("A second controller stands by. An operator asks for another worker: grace.")?;
        self.beat().await?;
        self.stage.fault(json!({
            "service": "ec2", "operation": "RunInstances", "times": 1, "action": {"kind": "drop-response"},
        }))?;
        self.stage.ask_for_worker("grace")?;
        self.until("the launch is under way", |stage| stage.strikes() > 0).await?;
        self.stage.take("alpha")?.crash();
        self.tell(&format!(
            "In the middle of the launch the answer is lost and the leader crashes. Its lease of {} s runs out …",
            LEASE.as_secs()
        ))?;
        let died = Instant::now();
        self.until("bravo leads", |stage| stage.is_led_by("bravo")).await?;
        let gap = died.elapsed().as_secs_f64();
        let new = self.stage.leader().and_then(|leader| leader.fencing_token());
        ensure(new > old, || format!("the new leader's token is {new:?}, the old one's was {old:?}"))?;
        self.tell(&format!("… and after {gap:.1} s the other one leads, with a higher token than the dead one had."))?;
        self.beat().await?;
        self.until("grace runs", |stage| stage.status("grace") == WorkerStatus::Running).await?;
        self.has_one_instance("grace")?;
        self.tell("It finds what the dead one left half done and finishes it: grace runs, on one instance, not two.")?;
        self.beat().await
    }
}

/// How it is told.
impl Story<'_> {
    fn act(&mut self, title: &str) -> Result<(), Problem> {
        self.act += 1;
        self.stage.fold_the_terminated();
        Ok(self.screen.head(&format!("Act {} of {ACTS}: {title}", self.act))?)
    }

    fn tell(&mut self, sentence: &str) -> Result<(), Problem> {
        self.show()?;
        Ok(self.screen.tell(sentence)?)
    }

    fn show(&mut self) -> Result<(), Problem> {
        let changes = self.stage.new_changes();
        Ok(self.screen.show(self.stage.view(), &changes)?)
    }

    /// Time for the reader.
    async fn beat(&mut self) -> Result<(), Problem> {
        self.watch(self.screen.beat()).await
    }

    async fn watch(&mut self, long: Duration) -> Result<(), Problem> {
        let end = Instant::now() + long;
        while Instant::now() < end {
            self.show()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.show()
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&Stage) -> bool) -> Result<(), Problem> {
        let began = Instant::now();
        while !holds(&self.stage) {
            self.show()?;
            if began.elapsed() > PATIENCE {
                let rows = self.stage.view().rows;
                let fleet: Vec<_> = rows.iter().map(|row| format!("{} {}", row.worker, row.status)).collect();
                let (act, seconds) = (self.act, PATIENCE.as_secs());
                let fleet = fleet.join(", ");
                return Err(format!("act {act}: waited {seconds} s in vain until {what}. The fleet: {fleet}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.show()
    }
}

/// What must be true.
impl Story<'_> {
    fn nobody_was_touched(&self) -> Result<(), Problem> {
        let terminated = self.stage.terminated();
        ensure(terminated.is_empty(), || format!("{terminated:?} were marked, although nothing could be known"))
    }

    fn has_one_instance(&self, worker: &str) -> Result<(), Problem> {
        let (recorded, living) = (self.stage.instance_of(worker)?, self.stage.living_instances_of(worker));
        ensure(living.iter().eq([&recorded]), || {
            format!("{worker}'s record names {recorded}, and these were launched for it: {living:?}")
        })
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
