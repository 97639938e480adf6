//! What goes on meanwhile: operators change their minds, others lay hands on instances, sessions come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::{InstanceState, SeededRng};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::hosts::Hosts;
use crate::rules::{self, Verdict};

/// How many workers are started and stopped, how many have sessions, and how many are ended and replaced.
const RESTLESS: usize = 120;
const HOSTS: usize = 40;
const MORTAL: usize = 40;
/// Instances that somebody launches without telling anybody.
const STRANGERS: u64 = 6;
/// Time from one wish or count_anomaly to the next.
const PAUSE: Duration = Duration::from_millis(30);

/// What went on.
pub(crate) struct Churned {
    pub(crate) steps: u64,
    pub(crate) faults: u64,
    /// What was seen at every moment.
    pub(crate) verdict: Verdict,
    pub(crate) hosts: Hosts,
}

pub(crate) struct Churn {
    is_over: Arc<AtomicBool>,
    going_on: JoinHandle<Churned>,
}

impl Churn {
    pub(crate) fn begin(fixture: Arc<Fixture>, seed: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut fleet = Fleet::new(fixture, seed);
        fleet.break_things();
        for (kind, number) in [("restless", RESTLESS), ("host", HOSTS), ("mortal", MORTAL)] {
            // Half of them have been there for a while; the others are to be launched.
            (0..number).for_each(|place| if place % 2 == 0 { fleet.add(kind) } else { fleet.add_running(kind) });
        }
        let going_on = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    fleet.step();
                    std::thread::sleep(PAUSE);
                }
                let faults = fleet.fixture.cloud.world().faults().list().iter().map(|rule| rule.struck).sum();
                Churned { faults, ..fleet.churned }
            }
        });
        Self { is_over, going_on }
    }

    pub(crate) fn end(self) -> Churned {
        self.is_over.store(true, Ordering::Relaxed);
        self.going_on.join().expect("the fleet's own steps are good")
    }
}

struct Fleet {
    fixture: Arc<Fixture>,
    dice: SeededRng,
    added: usize,
    strangers: u64,
    churned: Churned,
}

impl Fleet {
    fn new(fixture: Arc<Fixture>, seed: u64) -> Self {
        let churned =
            Churned { steps: 0, faults: 0, verdict: Verdict::default(), hosts: Hosts::new(Arc::clone(&fixture)) };
        Self { fixture, dice: SeededRng::new(seed, "churn"), added: 0, strangers: 0, churned }
    }

    /// EC2 throttles, has no room, lags and loses answers; the control plane fails and loses answers too.
    fn break_things(&self) {
        let error = |code: &str| json!({"kind": "error", "code": code});
        let lost = || json!({"kind": "drop-response"});
        for (service, operation, probability, action) in [
            ("ec2", "DescribeInstances", 0.01, error("RequestLimitExceeded")),
            ("ec2", "DescribeInstances", 0.5, json!({"kind": "visibility-lag", "seconds": 1.5})),
            ("ec2", "RunInstances", 0.04, error("InsufficientInstanceCapacity")),
            ("ec2", "RunInstances", 0.15, lost()),
            ("ec2", "StartInstances", 0.05, lost()),
            ("ec2", "StopInstances", 0.03, error("InternalError")),
            ("ec2", "TerminateInstances", 0.05, json!({"kind": "reset"})),
            ("control-plane", "write_status", 0.03, lost()),
            ("control-plane", "*", 0.01, json!({"kind": "custom", "name": "bad-gateway"})),
        ] {
            let rule =
                json!({"service": service, "operation": operation, "probability": probability, "action": action});
            let rule = serde_json::from_value(rule).expect("a rule");
            self.fixture.cloud.inject(rule).expect("a good rule");
        }
    }

    fn add(&mut self, kind: &str) {
        let (id, region) = self.next(kind);
        self.record(&id, region, json!({"status": "pending"}));
    }

    fn add_running(&mut self, kind: &str) {
        let (id, region) = self.next(kind);
        let instance = self.fixture.cloud.run_instance(region, &[("lcm:worker_id", &id)]).expect("it launches");
        self.record(&id, region, json!({"status": "provisioning", "ec2_instance_id": instance.id}));
    }

    fn next(&mut self, kind: &str) -> (String, &'static str) {
        self.added += 1;
        let regions = Fixture::regions();
        (format!("{kind}-{:04}", self.added), regions[self.added % regions.len()])
    }

