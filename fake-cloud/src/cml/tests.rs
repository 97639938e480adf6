//! Rules of a CML server, on a manual clock.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::labs::{Action, Configurations};
use super::release::Release;
use super::*;
use crate::clock::{Clock, Pace};

fn server_with(change: impl FnOnce(&mut Options)) -> CmlServer {
    let mut options = Options::default();
    change(&mut options);
    CmlServer::new(Clock::new(Pace::Manual), options)
}

fn server() -> CmlServer {
    server_with(|_| {})
}

fn advance(server: &CmlServer, seconds: u64) {
    server.clock().advance(Duration::from_secs(seconds));
}

fn node(label: &str) -> NewNode {
    NewNode { label: label.into(), node_definition: "iosv".into(), rest: Map::new() }
}

fn registration(server: &CmlServer) -> String {
    server.licensing_status()["registration"]["status"].as_str().expect("a status").to_owned()
}

#[test]
fn boot_passes_every_stage_after_each_power_on() {
    let boot = Boot {
        refused: Duration::from_secs(10),
        bad_gateway: Duration::from_secs(20),
        not_ready: Duration::from_secs(30),
    };
    let server = server_with(|options| options.boot = boot);
    for (after, stage) in [
        (0, BootStage::Refused),
        (9, BootStage::Refused),
        (1, BootStage::BadGateway),
        (20, BootStage::NotReady),
        (29, BootStage::NotReady),
        (1, BootStage::Ready),
        (100_000, BootStage::Ready),
    ] {
        advance(&server, after);
        assert_eq!(server.stage(), stage);
        assert_eq!(server.information()["ready"], json!(stage == BootStage::Ready));
    }
    server.pin_stage(Some(BootStage::NotReady));
    assert_eq!(server.stage(), BootStage::NotReady);
    server.pin_stage(None);
    assert_eq!(server.stage(), BootStage::Ready);
    server.power_on();
    assert_eq!(server.stage(), BootStage::Refused);
}

#[test]
fn token_expires_after_a_day_and_is_bound_to_its_server() {
    let server = server();
    assert_eq!(server.log_in("admin", "wrong").expect_err("wrong password").code(), 403);
    let token = server.log_in("admin", "admin").expect("logged in");
    advance(&server, 24 * 3600 - 1);
    server.check_token(&token).expect("still good");
    advance(&server, 1);
    assert_eq!(server.check_token(&token).expect_err("expired").code(), 401);
    let twin = CmlServer::new(server.clock().clone(), Options::default());
    let token = twin.log_in("admin", "admin").expect("logged in");
    assert!(server.check_token(&token).is_err(), "token of another server");
    for bad in ["", "x", "a.b.c", &token[..token.len() - 2]] {
        assert!(twin.check_token(bad).is_err(), "{bad}");
    }
}

#[test]
fn logout_revokes_one_token_or_all() {
    let server = server();
    let tokens = [(); 3].map(|()| server.log_in("admin", "admin").expect("logged in"));
    let id = server.check_token(&tokens[0]).expect("good");
    server.log_out(&id);
    assert!(server.check_token(&tokens[0]).is_err());
    assert!(server.check_token(&tokens[1]).is_ok());
    server.end_all_logins();
    assert!(server.check_token(&tokens[1]).is_err() && server.check_token(&tokens[2]).is_err());
}

#[test]
fn registration_completes_asynchronously() {
    let server = server();
    assert_eq!(registration(&server), "NOT_REGISTERED");
    server.register(&json!({"token": "abc", "reregister": false})).expect("accepted");
    assert_eq!(registration(&server), "IN_PROGRESS");
    assert_eq!(server.register(&json!({"token": "abc"})).expect_err("not now").code(), 409);
    assert_eq!(server.deregister().expect_err("not now").code(), 409);
    advance(&server, 10);
    let status = server.licensing_status();
    assert_eq!(
        (&status["registration"]["status"], &status["authorization"]["status"]),
        (&json!("COMPLETED"), &json!("INIT"))
    );
    advance(&server, 2);
    assert_eq!(server.licensing_status()["authorization"]["status"], "IN_COMPLIANCE");
    assert_eq!(server.health()["is_licensed"], true);
    assert_eq!(server.register(&json!({"token": "abc"})).expect_err("registered").code(), 400);
    server.register(&json!({"token": "abc", "reregister": true})).expect("accepted");
    assert_eq!(registration(&server), "IN_PROGRESS");
}

#[test]
fn registration_can_fail_or_hang() {
    let server = server();
    server.set_registration(Registration::Fails);
    server.register(&json!({"token": "abc"})).expect("accepted");
    advance(&server, 10);
    assert_eq!(registration(&server), "FAILED");
    server.set_registration(Registration::Hangs);
    server.register(&json!({"token": "abc"})).expect("can be tried again");
    advance(&server, 1_000_000);
    assert_eq!(registration(&server), "IN_PROGRESS");
}

