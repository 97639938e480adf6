//! The rules of the records, on a clock moved by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::clock::{Clock, Pace};

/// A mirror that can be looked into.
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
        assert!(self.keys.lock().remove(key).is_some(), "{key} was never there");
    }
}

fn input(value: Value) -> Input {
    Input::from_value(value).expect("an object")
}

fn store() -> (Records, Mirror) {
    store_with(Settings::default())
}

fn store_with(settings: Settings) -> (Records, Mirror) {
    let mirror = Mirror::default();
    // A whole second: times are written to the microsecond, and a test about an exact hour must not lose the rest.
    let start = super::input::parse_moment("2026-02-06T08:00:00Z").expect("a time");
    (Records::with_settings(Clock::starting_at(Pace::Manual, start), settings, Arc::new(mirror.clone())), mirror)
}

fn running(records: &Records, id: &str) {
    records.create_worker(input(json!({"id": id, "status": "running", "ec2_instance_id": "i-1"}))).expect("created");
}

#[test]
fn a_write_on_an_old_version_changes_nothing_and_names_both_versions() {
    let (records, _) = store();
    running(&records, "w");
    records.write_status("w", Some(1), &input(json!({"status": "stopping"}))).expect("at version 1");
    let refused = records.write_status("w", Some(1), &input(json!({"status": "failed"}))).expect_err("at version 2");
    assert_eq!(refused, ApiError::VersionConflict { expected: 1, current: 2 });
    assert_eq!(records.worker("w").expect("there").status(), "stopping");
}

#[test]
fn a_refused_write_leaves_every_field_as_it_was() {
    let (records, _) = store();
    running(&records, "w");
    let before = records.worker("w").expect("there");
    let body = json!({"status": "stopped", "launched_at": "2026-02-06T08:00:00Z", "desired_status": "asleep"});
    let refused = records.write_status("w", None, &input(body)).expect_err("no such desire");
    assert!(refused.to_string().contains("`desired_status` is \"asleep\"; accepted: running, stopped, terminated"));
    assert_eq!(records.worker("w").expect("there"), before);
}

#[test]
fn fields_nobody_knows_are_kept_through_every_kind_of_write() {
    let (records, _) = store();
    let given = json!({"id": "w", "status": "running", "colour": {"deep": [1.5, null]}, "metadata": {"shade": "blue"}});
    records.create_worker(input(given)).expect("created");
    records.write_status("w", None, &input(json!({"status": "running", "metadata": {"a": 1}}))).expect("written");
    records.drain("w", None, "test", "test").expect("drained");
    records.write_ec2_details("w", None, &input(json!({}))).expect("written");
    let worker = records.worker("w").expect("there");
    assert_eq!(worker.get("colour"), Some(&json!({"deep": [1.5, null]})));
    assert_eq!(worker.get("metadata"), Some(&json!({"shade": "blue", "a": 1})));
}