    fn record(&self, id: &str, region: &str, fields: Value) {
        let mut record = json!({
            "id": id, "name": id, "desired_status": "running", "template_name": "brief", "aws_region": region,
            "is_idle_detection_enabled": false,
        });
        let (Value::Object(all), Value::Object(fields)) = (&mut record, fields) else { unreachable!("objects") };
        all.extend(fields);
        self.fixture.cloud.add_worker(record).expect("a good record");
    }

    /// One wish or count_anomaly.
    fn step(&mut self) {
        self.churned.steps += 1;
        match self.dice.below(100) {
            0..28 => self.change_mind("restless"),
            28..35 => self.lay_hands("restless", InstanceState::Running, |fixture, region, id| {
                drop(fixture.cloud.stop_instance(region, id));
            }),
            35..39 => self.lay_hands("restless", InstanceState::Stopped, |fixture, region, id| {
                drop(fixture.cloud.start_instance(region, id));
            }),
            39..44 => self.lay_hands("restless", InstanceState::Running, |fixture, region, id| {
                drop(fixture.cloud.terminate_instance(region, id));
            }),
            44..58 => self.change_mind("mortal"),
            58..85 => {
                if let Some(host) = self.any("host") {
                    self.churned.hosts.step(&host, &mut self.dice);
                }
            }
            85..87 => self.send_stranger(),
            87..92 => self.fixture.reset_failed(),
            _ => self.rename(),
        }
        self.replace_the_dead();
        if self.churned.steps.is_multiple_of(8) {
            self.churned.verdict = std::mem::take(&mut self.churned.verdict).and(rules::at_every_moment(&self.fixture));
        }
    }

    fn living(&self, kind: &str) -> Vec<Arc<Worker>> {
        let all = self.fixture.cloud.workers().into_iter();
        all.filter(|worker| worker.id().starts_with(kind) && worker.status() != "terminated").collect()
    }

    fn any(&mut self, kind: &str) -> Option<Arc<Worker>> {
        let living = self.living(kind);
        let place = usize::try_from(self.dice.below(living.len() as u64)).ok()?;
        living.get(place).cloned()
    }

    /// Somebody wants a worker otherwise than before: the restless up or down, the mortal gone.
    fn change_mind(&mut self, kind: &str) {
        let Some(worker) = self.any(kind) else { return };
        // Now and then before it was launched; mostly there should be something to end.
        if kind == "mortal" && worker.instance_id().is_none() && self.dice.chance(0.9) {
            return;
        }
        let wish = match (kind, worker.desired()) {
            ("mortal", _) => "terminated",
            (_, Some("running")) => "stopped",
            _ => "running",
        };
        let wish = Input::from_value(json!({"desired_status": wish})).expect("an object");
        // Refused when it has just ended, which is as well.
        drop(self.fixture.cloud.records().set_desired(worker.id(), None, &wish));
    }

    /// Somebody does something to an instance in the console.
    fn lay_hands(&mut self, kind: &str, state: InstanceState, act: impl FnOnce(&Fixture, &str, &str)) {
        let Some(worker) = self.any(kind) else { return };
        if let (Some(region), Some(id)) = (worker.text("aws_region"), worker.instance_id())
            && self.fixture.ec2_state(&worker) == Some(state)
        {
            act(&self.fixture, region, id);
        }
    }

    /// Somebody launches a machine that nobody knows of.
    fn send_stranger(&mut self) {
        if self.strangers < STRANGERS {
            let region = Fixture::regions()[usize::try_from(self.strangers).unwrap_or_default()];
            self.fixture.cloud.run_instance(region, &[("Name", "stranger")]).expect("it launches");
            self.strangers += 1;
        }
    }

    /// Somebody else writes a record while it is looked at.
    fn rename(&mut self) {
        let Some(worker) = self.any("") else { return };
        let renamed =
            json!({"name": format!("{} again", worker.text("name").unwrap_or_default().trim_end_matches(" again"))});
        self.fixture.cloud.update_worker(worker.id(), renamed).expect("a good record");
    }

    fn replace_the_dead(&mut self) {
        for (kind, number) in [("restless", RESTLESS), ("mortal", MORTAL)] {
            (self.living(kind).len()..number).for_each(|_| self.add(kind));
        }
    }
}

/// The text of a field.
pub(crate) fn text<'a>(object: &'a serde_json::Map<String, Value>, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}
