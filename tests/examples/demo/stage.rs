//! Where the story plays: a fake cloud, what can be done to it behind everybody's back, and who is on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::etcd::{KeyRange, Range};
use fake_cloud::{FakeCloud, LoggedRequest, Pace, RequestFilter, Scenario, Service};
use lcm_sdk::WorkerStatus;
use lcm_sdk::controller::ElectionConfig;
use lcm_sdk::lifecycle::{SessionStanding, SessionState};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use serde_json::{Map, Value, json};

use crate::Problem;
use crate::controller::Controller;
use crate::view::{Change, Ec2Says, Row, View};

pub(crate) const REGION: &str = "us-east-1";
/// How much faster than real time the cloud is: fast enough for a minute, slow enough to watch.
pub(crate) const PACE: f64 = 15.0;

const CREATED: &str = "cml_worker.created.v1";
const STATUS_UPDATED: &str = "cml_worker.status.updated.v1";

/// The cloud and the controllers.
pub(crate) struct Stage {
    pub(crate) cloud: FakeCloud,
    controllers: Vec<Controller>,
    counters: Vec<Telemetry>,
    folded: BTreeSet<String>,
    /// How many changes have been told.
    told: usize,
}

impl Stage {
    /// The cloud of ADR-014's night, and nobody on yet.
    pub(crate) async fn set() -> Result<Self, Problem> {
        let scenario = Scenario::find("orphans")?;
        let cloud = FakeCloud::builder().pace(Pace::Accelerated(PACE)).scenario(scenario).start().await?;
        cloud.set_discovery(json!({"scan_interval_seconds": 1}))?;
        // Nobody is idle: the control plane would pause whom nobody has used for an hour.
        for worker in cloud.workers() {
            cloud.update_worker(worker.id(), json!({"last_activity_at": cloud.now().to_rfc3339()}))?;
        }
        let mut stage = Self { cloud, controllers: Vec::new(), counters: Vec::new(), folded: BTreeSet::new(), told: 0 };
        // What has happened before the story begins.
        stage.new_changes();
        Ok(stage)
    }

    /// Ends the cloud; every counter is kept by then.
    pub(crate) async fn strike(self) {
        drop(self.controllers);
        self.cloud.stop().await;
    }
}

/// Who is on.
impl Stage {
    pub(crate) fn enter(&mut self, name: &str, sweep_after: Duration) -> Result<(), Problem> {
        let controller = Controller::start(&self.cloud, name, sweep_after)?;
        self.counters.push(controller.telemetry().clone());
        self.controllers.push(controller);
        Ok(())
    }

    /// Takes a controller off, to be stopped or crashed.
    pub(crate) fn take(&mut self, name: &str) -> Result<Controller, Problem> {
        let place = self.controllers.iter().position(|controller| controller.name() == name);
        Ok(self.controllers.swap_remove(place.ok_or_else(|| format!("{name} is not on"))?))
    }

    pub(crate) fn leader(&self) -> Option<&Controller> {
        self.controllers.iter().find(|controller| controller.leads())
    }

    pub(crate) fn is_led_by(&self, name: &str) -> bool {
        self.leader().is_some_and(|leader| leader.name() == name)
    }

    /// Returns how often a fault was counted, over all controllers.
    pub(crate) fn anomalies(&self, anomaly: Anomaly) -> u64 {
        self.counters.iter().map(|telemetry| telemetry.anomalies(anomaly)).sum()
    }

    /// What all controllers counted together, without what is only a gauge.
    pub(crate) fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in self.counters.iter().flat_map(Telemetry::counters) {
            *sums.entry(name).or_default() += count;
        }
        sums.remove("running_worker_count");
        sums
    }
}

/// The control plane and EC2, as operators, users and strangers in the console reach them.
impl Stage {
    pub(crate) fn ask_for_worker(&self, id: &str) -> Result<(), Problem> {
        let record = json!({
            "id": id, "name": id, "status": "pending", "desired_status": "running", "template_name": "metal",
            "aws_region": REGION,
        });
        self.cloud.add_worker(record)?;
        Ok(())
    }

    pub(crate) fn add_session(&self, id: &str, worker: &str, status: &str) -> Result<(), Problem> {
        self.cloud.add_session(json!({"id": id, "worker_id": worker, "status": status}))?;
        Ok(())
    }

    pub(crate) fn end_session(&self, id: &str) -> Result<(), Problem> {
        self.cloud.records().transition_session(id, &Input::from_value(json!({"status": "stopped"}))?)?;
        Ok(())
    }

