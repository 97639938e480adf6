//! Load during the kills: changes by operators, changes in the AWS console, sessions and API faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::{InstanceState, SeededRng};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::hosts::Hosts;
use crate::rules::{self, RuleReport};

/// Number of workers that are started and stopped.
const TOGGLED: usize = 120;
/// Number of workers with sessions.
const HOSTS: usize = 40;
/// Number of workers that are terminated and replaced.
const REPLACED: usize = 40;
/// Number of instances launched without a record.
const UNMANAGED: u64 = 6;
/// Time between two steps.
const PAUSE: Duration = Duration::from_millis(30);

/// Result of the churn.
pub(crate) struct ChurnResult {
    pub(crate) steps: u64,
    pub(crate) faults: u64,
    /// Rules checked while it ran.
    pub(crate) report: RuleReport,
    pub(crate) hosts: Hosts,
}

pub(crate) struct Churn {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<ChurnResult>,
}

impl Churn {
    pub(crate) fn start(fixture: Arc<Fixture>, seed: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut fleet = Fleet::new(fixture, seed);
        fleet.inject_faults();
        for (kind, number) in [("toggled", TOGGLED), ("host", HOSTS), ("replaced", REPLACED)] {
            // Half of them have an instance already; the others are to be launched.
            (0..number).for_each(|index| if index % 2 == 0 { fleet.add(kind) } else { fleet.add_running(kind) });
        }
        let thread = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    fleet.step();
                    std::thread::sleep(PAUSE);
                }
                let faults = fleet.fixture.cloud.world().faults().list().iter().map(|rule| rule.applied).sum();
                ChurnResult { faults, ..fleet.result }
            }
        });
        Self { is_over, thread }
    }

    pub(crate) fn stop(self) -> ChurnResult {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

struct Fleet {
    fixture: Arc<Fixture>,
    rng: SeededRng,
    added: usize,
    unmanaged: u64,
    result: ChurnResult,
}

impl Fleet {
    fn new(fixture: Arc<Fixture>, seed: u64) -> Self {
        let result =
            ChurnResult { steps: 0, faults: 0, report: RuleReport::default(), hosts: Hosts::new(Arc::clone(&fixture)) };
        Self { fixture, rng: SeededRng::new(seed, "churn"), added: 0, unmanaged: 0, result }
    }

    /// Injects throttling, missing capacity, lag, errors and lost responses.
    fn inject_faults(&self) {
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
            self.fixture.cloud.inject(rule).expect("a valid rule");
        }
    }

    fn add(&mut self, kind: &str) {
        let (id, region) = self.next(kind);
        self.record(&id, region, json!({"status": "pending"}));
    }

    fn add_running(&mut self, kind: &str) {
        let (id, region) = self.next(kind);
        let instance = self.fixture.cloud.run_instance(region, &[("lcm:worker_id", &id)]).expect("launched");
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
        self.fixture.cloud.add_worker(record).expect("a valid record");
    }

    /// Makes one change.
    fn step(&mut self) {
        self.result.steps += 1;
        match self.rng.below(100) {
            0..28 => self.change_desired("toggled"),
            28..35 => self.change_instance("toggled", InstanceState::Running, |fixture, region, id| {
                drop(fixture.cloud.stop_instance(region, id));
            }),
            35..39 => self.change_instance("toggled", InstanceState::Stopped, |fixture, region, id| {
                drop(fixture.cloud.start_instance(region, id));
            }),
            39..44 => self.change_instance("toggled", InstanceState::Running, |fixture, region, id| {
                drop(fixture.cloud.terminate_instance(region, id));
            }),
            44..58 => self.change_desired("replaced"),
            58..85 => {
                if let Some(host) = self.any("host") {
                    self.result.hosts.step(&host, &mut self.rng);
                }
            }
            85..87 => self.launch_unmanaged(),
            87..92 => self.fixture.reset_failed(),
            _ => self.rename(),
        }
        self.replace_terminated();
        if self.result.steps.is_multiple_of(8) {
            self.result.report =
                std::mem::take(&mut self.result.report).merge(rules::check_current_state(&self.fixture));
        }
    }

    fn active(&self, kind: &str) -> Vec<Arc<Worker>> {
        let all = self.fixture.cloud.workers().into_iter();
        all.filter(|worker| worker.id().starts_with(kind) && worker.status() != "terminated").collect()
    }

    fn any(&mut self, kind: &str) -> Option<Arc<Worker>> {
        let active = self.active(kind);
        let index = usize::try_from(self.rng.below(active.len() as u64)).ok()?;
        active.get(index).cloned()
    }

    /// Changes the desired status of a worker, as an operator.
    fn change_desired(&mut self, kind: &str) {
        let Some(worker) = self.any(kind) else { return };
        // Mostly after it was launched, so that there is an instance to terminate.
        if kind == "replaced" && worker.instance_id().is_none() && self.rng.chance(0.9) {
            return;
        }
        let desired = match (kind, worker.desired()) {
            ("replaced", _) => "terminated",
            (_, Some("running")) => "stopped",
            _ => "running",
        };
        let desired = Input::from_value(json!({"desired_status": desired})).expect("an object");
        // Refused if the worker has just been terminated.
        drop(self.fixture.cloud.records().set_desired(worker.id(), None, &desired));
    }

    /// Changes an instance in the AWS console.
    fn change_instance(&mut self, kind: &str, state: InstanceState, act: impl FnOnce(&Fixture, &str, &str)) {
        let Some(worker) = self.any(kind) else { return };
        if let (Some(region), Some(id)) = (worker.text("aws_region"), worker.instance_id())
            && self.fixture.ec2_state(&worker) == Some(state)
        {
            act(&self.fixture, region, id);
        }
    }

    /// Launches an instance without a record in the AWS console.
    fn launch_unmanaged(&mut self) {
        if self.unmanaged < UNMANAGED {
            let region = Fixture::regions()[usize::try_from(self.unmanaged).unwrap_or_default()];
            self.fixture.cloud.run_instance(region, &[("Name", "unmanaged")]).expect("launched");
            self.unmanaged += 1;
        }
    }

    /// Writes a record, which conflicts with a concurrent write of a controller.
    fn rename(&mut self) {
        let Some(worker) = self.any("") else { return };
        let renamed =
            json!({"name": format!("{} again", worker.text("name").unwrap_or_default().trim_end_matches(" again"))});
        self.fixture.cloud.update_worker(worker.id(), renamed).expect("a valid record");
    }

    fn replace_terminated(&mut self) {
        for (kind, number) in [("toggled", TOGGLED), ("replaced", REPLACED)] {
            (self.active(kind).len()..number).for_each(|_| self.add(kind));
        }
    }
}

/// A string field, empty if it is missing.
pub(crate) fn text<'a>(object: &'a serde_json::Map<String, Value>, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}
