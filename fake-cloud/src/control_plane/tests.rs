//! Rules of the records, on a manual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::clock::{Clock, Pace};

/// Mirror that stores its keys.
#[derive(Debug, Clone, Default)]
struct Mirror {
    keys: Arc<Mutex<BTreeMap<String, String>>>,
    puts: Arc<Mutex<Vec<String>>>,
}

impl EtcdMirror for Mirror {
    fn put(&self, key: &str, value: &str) {
        self.puts.lock().push(key.to_owned());
        self.keys.lock().insert(key.to_owned(), value.to_owned());
    }

    fn delete(&self, key: &str) {
        assert!(self.keys.lock().remove(key).is_some(), "{key} was not mirrored");
    }
}

fn input(value: Value) -> Input {
    Input::from_value(value).expect("an object")
}

fn store() -> (Records, Mirror) {
    store_with(Settings::for_generation(Generation::Extended))
}

fn store_with(settings: Settings) -> (Records, Mirror) {
    let mirror = Mirror::default();
    // A whole second: times are formatted with microseconds, and tests of an exact hour must not lose the rest.
    let start = super::input::parse_time("2026-02-06T08:00:00Z").expect("a time");
    (Records::with_settings(Clock::with_start(Pace::Manual, start), settings, Arc::new(mirror.clone())), mirror)
}

fn running(records: &Records, id: &str) {
    records.create_worker(input(json!({"id": id, "status": "running", "ec2_instance_id": "i-1"}))).expect("created");
}

#[test]
fn version_conflict_changes_nothing() {
    let (records, _) = store();
    running(&records, "w");
    records.write_status("w", Some(1), &input(json!({"status": "stopping"}))).expect("at version 1");
    let refused = records.write_status("w", Some(1), &input(json!({"status": "failed"}))).expect_err("at version 2");
    assert_eq!(refused, ApiError::VersionConflict { expected: 1, current: 2 });
    assert_eq!(records.worker("w").expect("exists").status(), "stopping");
}

#[test]
fn rejected_write_changes_no_field() {
    let (records, _) = store();
    running(&records, "w");
    let before = records.worker("w").expect("exists");
    let body = json!({"status": "stopped", "launched_at": "2026-02-06T08:00:00Z", "desired_status": "asleep"});
    let refused = records.write_status("w", None, &input(body)).expect_err("no such desire");
    assert!(refused.to_string().contains("`desired_status` is \"asleep\"; accepted: running, stopped, terminated"));
    assert_eq!(records.worker("w").expect("exists"), before);
}

#[test]
fn unknown_fields_survive_every_write() {
    let (records, _) = store();
    let given = json!({"id": "w", "status": "running", "color": {"deep": [1.5, null]}, "metadata": {"shade": "blue"}});
    records.create_worker(input(given)).expect("created");
    records.write_status("w", None, &input(json!({"status": "running", "metadata": {"a": 1}}))).expect("written");
    records.drain("w", None, "test", "test").expect("drained");
    records.write_ec2_details("w", None, &input(json!({}))).expect("written");
    let worker = records.worker("w").expect("exists");
    assert_eq!(worker.get("color"), Some(&json!({"deep": [1.5, null]})));
    assert_eq!(worker.get("metadata"), Some(&json!({"shade": "blue", "a": 1})));
}

#[test]
fn drain_requires_a_running_worker_and_can_be_canceled() {
    let (records, _) = store();
    running(&records, "w");
    let drained = records.drain("w", None, "scale_down", "worker-controller").expect("runs");
    assert_eq!((drained.status(), drained.desired()), ("draining", Some("stopped")));
    assert!(drained.time("drain_started_at").is_some());
    let again = records.drain("w", None, "scale_down", "worker-controller").expect_err("drains already");
    assert_eq!(again.http_status(), 409);
    let actions: Vec<_> = records.audit(Some("w"), None).iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions, ["drain_accepted", "drain_rejected"]);
    let back = records.cancel_drain("w", None, "changed my mind", "ops").expect("drains");
    assert_eq!((back.status(), back.desired()), ("running", Some("running")));
    assert_eq!(back.get("drain_started_at"), Some(&Value::Null));
    assert_eq!(records.cancel_drain("w", None, "again", "ops").expect_err("runs").http_status(), 409);
    let event = &records.events(Some("w"), Some("cml_worker.drain.cancelled.v1"))[0];
    assert_eq!(event["data"], json!({"cancelled_by": "ops", "reason": "changed my mind"}));
}

