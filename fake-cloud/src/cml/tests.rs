//! The rules of a system, on a clock moved by hand.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::labs::Action;
use super::*;
use crate::clock::{Clock, Pace};

fn system_with(change: impl FnOnce(&mut Options)) -> CmlServer {
    let mut options = Options::default();
    change(&mut options);
    CmlServer::new(Clock::new(Pace::Manual), options)
}

fn system() -> CmlServer {
    system_with(|_| {})
}

fn pass(system: &CmlServer, seconds: u64) {
    system.clock().advance(Duration::from_secs(seconds));
}

fn node(label: &str) -> NewNode {
    NewNode { label: label.into(), node_definition: "iosv".into(), rest: Map::new() }
}

fn registration(system: &CmlServer) -> String {
    system.licensing_status()["registration"]["status"].as_str().expect("a word").to_owned()
}

#[test]
fn a_system_boots_stage_by_stage_and_again_when_it_is_switched_on_again() {
    let boot = Boot {
        refused: Duration::from_secs(10),
        bad_gateway: Duration::from_secs(20),
        not_ready: Duration::from_secs(30),
    };
    let system = system_with(|options| options.boot = boot);
    for (after, stage) in [
        (0, BootStage::Refused),
        (9, BootStage::Refused),
        (1, BootStage::BadGateway),
        (20, BootStage::NotReady),
        (29, BootStage::NotReady),
        (1, BootStage::Ready),
        (100_000, BootStage::Ready),
    ] {
        pass(&system, after);
        assert_eq!(system.stage(), stage);
        assert_eq!(system.information()["ready"], json!(stage == BootStage::Ready));
    }
    system.hold_at(Some(BootStage::NotReady));
    assert_eq!(system.stage(), BootStage::NotReady);
    system.hold_at(None);
    assert_eq!(system.stage(), BootStage::Ready);
    system.power_on();
    assert_eq!(system.stage(), BootStage::Refused);
}

#[test]
fn a_token_is_good_for_a_day_and_only_here() {
    let system = system();
    assert_eq!(system.log_in("admin", "wrong").expect_err("wrong password").code(), 403);
    let token = system.log_in("admin", "admin").expect("logged in");
    pass(&system, 24 * 3600 - 1);
    system.check_token(&token).expect("still good");
    pass(&system, 1);
    assert_eq!(system.check_token(&token).expect_err("expired").code(), 401);
    let twin = CmlServer::new(system.clock().clone(), Options::default());
    let token = twin.log_in("admin", "admin").expect("logged in");
    assert!(system.check_token(&token).is_err(), "another system's token");
    for bad in ["", "x", "a.b.c", &token[..token.len() - 2]] {
        assert!(twin.check_token(bad).is_err(), "{bad}");
    }
}

#[test]
fn logging_out_ends_one_login_or_all() {
    let system = system();
    let tokens = [(); 3].map(|()| system.log_in("admin", "admin").expect("logged in"));
    let id = system.check_token(&tokens[0]).expect("good");
    system.log_out(&id);
    assert!(system.check_token(&tokens[0]).is_err());
    assert!(system.check_token(&tokens[1]).is_ok());
    system.end_all_logins();
    assert!(system.check_token(&tokens[1]).is_err() && system.check_token(&tokens[2]).is_err());
}

#[test]
fn a_registration_is_accepted_first_and_done_later() {
    let system = system();
    assert_eq!(registration(&system), "NOT_REGISTERED");
    system.register(&json!({"token": "abc", "reregister": false})).expect("accepted");
    assert_eq!(registration(&system), "IN_PROGRESS");
    assert_eq!(system.register(&json!({"token": "abc"})).expect_err("not now").code(), 409);
    assert_eq!(system.deregister().expect_err("not now").code(), 409);
    pass(&system, 10);
    let status = system.licensing_status();
    assert_eq!(
        (&status["registration"]["status"], &status["authorization"]["status"]),
        (&json!("COMPLETED"), &json!("INIT"))
    );
    pass(&system, 2);
    assert_eq!(system.licensing_status()["authorization"]["status"], "IN_COMPLIANCE");
    assert_eq!(system.health()["is_licensed"], true);
    assert_eq!(system.register(&json!({"token": "abc"})).expect_err("registered").code(), 400);
    system.register(&json!({"token": "abc", "reregister": true})).expect("accepted");
    assert_eq!(registration(&system), "IN_PROGRESS");
}

#[test]
fn a_registration_can_fail_or_hang() {
    let system = system();
    system.set_registration(Registration::Fails);
    system.register(&json!({"token": "abc"})).expect("accepted");
    pass(&system, 10);
    assert_eq!(registration(&system), "FAILED");
    system.set_registration(Registration::Hangs);
    system.register(&json!({"token": "abc"})).expect("can be tried again");
    pass(&system, 1_000_000);
    assert_eq!(registration(&system), "IN_PROGRESS");
}