#[test]
fn malformed_token_is_rejected_without_an_echo() {
    let server = server();
    for token in [json!("with space"), json!(""), json!("a".repeat(257)), json!(7), Value::Null, json!("s3cret\n")] {
        let error = server.register(&json!({"token": token})).expect_err("no token");
        assert_eq!(error.code(), 400);
        assert!(!error.description().contains("s3cret"));
    }
    assert_eq!(registration(&server), "NOT_REGISTERED");
}

#[test]
fn deregistration_returns_every_documented_status() {
    let server = server();
    let error = server.deregister().expect_err("no license");
    let gone = "Licensing issue: The product has already been de-registered.";
    assert_eq!((error.code(), error.description()), (400, gone));
    let register = || {
        server.register(&json!({"token": "abc"})).expect("accepted");
        advance(&server, 12);
    };
    register();
    let lab = server.create_lab(NewLab::default()).expect("created");
    server.add_node(&lab, node("r1")).expect("added");
    server.apply(&lab, None, Action::Start).expect("started");
    let error = server.deregister().expect_err("nodes run");
    let running = "Licensing issue: Cannot de-register when nodes are running.";
    assert_eq!((error.code(), error.description()), (400, running));
    server.apply(&lab, None, Action::Stop).expect("stopped");
    assert_eq!(server.deregister().expect("done"), 204);
    register();
    server.set_deregistration(Deregistration::LocalOnly);
    assert_eq!(server.deregister().expect("done here"), 202);
    assert_eq!(registration(&server), "NOT_REGISTERED");
}

#[test]
fn nodes_boot_stop_and_wipe() {
    let server = server();
    let lab = server.create_lab(NewLab::default()).expect("created");
    let id = server.add_node(&lab, node("r1")).expect("added");
    let states =
        || server.with_lab(&lab, |lab, host| Ok((lab.state_json(), lab.element_states(host)))).expect("exists");
    let node_state = || states().1["nodes"][&id].clone();
    assert_eq!((states().0, node_state()), (json!("DEFINED_ON_CORE"), json!("DEFINED_ON_CORE")));
    server.apply(&lab, None, Action::Start).expect("started");
    assert_eq!((states().0, node_state()), (json!("STARTED"), json!("STARTED")));
    advance(&server, 5);
    assert_eq!(node_state(), json!("BOOTED"));
    assert_eq!(server.apply(&lab, None, Action::Wipe).expect_err("it runs").code(), 400);
    assert!(server.remove_lab(&lab).is_err());
    server.power_off();
    assert_eq!((states().0, node_state()), (json!("STOPPED"), json!("STOPPED")));
    server.apply(&lab, None, Action::Wipe).expect("wiped");
    assert_eq!(states().0, json!("DEFINED_ON_CORE"));
    let missing = server.apply(&lab, Some("missing"), Action::Start).expect_err("no such node");
    assert_eq!((missing.code(), missing.description()), (404, "Node not found: missing"));
    server.remove_lab(&lab).expect("removed");
    let gone = server.apply(&lab, None, Action::Start).expect_err("no such lab");
    assert_eq!(gone.description(), format!("Lab not found: {lab}"));
}

#[test]
fn telemetry_lists_user_actions_in_order() {
    let server = server();
    let lab = server.create_lab(NewLab::default()).expect("created");
    let node = server.add_node(&lab, node("r1")).expect("added");
    server.apply(&lab, None, Action::Start).expect("started");
    server.apply(&lab, Some(&node), Action::Stop).expect("stopped");
    server.record_activity("user_activity", json!({"user_id": "u-1"}));
    let events = server.telemetry_events();
    let categories: Vec<_> = events.as_array().expect("a list").iter().map(|event| event["category"].clone()).collect();
    assert_eq!(categories, ["import_lab", "start_lab", "stop_node", "user_activity"]);
    server.wipe();
    assert_eq!(server.telemetry_events(), json!([]));
}

#[test]
fn statistics_are_floats_and_follow_the_load() {
    let server = server();
    server.set_load(Some(Load { cpu: 50.0, memory: 25.0, disk: 10.0 }));
    let stats = server.stats();
    assert_eq!(stats["all"]["cpu"]["percent"], 50.0);
    assert!(stats["all"]["memory"]["used"].is_f64(), "{stats}");
    let memory = &stats["all"]["memory"];
    assert_eq!(memory["used"].as_f64().map(|used| used * 4.0), memory["total"].as_f64());
}