#[test]
fn a_drain_needs_a_running_worker_and_can_be_called_off() {
    let (records, _) = store();
    running(&records, "w");
    let drained = records.drain("w", None, "scale_down", "worker-controller").expect("runs");
    assert_eq!((drained.status(), drained.desired()), ("draining", Some("stopped")));
    assert!(drained.moment("drain_started_at").is_some());
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
fn ending_a_worker_ends_its_sessions_hides_it_and_can_be_repeated() {
    let (records, mirror) = store();
    running(&records, "w");
    running(&records, "other");
    for (id, worker, status) in [("s1", "w", "running"), ("s2", "w", "archived"), ("s3", "other", "running")] {
        records.create_session(input(json!({"id": id, "worker_id": worker, "status": status}))).expect("created");
    }
    let done = records.terminate("w", Some(1), Some("gone"), Some("discovery-gc")).expect("ended");
    assert_eq!((done.already_terminated, done.sessions), (false, vec!["s1".to_owned()]));
    assert_eq!(done.worker.text("terminated_by"), Some("discovery-gc"));
    assert_eq!(records.session("s1").expect("there")["status"], "terminated");
    assert_eq!(records.session("s2").expect("there")["status"], "archived");
    assert_eq!(records.session("s3").expect("there")["status"], "running");
    // The stale version does not matter: it is done already.
    let again = records.terminate("w", Some(1), Some("other reason"), None).expect("done already");
    assert!(again.already_terminated);
    assert_eq!(again.worker.version(), 2);
    assert_eq!(again.worker.text("terminated_reason"), Some("gone"));
    assert_eq!(records.workers(&WorkerFilter::default()).len(), 1);
    assert_eq!(records.workers(&WorkerFilter { include_terminated: true, ..WorkerFilter::default() }).len(), 2);
    assert!(mirror.keys.lock().keys().all(|key| !key.contains("/w") || key.contains("/workers/other")), "{mirror:?}");
}

#[test]
fn a_status_write_of_terminated_ends_no_sessions() {
    let (records, _) = store();
    running(&records, "w");
    records.create_session(input(json!({"id": "s", "worker_id": "w", "status": "running"}))).expect("created");
    let body = json!({"status": "terminated", "terminated_by": "discovery-gc", "terminated_reason": "not found"});
    let ended = records.write_status("w", None, &input(body)).expect("written");
    assert_eq!(ended.text("terminated_by"), Some("discovery-gc"));
    assert_eq!(records.session("s").expect("there")["status"], "running");
}

#[test]
fn the_mirror_shows_states_never_secrets_and_no_measurements() {
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
    records.take_report("w", ReportKind::Metrics, &input(json!({"cpu": 3}))).expect("taken");
    records.detect_idle("w", &input(json!({"raw_telemetry_events": []}))).expect("checked");
    assert!(mirror.puts.lock().is_empty(), "{mirror:?}");
    records.set_desired("w", None, &input(json!({"desired_status": null}))).expect("withdrawn");
    assert!(!mirror.keys.lock().contains_key("/lcm/workers/w/desired_state"));
}

#[test]
fn measurements_leave_the_version_alone() {
    let (records, _) = store();
    running(&records, "w");
    records.take_report("w", ReportKind::Metrics, &input(json!({"cpu": 3}))).expect("taken");
    records.note_activity("w", &input(json!({}))).expect("noted");
    assert_eq!(records.worker("w").expect("there").version(), 1);
}

#[test]
fn ec2_details_forget_what_is_not_said() {
    let (records, _) = store();
    let given = json!({"id": "w", "public_ip": "203.0.113.7", "private_ip": "10.0.0.7", "instance_type": "m5zn.metal"});
    records.create_worker(input(given)).expect("created");
    let worker = records.write_ec2_details("w", None, &input(json!({"private_ip": "10.0.0.8"}))).expect("written");
    assert_eq!(worker.get("public_ip"), Some(&Value::Null));
    assert_eq!(worker.get("instance_type"), Some(&Value::Null));
    assert_eq!(worker.text("ip_address"), Some("10.0.0.8"));
}

#[test]
fn notes_live_on_the_record_or_in_metadata_as_the_server_knows_them() {
    let body = json!({"launch_generation": 2, "metadata": {"launched_at": "2026-02-06T08:00:00Z"}});
    let (newer, _) = store();
    running(&newer, "w");
    let worker = newer.write_status("w", None, &input(body.clone())).expect("written");
    assert_eq!(worker.get("launch_generation"), Some(&json!(2)));
    assert_eq!(worker.text("launched_at"), Some("2026-02-06T08:00:00Z"));
    assert_eq!(worker.get("metadata"), Some(&json!({})));
    let cleared = newer.write_status("w", None, &input(json!({"metadata": {"launched_at": null}}))).expect("written");
    assert_eq!(cleared.get("launched_at"), Some(&Value::Null));

    let (older, _) = store_with(Settings { dialect: Dialect::OLDER, ..Settings::default() });
    running(&older, "w");
    let worker = older.write_status("w", None, &input(body)).expect("written");
    assert!(LIFECYCLE_FIELDS.iter().all(|note| worker.get(note).is_none()), "{worker:?}");
    assert_eq!(worker.get("metadata"), Some(&json!({"launched_at": "2026-02-06T08:00:00Z"})));
    let drained = older.drain("w", None, "test", "test").expect("runs");
    assert!(drained.get("drain_started_at").is_none());
}

#[test]
fn an_older_server_ignores_what_to_exclude() {
    let filter = WorkerFilter { exclude_statuses: vec!["running"], ..WorkerFilter::default() };
    let (newer, _) = store();
    running(&newer, "w");
    assert!(newer.workers(&filter).is_empty());
    let (older, _) = store_with(Settings { dialect: Dialect::OLDER, ..Settings::default() });
    running(&older, "w");
    assert_eq!(older.workers(&filter).len(), 1);
}

#[test]
fn a_licence_goes_from_intent_to_token_and_a_failure_is_the_last_word() {
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
        let license = done.get("license").expect("there");
        assert_eq!((&license["token"], &license["pending_token"]), (&json!("t"), &Value::Null));
        assert_eq!((&license["status"], &license["pending_operation"]), (&json!("registered"), &Value::Null));
    }
    go(LicenseOperation::Deregister, LicenseStep::Request, json!({})).expect("requested");
    let failed =
        go(LicenseOperation::Deregister, LicenseStep::Fail, json!({"error": "nodes are running"})).expect("failed");
    let license = failed.get("license").expect("there");
    assert_eq!((&license["pending_operation"], &license["token"]), (&Value::Null, &json!("t")));
    assert_eq!(license["last_error"], "nodes are running");
    go(LicenseOperation::Deregister, LicenseStep::Request, json!({})).expect("requested");
    let done = go(LicenseOperation::Deregister, LicenseStep::Complete, json!({})).expect("completed");
    assert_eq!(done.get("license").map(|license| &license["token"]), Some(&Value::Null));
}

