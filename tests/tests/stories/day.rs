//! A day of fifty workers on the deployed control plane, under a changing leader: no session is lost, no instance is
//! launched twice, no operation is repeated, and the server refuses no request that LCM could have known to be refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fake_cloud::control_plane::{Generation, Object};
use fake_cloud::{FakeCloud, LeaseClock, Pace, RequestFilter, RequestOutcome, Service};
use lcm_sdk::lifecycle::ScaleDownPolicy;
use lcm_sdk::ports::{Fence, NotesStore as _, Scope};
use lcm_sdk::providers::etcd::{EtcdNotes, EtcdOptions};
use lcm_sdk::{WorkerId, WorkerStatus};
use lcm_tests::harness::{Harness, REGION, RunningController};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
/// Simulated time per step while nothing is in transition.
const STEP: Duration = Duration::from_secs(600);
/// Simulated time per step while instances change their state.
const SHORT_STEP: Duration = Duration::from_secs(15);
/// Real time that the controllers get in each step: a few of their cycles.
const PAUSE: Duration = Duration::from_millis(400);
/// Sessions of earlier days that a worker keeps. The server lists a hundred at a time.
const OLD_SESSIONS: usize = 150;

/// The workers of the day, by their part in it.
const PARTS: [(&str, usize); 8] = [
    ("launched", 14),
    ("drained", 10),
    ("stuck", 5),
    ("licensed", 5),
    ("idle", 5),
    ("booked", 3),
    ("lost", 5),
    ("orphan", 3),
];
/// Idle workers that stay, so that the fleet keeps its minimum.
const RESERVE: usize = 2;
/// Minimum time between two scale-downs.
const COOLDOWN: Duration = Duration::from_secs(2 * 3600);
/// Time before a session for which its worker is kept: the sessions of the booked workers begin in the evening.
const LOOK_AHEAD: Duration = Duration::from_secs(24 * 3600);
/// A time at which the instances of the orphans were launched.
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

fn names(part: &str) -> Vec<String> {
    let size = PARTS.iter().find(|(name, _)| *name == part).map_or(0, |(_, size)| *size);
    (0..size).map(|number| format!("{part}-{number:02}")).collect()
}

struct Day {
    harness: Harness,
}

impl Day {
    async fn begin() -> Self {
        let builder = FakeCloud::builder()
            .control_plane(Generation::Original)
            .pace(Pace::Manual)
            .lease_clock(LeaseClock::Wall)
            .cml(|cml| cml.licensing.registration = Duration::from_secs(30));
        let size = |part: &str| names(part).len();
        let min_workers = size("launched") + size("licensed") + size("booked") + RESERVE;
        let harness = Harness::start(builder).await.with_policy(|policy| {
            policy.scale_down = ScaleDownPolicy::new(min_workers).with_cooldown(COOLDOWN).with_look_ahead(LOOK_AHEAD);
        });
        let day = Self { harness };
        let harness = &day.harness;
        let mut instances = BTreeMap::new();
        for (part, _) in PARTS.iter().filter(|(part, _)| !matches!(*part, "launched" | "orphan")) {
            for worker in names(part) {
                let instance = harness.cloud.run_instance(REGION, &[("lcm:worker_id", &worker)]).expect("launched");
                instances.insert(worker, instance.id.clone());
            }
        }
        harness.cloud.advance(Duration::from_secs(60)).await;
        for (worker, instance) in &instances {
            let record = json!({"status": "running", "desired_status": "running", "ec2_instance_id": instance});
            harness.add_worker(worker, record);
            // Workers without sessions are scaled down, but for those that are booked.
            if worker.starts_with("booked") {
                let begins = (harness.cloud.now() + chrono::TimeDelta::hours(20)).to_rfc3339();
                let session = json!({
                    "id": format!("s-{worker}"), "worker_id": worker, "status": "scheduled", "timeslot_start": begins,
                });
                harness.cloud.add_session(session).expect("a valid session");
            } else if !worker.starts_with("idle") {
                harness.add_session(&format!("s-{worker}"), worker, "running");
            }
        }
        // Their instances were terminated long ago, and EC2 no longer knows them.
        for (number, worker) in names("orphan").into_iter().enumerate() {
            let instance = format!("i-0dead{number:012x}");
            let record = json!({"status": "stopped", "desired_status": "stopped", "ec2_instance_id": instance});
            harness.add_worker(&worker, record);
            harness.cloud.update_worker(&worker, json!({"created_at": LONG_AGO})).expect("accepted");
            harness.add_session(&format!("s-{worker}"), &worker, "running");
        }
        for worker in [names("drained"), names("stuck")].concat() {
            for number in 0..OLD_SESSIONS {
                let state = ["stopped", "archived", "expired"][number % 3];
                harness.add_session(&format!("old-{worker}-{number}"), &worker, state);
            }
        }
        for worker in names("launched") {
            harness.add_worker(&worker, json!({"desired_status": "running"}));
        }
        day
    }

