//! Fleet of the demo: the harness, the controllers and the state that the table shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fake_cloud::control_plane::{Generation, Worker};
use fake_cloud::etcd::{KeyRange, Range};
use fake_cloud::{FakeCloud, LoggedRequest, Pace, RequestFilter, Scenario, Service};
use lcm_sdk::WorkerStatus;
use lcm_sdk::controller::ElectionConfig;
use lcm_sdk::lifecycle::{SessionPhase, SessionState};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_tests::harness::{Harness, REGION};
use serde_json::{Map, Value, json};

use crate::Problem;
use crate::controller::Controller;
use crate::table::{Change, Ec2Column, Row, View};

/// Factor of the cloud's clock: the demo takes less than a minute and can still be followed.
pub(crate) const PACE: f64 = 15.0;

const CREATED: &str = "cml_worker.created.v1";
const STATUS_UPDATED: &str = "cml_worker.status.updated.v1";

/// The cloud and its controllers.
pub(crate) struct Fleet {
    pub(crate) harness: Harness,
    controllers: Vec<Controller>,
    counters: Vec<Telemetry>,
    folded: BTreeSet<String>,
    /// Number of changes already shown.
    shown: usize,
}

impl Fleet {
    /// Starts the cloud with the scenario `orphans` and no controller.
    pub(crate) async fn start(generation: Generation) -> Result<Self, Problem> {
        let scenario = Scenario::find("orphans")?;
        let builder = FakeCloud::builder().control_plane(generation).pace(Pace::Accelerated(PACE)).scenario(scenario);
        let harness = Harness::without_log_capture(builder).await;
        let cloud = &harness.cloud;
        cloud.set_discovery(json!({"scan_interval_seconds": 1}))?;
        // Mark every worker as active: the control plane pauses workers that are idle for an hour.
        for worker in cloud.workers() {
            cloud.update_worker(worker.id(), json!({"last_activity_at": cloud.now().to_rfc3339()}))?;
        }
        let mut fleet =
            Self { harness, controllers: Vec::new(), counters: Vec::new(), folded: BTreeSet::new(), shown: 0 };
        // Skip the changes made by the scenario.
        fleet.new_changes();
        Ok(fleet)
    }

    /// Starts a controller; its startup sweep begins after `sweep_after`.
    pub(crate) fn start_controller(&mut self, name: &str, sweep_after: Duration) -> Result<(), Problem> {
        let controller = Controller::start(&self.harness.cloud, name, sweep_after)?;
        self.counters.push(controller.telemetry().clone());
        self.controllers.push(controller);
        Ok(())
    }

    /// Removes a controller, to be stopped or crashed.
    pub(crate) fn take(&mut self, name: &str) -> Result<Controller, Problem> {
        let place = self.controllers.iter().position(|controller| controller.name() == name);
        Ok(self.controllers.swap_remove(place.ok_or_else(|| format!("{name} is not running"))?))
    }

    pub(crate) fn leader(&self) -> Option<&Controller> {
        self.controllers.iter().find(|controller| controller.leads())
    }

    pub(crate) fn is_led_by(&self, name: &str) -> bool {
        self.leader().is_some_and(|leader| leader.name() == name)
    }

    /// Count of an anomaly over all controllers so far.
    pub(crate) fn anomalies(&self, anomaly: Anomaly) -> u64 {
        self.counters.iter().map(|telemetry| telemetry.anomalies(anomaly)).sum()
    }

    /// Sums of all counters over all controllers so far, without gauges.
    pub(crate) fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in self.counters.iter().flat_map(Telemetry::counters) {
            *sums.entry(name).or_default() += count;
        }
        sums.remove("running_worker_count");
        sums
    }
}

/// Actions of operators and changes in the AWS console.
impl Fleet {
    pub(crate) fn request_worker(&self, id: &str) {
        self.harness.add_worker(id, json!({"desired_status": "running"}));
    }

    /// EC2 rejects an operation from now on.
    pub(crate) fn deny(&self, operation: &str) {
        let action = json!({"kind": "error", "code": "UnauthorizedOperation"});
        self.harness.inject(json!({"service": "ec2", "operation": operation, "action": action}));
    }

    /// Sets the launch time of a record to now.
    pub(crate) fn set_launched_now(&self, worker: &str) -> Result<(), Problem> {
        let cloud = &self.harness.cloud;
        cloud.update_worker(worker, json!({"launched_at": cloud.now().to_rfc3339()}))?;
        Ok(())
    }

    pub(crate) fn instance_id(&self, worker: &str) -> Result<String, Problem> {
        let record = self.harness.cloud.worker(worker)?;
        Ok(record.instance_id().ok_or_else(|| format!("{worker} has no instance"))?.to_owned())
    }
}

/// State of the fleet.
impl Fleet {
    pub(crate) fn status(&self, worker: &str) -> WorkerStatus {
        self.harness.cloud.worker(worker).map_or(WorkerStatus::Unknown, |record| status(&record))
    }

    pub(crate) fn terminated(&self) -> BTreeSet<String> {
        let workers = self.harness.cloud.workers();
        let terminated = workers.iter().filter(|record| status(record) == WorkerStatus::Terminated);
        terminated.map(|record| record.id().to_owned()).collect()
    }

