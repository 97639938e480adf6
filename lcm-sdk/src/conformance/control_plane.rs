//! Conformance suite of [`ControlPlane`].

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::lifecycle::capabilities::{Capabilities, Support};
use crate::lifecycle::decision::{Addresses, Change, Changes};
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::AutoPause;
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::{DrainRequest, Patch, Termination};
use crate::lifecycle::scale_down::ScaleDownVerdict;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::template::DEFAULT_DRAIN_TIMEOUT;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{ControlPlane, Fence, Scope, SessionMove};

/// Fixture of the suite: a control plane whose content the suite can add to.
#[async_trait]
pub trait ControlPlaneWorld: Send + Sync {
    /// The port under test.
    fn control_plane(&self) -> &dyn ControlPlane;
    /// Adds a record in the JSON format of the control plane.
    async fn put_worker(&self, record: Value);
    /// Adds a record that cannot be parsed.
    async fn put_unreadable(&self, record: Value);
    /// Adds a session in JSON.
    async fn put_session(&self, session: Value);
    /// Adds a template in JSON.
    async fn put_template(&self, template: Value);
    /// Labels of the audit entries of a worker, oldest first.
    async fn audit(&self, worker: &str) -> Vec<String>;
}

const FENCE: Fence = Fence(Some(7));

/// Checks all promises of the port. Returns the optional features that the control plane has, for the caller to compare:
/// a promise about a missing feature is that it is refused as such.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn ControlPlaneWorld) -> Capabilities {
    promise!(lists_are_filtered(world));
    promise!(missing_resources_are_none(world));
    promise!(writes_are_conditional_on_the_version(world));
    promise!(desired_statuses_are_written(world));
    promise!(patches_are_written_completely(world));
    promise!(cleared_fields_are_removed(world));
    promise!(termination_is_idempotent(world));
    promise!(drains_start_and_are_canceled(world));
    promise!(only_running_workers_are_drained(world));
    promise!(license_reports_move_the_pending_token(world));
    promise!(metrics_do_not_change_the_version(world));
    promise!(idle_detection_requires_telemetry(world));
    promise!(sessions_are_moved_and_terminated(world));
    promise!(unknown_instances_are_imported(world));
    promise!(audit_entries_are_stored(world));
    world.control_plane().capabilities()
}

/// Whether the control plane is known to lack a feature.
fn lacks(world: &dyn ControlPlaneWorld, feature: fn(&Capabilities) -> Support) -> bool {
    feature(&world.control_plane().capabilities()) == Support::No
}

/// Expects a call to be refused because the control plane lacks a feature, and the feature to be reported as missing.
fn expect_unsupported(world: &dyn ControlPlaneWorld, failure: &CallFailure, feature: fn(&Capabilities) -> Support) {
    assert_eq!(failure.kind, FailureKind::NotSupported, "{failure}");
    assert!(failure.message.contains("; "), "the alternative is named: {failure}");
    assert!(lacks(world, feature), "the missing feature is reported: {failure}");
}

fn moment(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + chrono::TimeDelta::minutes(minutes)
}

async fn read(world: &dyn ControlPlaneWorld, id: &str) -> Worker {
    let read = world.control_plane().worker(&WorkerId::from(id)).await.expect("a worker is readable");
    read.unwrap_or_else(|| panic!("{id} exists"))
}

async fn put(world: &dyn ControlPlaneWorld, id: &str, status: &str, more: Value) -> Worker {
    let mut record = json!({"id": id, "status": status, "aws_region": "us-east-1"});
    if let (Some(record), Some(more)) = (record.as_object_mut(), more.as_object()) {
        record.extend(more.clone());
    }
    world.put_worker(record).await;
    read(world, id).await
}