#[test]
fn terminate_ends_the_sessions_and_is_idempotent() {
    let (records, mirror) = store();
    running(&records, "w");
    running(&records, "other");
    for (id, worker, status) in [("s1", "w", "running"), ("s2", "w", "archived"), ("s3", "other", "running")] {
        records.create_session(input(json!({"id": id, "worker_id": worker, "status": status}))).expect("created");
    }
    let done = records.terminate("w", Some(1), Some("gone"), Some("discovery-gc")).expect("ended");
    assert_eq!((done.already_terminated, done.sessions), (false, vec!["s1".to_owned()]));
    assert_eq!(done.worker.text("terminated_by"), Some("discovery-gc"));
    assert_eq!(records.session("s1").expect("exists")["status"], "terminated");
    assert_eq!(records.session("s2").expect("exists")["status"], "archived");
    assert_eq!(records.session("s3").expect("exists")["status"], "running");
    // The outdated version does not matter: the worker is already terminated.
    let again = records.terminate("w", Some(1), Some("other reason"), None).expect("done already");
    assert!(again.already_terminated);
    assert_eq!(again.worker.version(), 2);
    assert_eq!(again.worker.text("terminated_reason"), Some("gone"));
    assert_eq!(records.workers(&WorkerFilter::default()).len(), 1);
    assert_eq!(records.workers(&WorkerFilter { include_terminated: true, ..WorkerFilter::default() }).len(), 2);
    assert!(mirror.keys.lock().keys().all(|key| !key.contains("/w") || key.contains("/workers/other")), "{mirror:?}");
}

#[test]
fn status_write_of_terminated_keeps_the_sessions() {
    let (records, _) = store();
    running(&records, "w");
    records.create_session(input(json!({"id": "s", "worker_id": "w", "status": "running"}))).expect("created");
    let body = json!({"status": "terminated", "terminated_by": "discovery-gc", "terminated_reason": "not found"});
    let ended = records.write_status("w", None, &input(body)).expect("written");
    assert_eq!(ended.text("terminated_by"), Some("discovery-gc"));
    assert_eq!(records.session("s").expect("exists")["status"], "running");
}

#[test]
fn mirror_contains_states_but_no_secrets_or_metrics() {
    let (records, mirror) = store();
    let given = json!({
        "id": "w", "status": "running", "desired_status": "running", "cml_password": "hunter2",
        "license": {"status": "registered", "token": "s3cret", "pending_token": "s3cret2"},
    });
    records.create_worker(input(given)).expect("created");
    let keys = mirror.keys.lock().clone();
    assert_eq!(keys["/lcm/workers/w/state"], "running");
    assert_eq!(keys["/lcm/workers/w/desired_state"], "running");
    assert!(keys.contains_key("/workers/w") && keys.contains_key("/lcm/workers/w/license"), "{keys:?}");
    let everything = format!("{keys:?}");
    assert!(!everything.contains("hunter2") && !everything.contains("s3cret"), "{everything}");
    mirror.puts.lock().clear();
    records.store_report("w", ReportKind::Metrics, &input(json!({"cpu": 3}))).expect("stored");
    records.detect_idle("w", &input(json!({"raw_telemetry_events": []}))).expect("checked");
    assert!(mirror.puts.lock().is_empty(), "{mirror:?}");
    records.set_desired("w", None, &input(json!({"desired_status": null}))).expect("withdrawn");
    assert!(!mirror.keys.lock().contains_key("/lcm/workers/w/desired_state"));
}

