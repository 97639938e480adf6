//! Scenario files: mutations of valid ones and arbitrary bytes.

use fake_cloud::control_plane::Records;
use fake_cloud::world::{Settings, World};
use fake_cloud::{Clock, Pace, Scenario};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_text, check, like_bytes, like_json};

const SEEDS: &str = "tests/fuzz/seeds/scenario.txt";

fn example() -> Value {
    json!({
        "about": "a world", "clock": "x60", "seed": 7, "control_plane": "original",
        "fleet": [{"name": "blue", "region": "us-east-1", "state": "running", "age": "2h", "tags": {"team": "a"}},
                  {"name": "red", "region": "eu-west-1", "state": "stopped", "age": "3d", "type": "m5.large"}],
        "templates": [{"name": "huge", "instance_type": "m5zn.metal", "drain_timeout_hours": 2}],
        "workers": [{"id": "w-1", "status": "running", "desired_status": "running", "template": "huge", "instance": "blue"},
                    {"id": "w-2", "status": "draining", "instance": "red", "fields": {"is_idle_detection_enabled": false}}],
        "sessions": [{"id": "s-1", "worker": "w-1", "status": "running", "began": "30m", "lasts": "2h"}],
        "faults": [{"service": "ec2", "operation": "Run*", "probability": 0.1, "times": 3,
                    "action": {"kind": "error", "code": "RequestLimitExceeded"}},
                   {"service": "cml", "action": {"kind": "latency", "seconds": 1.5}}],
    })
}

fn settle(text: &str) -> Result<(), TestCaseError> {
    let check_error = |error: fake_cloud::ScenarioError| {
        let error = error.to_string();
        prop_assert!(error.starts_with("mine.yaml"), "{error}");
        prop_assert!(error.len() < 20_000, "an error of {} bytes", error.len());
        Ok(())
    };
    let scenario = match Scenario::parse("mine.yaml", text) {
        Ok(scenario) => scenario,
        Err(error) => return check_error(error),
    };
    let clock = Clock::new(Pace::Manual);
    let world = World::new(Settings::with_clock(clock.clone()));
    match scenario.settle(&world, &Records::new(clock)) {
        Ok(()) => Ok(()),
        Err(error) => check_error(error),
    }
}

#[test]
fn malformed_scenarios_get_an_error() {
    let builtin = ["orphans", "drain", "bad-day"].map(|name| std::fs::read(format!("scenarios/{name}.yaml")));
    let builtin: Vec<Vec<u8>> = builtin.into_iter().map(|file| file.expect("a built-in scenario")).collect();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let file = prop_oneof![
        5 => like_json(vec![example()]).prop_map(|value| value.to_string()),
        3 => like_bytes(select(builtin)).prop_map(text),
        1 => any_text(),
        1 => any_bytes().prop_map(text),
    ];
    check("scenario files", 1_500, SEEDS, file, |file| settle(&file));
}

#[test]
fn yaml_bombs_are_rejected() {
    let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..30 {
        let before = format!("*a{}, ", level - 1).repeat(9);
        laughs.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    let deep = format!("fleet: {}", "[".repeat(100_000));
    for file in [laughs.as_str(), &format!("about: &a [*a]\n{laughs}"), &deep] {
        let error = Scenario::parse("mine.yaml", file).expect_err("rejected").to_string();
        assert!(error.len() < 20_000, "an error of {} bytes", error.len());
    }
}