    pub(crate) fn drain(&self, worker: &str) -> Result<(), Problem> {
        self.cloud.records().drain(worker, None, "maintenance", "operator")?;
        Ok(())
    }

    /// Breaks something: a fault rule as the admin API takes it. The answer is its number.
    pub(crate) fn fault(&self, rule: Value) -> Result<u64, Problem> {
        Ok(self.cloud.inject(serde_json::from_value(rule)?)?)
    }

    /// EC2 refuses an operation from here on.
    pub(crate) fn refuse(&self, operation: &str) -> Result<u64, Problem> {
        let action = json!({"kind": "error", "code": "UnauthorizedOperation"});
        self.fault(json!({"service": "ec2", "operation": operation, "action": action}))
    }

    /// How often the faults in force have struck.
    pub(crate) fn strikes(&self) -> u64 {
        self.cloud.world().faults().list().iter().map(|rule| rule.struck).sum()
    }

    /// A record is told that its launch was just now.
    pub(crate) fn launched_just_now(&self, worker: &str) -> Result<(), Problem> {
        self.cloud.update_worker(worker, json!({"launched_at": self.cloud.now().to_rfc3339()}))?;
        Ok(())
    }

    pub(crate) fn set_ami_pattern(&self, pattern: &str) -> Result<(), Problem> {
        self.cloud.set_discovery(json!({"ami_name_pattern": pattern}))?;
        Ok(())
    }

    pub(crate) fn instance_of(&self, worker: &str) -> Result<String, Problem> {
        let record = self.cloud.worker(worker)?;
        Ok(record.instance_id().ok_or_else(|| format!("{worker} has no instance"))?.to_owned())
    }
}

/// What is so.
impl Stage {
    pub(crate) fn status(&self, worker: &str) -> WorkerStatus {
        self.cloud.worker(worker).map_or(WorkerStatus::Unknown, |record| status(&record))
    }

    pub(crate) fn terminated(&self) -> BTreeSet<String> {
        let workers = self.cloud.workers();
        let over = workers.iter().filter(|record| status(record) == WorkerStatus::Terminated);
        over.map(|record| record.id().to_owned()).collect()
    }

    /// The workers whose record names an instance that does not live.
    pub(crate) fn orphans(&self) -> BTreeSet<String> {
        let (workers, living) = (self.cloud.workers(), self.living_instances());
        let orphans = workers.iter().filter(|record| !record.instance_id().is_some_and(|id| living.contains(id)));
        orphans.map(|record| record.id().to_owned()).collect()
    }

    /// The instances that records which are not terminated stand for.
    pub(crate) fn recorded_instances(&self) -> BTreeSet<String> {
        let workers = self.cloud.workers();
        let standing = workers.iter().filter(|record| status(record) != WorkerStatus::Terminated);
        standing.filter_map(|record| Some(record.instance_id()?.to_owned())).collect()
    }

    /// The instances that are neither terminated nor on their way there.
    pub(crate) fn living_instances(&self) -> BTreeSet<String> {
        self.living(|_| true)
    }

    /// The living instances that were launched for a worker.
    pub(crate) fn living_instances_of(&self, worker: &str) -> BTreeSet<String> {
        self.living(|tags| tags.get("lcm:worker_id").is_some_and(|owner| owner == worker))
    }

    fn living(&self, counts: impl Fn(&BTreeMap<String, String>) -> bool) -> BTreeSet<String> {
        let now = self.cloud.now();
        let instances = self.cloud.instances(REGION);
        let living = instances.iter().filter(|i| !matches!(i.state(now).name(), "terminated" | "shutting-down"));
        living.filter(|instance| counts(&instance.tags)).map(|instance| instance.id.clone()).collect()
    }

    /// Where a session is: its state, and its worker if it has one.
    pub(crate) fn session(&self, id: &str) -> Option<(SessionState, Option<String>)> {
        let session = self.cloud.session(id).ok()?;
        let text = |field: &str| session.get(field).and_then(Value::as_str);
        Some((SessionState::from_wire(text("status")?), text("worker_id").map(str::to_owned)))
    }

    pub(crate) fn is_over(&self, session: &str) -> bool {
        self.session(session).is_some_and(|(state, _)| state.standing() == SessionStanding::Over)
    }

    /// What EC2 was asked for, oldest first.
    pub(crate) fn ec2_requests(&self) -> Vec<LoggedRequest> {
        self.cloud.requests(&of_ec2())
    }