    /// Workers whose instance does not exist or is terminated.
    pub(crate) fn orphans(&self) -> BTreeSet<String> {
        let (workers, active) = (self.harness.cloud.workers(), self.active_instances());
        let orphans = workers.iter().filter(|record| !record.instance_id().is_some_and(|id| active.contains(id)));
        orphans.map(|record| record.id().to_owned()).collect()
    }

    /// Instances of all records that are not terminated.
    pub(crate) fn recorded_instances(&self) -> BTreeSet<String> {
        let workers = self.harness.cloud.workers();
        let current = workers.iter().filter(|record| status(record) != WorkerStatus::Terminated);
        current.filter_map(|record| Some(record.instance_id()?.to_owned())).collect()
    }

    /// Instances that are neither terminated nor shutting down.
    pub(crate) fn active_instances(&self) -> BTreeSet<String> {
        self.harness.active_instances().into_iter().collect()
    }

    /// Active instances that were launched for a worker.
    pub(crate) fn active_instances_for(&self, worker: &str) -> BTreeSet<String> {
        let active = self.active_instances();
        let instances = self.harness.cloud.instances(REGION);
        let tagged = instances.iter().filter(|i| i.tags.get("lcm:worker_id").is_some_and(|owner| owner == worker));
        tagged.map(|instance| instance.id.clone()).filter(|id| active.contains(id)).collect()
    }

    /// State and worker of a session.
    pub(crate) fn session(&self, id: &str) -> Option<(SessionState, Option<String>)> {
        let session = self.harness.cloud.session(id).ok()?;
        let text = |field: &str| session.get(field).and_then(Value::as_str);
        Some((SessionState::from_wire(text("status")?), text("worker_id").map(str::to_owned)))
    }

    pub(crate) fn has_ended(&self, session: &str) -> bool {
        self.session(session).is_some_and(|(state, _)| state.phase() == SessionPhase::Over)
    }

    /// Requests to EC2, oldest first.
    pub(crate) fn ec2_requests(&self) -> Vec<LoggedRequest> {
        self.harness.cloud.requests(&ec2_filter())
    }

    /// Number of EC2 requests for an operation that include this instance.
    pub(crate) fn ec2_calls(&self, instance: &str, operation: &str) -> usize {
        let (operation, subject) = (Some(operation.to_owned()), Some(instance.to_owned()));
        self.harness.cloud.world().request_log().count(&RequestFilter { operation, subject, ..ec2_filter() })
    }

    /// Status changes since the last call, oldest first.
    pub(crate) fn new_changes(&mut self) -> Vec<Change> {
        let events = self.harness.cloud.events();
        let changes: Vec<Change> = events.iter().filter_map(|event| change(event)).collect();
        let new = changes.get(self.shown..).unwrap_or_default().to_vec();
        self.shown = changes.len();
        new
    }

    /// Shows only the names of workers that are terminated by now.
    pub(crate) fn fold_terminated(&mut self) {
        self.folded = self.terminated();
    }

    pub(crate) fn view(&self) -> View {
        let workers = self.harness.cloud.workers();
        let rows = workers.iter().filter(|record| !self.folded.contains(record.id()));
        View {
            leader: self.leadership(),
            ec2_calls: self.harness.cloud.world().request_log().count(&ec2_filter()),
            rows: rows.map(|record| self.row(record)).collect(),
            folded: self.folded.iter().cloned().collect(),
        }
    }

    fn row(&self, record: &Worker) -> Row {
        let (worker, status) = (record.id().to_owned(), status(record));
        let instance = record.instance_id().map(str::to_owned);
        let ec2 = match &instance {
            None => Ec2Column::NoInstance,
            Some(id) => match self.harness.cloud.instance(REGION, id) {
                None => Ec2Column::NotFound,
                Some(instance) => Ec2Column::State(instance.state(self.harness.cloud.now()).name()),
            },
        };
        let sessions = self.harness.cloud.sessions();
        let own = sessions.iter().filter(|session| session.get("worker_id").and_then(Value::as_str) == Some(&worker));
        let states = own.filter_map(|session| session.get("status")?.as_str());
        let sessions = states.filter(|state| SessionState::from_wire(state).phase() != SessionPhase::Over).count();
        let reason = || self.leader().and_then(|leader| leader.last_reason(&worker)).unwrap_or_default();
        let now = match (status, record.text("terminated_by")) {
            (WorkerStatus::Terminated, Some(by)) => format!("Marked by {by}."),
            _ => reason(),
        };
        Row { worker, status, ec2, instance, sessions, now }
    }

    /// Current leader and standby, from the key in etcd.
    fn leadership(&self) -> String {
        let key = KeyRange::new(ElectionConfig::WORKER_CONTROLLER.into(), Default::default());
        let holder =
            self.harness.cloud.etcd().range(&Range::new(key)).ok().and_then(|found| found.records.first().cloned());
        let Some(holder) = holder else { return "no leader".to_owned() };
        let name = String::from_utf8_lossy(&holder.value).into_owned();
        let alive = self.controllers.iter().any(|controller| controller.name() == name);
        if !alive {
            let left = self.harness.cloud.etcd().lease_status(holder.lease).map_or(0, |lease| lease.ttl.max(0));
            return format!("{name} crashed, its lease expires in {left} s");
        }
        let waiting = self.controllers.iter().map(Controller::name).find(|other| *other != name);
        let standby = waiting.map_or_else(String::new, |other| format!(", {other} is on standby"));
        format!("{name} leads (token {}){standby}", holder.create_revision)
    }
}

fn ec2_filter() -> RequestFilter {
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
