//! CML endpoints with arbitrary bodies and paths.

use fake_cloud::cml::{CmlServer, NewLab, NewNode, Options, router};
use fake_cloud::{Clock, Pace};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_json, any_text, check, like_bytes, like_json};
use crate::client::{runtime, segment, send};

const SEEDS: &str = "tests/fuzz/seeds/cml.txt";

const CALLS: &[(&str, &str)] = &[
    ("POST", "authenticate"),
    ("POST", "auth_extended"),
    ("GET", "authok"),
    ("GET", "system_stats"),
    ("GET", "labs"),
    ("POST", "labs"),
    ("GET", "labs/{}"),
    ("PATCH", "labs/{}"),
    ("POST", "import"),
    ("GET", "labs/{}/topology"),
    ("GET", "labs/{}/download"),
    ("POST", "labs/{}/nodes"),
    ("GET", "labs/{}/nodes"),
    ("PATCH", "labs/{}/nodes/{}"),
    ("GET", "labs/{}/nodes/{}"),
    ("POST", "labs/{}/interfaces"),
    ("GET", "labs/{}/interfaces/{}"),
    ("POST", "labs/{}/links"),
    ("GET", "labs/{}/links/{}"),
    ("PUT", "labs/{}/start"),
    ("PUT", "labs/{}/stop"),
    ("PUT", "labs/{}/wipe"),
    ("DELETE", "labs/{}"),
    ("DELETE", "labs/{}/nodes/{}"),
    ("GET", "licensing"),
    ("POST", "licensing/registration"),
    ("DELETE", "licensing/deregistration"),
    ("PUT", "licensing/product_license"),
    ("GET", "telemetry/events"),
    ("GET", "labs/{}/lab_element_state"),
    ("DELETE", "logout"),
    ("GET", "users/{}"),
    ("POST", "users"),
    ("PATCH", "users/{}"),
    ("POST", "groups"),
    ("PATCH", "labs/{}/associations"),
    ("PATCH", "labs/{}/interfaces/{}"),
    ("PATCH", "labs/{}/links/{}/condition"),
    ("PUT", "labs/{}/links/{}/capture/start"),
    ("PUT", "labs/{}/nodes/{}/extract_configuration"),
    ("GET", "labs/{}/nodes/{}/keys/console"),
    ("PATCH", "labs/{}/connector_mappings"),
    ("GET", "labs/{}/pyats_testbed"),
    ("POST", "labs/{}/annotations"),
    ("POST", "node_definitions"),
    ("PUT", "node_definitions/{}/read_only"),
    ("POST", "image_definitions"),
    ("GET", "simplified_node_definitions"),
    ("POST", "system/notices"),
    ("PATCH", "system/maintenance_mode"),
    ("POST", "resource_pools"),
    ("PUT", "telemetry"),
    ("GET", "diagnostics/{}"),
];

fn examples() -> Vec<Value> {
    vec![
        json!({"username": "admin", "password": "admin"}),
        json!({"title": "a lab", "description": "d", "notes": "n"}),
        json!({"label": "r1", "node_definition": "iosv", "x": 1, "y": -2, "configuration": "hostname r1", "ram": 512}),
        json!({"node": "n0", "slot": 3}),
        json!({"src_int": "i0", "dst_int": "i1"}),
        json!({"token": "license", "reregister": false}),
        json!({"username": "u", "password": "p", "opt_in": "accepted", "groups": [], "associations": [
            {"id": "lab", "permissions": ["lab_view"]}]}),
        json!({"name": "g", "members": ["u"], "labs": [{"id": "lab", "permission": "read_only"}]}),
        json!({"users": [{"id": "u", "permissions": ["lab_admin"]}], "groups": []}),
        json!({"bandwidth": 512, "loss": 0.5, "enabled": true, "maxpackets": 5, "mac_address": "52:54:00:00:00:01"}),
        json!([{"key": "NAT", "device_name": "virbr0"}]),
        json!({"type": "text", "x1": 1, "y1": 2, "text_content": "t", "thickness": 1}),
        json!({"id": "d", "boot": {}, "sim": {"linux_native": {}}, "general": {}, "configuration": {"provisioning":
            {"files": [{"name": "f"}]}}, "device": {"interfaces": {"serial_ports": 1, "physical": ["p"]}}, "ui": {}}),
        json!({"id": "i", "node_definition_id": "iosv", "label": "l", "disk_image": "d"}),
        json!({"level": "INFO", "label": "l", "notice": null, "maintenance_mode": true}),
        json!({"label": "pool", "licenses": 3, "users": [], "shared": false}),
        json!({"lab": {"title": "t", "version": "0.2.0"}, "nodes": [
            {"id": "n0", "label": "a", "node_definition": "iosv", "x": 0, "y": 0,
             "interfaces": [{"id": "i0", "label": "eth0", "slot": 0, "type": "physical"}]},
            {"id": "n1", "label": "b", "node_definition": "iosv", "x": 9, "y": 9,
             "interfaces": [{"id": "i1", "label": "eth0", "slot": 0, "type": "physical"}]}],
            "links": [{"id": "l0", "n1": "n0", "i1": "i0", "n2": "n1", "i2": "i1"}]}),
    ]
}

#[test]
fn malformed_requests_get_a_cml_error() {
    let runtime = runtime();
    let body = prop_oneof![
        6 => like_json(examples()).prop_map(|value| value.to_string().into_bytes()),
        2 => any_json().prop_map(|value| value.to_string().into_bytes()),
        1 => like_bytes(select(examples()).prop_map(|value| value.to_string().into_bytes())),
        1 => any_bytes(),
    ];
    let id = prop_oneof![4 => Just("the lab".to_owned()), 4 => Just("the node".to_owned()), 2 => any_text()];
    let steps = proptest::collection::vec((select(CALLS), id.clone(), id, any_text(), body), 1..6);
    check("requests to CML", 400, SEEDS, steps, |steps| {
        let server = CmlServer::new(Clock::new(Pace::Manual), Options::default());
        server.power_on();
        let lab = server.create_lab(NewLab::default()).expect("a lab");
        let node = NewNode { label: "r".into(), node_definition: "iosv".into(), rest: Default::default() };
        let node = server.add_node(&lab, node).expect("a node");
        let Options { username, password, .. } = Options::default();
        let token = server.log_in(&username, &password).expect("a token");
        let router = router(server);
        let bearer = format!("Bearer {token}");
        for ((method, path), first, second, title, body) in steps {
            let name = |id: String| match id.as_str() {
                "the lab" => lab.clone(),
                "the node" => node.clone(),
                other => segment(other),
            };
            let path = path.replacen("{}", &name(first), 1).replacen("{}", &name(second), 1);
            let path = format!("/api/v0/{path}?title={}", segment(&title));
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let Some(response) = send(&runtime, &router, method, &path, &headers, body) else { continue };
            prop_assert!(response.status < 500, "{method} {path}: {response:?}");
            if response.status >= 400 {
                let error = response.json();
                prop_assert_eq!(error["code"].as_u64(), Some(u64::from(response.status)), "{} {}", path, error);
                prop_assert!(error["description"].is_string(), "{error}");
            }
        }
        Ok(())
    });
}
