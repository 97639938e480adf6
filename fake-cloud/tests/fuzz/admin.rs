//! Admin API with arbitrary requests.

use std::sync::Arc;

use fake_cloud::admin::{Services, full_router};
use fake_cloud::cml::CmlServers;
use fake_cloud::control_plane::Records;
use fake_cloud::etcd::EtcdStore;
use fake_cloud::world::{Settings, World};
use fake_cloud::{Clock, Pace};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_json, any_text, check, like_bytes, like_json};
use crate::client::{runtime, segment, send};

const PATHS: &[(&str, &str)] = &[
    ("POST", "reset"),
    ("POST", "clock"),
    ("POST", "clock/advance"),
    ("POST", "faults"),
    ("DELETE", "faults/{}"),
    ("GET", "requests?{}"),
    ("GET", "state"),
    ("GET", "faults"),
    ("GET", "clock"),
    ("POST", "clock/next"),
    ("GET", "ui/"),
    ("GET", "ui/{}"),
    ("GET", "ui/workers/{}"),
    ("POST", "ui/workers/{}/drain"),
    ("POST", "ui/workers/{}/cancel-drain"),
    ("POST", "ui/scenario"),
    ("GET", "ui/etcd"),
    ("GET", "ui/setup"),
    ("POST", "console/start"),
    ("POST", "console/stop"),
    ("POST", "console/reboot"),
    ("POST", "console/terminate"),
    ("POST", "console/tag"),
    ("POST", "console/cml/wipe"),
    ("POST", "console/worker"),
    ("POST", "console/worker/{}"),
    ("POST", "console/session"),
    ("POST", "console/image"),
    ("POST", "console/subnet"),
    ("POST", "console/security-group"),
    ("POST", "console/metric"),
    ("POST", "etcd/compact"),
    ("POST", "etcd/watch-stall"),
    ("POST", "etcd/lease-lost"),
    ("POST", "etcd/{}"),
    ("POST", "{}"),
    ("DELETE", "faults/%ff"),
    ("POST", "console/worker/%ff"),
    ("GET", "requests?limit=%ff"),
    ("DELETE", "clock"),
];

fn examples() -> Vec<Value> {
    vec![
        json!({"to": "empty"}),
        json!({"pace": "x60"}),
        json!({"seconds": 3600}),
        json!({"service": "ec2", "operation": "Run*", "region": "us-east-1", "times": 1, "per": "call", "probability": 0.5,
               "action": {"kind": "error", "code": "RequestLimitExceeded", "message": "slow"}}),
        json!({"service": "etcd", "action": {"kind": "latency", "seconds": 2.5}}),
        json!({"service": "ec2", "action": {"kind": "partial-page", "limit": 3}}),
        json!({"region": "us-east-1", "instance": "i-0123456789abcdef0", "key": "k", "value": "v"}),
        json!({"id": "w-1", "name": "blue", "status": "running", "template_name": "metal", "cml_password": "x"}),
        json!({"id": "s-1", "worker_id": "w-1", "status": "running", "timeslot_start": "2026-02-06T08:00:00Z"}),
        json!({"lease": "7b"}),
        json!({"region": "us-east-1", "id": "ami-0123456789", "name": "cisco-cml2.9", "created": "2026-02-06T08:00:00Z"}),
        json!({"region": "us-east-1", "namespace": "AWS/EC2", "name": "CPUUtilization", "dimensions": {"InstanceId": "i-1"},
               "value": 97.5, "unit": "Percent", "at": "2026-02-06T08:00:00Z"}),
    ]
}

#[test]
fn malformed_requests_get_an_admin_error() {
    let runtime = runtime();
    let body = prop_oneof![
        7 => like_json(examples()).prop_map(|value| value.to_string().into_bytes()),
        1 => any_json().prop_map(|value| value.to_string().into_bytes()),
        1 => like_bytes(select(examples()).prop_map(|value| value.to_string().into_bytes())),
        1 => any_bytes(),
    ];
    let steps = proptest::collection::vec((select(PATHS), any_text(), body), 1..6);
    check("requests to the admin API", 400, "tests/fuzz/seeds/admin.txt", steps, |steps| {
        // A new world for each case: its clock may be at the end of time by then.
        let clock = Clock::new(Pace::Manual);
        let world = Arc::new(World::new(Settings::with_clock(clock.clone())));
        let records = Records::new(clock.clone());
        let services = Services::new(records, EtcdStore::new(clock), CmlServers::default(), None);
        let router = full_router(world, services);
        for ((method, path), text, body) in steps {
            let path = format!("/_fake/{}", path.replace("{}", &segment(&text)));
            let headers = [("content-type", "application/json")];
            let Some(response) = send(&runtime, &router, method, &path, &headers, body) else { continue };
            prop_assert!(response.status < 500, "{method} {path}: {response:?}");
            if response.status >= 400 {
                prop_assert!(response.json()["error"].is_string(), "{method} {path}: {response:?}");
            }
        }
        // The state can still be read.
        let state = send(&runtime, &router, "GET", "/_fake/state", &[], Vec::new()).expect("sent");
        prop_assert_eq!(state.status, 200);
        Ok(())
    });
}