#[test]
fn a_token_that_cannot_be_one_is_refused_without_being_repeated() {
    let system = system();
    for token in [json!("with space"), json!(""), json!("a".repeat(257)), json!(7), Value::Null, json!("s3cret\n")] {
        let refusal = system.register(&json!({"token": token})).expect_err("no token");
        assert_eq!(refusal.code(), 400);
        assert!(!refusal.description().contains("s3cret"));
    }
    assert_eq!(registration(&system), "NOT_REGISTERED");
}

#[test]
fn deregistration_has_all_its_answers() {
    let system = system();
    let refusal = system.deregister().expect_err("no licence");
    let gone = "Licensing issue: The product has already been de-registered.";
    assert_eq!((refusal.code(), refusal.description()), (400, gone));
    let register = || {
        system.register(&json!({"token": "abc"})).expect("accepted");
        pass(&system, 12);
    };
    register();
    let lab = system.create_lab(NewLab::default()).expect("made");
    system.add_node(&lab, node("r1")).expect("added");
    system.apply(&lab, None, Action::Start).expect("started");
    let refusal = system.deregister().expect_err("nodes run");
    let running = "Licensing issue: Cannot de-register when nodes are running.";
    assert_eq!((refusal.code(), refusal.description()), (400, running));
    system.apply(&lab, None, Action::Stop).expect("stopped");
    assert_eq!(system.deregister().expect("done"), 204);
    register();
    system.set_deregistration(Deregistration::LocalOnly);
    assert_eq!(system.deregister().expect("done here"), 202);
    assert_eq!(registration(&system), "NOT_REGISTERED");
}

#[test]
fn nodes_boot_stop_and_are_wiped() {
    let system = system();
    let lab = system.create_lab(NewLab::default()).expect("made");
    let id = system.add_node(&lab, node("r1")).expect("added");
    let boot = system.options().node_boot;
    let states =
        || system.with_lab(&lab, |lab, now| Ok((lab.state_json(), lab.element_states(boot, now)))).expect("there");
    let node_state = || states().1["nodes"][&id].clone();
    assert_eq!((states().0, node_state()), (json!("DEFINED_ON_CORE"), json!("DEFINED_ON_CORE")));
    system.apply(&lab, None, Action::Start).expect("started");
    assert_eq!((states().0, node_state()), (json!("STARTED"), json!("STARTED")));
    pass(&system, 5);
    assert_eq!(node_state(), json!("BOOTED"));
    assert_eq!(system.apply(&lab, None, Action::Wipe).expect_err("it runs").code(), 400);
    assert!(system.remove_lab(&lab).is_err());
    system.power_off();
    assert_eq!((states().0, node_state()), (json!("STOPPED"), json!("STOPPED")));
    system.apply(&lab, None, Action::Wipe).expect("wiped");
    assert_eq!(states().0, json!("DEFINED_ON_CORE"));
    let missing = system.apply(&lab, Some("nobody"), Action::Start).expect_err("no such node");
    assert_eq!((missing.code(), missing.description()), (404, "Node not found: nobody"));
    system.remove_lab(&lab).expect("removed");
    let gone = system.apply(&lab, None, Action::Start).expect_err("no such lab");
    assert_eq!(gone.description(), format!("Lab not found: {lab}"));
}

#[test]
fn what_people_do_is_remembered_in_order() {
    let system = system();
    let lab = system.create_lab(NewLab::default()).expect("made");
    let node = system.add_node(&lab, node("r1")).expect("added");
    system.apply(&lab, None, Action::Start).expect("started");
    system.apply(&lab, Some(&node), Action::Stop).expect("stopped");
    system.record_activity("user_activity", json!({"user_id": "somebody"}));
    let events = system.telemetry_events();
    let categories: Vec<_> = events.as_array().expect("a list").iter().map(|event| event["category"].clone()).collect();
    assert_eq!(categories, ["import_lab", "start_lab", "stop_node", "user_activity"]);
    system.wipe();
    assert_eq!(system.telemetry_events(), json!([]));
}

#[test]
fn statistics_are_floats_and_follow_the_load() {
    let system = system();
    system.set_load(Some(Load { cpu: 50.0, memory: 25.0, disk: 10.0 }));
    let stats = system.stats();
    assert_eq!(stats["all"]["cpu"]["percent"], 50.0);
    assert!(stats["all"]["memory"]["used"].is_f64(), "{stats}");
    let memory = &stats["all"]["memory"];
    assert_eq!(memory["used"].as_f64().map(|used| used * 4.0), memory["total"].as_f64());
}