#[test]
fn reports_keep_the_version() {
    let (records, _) = store();
    running(&records, "w");
    records.store_report("w", ReportKind::Metrics, &input(json!({"cpu": 3}))).expect("stored");
    records.record_activity("w", &input(json!({}))).expect("recorded");
    assert_eq!(records.worker("w").expect("exists").version(), 1);
}

#[test]
fn ec2_details_clear_omitted_fields() {
    let (records, _) = store();
    let given = json!({"id": "w", "public_ip": "203.0.113.7", "private_ip": "10.0.0.7", "instance_type": "m5zn.metal"});
    records.create_worker(input(given)).expect("created");
    let worker = records.write_ec2_details("w", None, &input(json!({"private_ip": "10.0.0.8"}))).expect("written");
    assert_eq!(worker.get("public_ip"), Some(&Value::Null));
    assert_eq!(worker.get("instance_type"), Some(&Value::Null));
    assert_eq!(worker.text("ip_address"), Some("10.0.0.8"));
}

#[test]
fn lifecycle_fields_are_stored_at_the_top_level() {
    let body = json!({"launch_generation": 2, "metadata": {"launched_at": "2026-02-06T08:00:00Z"}});
    let (newer, _) = store();
    running(&newer, "w");
    let worker = newer.write_status("w", None, &input(body.clone())).expect("written");
    assert_eq!(worker.get("launch_generation"), Some(&json!(2)));
    assert_eq!(worker.text("launched_at"), Some("2026-02-06T08:00:00Z"));
    assert_eq!(worker.get("metadata"), Some(&json!({})));
    let cleared = newer.write_status("w", None, &input(json!({"metadata": {"launched_at": null}}))).expect("written");
    assert_eq!(cleared.get("launched_at"), Some(&Value::Null));
}

#[test]
fn license_steps_lead_from_request_to_token_or_failure() {
    let (records, _) = store();
    running(&records, "w");
    let go = |operation, step, body| records.license_step("w", None, operation, step, &input(body));
    let missing = go(LicenseOperation::Register, LicenseStep::Request, json!({})).expect_err("a token is needed");
    assert_eq!(missing.http_status(), 422);
    go(LicenseOperation::Register, LicenseStep::Request, json!({"token": "t"})).expect("requested");
    assert_eq!(
        go(LicenseOperation::Deregister, LicenseStep::Start, json!({})).expect_err("the other").http_status(),
        409
    );
    let started = go(LicenseOperation::Register, LicenseStep::Start, json!({})).expect("started");
    assert_eq!(started.get("license").map(|license| &license["operation_in_progress"]), Some(&json!(true)));
    for _ in 0..2 {
        let done = go(LicenseOperation::Register, LicenseStep::Complete, json!({})).expect("can be repeated");
        let license = done.get("license").expect("exists");
        assert_eq!((&license["token"], &license["pending_token"]), (&json!("t"), &Value::Null));
        assert_eq!((&license["status"], &license["pending_operation"]), (&json!("registered"), &Value::Null));
    }
    go(LicenseOperation::Deregister, LicenseStep::Request, json!({})).expect("requested");
    let failed =
        go(LicenseOperation::Deregister, LicenseStep::Fail, json!({"error": "nodes are running"})).expect("failed");
    let license = failed.get("license").expect("exists");
    assert_eq!((&license["pending_operation"], &license["token"]), (&Value::Null, &json!("t")));
    assert_eq!(license["last_error"], "nodes are running");
    go(LicenseOperation::Deregister, LicenseStep::Request, json!({})).expect("requested");
    let done = go(LicenseOperation::Deregister, LicenseStep::Complete, json!({})).expect("completed");
    assert_eq!(done.get("license").map(|license| &license["token"]), Some(&Value::Null));
}