async fn lists_are_filtered(world: &dyn ControlPlaneWorld) {
    put(world, "list-here", "running", json!({})).await;
    put(world, "list-there", "running", json!({"aws_region": "eu-west-1"})).await;
    put(world, "list-gone", "terminated", json!({})).await;
    world.put_unreadable(json!({"id": "list-odd", "status": "asleep", "aws_region": "us-east-1"})).await;
    let listed = async |scope: Scope| {
        let listing = world.control_plane().workers(&scope).await.expect("a list");
        let odd = listing.unreadable.iter().filter_map(|odd| odd.id.clone());
        let ids = listing.workers.into_iter().map(|worker| worker.id).chain(odd);
        let mut ids: Vec<_> = ids.map(|id| id.to_string()).filter(|id| id.starts_with("list-")).collect();
        ids.sort();
        ids
    };
    assert_eq!(listed(Scope::active()).await, ["list-here", "list-odd", "list-there"]);
    assert_eq!(listed(Scope::everything()).await, ["list-gone", "list-here", "list-odd", "list-there"]);
    let region = Some("us-east-1".to_owned());
    assert_eq!(listed(Scope { region, with_terminated: true }).await, ["list-gone", "list-here", "list-odd"]);
}

async fn missing_resources_are_none(world: &dyn ControlPlaneWorld) {
    let control_plane = world.control_plane();
    assert_eq!(control_plane.worker(&"unknown".into()).await.expect("a response"), None);
    assert_eq!(control_plane.template("nothing").await.expect("a response"), None);
    world.put_template(json!({"name": "metal-of-ours", "instance_type": "m5zn.metal", "drain_timeout_hours": 2})).await;
    let template = control_plane.template("metal-of-ours").await.expect("a response").expect("a template");
    assert_eq!(template.instance_type.as_deref(), Some("m5zn.metal"));
    let timeouts = [Duration::from_secs(7200), DEFAULT_DRAIN_TIMEOUT];
    assert!(timeouts.contains(&template.drain_timeout), "the timeout of the template, or the default without one");
    control_plane.discovery_settings().await.expect("settings, or none");
    let unknown = Worker::new("unknown", WorkerStatus::Running);
    let patch =
        Patch { status: Some(WorkerStatus::Stopping), ..Patch::from_changes(&unknown, Changes::default(), moment(0)) };
    let failure = control_plane.write(&unknown, &patch, FENCE).await.expect_err("the worker does not exist");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
}

async fn writes_are_conditional_on_the_version(world: &dyn ControlPlaneWorld) {
    let worker = put(world, "conditional", "stopped", json!({})).await;
    let change =
        |status, at| Patch { status: Some(status), ..Patch::from_changes(&worker, Changes::default(), moment(at)) };
    let first = change(WorkerStatus::Starting, 1);
    let version = world.control_plane().write(&worker, &first, FENCE).await.expect("no concurrent write");
    let empty = Patch::from_changes(&worker, Changes::default(), moment(1));
    world.control_plane().write(&worker, &empty, FENCE).await.expect("an empty patch is not a conflict");
    if worker.version.is_none() {
        assert!(lacks(world, |capabilities| capabilities.versions), "the missing versions are reported");
        return;
    }
    assert_eq!(version, read(world, "conditional").await.version, "a write returns the new version");
    let late = change(WorkerStatus::Failed, 2);
    let failure = world.control_plane().write(&worker, &late, FENCE).await.expect_err("the version is old");
    assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
    assert_eq!(read(world, "conditional").await.status, WorkerStatus::Starting);
}

async fn desired_statuses_are_written(world: &dyn ControlPlaneWorld) {
    let worker = put(world, "desired", "stopped", json!({"desired_status": "stopped"})).await;
    let changes = Changes { desired_status: Some(DesiredStatus::Running), ..Changes::default() };
    let patch = Patch { status: Some(WorkerStatus::Starting), ..Patch::from_changes(&worker, changes, moment(1)) };
    match world.control_plane().write(&worker, &patch, FENCE).await {
        Ok(version) => {
            let after = read(world, "desired").await;
            assert_eq!((after.status, after.desired_status), (WorkerStatus::Starting, Some(DesiredStatus::Running)));
            assert_eq!(after.version, version, "the version after the last call");
        }
        Err(failure) => {
            expect_unsupported(world, &failure, |capabilities| capabilities.desired_status);
            assert_eq!(read(world, "desired").await, worker, "nothing is written");
        }
    }
}

