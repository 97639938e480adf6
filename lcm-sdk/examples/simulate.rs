//! A worker's life, told by the real decisions against a model of EC2: no network, no waiting.
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

/// Passes a chapter may take; every one of them needs far fewer.
const PATIENCE: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let mut worker = Worker::new("w-blue", WorkerStatus::Pending);
    worker.name = Some("blue".into());
    worker.desired_status = Some(DesiredStatus::Running);
    let mut story = Story::new(Simulation::new(worker));

    story.chapter("A record asks for a worker, and the controller crashes right after EC2 took the launch");
    story.world.play_and_crash_after(2);
    story.note("crash: an instance was launched and nothing was recorded");
    story.play()?;
    story.expect(WorkerStatus::Running)?;

    story.chapter("Somebody stops the instance in the console; the desired state wins");
    let instance = story.world.worker.ec2_instance_id.clone().ok_or("no instance")?;
    let now = story.world.now;
    let _ = story.world.ec2.stop(&instance, now);
    story.play()?;
    story.expect(WorkerStatus::Running)?;

    story.chapter("A drain: the last session ends, then the worker stops");
    story.world.sessions = vec![Session::new("s-1", "running"), Session::new("s-2", "scheduled")];
    let begun = drain::initiate(&story.world.worker, &story.world.sessions, "maintenance", "alice", story.world.now)?;
    story.command(begun);
    story.pass();
    story.pass();
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

/// Prints what happens as it happens.
struct Story {
    world: Simulation,
    colours: bool,
}

impl Story {
    fn new(world: Simulation) -> Self {
        Self { world, colours: std::io::stdout().is_terminal() }
    }

    fn chapter(&self, title: &str) {
        println!("\n{}", self.paint("1", title));
    }

    fn note(&self, text: &str) {
        println!("  {}  {:<13} {}", self.time(), "", self.paint("33", &format!("· {text}")));
    }

    /// Plays until nothing is left to do.
    fn play(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..PATIENCE {
            let at_rest = self.world.clone().play_until_quiet(1).is_some();
            self.pass();
            if at_rest {
                return Ok(());
            }
        }
        Err(format!("the worker does not settle: {:?}", self.world.worker).into())
    }

    /// One pass, told in one line.
    fn pass(&mut self) {
        let time = self.time();
        let (decision, _) = self.world.consider();
        let effects: Vec<_> = decision.effects.iter().map(ToString::to_string).collect();
        let record = self.world.play();
        self.tell(&time, &record, &effects);
    }

    /// What an operator does.
    fn command(&mut self, decision: Decision) {
        let (time, at) = (self.time(), self.world.now);
        let record = record(&self.world.worker, &Applied { decision, results: Vec::new(), at, version: None });
        self.world.worker = record.patch.apply_to(&self.world.worker);
        self.tell(&time, &record, &[]);
    }

    fn tell(&self, time: &str, record: &Record, effects: &[String]) {
        let status = self.world.worker.status;
        println!("  {time}  {} {}", self.paint(colour(status), &format!("{status:<13}")), record.reason);
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
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn colour(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Running => "32",
        WorkerStatus::Draining => "34",
        WorkerStatus::Failed | WorkerStatus::Terminating => "31",
        WorkerStatus::Stopped | WorkerStatus::Terminated | WorkerStatus::Unknown => "2",
        WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting | WorkerStatus::Stopping => "33",
    }
}