#[test]
fn worker_is_idle_after_an_hour_without_activity() {
    let (records, _) = store();
    running(&records, "w");
    let check = |body: Value| records.detect_idle("w", &input(body)).expect("checked");
    records.clock().advance(Duration::from_secs(59 * 60));
    assert!(!check(json!({"raw_telemetry_events": []})).idle_state.is_idle);
    records.clock().advance(Duration::from_secs(60));
    let suppressed = check(json!({"raw_telemetry_events": [], "suppress_auto_pause": true}));
    assert!(suppressed.idle_state.is_idle && suppressed.idle_state.eligible_for_pause);
    assert!(!suppressed.auto_pause_triggered);
    assert_eq!(records.worker("w").expect("exists").desired(), None);
    let blind = check(json!({"raw_telemetry_events": null}));
    assert!(!blind.telemetry_fetched && !blind.auto_pause_triggered);
    let now = records.clock().now().to_rfc3339();
    let system = json!({"category": "user_activity", "timestamp": now,
                        "data": {"user_id": "00000000-0000-4000-a000-000000000000"}});
    assert!(check(json!({"raw_telemetry_events": [system], "suppress_auto_pause": true})).idle_state.is_idle);
    let person = json!({"category": "start_lab", "timestamp": now, "data": {}});
    let busy = check(json!({"raw_telemetry_events": [person]}));
    assert!(busy.activity_updated && !busy.idle_state.is_idle);
    records.clock().advance(Duration::from_secs(3600));
    let paused = check(json!({"raw_telemetry_events": []}));
    assert!(paused.auto_pause_triggered);
    let worker = records.worker("w").expect("exists");
    assert_eq!((worker.desired(), worker.get("auto_pause_count")), (Some("stopped"), Some(&json!(1))));
    assert_eq!(worker.version(), 2);
}

#[test]
fn resumed_worker_is_snoozed() {
    let (records, _) = store();
    running(&records, "w");
    records.record_activity("w", &input(json!({"last_activity_at": "2020-01-01T00:00:00Z"}))).expect("recorded");
    records.write_status("w", None, &input(json!({"status": "starting"}))).expect("written");
    records.write_status("w", None, &input(json!({"status": "running"}))).expect("written");
    let report = records.detect_idle("w", &input(json!({"raw_telemetry_events": []}))).expect("checked");
    assert!(report.idle_state.is_idle && report.idle_state.in_snooze_period && !report.idle_state.eligible_for_pause);
    records.clock().advance(Duration::from_secs(3600));
    assert_eq!(records.idle_status("w").expect("exists")["eligible_for_pause"], true);
}

#[test]
fn import_creates_workers_and_reports_the_result() {
    let (records, _) = store();
    running(&records, "w");
    let body = json!({"aws_region": "us-east-1", "source": "discovery", "discovered_instances": [
        {"instance_id": "i-1", "state": "stopped", "private_ip": "10.0.0.1"},
        {"instance_id": "i-2", "state": "running", "public_ip": "203.0.113.2", "launch_time": "2026-02-06T08:00:00Z"},
        {"instance_id": "i-2", "state": "running", "public_ip": "203.0.113.2"},
    ]});
    let result = records.bulk_import(&input(body.clone())).expect("imported");
    let totals = ["total_found", "total_imported", "total_skipped", "total_updated"].map(|total| result[total].clone());
    assert_eq!(totals, [3, 1, 1, 1], "{result}");
    let made = records.worker(result["imported"][0]["worker_id"].as_str().expect("an id")).expect("created");
    assert_eq!((made.status(), made.text("ip_address"), made.desired()), ("running", Some("203.0.113.2"), None));
    assert_eq!(records.worker("w").expect("exists").status(), "stopped");
    let again = records.bulk_import(&input(body)).expect("imported");
    assert_eq!((&again["total_imported"], &again["total_updated"]), (&json!(0), &json!(0)));
    let bad = json!({"aws_region": "us-east-1", "discovered_instances": [
        {"instance_id": "i-3", "state": "running"}, {"instance_id": 7, "state": "running"}]});
    let refused = records.bulk_import(&input(bad)).expect_err("a bad item");
    assert!(refused.to_string().contains("discovered_instances[1].instance_id"), "{refused}");
    assert_eq!(records.workers(&WorkerFilter::default()).len(), 2);
}