    /// Whether EC2 was asked for AMIs of this name.
    pub(crate) fn was_asked_for_images(&self, pattern: &str) -> bool {
        let about = |request: &LoggedRequest| request.parameters.iter().any(|(_, value)| value == pattern);
        self.ec2_requests().iter().any(|request| request.operation == "DescribeImages" && about(request))
    }

    /// How often EC2 was asked for an operation on an instance, alone or with others.
    pub(crate) fn calls_about(&self, instance: &str, operation: &str) -> usize {
        let (operation, subject) = (Some(operation.to_owned()), Some(instance.to_owned()));
        self.cloud.world().request_log().count(&RequestFilter { operation, subject, ..of_ec2() })
    }

    /// Every change of a record since this was last asked, oldest first.
    pub(crate) fn new_changes(&mut self) -> Vec<Change> {
        let events = self.cloud.events();
        let changes: Vec<Change> = events.iter().filter_map(|event| change(event)).collect();
        let new = changes.get(self.told..).unwrap_or_default().to_vec();
        self.told = changes.len();
        new
    }

    /// From here on, those that are terminated are only named.
    pub(crate) fn fold_the_terminated(&mut self) {
        self.folded = self.terminated();
    }

    pub(crate) fn view(&self) -> View {
        let workers = self.cloud.workers();
        let shown = workers.iter().filter(|record| !self.folded.contains(record.id()));
        View {
            leader: self.leadership(),
            ec2_calls: self.cloud.world().request_log().count(&of_ec2()),
            rows: shown.map(|record| self.row(record)).collect(),
            folded: self.folded.iter().cloned().collect(),
        }
    }

    fn row(&self, record: &Worker) -> Row {
        let (worker, status) = (record.id().to_owned(), status(record));
        let instance = record.instance_id().map(str::to_owned);
        let ec2 = match &instance {
            None => Ec2Says::NotAsked,
            Some(id) => match self.cloud.instance(REGION, id) {
                None => Ec2Says::NoSuchInstance,
                Some(instance) => Ec2Says::State(instance.state(self.cloud.now()).name()),
            },
        };
        let sessions = self.cloud.sessions();
        let theirs =
            sessions.iter().filter(|session| session.get("worker_id").and_then(Value::as_str) == Some(&worker));
        let words = theirs.filter_map(|session| session.get("status")?.as_str());
        let sessions = words.filter(|word| SessionState::from_wire(word).standing() != SessionStanding::Over).count();
        let reason = || self.leader().and_then(|leader| leader.last_reason(&worker)).unwrap_or_default();
        let now = match (status, record.text("terminated_by")) {
            (WorkerStatus::Terminated, Some(by)) => format!("Marked by {by}."),
            _ => reason(),
        };
        Row { worker, status, ec2, instance, sessions, now }
    }

    /// Who leads, as etcd and the controllers tell.
    fn leadership(&self) -> String {
        let key = KeyRange::new(ElectionConfig::WORKER_CONTROLLER.into(), Default::default());
        let holder = self.cloud.etcd().range(&Range::new(key)).ok().and_then(|found| found.records.first().cloned());
        let Some(holder) = holder else { return "nobody leads".to_owned() };
        let name = String::from_utf8_lossy(&holder.value).into_owned();
        let alive = self.controllers.iter().any(|controller| controller.name() == name);
        if !alive {
            let left = self.cloud.etcd().lease_status(holder.lease).map_or(0, |lease| lease.ttl.max(0));
            return format!("{name} is dead, its lease has {left} s left");
        }
        let waiting = self.controllers.iter().map(Controller::name).find(|other| *other != name);
        let standby = waiting.map_or_else(String::new, |other| format!(", {other} stands by"));
        format!("{name} leads (token {}){standby}", holder.create_revision)
    }
}

fn of_ec2() -> RequestFilter {
    RequestFilter { service: Some(Service::Ec2), ..RequestFilter::default() }
}

fn status(record: &Worker) -> WorkerStatus {
    record.status().parse().unwrap_or(WorkerStatus::Unknown)
}

fn change(event: &Map<String, Value>) -> Option<Change> {
    let worker = event.get("subject")?.as_str()?.to_owned();
    let data = event.get("data")?;
    let text = |field: &str| data.get(field).and_then(Value::as_str).map(str::to_owned);
    match event.get("type")?.as_str()? {
        CREATED => Some(Change { worker, from: None, to: text("status")? }),
        STATUS_UPDATED => Some(Change { worker, from: text("from"), to: text("to")? }),
        _ => None,
    }
}