    /// Starts a controller that can crash: its lease then expires.
    fn start_controller(&self, name: &str) -> RunningController {
        self.harness.start_controller_to_crash(name)
    }

    /// When each worker began to drain, by LCM's word or the server's: both announce it.
    fn drains(&self) -> BTreeMap<String, DateTime<Utc>> {
        let events = self.harness.cloud.records().events(None, Some("cml_worker.drain.started.v1"));
        let text =
            |event: &Object, field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut drains = BTreeMap::new();
        for event in &events {
            let at: DateTime<Utc> = text(event, "time").parse().expect("a time");
            let first = drains.entry(text(event, "subject")).or_insert(at);
            *first = at.min(*first);
        }
        drains
    }

    /// Times at which idle workers were taken out of service, in order.
    fn scale_downs(&self) -> Vec<DateTime<Utc>> {
        let idle = self.drains().into_iter().filter(|(worker, _)| worker.starts_with("idle"));
        let mut times: Vec<DateTime<Utc>> = idle.map(|(_, at)| at).collect();
        times.sort();
        times
    }

    /// Lets time pass in long steps.
    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() / STEP.as_secs() {
            self.harness.cloud.advance(STEP).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Lets time pass in short steps until all workers of a part have a status.
    async fn wait_for(&self, part: &str, status: WorkerStatus) {
        for _ in 0..100 {
            self.harness.cloud.advance(SHORT_STEP).await;
            tokio::time::sleep(PAUSE).await;
            if self.others(part, status).is_empty() {
                return;
            }
        }
        let mut late = self.others(part, status);
        late.truncate(3);
        for (worker, _) in &late {
            println!("{worker}: {}", self.harness.reconcile(worker).await);
        }
        panic!("not {status}: {late:?}");
    }

    /// Workers of a part with another status.
    fn others(&self, part: &str, status: WorkerStatus) -> Vec<(String, String)> {
        let read = |id: String| (id.clone(), self.harness.cloud.worker(&id).expect("a record").status().to_owned());
        names(part).into_iter().map(read).filter(|(_, found)| found != status.as_str()).collect()
    }

    fn session_states(&self, prefix: &str) -> BTreeSet<String> {
        let text = |session: &Object, field: &str| {
            session.get(field).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
        };
        let sessions = self.harness.cloud.sessions();
        let named = sessions.iter().filter(|session| text(session, "id").starts_with(prefix));
        named.map(|session| text(session, "status")).collect()
    }

    /// Requests that the control plane refused, by operation and status.
    fn refused(&self) -> BTreeMap<(String, u16), usize> {
        let filter = RequestFilter { service: Some(Service::ControlPlane), ..RequestFilter::default() };
        let mut refused = BTreeMap::new();
        for request in self.harness.cloud.requests(&filter) {
            if let RequestOutcome::Refused { status, .. } = request.outcome {
                *refused.entry((request.operation, status)).or_default() += 1;
            }
        }
        refused
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_workers_complete_a_day_on_the_original_server() {
    let day = Day::begin().await;
    let harness = &day.harness;
    let first = day.start_controller("first");
    let second = day.start_controller("second");

    day.wait_for("launched", WorkerStatus::Running).await;
    for worker in names("launched") {
        harness.add_session(&format!("s-{worker}"), &worker, "running");
    }
    let sessions_before = harness.cloud.sessions().len();
    for worker in names("drained").iter().chain(&names("stuck")) {
        harness.drain(worker);
    }
    for worker in names("licensed") {
        harness.request_registration(&worker, "a-license-token");
    }
    day.pass(HOUR).await;
    for worker in names("drained") {
        harness.end_session(&format!("s-{worker}"));
    }
    for worker in names("lost") {
        let instance = harness.worker(&worker).await.ec2_instance_id.expect("an instance");
        harness.cloud.terminate_instance(REGION, instance.as_str()).expect("terminates");
    }
    day.wait_for("drained", WorkerStatus::Stopped).await;
    day.wait_for("lost", WorkerStatus::Terminated).await;
    day.wait_for("orphan", WorkerStatus::Terminated).await;
    assert!(day.others("stuck", WorkerStatus::Draining).is_empty(), "the deadline is hours away");

    // The deadline of the stuck drains outlives the leader that saw them begin.
    let (crashed, standby) = if first.controller.lease().is_some() { (first, second) } else { (second, first) };
    crashed.crash();
    let third = day.start_controller("third");
    day.pass(4 * HOUR).await;
    day.wait_for("stuck", WorkerStatus::Stopped).await;
    // Calls that time out, or whose response is lost, delay the work and change nothing about it.
    let inject = |service: &str, operation: &str, action: Value| {
        harness.inject(json!({"service": service, "operation": operation, "times": 1, "action": action}));
    };
    inject("control-plane", "write_status", json!({"kind": "drop-response"}));
    inject("ec2", "StopInstances", json!({"kind": "drop-response"}));

    let restarted: Vec<_> = names("launched").into_iter().take(5).collect();
    for (desired, status) in [("stopped", WorkerStatus::Stopped), ("running", WorkerStatus::Running)] {
        for worker in &restarted {
            harness.cloud.update_worker(worker, json!({"desired_status": desired})).expect("accepted");
        }
        for _ in 0..100 {
            harness.cloud.advance(SHORT_STEP).await;
            tokio::time::sleep(PAUSE).await;
            let is_there = |id: &String| harness.cloud.worker(id).expect("a record").status() == status.as_str();
            if restarted.iter().all(is_there) {
                break;
            }
        }
    }
    // Longer than the limits of the clients, which count real time.
    for (service, operation) in
        [("cml", "system_stats"), ("control-plane", "list_sessions"), ("ec2", "DescribeInstances")]
    {
        inject(service, operation, json!({"kind": "latency", "seconds": 86_400.0}));
    }
    day.pass(17 * HOUR).await;
    assert_eq!(harness.faults_applied(), 5, "every fault was met");

    let down = names("idle").len() - day.others("idle", WorkerStatus::Stopped).len();
    assert_eq!(
        down,
        names("idle").len() - RESERVE,
        "the fleet keeps its minimum: {:?}",
        day.others("idle", WorkerStatus::Running)
    );
    let times = day.scale_downs();
    assert_eq!(times.len(), down, "each was scaled down once");
    let cooldown = chrono::TimeDelta::from_std(COOLDOWN).expect("short");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= cooldown), "across the change of leader: {times:?}");
    assert_eq!(day.others("booked", WorkerStatus::Running), [], "a session of the evening keeps its worker");
    assert_eq!(day.session_states("s-booked"), BTreeSet::from(["scheduled".to_owned()]));
    assert_eq!(day.others("launched", WorkerStatus::Running), [], "launched workers run");
    assert_eq!(day.others("licensed", WorkerStatus::Running), [], "licensed workers run");
    assert_eq!(harness.ec2_calls("RunInstances"), names("launched").len(), "each was launched once");
    let running: Vec<_> = [names("launched"), names("licensed")].concat();
    let gone = names("lost").len() + names("orphan").len();
    assert_eq!(harness.active_instances().len(), 50 - gone, "no instance is lost or left over");
    for worker in running.iter().chain(&names("drained")).chain(&names("stuck")).chain(&names("idle")) {
        let record = harness.cloud.worker(worker).expect("a record");
        assert!(record.get("declared_capacity").is_some_and(|capacity| !capacity.is_null()), "{worker}: {record:?}");
    }
    for worker in names("licensed") {
        assert_eq!(
            harness.cloud.worker(&worker).expect("a record").get("license").expect("a license")["status"],
            "registered"
        );
    }
    assert_eq!(harness.cml_calls("register"), names("licensed").len(), "each registration was submitted once");
    let ended_by_users = BTreeSet::from(["stopped".to_owned()]);
    assert_eq!(day.session_states("s-drained"), ended_by_users, "a drain ends no session before its deadline");
    assert_eq!(day.session_states("s-stuck"), BTreeSet::from(["terminated".to_owned()]), "the deadline ends them");
    assert_eq!(day.session_states("s-licensed"), BTreeSet::from(["running".to_owned()]));
    assert_eq!(day.session_states("s-lost"), BTreeSet::from(["terminated".to_owned()]), "ended with their instance");
    assert_eq!(day.session_states("s-orphan"), BTreeSet::from(["terminated".to_owned()]), "ended with their record");
    assert_eq!(day.session_states("s-launched"), BTreeSet::from(["running".to_owned()]));
    let ended = names("stuck").len() + gone;
    assert_eq!(harness.control_plane_calls("terminate_session"), ended, "each session was ended once");
    let drained = names("drained").len() + names("stuck").len() + down;
    assert_eq!(harness.cloud.sessions().len(), sessions_before, "no session was added or removed");
    assert_eq!(harness.cloud.count(Service::ControlPlane, "complete_registration"), names("licensed").len());
    assert_eq!(day.drains().len(), drained, "no other worker was drained");
    assert_eq!(harness.control_plane_calls("drain_worker"), down, "each idle worker was drained once");
    assert_eq!(day.session_states("old-"), ["archived", "expired", "stopped"].map(str::to_owned).into());
    // The server has no audit and no event log. Each controller learns that once.
    let controllers = 3;
    let refused = day.refused();
    println!("refused by the control plane: {refused:?}");
    for ((operation, status), count) in &refused {
        assert_eq!((operation.as_str(), *status), ("unknown", 404), "an unexpected refusal: {refused:?}");
        assert!(*count <= 2 * controllers, "{refused:?}");
    }
    standby.stop().await;
    third.stop().await;

    // Nothing is under way any more, and the notes of ended workers are collected after a day.
    let store = EtcdNotes::new(&EtcdOptions::new([harness.cloud.endpoints().etcd_endpoint.as_str()]), "/lcm-notes");
    let store = store.expect("valid options");
    let left = store.list().await.expect("a list").notes;
    for (worker, stored) in &left {
        for note in ["launch_plan", "drain_started_at"] {
            let open = stored.fields.get(note).is_some_and(|value| !value.is_null());
            assert!(!open, "{worker}: {:?}", stored.fields);
        }
    }
    harness.cloud.advance(25 * HOUR).await;
    let port = &harness.ports.control_plane;
    let listed = port.workers(&Scope::active()).await.expect("a listing").workers;
    let fence = |_: &WorkerId| Some(Fence(Some(i64::MAX)));
    let collected = port.collect_notes(&fence).await.expect("collected");
    let kept = store.list().await.expect("a list").notes;
    println!("notes: {} left, {collected} collected", left.len());
    assert_eq!(kept.len(), left.len() - collected);
    let living: BTreeSet<&WorkerId> = listed.iter().map(|worker| &worker.id).collect();
    assert!(kept.keys().all(|id| living.contains(id)), "only notes of living workers: {:?}", kept.keys());
}