#[test]
fn a_worker_is_idle_after_an_hour_without_people() {
    let (records, _) = store();
    running(&records, "w");
    let check = |body: Value| records.detect_idle("w", &input(body)).expect("checked");
    records.clock().advance(Duration::from_secs(59 * 60));
    assert!(!check(json!({"raw_telemetry_events": []})).standing.is_idle);
    records.clock().advance(Duration::from_secs(60));
    let suppressed = check(json!({"raw_telemetry_events": [], "suppress_auto_pause": true}));
    assert!(suppressed.standing.is_idle && suppressed.standing.eligible_for_pause);
    assert!(!suppressed.auto_pause_triggered);
    assert_eq!(records.worker("w").expect("there").desired(), None);
    let blind = check(json!({"raw_telemetry_events": null}));
    assert!(!blind.telemetry_fetched && !blind.auto_pause_triggered);
    let now = records.clock().now().to_rfc3339();
    let system = json!({"category": "user_activity", "timestamp": now,
                        "data": {"user_id": "00000000-0000-4000-a000-000000000000"}});
    assert!(check(json!({"raw_telemetry_events": [system], "suppress_auto_pause": true})).standing.is_idle);
    let person = json!({"category": "start_lab", "timestamp": now, "data": {}});
    let busy = check(json!({"raw_telemetry_events": [person]}));
    assert!(busy.activity_updated && !busy.standing.is_idle);
    records.clock().advance(Duration::from_secs(3600));
    let paused = check(json!({"raw_telemetry_events": []}));
    assert!(paused.auto_pause_triggered);
    let worker = records.worker("w").expect("there");
    assert_eq!((worker.desired(), worker.get("auto_pause_count")), (Some("stopped"), Some(&json!(1))));
    assert_eq!(worker.version(), 2);
}

#[test]
fn a_worker_that_was_just_resumed_is_left_in_peace() {
    let (records, _) = store();
    running(&records, "w");
    records.note_activity("w", &input(json!({"last_activity_at": "2020-01-01T00:00:00Z"}))).expect("noted");
    records.write_status("w", None, &input(json!({"status": "starting"}))).expect("written");
    records.write_status("w", None, &input(json!({"status": "running"}))).expect("written");
    let report = records.detect_idle("w", &input(json!({"raw_telemetry_events": []}))).expect("checked");
    assert!(report.standing.is_idle && report.standing.in_snooze_period && !report.standing.eligible_for_pause);
    records.clock().advance(Duration::from_secs(3600));
    assert_eq!(records.idle_status("w").expect("there")["eligible_for_pause"], true);
}

#[test]
fn import_makes_unknown_instances_workers_and_says_what_it_did() {
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
    let made = records.worker(result["imported"][0]["worker_id"].as_str().expect("an id")).expect("made");
    assert_eq!((made.status(), made.text("ip_address"), made.desired()), ("running", Some("203.0.113.2"), None));
    assert_eq!(records.worker("w").expect("there").status(), "stopped");
    let again = records.bulk_import(&input(body)).expect("imported");
    assert_eq!((&again["total_imported"], &again["total_updated"]), (&json!(0), &json!(0)));
    let bad = json!({"aws_region": "us-east-1", "discovered_instances": [
        {"instance_id": "i-3", "state": "running"}, {"instance_id": 7, "state": "running"}]});
    let refused = records.bulk_import(&input(bad)).expect_err("a bad item");
    assert!(refused.to_string().contains("discovered_instances[1].instance_id"), "{refused}");
    assert_eq!(records.workers(&WorkerFilter::default()).len(), 2);
}

#[test]
fn a_session_handed_back_loses_its_worker_and_a_retry_is_counted() {
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
fn scaling_up_needs_an_enabled_template() {
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
fn a_reset_forgets_everything_here_and_in_the_mirror() {
    let (records, mirror) = store();
    running(&records, "w");
    records.create_session(input(json!({"id": "s", "worker_id": "w", "status": "running"}))).expect("created");
    records.delete_template("metal").expect("there");
    assert!(!mirror.keys.lock().is_empty());
    records.reset();
    assert!(mirror.keys.lock().is_empty(), "{mirror:?}");
    assert!(records.worker("w").is_err() && records.session("s").is_err() && records.template("metal").is_ok());
    assert!(records.events(None, None).is_empty());
}

#[test]
fn the_same_seed_gives_the_same_ids() {
    let ids = || {
        let records = Records::new(Clock::new(Pace::Manual));
        [(); 3].map(|()| records.create_worker(input(json!({}))).expect("created").id().to_owned())
    };
    assert_eq!(ids(), ids());
}

#[test]
fn a_debug_print_shows_no_secret() {
    let (records, _) = store();
    let given = input(json!({"cml_password": "hunter2"}));
    let printed = format!("{given:?} {:?} {records:?}", records.create_worker(given.clone()));
    assert!(printed.contains("cml_password") && !printed.contains("hunter2"), "{printed}");
}