async fn patches_are_written_completely(world: &dyn ControlPlaneWorld) {
    let foreign = json!({
        "rack": 9, "metadata": {"theirs": {"deep": true}}, "instance_type": "m5zn.metal", "ami_name": "cml",
        "aws_tags": {"team": "a"},
    });
    let worker = put(world, "whole", "pending", foreign).await;
    let plan = LaunchPlan {
        region: "us-east-1".into(),
        image_id: "ami-1".into(),
        instance_type: "m5zn.metal".into(),
        subnet_id: "subnet-1".into(),
        security_group_ids: vec!["sg-1".into()],
        key_name: None,
        tags: BTreeMap::from([("Name".to_owned(), "cml-worker-whole".to_owned())]),
        generation: 3,
        client_token: "token".into(),
    };
    let has_desired = !lacks(world, |capabilities| capabilities.desired_status);
    let has_notes = !lacks(world, |capabilities| capabilities.notes);
    let changes = Changes {
        ec2_instance_id: Change::Set("i-1".into()),
        addresses: Some(Addresses { public_ip: Some("203.0.113.7".into()), private_ip: Some("10.0.0.7".into()) }),
        desired_status: has_desired.then_some(DesiredStatus::Running),
        start_initiated_at: Some(moment(1)),
        drain_started_at: Change::Set(moment(2)),
        scaled_down_at: Some(moment(3)),
        launched_at: Some(moment(4)),
        launch_generation: Some(3),
        launch_plan: Change::Set(Box::new(plan)),
        license_attempt: Some("monday".into()),
        license_wait: Some("2026-02-06T07:00:00Z@b46c0967".into()),
        ..Changes::default()
    };
    let patch = Patch { status: Some(WorkerStatus::Provisioning), ..Patch::from_changes(&worker, changes, moment(5)) };
    let version = world.control_plane().write(&worker, &patch, FENCE).await.expect("written");
    let after = read(world, "whole").await;
    assert_eq!(after.version, version, "the version after the last call");
    let mut expected = patch.apply_to(&worker);
    expected.version = after.version;
    expected.updated_at = after.updated_at;
    expected.extra = after.extra.clone();
    expected.notes.on_record = after.notes.on_record;
    if !has_notes {
        expected.notes = worker.notes.clone();
        expected.start_initiated_at = worker.start_initiated_at;
    }
    assert_eq!(after.address(), expected.address());
    // Not every server has an address of its own choice.
    expected.ip_address.clone_from(&after.ip_address);
    expected.notes.reading = after.notes.reading;
    assert_eq!(after.notes, expected.notes, "notes are written");
    assert_eq!(after.metadata, expected.metadata, "other metadata is kept");
    assert_eq!(after.aws_tags, expected.aws_tags, "tags are kept");
    assert!(after == expected, "{after:?} is not {expected:?}");
    assert_eq!(after.extra.get("rack"), worker.extra.get("rack"), "other fields are kept");
}