#[test]
fn a_compute_host_has_exactly_the_keys_clients_expect() {
    let host = system().compute_host();
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
fn two_systems_of_one_seed_have_ids_of_their_own() {
    let id = |address: &str| system_with(|options| options.address = address.into()).compute_host()["id"].clone();
    assert_eq!(id("127.0.0.2"), id("127.0.0.2"));
    assert_ne!(id("127.0.0.2"), id("127.0.0.3"));
}

#[test]
fn versions_are_compared_as_numbers() {
    for (version, new) in [("2.9.1+build.7", false), ("2.10.0+build.1", true), ("2.10.0-dev0", true), ("3.0.0", true)] {
        let system = system_with(|options| options.version = version.into());
        assert_eq!(system.options().is_at_least_2_10(), new, "{version}");
        assert_eq!(system.information().get("features").is_some(), new, "{version}");
    }
}

#[test]
fn a_debug_print_shows_no_password() {
    let system = system_with(|options| options.password = "hunter2".into());
    assert!(!format!("{system:?} {:?}", system.options()).contains("hunter2"));
}

#[test]
fn nodes_have_interfaces_and_links_follow_the_nodes_at_their_ends() {
    let system = system();
    let lab = system.create_lab(NewLab::default()).expect("made");
    let [one, other] = ["r1", "r2"].map(|label| system.add_node(&lab, node(label)).expect("added"));
    let first = system.add_interfaces(&lab, &one, None).expect("added").remove(0);
    assert_eq!(
        system.add_interfaces(&lab, &one, Some(3)).expect("added").len(),
        3,
        "all free slots up to the one named"
    );
    assert_eq!(system.add_interfaces(&lab, &one, Some(2)).expect_err("taken").code(), 400);
    assert_eq!(system.add_interfaces(&lab, &one, Some(4_000_000_000)).expect_err("absurd").code(), 400);
    let second = system.add_interfaces(&lab, &other, None).expect("added").remove(0);
    let link = system.add_link(&lab, [first.clone(), second.clone()]).expect("linked");
    assert_eq!(system.add_link(&lab, [first.clone(), second]).expect_err("taken").code(), 400);
    assert_eq!(system.add_link(&lab, [first, "nobody".into()]).expect_err("unknown").code(), 400);
    let state = || system.with_lab(&lab, |it, _| it.link(&lab, &link)).map(|shown| shown["state"].clone());
    assert_eq!(state().expect("there"), "DEFINED_ON_CORE");
    system.apply(&lab, None, Action::Start).expect("started");
    assert_eq!(state().expect("there"), "STARTED");
    system.apply(&lab, Some(&other), Action::Stop).expect("stopped");
    assert_eq!(state().expect("there"), "DEFINED_ON_CORE");
    system.with_lab(&lab, |it, _| it.remove_node(&other)).expect("removed");
    assert_eq!(state().expect_err("gone with its node").code(), 404);
}

#[test]
fn a_topology_is_imported_whole_or_not_at_all() {
    let system = system();
    let good = "
lab: {title: two routers, description: d, notes: n, version: 0.2.0}
nodes:
  - {id: n0, label: r1, node_definition: iosv, x: 1, y: 2, interfaces: [{id: i0, label: Gi0, slot: 0, type: physical}]}
  - {id: n1, label: r2, node_definition: iosv, x: 3, y: 4, interfaces: [{id: i0, label: Gi0, slot: 0, type: physical}]}
links: [{id: l0, n1: n0, n2: n1, i1: i0, i2: i0}]
";
    let lab = system.import_lab(good.as_bytes(), None).expect("imported");
    let shown = system.with_lab(&lab, |it, now| Ok(it.topology(&lab, Duration::ZERO, now))).expect("there");
    assert_eq!(shown["lab"]["title"], "two routers");
    assert_eq!((shown["nodes"].as_array().map(Vec::len), shown["links"].as_array().map(Vec::len)), (Some(2), Some(1)));
    let named = system.import_lab(good.as_bytes(), Some("mine".into())).expect("imported");
    assert_ne!(named, lab);
    let labs = || system.with(|state, _| state.labs.len());
    for bad in [
        good.replace("i2: i0", "i2: i9"),
        good.replace("id: n1", "id: n0"),
        "{".to_owned(),
        "nodes: [{id: 7}]".to_owned(),
        "a: &a [*a]".to_owned(),
        "\u{0}".to_owned(),
    ] {
        assert_eq!(system.import_lab(bad.as_bytes(), None).expect_err(&bad).code() / 100, 4);
        assert_eq!(labs(), 2, "{bad}");
    }
}
