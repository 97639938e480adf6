//! Corrupted control plane records: workers, sessions, templates, regions.

use lcm_sdk::lifecycle::read_workers;
use lcm_sdk::{RegionConfigs, Session, Template, Worker};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_json, check, like_bytes, like_json};

/// A secret that no error may show.
const CANARY: &str = "canary-hunter2";

fn workers() -> Vec<Value> {
    vec![
        json!({
            "id": "w-1", "name": "blue", "status": "running", "desired_status": "stopped", "ec2_instance_id": "i-1",
            "aws_region": "us-east-1", "ip_address": "203.0.113.7", "public_ip": "203.0.113.7", "private_ip": "10.0.0.7",
            "template_name": "metal", "instance_type": "m5zn.metal", "ami_name": null, "cml_username": "admin",
            "cml_password": CANARY, "aws_tags": {"team": "net"}, "version": 7, "is_idle_detection_enabled": false,
            "license": {"status": "registered", "token": CANARY, "pending_token": CANARY, "pending_operation": "register",
                        "operation_in_progress": true, "smart_account": "acme"},
            "created_at": "2026-02-06T08:00:00Z", "updated_at": "2026-02-06T09:00:00.250Z", "terminated_at": null,
            "metadata": {"drain_started_at": "2026-02-06T09:00:00Z", "color": "blue", "launch_generation": 2},
        }),
        json!({
            "id": "w-2", "status": "Shutting-Down", "aws_instance_id": "i-2", "license_status": "expired",
            "license_token": CANARY, "version": 3.0, "launch_generation": 4_294_967_295_u32,
            "launch_plan": {"region": "us-east-1", "image_id": "ami-1", "instance_type": "m5", "client_token": "t"},
        }),
    ]
}

#[test]
fn worker_record_is_read_or_refused_with_a_short_error() {
    let record = prop_oneof![5 => like_json(workers()), 1 => any_json()];
    check("records of workers", 4_000, "tests/fuzz/seeds/worker.txt", record, |record| {
        let (read, unreadable) = read_workers(vec![record.clone()]);
        prop_assert_eq!(read.len() + unreadable.len(), 1);
        for refused in unreadable {
            let text = format!("{refused:?} {}", refused.error);
            prop_assert!(!text.contains(CANARY), "{text}");
            prop_assert!(text.len() < 8_000, "an error of {} bytes", text.len());
        }
        for worker in read {
            // Unknown fields are kept as the server sent them and may repeat a secret.
            let known = Worker { extra: Default::default(), metadata: Default::default(), ..worker.clone() };
            let known = format!("{:?}", known.cml_password.iter().chain(&known.license.token).collect::<Vec<_>>());
            prop_assert!(!known.contains(CANARY), "{known}");
            let warnings = format!("{:?}", worker.warnings);
            prop_assert!(!warnings.contains(CANARY), "{warnings}");
            prop_assert!(warnings.len() < 32_000, "warnings of {} bytes", warnings.len());
            // A record survives being written and read again.
            let written = Value::Object(worker.to_json());
            let again = Worker::try_from(written.clone());
            let again = again.map_err(|error| TestCaseError::fail(format!("{error} in {written}")))?;
            prop_assert_eq!(Value::Object(again.to_json()), written);
        }
        Ok(())
    });
}

#[test]
fn record_bytes_are_read_or_refused() {
    let text = select(workers()).prop_map(|record| record.to_string().into_bytes());
    let bytes = prop_oneof![4 => like_bytes(text), 1 => any_bytes()];
    check("bytes of records", 3_000, "tests/fuzz/seeds/bytes.txt", bytes, |bytes| {
        let read = serde_json::from_slice::<Worker>(&bytes);
        if let Err(error) = &read {
            prop_assert!(error.to_string().len() < 2_000, "an error of {} bytes", error.to_string().len());
        }
        // Parsing bytes and converting a parsed value agree.
        let parsed = serde_json::from_slice::<Value>(&bytes).ok();
        prop_assert_eq!(read.ok(), parsed.and_then(|value| Worker::try_from(value).ok()));
        drop(serde_json::from_slice::<Vec<Worker>>(&bytes));
        Ok(())
    });
}

#[test]
fn other_records_are_read_or_refused_with_a_short_error() {
    let examples = vec![
        json!({"id": "s-1", "worker_id": "w-1", "status": "running", "retry_count": 2, "name": "exam",
               "timeslot_start": "2026-02-06T08:00:00Z", "timeslot_end": "2026-02-06T10:00:00Z"}),
        json!({"name": "metal", "instance_type": "m5zn.metal", "ami_pattern": "cisco-cml2.9*", "drain_timeout_hours": 4,
               "region": "us-east-1", "tags": {"team": "net"}, "disk_size_gb": 200, "scale_down_eligible": true}),
        json!({"default_region": "us-east-1", "regions": {"us-east-1": {
               "subnet_id": "subnet-1", "security_group_ids": ["sg-1"], "key_name": "k", "tags": {"a": "b"}}}}),
    ];
    let record = prop_oneof![5 => like_json(examples), 1 => any_json()];
    check("sessions, templates, regions", 4_000, "tests/fuzz/seeds/others.txt", record, |record| {
        let errors = [
            Session::try_from(record.clone()).err().map(|error| error.to_string()),
            Template::try_from(record.clone()).err().map(|error| error.to_string()),
        ];
        // These errors come from serde and repeat the input, so their length is not checked.
        drop(serde_json::from_value::<RegionConfigs>(record));
        for error in errors.into_iter().flatten() {
            prop_assert!(error.len() < 4_000, "an error of {} bytes", error.len());
        }
        Ok(())
    });
}