async fn cleared_fields_are_removed(world: &dyn ControlPlaneWorld) {
    let worker = read(world, "whole").await;
    let changes = Changes {
        ec2_instance_id: Change::Clear,
        addresses: Some(Addresses::default()),
        drain_started_at: Change::Clear,
        launch_plan: Change::Clear,
        ..Changes::default()
    };
    let patch = Patch::from_changes(&worker, changes, moment(6));
    world.control_plane().write(&worker, &patch, FENCE).await.expect("written");
    let after = read(world, "whole").await;
    assert_eq!(after.address(), None);
    assert_eq!((after.notes.drain_started_at, after.notes.launch_plan.as_ref()), (None, None));
    let has_notes = !lacks(world, |capabilities| capabilities.notes);
    if has_notes {
        assert_eq!(after.notes.launch_generation, 3, "other notes are kept");
    }
    // A server without notes may keep the id of an instance until another one replaces it.
    let is_kept = !has_notes && after.ec2_instance_id == worker.ec2_instance_id;
    assert!(after.ec2_instance_id.is_none() || is_kept, "the id is removed");
    assert_eq!(after.metadata, worker.metadata, "other metadata is kept");
    assert_eq!(after.instance_type.as_deref(), Some("m5zn.metal"), "other EC2 details are kept");
}

async fn termination_is_idempotent(world: &dyn ControlPlaneWorld) {
    let worker = put(world, "ending", "terminating", json!({"ec2_instance_id": "i-2"})).await;
    let patch = Patch {
        status: Some(WorkerStatus::Terminated),
        termination: Some(Termination { reason: "gone".into(), terminated_by: "suite".into() }),
        ..Patch::from_changes(&worker, Changes::default(), moment(1))
    };
    for _ in 0..2 {
        world.control_plane().write(&worker, &patch, FENCE).await.expect("terminated, also if it has ended");
    }
    let after = read(world, "ending").await;
    assert_eq!(after.status, WorkerStatus::Terminated);
    assert!(after.terminated_at.is_some(), "the time is set");
}

async fn drains_start_and_are_canceled(world: &dyn ControlPlaneWorld) {
    let worker = put(world, "draining", "running", json!({"desired_status": "running"})).await;
    let request = DrainRequest { reason: "scale_down".into(), requested_by: "suite".into() };
    let changes = Changes {
        desired_status: Some(DesiredStatus::Stopped),
        drain_started_at: Change::Set(moment(1)),
        scaled_down_at: Some(moment(1)),
        ..Changes::default()
    };
    let drain = Patch {
        status: Some(WorkerStatus::Draining),
        drain: Some(request.clone()),
        ..Patch::from_changes(&worker, changes, moment(1))
    };
    let version = world.control_plane().write(&worker, &drain, FENCE).await.expect("draining");
    let draining = read(world, "draining").await;
    assert_eq!(version, draining.version);
    assert_eq!((draining.status, draining.desired_status), (WorkerStatus::Draining, Some(DesiredStatus::Stopped)));
    if !lacks(world, |capabilities| capabilities.notes) {
        assert!(draining.notes.drain_started_at.is_some(), "the start of the drain is set");
        assert_eq!(draining.notes.scaled_down_at, Some(moment(1)), "the start of the cooldown is set");
    }
    let changes =
        Changes { desired_status: Some(DesiredStatus::Running), drain_started_at: Change::Clear, ..Changes::default() };
    let cancel = Patch {
        status: Some(WorkerStatus::Running),
        drain: Some(request),
        ..Patch::from_changes(&draining, changes, moment(2))
    };
    let version = match world.control_plane().write(&draining, &cancel, FENCE).await {
        Ok(version) => version,
        Err(failure) => {
            expect_unsupported(world, &failure, |capabilities| capabilities.cancel_drain);
            assert_eq!(read(world, "draining").await, draining, "nothing is written");
            return;
        }
    };
    let after = read(world, "draining").await;
    assert_eq!(version, after.version);
    assert_eq!((after.status, after.desired_status), (WorkerStatus::Running, Some(DesiredStatus::Running)));
    assert_eq!(after.notes.drain_started_at, None, "a canceled drain has no start");
}

