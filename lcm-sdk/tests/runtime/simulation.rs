//! A fleet under a controller, while everything goes wrong that can: the same number makes the same day.

use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::adapters::memory::{ComputeOperation, Fault, Versions};
use lcm_sdk::ports::DiscoveryFilter;
use lcm_sdk::runtime::controller::ControllerConfig;
use lcm_sdk::runtime::discovery::DiscoveryConfig;
use lcm_sdk::runtime::shutdown::Shutdown;
use lcm_sdk::runtime::telemetry::Telemetry;
use lcm_sdk::runtime::worker_controller::{WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, Image, InstanceId, Worker, WorkerStatus};
use tokio::task::JoinHandle;

use super::bench::{Bench, HERE, worker_id};
use super::mortal::Life;

const WORKERS: u8 = 4;

/// Splitmix: small, and the same everywhere.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn worker(&mut self) -> u8 {
        u8::try_from(self.roll(WORKERS.into())).expect("few") + 1
    }
}

pub(crate) struct Day {
    pub(crate) bench: Bench,
    dice: Dice,
    running: (Life, JoinHandle<()>),
    hidden: Vec<InstanceId>,
    /// What happened, to be shown with a failure.
    story: Vec<String>,
    seconds: u64,
}

impl Day {
    fn new(seed: u64) -> Self {
        // Every other day at a server that keeps no versions.
        let versions = if seed.is_multiple_of(2) { Versions::Kept } else { Versions::NotKept };
        Self::at(versions, seed, |bench| {
            for number in 1..=WORKERS {
                let mut worker = Worker::new(worker_id(number), WorkerStatus::Pending);
                worker.template_name = Some("metal".to_owned());
                worker.desired_status = Some(DesiredStatus::Running);
                bench.control_plane.put_worker(worker);
            }
        })
    }

    /// A day with these people in it.
    pub(crate) fn of(seed: u64, people: impl FnOnce(&Bench)) -> Self {
        Self::at(Versions::Kept, seed, people)
    }

    fn at(versions: Versions, seed: u64, people: impl FnOnce(&Bench)) -> Self {
        let bench = Bench::with(|control_plane| control_plane.with_versions(versions));
        let (id, name, creation_date) = ("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z");
        bench.compute.put_image(
            HERE,
            Image { id: id.to_owned(), name: name.to_owned(), creation_date: creation_date.to_owned() },
        );
        bench.compute.put_subnet(HERE, "subnet-1");
        people(&bench);
        let running = begin(&bench);
        Self { bench, dice: Dice(seed), running, hidden: Vec::new(), story: vec![format!("day {seed}")], seconds: 0 }
    }

    /// The controller dies where it is, and a new one begins.
    pub(crate) fn crash(&mut self) {
        self.running.0.end();
        self.running.1.abort();
        self.running = begin(&self.bench);
    }

    pub(crate) fn tell(&mut self, happened: &str) {
        self.story.push(format!("{:>5} s: {happened}", self.seconds));
    }

    pub(crate) fn told(&self) -> String {
        self.story.join("\n")
    }

