//! Control plane endpoints with arbitrary bodies, paths and queries.

use fake_cloud::control_plane::http::{Endpoint, Verb};
use fake_cloud::control_plane::{Generation, Input, NoMirror, Options, Records, Settings, router};
use fake_cloud::{Clock, Pace};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_json, any_text, check, like_bytes, like_json};
use crate::client::{Response, runtime, segment, send};

const SEEDS: &str = "tests/fuzz/seeds/control_plane.txt";
const ORIGINAL_SEEDS: &str = "tests/fuzz/seeds/control_plane_original.txt";

/// Valid bodies of every endpoint; the generator chooses which endpoint receives which.
fn examples() -> Vec<Value> {
    vec![
        json!({"id": "w-1", "name": "blue", "status": "running", "desired_status": "running", "aws_region": "us-east-1",
               "ec2_instance_id": "i-1", "template_name": "metal", "metadata": {"color": "blue"}, "version": 3,
               "license": {"status": "registered", "token": "t", "pending_operation": "register"}}),
        json!({"status": "stopped", "reason": "why", "expected_version": 1, "terminated_by": "me",
               "metadata": {"drain_started_at": "2026-02-06T08:00:00Z"}, "launch_generation": 2}),
        json!({"public_ip": "203.0.113.7", "private_ip": null, "ip_address": "203.0.113.7", "instance_type": "m5"}),
        json!({"instances": [{"ec2_instance_id": "i-2", "aws_region": "us-east-1", "tags": {"a": "b"}, "state": "running",
                              "launch_time": "2026-02-06T08:00:00Z", "public_ip": null}], "skip_known": true}),
        json!({"cpu_utilization": 12.5, "memory_utilization": 1e3, "collected_at": "2026-02-06T08:00:00Z",
               "system_info": {"version": "2.9"}, "labs": [{"id": "l"}], "telemetry_events": [
                   {"category": "start_lab", "timestamp": "2026-02-06T08:00:00Z", "data": {"user_id": "u"}}]}),
        json!({"id": "s-1", "worker_id": "w-1", "status": "running", "timeslot_start": "2026-02-06T08:00:00Z",
               "timeslot_end": "2026-02-06T10:00:00Z", "retry_count": 1, "target_state": "pending", "reason": "r"}),
        json!({"template_name": "metal", "count": 2, "reason": "busy", "force_check": true, "skip_auto_pause": true}),
        json!({"name": "metal", "instance_type": "m5zn.metal", "drain_timeout_hours": 4, "ami_pattern": "cml*"}),
        json!({"aws_region": "us-east-1", "source": "ec2_discovery",
               "discovered_instances": [{"instance_id": "i-1", "state": "running", "launch_time": null}]}),
        json!({"collected_at": "2026-02-06T08:00:00Z", "ec2": {"cpu_utilization": 42.0}, "cml": {"memory_percent": 1},
               "poll_interval": 60, "ready": true, "labs_count": 3, "cml_version": "2.9", "system_info": {
                   "all_cpu_count": 8, "all_memory_total": 17179869184_u64, "all_memory_used": 0}}),
        json!({"raw_telemetry_events": [{"category": "start_lab", "timestamp": "2026-02-06T08:00:00+00:00"}],
               "registration_status": "COMPLETED", "error_message": "no", "force_check": false}),
        json!({"specversion": "1.0", "id": "e-1", "type": "lcm.worker.draining", "source": "lcm", "data": {"n": 1}}),
    ]
}

#[test]
fn malformed_requests_get_an_api_error() {
    check_generation(Generation::Extended, SEEDS, |response| {
        prop_assert!(response.status < 500, "{response:?}");
        if response.status >= 400 {
            prop_assert!(response.json()["error"].is_string(), "{response:?}");
            prop_assert!(response.body.len() < 8_000, "an error echoes too much: {} bytes", response.body.len());
        }
        Ok(())
    });
}

#[test]
fn malformed_requests_get_an_original_error() {
    check_generation(Generation::Original, ORIGINAL_SEEDS, |response| {
        match response.status {
            // The server fails on an unknown worker, with or without a JSON body.
            500 if response.body == b"Internal Server Error" => {}
            400.. => {
                let detail = &response.json()["detail"];
                prop_assert!(detail.is_string() || detail[0]["type"].is_string(), "{response:?}");
            }
            _ => {}
        }
        Ok(())
    });
}

/// Sends requests to all endpoints of a generation and judges the responses.
fn check_generation(generation: Generation, seeds: &'static str, judge: fn(&Response) -> Result<(), TestCaseError>) {
    let endpoints: Vec<&'static Endpoint> = generation.endpoints().iter().collect();
    let runtime = runtime();
    let key = Options::default().api_key;
    let body = prop_oneof![
        6 => like_json(examples()).prop_map(|value| value.to_string().into_bytes()),
        2 => any_json().prop_map(|value| value.to_string().into_bytes()),
        1 => like_bytes(select(examples()).prop_map(|value| value.to_string().into_bytes())),
        1 => any_bytes(),
    ];
    let query = proptest::collection::vec(
        (
            select(vec![
                "status",
                "aws_region",
                "exclude_statuses",
                "include_terminated",
                "worker_id",
                "limit",
                "skip",
            ]),
            any_text(),
        ),
        0..3,
    );
    let subject = prop_oneof![Just("w-1".to_owned()), Just("s-1".to_owned()), Just("metal".to_owned()), any_text()];
    let step = (0..endpoints.len(), subject, query, prop_oneof![4 => Just(None), 1 => any_text().prop_map(Some)], body);
    // Several requests to the same records, so that later ones meet the effects of earlier ones.
    let steps = proptest::collection::vec(step, 1..6);
    check("requests to the control plane", 400, seeds, steps, |steps| {
        let settings = Settings { generation, ..Settings::default() };
        let records = Records::with_settings(Clock::new(Pace::Manual), settings, NoMirror);
        let router = router(records.clone(), Options::default());
        let workers = json!({"id": "w-1", "status": "running", "template_name": "metal", "ec2_instance_id": "i-1"});
        records.create_worker(Input::from_value(workers).expect("an input")).expect("a worker");
        for (endpoint, subject, query, if_match, body) in steps {
            let endpoint = endpoints[endpoint];
            let method = match endpoint.verb {
                Verb::Get => "GET",
                Verb::Post => "POST",
                Verb::Put => "PUT",
                Verb::Delete => "DELETE",
            };
            let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", segment(value))).collect();
            let path = endpoint
                .path
                .split('/')
                .map(|part| if part.starts_with('{') { segment(&subject) } else { part.to_owned() });
            let path = format!("{}?{}", path.collect::<Vec<_>>().join("/"), pairs.join("&"));
            let mut headers = vec![("x-api-key", key.as_str()), ("content-type", "application/json")];
            if let Some(tag) = &if_match {
                headers.push(("if-match", tag));
            }
            let Some(response) = send(&runtime, &router, method, &path, &headers, body) else { continue };
            judge(&response).map_err(|error| TestCaseError::fail(format!("{method} {path}: {error}")))?;
        }
        Ok(())
    });
}