async fn only_running_workers_are_drained(world: &dyn ControlPlaneWorld) {
    put(world, "not-running", "stopped", json!({"desired_status": "running"})).await;
    let believed = Worker::new("not-running", WorkerStatus::Running);
    let changes = Changes {
        desired_status: Some(DesiredStatus::Stopped),
        drain_started_at: Change::Set(moment(1)),
        ..Changes::default()
    };
    let patch = Patch { status: Some(WorkerStatus::Draining), ..Patch::from_changes(&believed, changes, moment(1)) };
    let failure = world.control_plane().write(&believed, &patch, FENCE).await.expect_err("it is stopped");
    assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
    let after = read(world, "not-running").await;
    assert_eq!((after.status, after.desired_status), (WorkerStatus::Stopped, Some(DesiredStatus::Running)));
    assert_eq!(after.notes.drain_started_at, None, "a refused drain has no start");
}

async fn license_reports_move_the_pending_token(world: &dyn ControlPlaneWorld) {
    let license = json!({"license": {"pending_operation": "register", "pending_token": "t0ken"}});
    let worker = put(world, "licensed", "running", license).await;
    for _ in 0..2 {
        let report = LicenseReport::StartRegistration;
        world.control_plane().report_license(&worker.id, report, FENCE).await.expect("reported, also if repeated");
    }
    let started = read(world, "licensed").await;
    let shows_operations = worker.license.pending_operation.is_some();
    assert_eq!(started.license.operation_in_progress, shows_operations, "the operation is in progress, if it is shown");
    let changes = Changes { license_report: Some(LicenseReport::CompleteRegistration), ..Changes::default() };
    let patch = Patch::from_changes(&started, changes, moment(1));
    world.control_plane().write(&started, &patch, FENCE).await.expect("written");
    let license = read(world, "licensed").await.license;
    assert_eq!(license.token.as_ref().map(|token| token.expose()), Some("t0ken"));
    assert_eq!((license.pending_operation, license.operation_in_progress), (None, false));
    assert!(license.pending_token.is_none());
}

async fn metrics_do_not_change_the_version(world: &dyn ControlPlaneWorld) {
    let worker = put(world, "measured", "running", json!({})).await;
    let cloud = CloudMetrics { cpu_utilization: Some(12.5), ..CloudMetrics::default() };
    let cml = CmlMetrics { labs_count: Some(1), ..CmlMetrics::default() };
    let report = world.control_plane().report_metrics(&worker.id, Some(&cloud), Some(&cml), moment(1), FENCE);
    let version = report.await.expect("reported");
    assert_eq!(version, worker.version, "metrics do not change the version");
    let nothing = world.control_plane().report_metrics(&worker.id, None, None, moment(1), FENCE);
    nothing.await.expect("nothing to report");
}

async fn idle_detection_requires_telemetry(world: &dyn ControlPlaneWorld) {
    let long_ago = json!({"created_at": "2020-01-01T00:00:00Z", "desired_status": "running"});
    let worker = put(world, "idle", "running", long_ago).await;
    let control_plane = world.control_plane();
    let without = control_plane.detect_idle(&worker.id, None, AutoPause::ServerDecides, FENCE);
    let without = without.await.expect("a report").report;
    assert!(!without.is_conclusive() && !without.auto_pause_triggered, "{without:?}");
    assert!(control_plane.idle_status(&worker.id).await.expect("a status").is_idle);
    assert_eq!(read(world, "idle").await.desired_status, Some(DesiredStatus::Running), "reading changes nothing");
    let suppressed = || control_plane.detect_idle(&worker.id, Some(Vec::new()), AutoPause::Suppressed, FENCE);
    match suppressed().await.map(|check| check.report) {
        Ok(report) if !report.auto_pause_triggered => {
            assert!(report.is_conclusive() && report.is_idle, "{report:?}");
            let desired = read(world, "idle").await.desired_status;
            assert_eq!(desired, Some(DesiredStatus::Running), "the worker was not paused");
        }
        Ok(_) | Err(_) => {
            let failure = suppressed().await.expect_err("the feature is known to be missing");
            expect_unsupported(world, &failure, |capabilities| capabilities.pause_suppression);
        }
    }
}