#[test]
fn returned_session_loses_its_worker_and_counts_a_retry() {
    let (records, _) = store();
    running(&records, "w");
    records.create_session(input(json!({"id": "s", "worker_id": "w", "status": "scheduled"}))).expect("created");
    let back = records.transition_session("s", &input(json!({"status": "pending", "worker_id": null}))).expect("moved");
    assert_eq!(back["worker_id"], Value::Null);
    records.schedule_session("s", &input(json!({"worker_id": "w"}))).expect("placed");
    records.drain("w", None, "test", "test").expect("runs");
    let refused = records.schedule_session("s", &input(json!({"worker_id": "w"}))).expect_err("it drains");
    assert_eq!(refused.http_status(), 409);
    records.transition_session("s", &input(json!({"status": "failed"}))).expect("moved");
    let retried = records.transition_session("s", &input(json!({"status": "instantiating"}))).expect("moved");
    assert_eq!((&retried["retry_count"], &retried["worker_id"]), (&json!(1), &json!("w")));
    let (_, already) = records.terminate_session("s", Some("max_retries_exceeded"), None).expect("ended");
    let (_, again) = records.terminate_session("s", None, None).expect("ended");
    assert!(!already && again);
    assert!(records.transition_session("s", &input(json!({"status": "running"}))).is_err());
}

#[test]
fn scale_up_requires_an_enabled_template() {
    let (records, _) = store();
    let worker = records.scale_up(&input(json!({"template": "metal", "reason": "demand"}))).expect("accepted");
    assert_eq!((worker.status(), worker.desired()), ("pending", Some("running")));
    assert_eq!(worker.text("instance_type"), Some("m5zn.metal"));
    assert_eq!(records.scale_up(&input(json!({"template": "huge"}))).expect_err("unknown").http_status(), 404);
    let off = json!({"name": "off", "instance_type": "t3.micro", "enabled": false});
    records.put_template(input(off)).expect("put");
    assert_eq!(records.scale_up(&input(json!({"template": "off"}))).expect_err("disabled").http_status(), 409);
    let actions: Vec<_> = records.audit(None, None).iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions, ["scale_up_accepted", "scale_up_rejected", "scale_up_rejected"]);
}

#[test]
fn reset_clears_records_and_mirror() {
    let (records, mirror) = store();
    running(&records, "w");
    records.create_session(input(json!({"id": "s", "worker_id": "w", "status": "running"}))).expect("created");
    records.delete_template("metal").expect("exists");
    assert!(!mirror.keys.lock().is_empty());
    records.reset();
    assert!(mirror.keys.lock().is_empty(), "{mirror:?}");
    assert!(records.worker("w").is_err() && records.session("s").is_err() && records.template("metal").is_ok());
    assert!(records.events(None, None).is_empty());
}

#[test]
fn equal_seeds_give_equal_ids() {
    let ids = || {
        let records = Records::new(Clock::new(Pace::Manual));
        [(); 3].map(|()| records.create_worker(input(json!({}))).expect("created").id().to_owned())
    };
    assert_eq!(ids(), ids());
}

#[test]
fn debug_output_contains_no_secret() {
    let (records, _) = store();
    let given = input(json!({"cml_password": "hunter2"}));
    let printed = format!("{given:?} {:?} {records:?}", records.create_worker(given.clone()));
    assert!(printed.contains("cml_password") && !printed.contains("hunter2"), "{printed}");
}