#[test]
fn compute_host_has_exactly_the_expected_keys() {
    let host = server().compute_host();
    let keys: Vec<_> = host.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut expected = [
        "id",
        "hostname",
        "server_address",
        "is_connector",
        "is_simulator",
        "is_connected",
        "is_synced",
        "admission_state",
        "node_counts",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
}

#[test]
fn servers_with_one_seed_have_distinct_ids() {
    let id = |address: &str| server_with(|options| options.address = address.into()).compute_host()["id"].clone();
    assert_eq!(id("127.0.0.2"), id("127.0.0.2"));
    assert_ne!(id("127.0.0.2"), id("127.0.0.3"));
}

#[test]
fn versions_are_compared_as_numbers() {
    for (version, new) in [("2.9.1+build.7", false), ("2.10.0+build.1", true), ("2.10.0-dev0", true), ("3.0.0", true)] {
        let server = server_with(|options| options.version = Some(version.into()));
        assert_eq!(server.options().release() >= Release::V2_10, new, "{version}");
        assert_eq!(server.information().get("features").is_some(), new, "{version}");
    }
}

#[test]
fn debug_output_contains_no_password() {
    let server = server_with(|options| options.password = "hunter2".into());
    assert!(!format!("{server:?} {:?}", server.options()).contains("hunter2"));
}

#[test]
fn link_state_follows_the_nodes_at_both_ends() {
    let server = server();
    let lab = server.create_lab(NewLab::default()).expect("created");
    let [one, other] = ["r1", "r2"].map(|label| server.add_node(&lab, node(label)).expect("added"));
    let first = server.add_interfaces(&lab, &one, None).expect("added").remove(0);
    assert_eq!(
        server.add_interfaces(&lab, &one, Some(3)).expect("added").len(),
        3,
        "all free slots up to the one named"
    );
    assert_eq!(server.add_interfaces(&lab, &one, Some(2)).expect_err("taken").code(), 400);
    assert_eq!(server.add_interfaces(&lab, &one, Some(4_000_000_000)).expect_err("absurd").code(), 400);
    let second = server.add_interfaces(&lab, &other, None).expect("added").remove(0);
    let link = server.add_link(&lab, [first.clone(), second.clone()]).expect("linked");
    assert_eq!(server.add_link(&lab, [first.clone(), second]).expect_err("taken").code(), 400);
    assert_eq!(server.add_link(&lab, [first, "missing".into()]).expect_err("unknown").code(), 400);
    let state = || server.with_lab(&lab, |it, host| it.link(&lab, &link, host)).map(|shown| shown["state"].clone());
    assert_eq!(state().expect("exists"), "DEFINED_ON_CORE");
    server.apply(&lab, None, Action::Start).expect("started");
    assert_eq!(state().expect("exists"), "STARTED");
    server.apply(&lab, Some(&other), Action::Stop).expect("stopped");
    assert_eq!(state().expect("exists"), "DEFINED_ON_CORE");
    server.with_lab(&lab, |it, _| it.remove_node(&other)).expect("removed");
    assert_eq!(state().expect_err("gone with its node").code(), 404);
}

#[test]
fn invalid_topology_imports_nothing() {
    let server = server();
    let good = "
lab: {title: two routers, description: d, notes: n, version: 0.2.0}
nodes:
  - {id: n0, label: r1, node_definition: iosv, x: 1, y: 2, interfaces: [{id: i0, label: Gi0, slot: 0, type: physical}]}
  - {id: n1, label: r2, node_definition: iosv, x: 3, y: 4, interfaces: [{id: i0, label: Gi0, slot: 0, type: physical}]}
links: [{id: l0, n1: n0, n2: n1, i1: i0, i2: i0}]
";
    let lab = server.import_lab(good.as_bytes(), None).expect("imported");
    let shown =
        |it: &mut super::labs::Lab, host: &super::labs::Host<'_>| Ok(it.topology(&lab, host, Configurations::Main));
    let shown = server.with_lab(&lab, shown).expect("exists");
    assert_eq!(shown["lab"]["title"], "two routers");
    assert_eq!((shown["nodes"].as_array().map(Vec::len), shown["links"].as_array().map(Vec::len)), (Some(2), Some(1)));
    let named = server.import_lab(good.as_bytes(), Some("mine".into())).expect("imported");
    assert_ne!(named, lab);
    let labs = || server.with(|state, _| state.labs.len());
    for bad in [
        good.replace("i2: i0", "i2: i9"),
        good.replace("id: n1", "id: n0"),
        "{".to_owned(),
        "nodes: [{id: 7}]".to_owned(),
        "a: &a [*a]".to_owned(),
        "\u{0}".to_owned(),
    ] {
        assert_eq!(server.import_lab(bad.as_bytes(), None).expect_err(&bad).code() / 100, 4);
        assert_eq!(labs(), 2, "{bad}");
    }
}