async fn sessions_are_moved_and_terminated(world: &dyn ControlPlaneWorld) {
    put(world, "hosting", "draining", json!({})).await;
    put(world, "hosting-too", "running", json!({})).await;
    let control_plane = world.control_plane();
    for (id, status, worker) in [
        ("s-waiting", "scheduled", "hosting"),
        ("s-broken", "failed", "hosting"),
        ("s-odd", "hibernating", "hosting"),
        ("s-elsewhere", "running", "hosting-too"),
    ] {
        world.put_session(json!({"id": id, "status": status, "worker_id": worker})).await;
    }
    let seen = async || {
        let sessions = control_plane.sessions(&"hosting".into()).await.expect("sessions");
        let mut seen: Vec<_> = sessions
            .iter()
            .map(|session| format!("{} {} {}", session.id, session.state, session.retry_count))
            .collect();
        seen.sort();
        seen
    };
    assert_eq!(seen().await, ["s-broken failed 0", "s-odd hibernating 0", "s-waiting scheduled 0"]);
    let id = |id: &str| SessionId::from(id);
    let moves = [("s-waiting", SessionMove::BackToScheduler), ("s-broken", SessionMove::Retry { attempt: 1 })];
    for (session, to) in moves {
        if let Err(failure) = control_plane.move_session(&id(session), to, FENCE).await {
            expect_unsupported(world, &failure, |capabilities| capabilities.session_moves);
        }
    }
    let moved: &[&str] = if lacks(world, |capabilities| capabilities.session_moves) {
        &["s-broken failed 0", "s-waiting scheduled 0"]
    } else {
        &["s-broken instantiating 1"]
    };
    assert_eq!(seen().await.iter().filter(|session| !session.starts_with("s-odd")).collect::<Vec<_>>(), moved);
    for _ in 0..2 {
        let ended = control_plane.terminate_session(&id("s-odd"), SessionEnd::DrainTimeout, FENCE).await;
        ended.expect("terminated, also if it has ended");
    }
    let odd = seen().await.into_iter().find(|session| session.starts_with("s-odd"));
    assert!(odd.is_none_or(|session| session == "s-odd terminated 0"), "an ended session may be left out");
    let moved = control_plane.move_session(&id("s-odd"), SessionMove::BackToScheduler, FENCE).await;
    assert!(moved.is_err(), "an ended session cannot be moved");
}

async fn unknown_instances_are_imported(world: &dyn ControlPlaneWorld) {
    let mut instance = Instance::new("i-unknown", Ec2State::Running);
    instance.public_ip = Some("203.0.113.9".into());
    instance.launched_at = Some(moment(1));
    instance.tags.insert("Name".into(), "found".into());
    let control_plane = world.control_plane();
    let summary = control_plane.import("us-east-1", &[instance], FENCE).await.expect("imported");
    assert_eq!((summary.imported, summary.skipped, summary.updated), (1, 0, 0));
    let listing = control_plane.workers(&Scope::active()).await.expect("a list");
    let found = listing.workers.iter().find(|worker| worker.ec2_instance_id == Some("i-unknown".into()));
    let found = found.expect("a record of the instance");
    assert_eq!((found.status, found.address()), (WorkerStatus::Running, Some("203.0.113.9")));
    let nothing = control_plane.import("us-east-1", &[], FENCE).await.expect("nothing to import");
    assert_eq!(nothing.imported, 0);
}

async fn audit_entries_are_stored(world: &dyn ControlPlaneWorld) {
    let worker = put(world, "audited", "running", json!({})).await;
    for audit in [Audit::Provisioned, Audit::ScaleDown(ScaleDownVerdict::SkippedCooldown)] {
        world.control_plane().audit(&worker.id, audit, "why", FENCE).await.expect("written");
    }
    let stored = world.audit("audited").await;
    if lacks(world, |capabilities| capabilities.audits) {
        assert_eq!(stored, [""; 0]);
    } else {
        assert_eq!(stored, ["ec2_provisioned", "skipped_cooldown"]);
    }
}