    pub(crate) async fn live(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.seconds += 1;
            self.bench.clock.advance(Duration::from_secs(1));
            for _ in 0..2 {
                tokio::time::advance(Duration::from_millis(500)).await;
                for _ in 0..6 {
                    tokio::task::yield_now().await;
                }
            }
            if self.seconds.is_multiple_of(7) {
                self.bench.compute.settle();
            }
            self.check_ownership();
        }
    }

    /// Never two instances for one worker.
    fn check_ownership(&self) {
        let mut owned: BTreeMap<String, Vec<InstanceId>> = BTreeMap::new();
        for instance in self.bench.compute.all(HERE).into_iter().filter(|instance| instance.state.is_live()) {
            owned.entry(instance.owner().expect("tagged").to_owned()).or_default().push(instance.id);
        }
        for (worker, instances) in owned {
            assert!(instances.len() == 1, "{worker} has {instances:?}\n{}", self.story.join("\n"));
        }
    }

    fn mishap(&mut self) {
        let number = self.dice.worker();
        let (compute, control_plane) = (&self.bench.compute, &self.bench.control_plane);
        let instance = self.bench.look(number).instance_id;
        let failure = |kind| CallFailure::new(kind, "a bad day");
        let kind = [FailureKind::Throttled, FailureKind::Unclear, FailureKind::Unreachable, FailureKind::NoCapacity]
            [usize::try_from(self.dice.roll(4)).expect("few")];
        let happened = match self.dice.roll(16) {
            0 => {
                compute.fail_next(ComputeOperation::Launch, failure(kind));
                format!("a launch fails: {kind:?}")
            }
            1 => {
                compute.lose_next_answer(ComputeOperation::Launch, failure(FailureKind::Unclear));
                "the answer to a launch is lost".to_owned()
            }
            2 => {
                control_plane.plan("write", Fault::LoseAnswer);
                "the answer to a write is lost".to_owned()
            }
            3 => {
                control_plane.plan("write", Fault::Fail(failure(FailureKind::Unreachable)));
                "a write fails".to_owned()
            }
            4 => {
                control_plane.cut_next_write();
                "a write is cut".to_owned()
            }
            5 | 6 => {
                self.crash();
                "the controller crashes and comes back".to_owned()
            }
            7 => {
                let desired = if self.dice.roll(2) == 0 { DesiredStatus::Running } else { DesiredStatus::Stopped };
                control_plane.edit(&worker_id(number), |worker| worker.desired_status = Some(desired));
                format!("{number} is wanted {desired:?}")
            }
            8 => {
                let stopped = instance.filter(|id| self.state(id) == Some(Ec2State::Running));
                if let Some(id) = &stopped {
                    compute.set_state(HERE, id, Ec2State::Stopping);
                }
                format!("somebody stops {stopped:?}")
            }
            9 => {
                let killed = instance.filter(|_| self.dice.roll(3) == 0);
                if let Some(id) = &killed {
                    compute.set_state(HERE, id, Ec2State::Terminated);
                }
                format!("somebody terminates {killed:?}")
            }
            10 => {
                compute.fail_next(ComputeOperation::Instances, failure(FailureKind::Throttled));
                compute.fail_next(ComputeOperation::Tagged, failure(FailureKind::Unclear));
                "EC2 does not tell".to_owned()
            }
            11 => {
                let young = self.bench.look(number).notes.launched_at;
                let is_young = young.is_some_and(|at| lcm_sdk::core::time::age(at, self.now()).as_secs() < 30);
                let hidden = instance.filter(|_| is_young);
                if let Some(id) = &hidden {
                    compute.hide(HERE, id);
                }
                self.hidden.extend(hidden.clone());
                format!("EC2 does not show {hidden:?} yet")
            }
            12 => {
                control_plane.edit(&worker_id(number), |worker| worker.name = Some("renamed".to_owned()));
                format!("{number} is renamed")
            }
            13 | 14 => {
                // So that what happens next happens in the middle of something.
                let seconds = self.dice.roll(9);
                compute.slow_down(HERE, Duration::from_secs(seconds));
                format!("EC2 takes {seconds} s")
            }
            _ => {
                let ends = self.dice.roll(4) == 0;
                if ends {
                    let terminated = Some(DesiredStatus::Terminated);
                    control_plane.edit(&worker_id(number), |worker| worker.desired_status = terminated);
                }
                format!("{number} is to end: {ends}")
            }
        };
        self.tell(&happened);
    }

    fn now(&self) -> lcm_sdk::Timestamp {
        lcm_sdk::ports::Clock::now(&self.bench.clock)
    }

    fn state(&self, id: &InstanceId) -> Option<Ec2State> {
        self.bench.compute.all(HERE).into_iter().find(|instance| instance.id == *id).map(|instance| instance.state)
    }

    /// In the end everybody is where he should be, and nobody is without an owner.
    fn check_the_end(&self) {
        let story = || self.story.join("\n");
        for number in 1..=WORKERS {
            let worker = self.bench.look(number);
            let ec2 = worker.instance_id.as_ref().and_then(|id| self.state(id));
            let fine = match (worker.status, worker.desired_status) {
                (WorkerStatus::Running, Some(DesiredStatus::Running)) => ec2 == Some(Ec2State::Running),
                (WorkerStatus::Stopped, Some(DesiredStatus::Stopped)) => ec2 == Some(Ec2State::Stopped),
                // Held back, or ended from outside.
                (WorkerStatus::Pending, Some(DesiredStatus::Stopped)) => ec2.is_none(),
                (WorkerStatus::Terminated, _) => ec2.is_none_or(|state| state == Ec2State::Terminated),
                (WorkerStatus::Failed, desired) => desired != Some(DesiredStatus::Terminated),
                _ => false,
            };
            assert!(
                fine,
                "{number} ended {} (wanted {:?}, EC2 {ec2:?})\n{}",
                worker.status,
                worker.desired_status,
                story()
            );
        }
        for instance in self.bench.compute.all(HERE).into_iter().filter(|instance| instance.state.is_live()) {
            let owners = self.bench.control_plane.look_at_all().into_iter();
            let owners = owners.filter(|worker| worker.status != WorkerStatus::Terminated);
            let owners = owners.filter(|worker| worker.instance_id.as_ref() == Some(&instance.id)).count();
            assert_eq!(owners, 1, "{} has no owner\n{}", instance.id, story());
        }
    }
}

fn begin(bench: &Bench) -> (Life, JoinHandle<()>) {
    let (life, ports) = Life::begin(bench.ports());
    let config = WorkerControllerConfig {
        controller: ControllerConfig { jitter: std::sync::Arc::new(|| 0.5), ..ControllerConfig::default() },
        discovery: Some(DiscoveryConfig {
            interval: Duration::from_secs(60),
            regions: vec![HERE.to_owned()],
            filter: DiscoveryFilter { tags: vec![("lcm:worker_id".to_owned(), None)], ..DiscoveryFilter::default() },
            ..DiscoveryConfig::default()
        }),
        ..WorkerControllerConfig::default()
    };
    let controller = WorkerController::new(ports, bench.policy.clone(), None, config, Telemetry::default());
    let controller = controller.expect("nobody to compete with");
    (life, tokio::spawn(async move { controller.run(&Shutdown::new()).await }))
}

async fn a_day(seed: u64) {
    let mut day = Day::new(seed);
    for _ in 0..40 {
        let pause = day.dice.roll(25) + 1;
        day.mishap();
        day.live(pause).await;
        if day.dice.roll(3) == 0 {
            for id in std::mem::take(&mut day.hidden) {
                day.bench.compute.show(HERE, &id);
            }
        }
    }
    for id in std::mem::take(&mut day.hidden) {
        day.bench.compute.show(HERE, &id);
    }
    day.story.push(format!("{:>5} s: quiet from here on", day.seconds));
    day.bench.compute.clear_failures();
    day.bench.compute.slow_down(HERE, Duration::ZERO);
    day.live(900).await;
    day.check_the_end();
    day.running.1.abort();
}

/// `LCM_FIRST_DAY` and `LCM_DAYS` choose others: the number of a failed day is in its story.
#[tokio::test(start_paused = true)]
async fn after_a_bad_day_everybody_is_where_he_should_be() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let (first, days) = (number("LCM_FIRST_DAY").unwrap_or(0), number("LCM_DAYS").unwrap_or(20));
    for day in first..first + days {
        a_day(day).await;
    }
}
