//! Plays the life of a worker against a model of EC2, without network or waiting.
//!
//! ```text
//! cargo run -p lcm-sdk --no-default-features --example simulate
//! ```

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use lcm_sdk::lifecycle::{Notice, drain};
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{Applied, Decision, DesiredStatus, Record, Session, Worker, WorkerStatus, record};

/// Largest number of reconciles per chapter. Every chapter needs far fewer.
const MAX_STEPS: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let mut worker = Worker::new("w-blue", WorkerStatus::Pending);
    worker.name = Some("blue".into());
    worker.desired_status = Some(DesiredStatus::Running);
    let mut story = Story::new(Simulation::new(worker));

    story.chapter("A worker is requested, and the controller crashes right after EC2 accepted the launch");
    story.world.play_and_crash_after(2);
    story.note("crash: an instance was launched, and the record was not written");
    story.play()?;
    story.expect(WorkerStatus::Running)?;

    story.chapter("The instance is stopped in the console; the desired status wins");
    let instance = story.world.worker.ec2_instance_id.clone().ok_or("no instance")?;
    let now = story.world.now;
    let _ = story.world.ec2.stop(&instance, now);
    story.play()?;
    story.expect(WorkerStatus::Running)?;

    story.chapter("A worker is drained: it stops after its last session");
    story.world.sessions = vec![Session::new("s-1", "running"), Session::new("s-2", "scheduled")];
    let decision =
        drain::initiate(&story.world.worker, &story.world.sessions, "maintenance", "alice", story.world.now)?;
    story.command(decision);
    story.reconcile();
    story.reconcile();
    story.note("session s-1 ends");
    story.world.sessions.clear();
    story.play()?;
    story.expect(WorkerStatus::Stopped)?;

    story.chapter("The instance is terminated in the console while the worker is stopped");
    let now = story.world.now;
    let _ = story.world.ec2.terminate(&instance, now);
    story.world.advance(Duration::from_secs(600));
    story.play()?;
    story.expect(WorkerStatus::Terminated)?;

    println!("\nAfter every chapter: the expected status, and at most one live instance.");
    Ok(())
}

/// Prints every reconcile.
struct Story {
    world: Simulation,
    colored: bool,
}

impl Story {
    fn new(world: Simulation) -> Self {
        Self { world, colored: std::io::stdout().is_terminal() }
    }

    fn chapter(&self, title: &str) {
        println!("\n{}", self.paint("1", title));
    }

    fn note(&self, text: &str) {
        println!("  {}  {:<13} {}", self.time(), "", self.paint("33", &format!("· {text}")));
    }

    /// Reconciles until nothing is left to do.
    fn play(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..MAX_STEPS {
            let is_settled = self.world.clone().play_until_quiet(1).is_some();
            self.reconcile();
            if is_settled {
                return Ok(());
            }
        }
        Err(format!("the worker does not settle: {:?}", self.world.worker).into())
    }

    /// Reconciles once.
    fn reconcile(&mut self) {
        let time = self.time();
        let (decision, _) = self.world.decide();
        let effects: Vec<_> = decision.effects.iter().map(ToString::to_string).collect();
        let record = self.world.play();
        self.print(&time, &record, &effects);
    }

    /// Applies a command of an operator.
    fn command(&mut self, decision: Decision) {
        let (time, at) = (self.time(), self.world.now);
        let record = record(&self.world.worker, &Applied { decision, results: Vec::new(), at, version: None });
        self.world.worker = record.patch.apply_to(&self.world.worker);
        self.print(&time, &record, &[]);
    }

    fn print(&self, time: &str, record: &Record, effects: &[String]) {
        let status = self.world.worker.status;
        println!("  {time}  {} {}", self.paint(color(status), &format!("{status:<13}")), record.reason);
        for effect in effects.iter().filter(|effect| !effect.starts_with("report_metrics")) {
            println!("  {:8}  {:<13} {}", "", "", self.paint("36", &format!("→ {effect}")));
        }
        for notice in &record.notices {
            let label = match notice {
                Notice::Event(event) => event.event_type(),
                Notice::Audit(audit) => audit.label(),
            };
            println!("  {:8}  {:<13} {}", "", "", self.paint("2", &format!("! {label}")));
        }
    }

    fn expect(&self, status: WorkerStatus) -> Result<(), String> {
        let (worker, live) = (&self.world.worker, self.world.ec2.live());
        if worker.status == status && live <= 1 {
            Ok(())
        } else {
            Err(format!("expected {status} with at most one instance, found {} with {live}", worker.status))
        }
    }

    fn time(&self) -> String {
        self.world.now.format("%H:%M:%S").to_string()
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colored { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn color(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Running => "32",
        WorkerStatus::Draining => "34",
        WorkerStatus::Failed | WorkerStatus::Terminating => "31",
        WorkerStatus::Stopped | WorkerStatus::Terminated | WorkerStatus::Unknown => "2",
        WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting | WorkerStatus::Stopping => "33",
    }
}
