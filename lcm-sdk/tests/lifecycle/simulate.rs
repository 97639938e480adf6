//! Simulated fleets: repeatable, without lost sessions, and different under another policy.

use std::time::Duration;

use lcm_sdk::lifecycle::ScaleDownPolicy;
#[cfg(feature = "runtime")]
use lcm_sdk::simulate::Scenario;
use lcm_sdk::simulate::{Events, Figures, Fleet, History, run};
use lcm_sdk::{Policy, ReasonCode, WorkerStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

fn events(fields: Value) -> Events {
    serde_json::from_value(fields).expect("events")
}

fn scaling(min_workers: usize) -> Policy {
    Policy { scale_down: ScaleDownPolicy::new(min_workers), ..Policy::default() }
}

fn simulate(fleet: &Fleet, fields: Value, policy: &Policy) -> History {
    run(fleet, &events(fields), policy, 24.0, 7).expect("valid")
}

fn steps(history: &History, worker: &str) -> Vec<String> {
    let changes = history.steps_of(worker).filter(|step| step.from != step.to);
    changes.map(|step| format!("{} → {} ({})", step.from, step.to, step.reason.code)).collect()
}

fn seconds(history: &History, seconds: u64) -> lcm_sdk::Timestamp {
    history.started_at + Duration::from_secs(seconds)
}

#[test]
fn other_seeds_give_other_histories() {
    let run = |seed| {
        run(&Fleet::new(5), &events(json!({"sessions_per_hour": 4})), &scaling(0), 24.0, seed).expect("valid").figures
    };
    assert_ne!(run(1), run(2));
}

#[test]
fn requested_worker_comes_up_for_its_session() {
    let planned = json!({"sessions": [{"at": 600, "lasts": 3600}]});
    let history = simulate(&Fleet::new(2), planned, &Policy::default());
    assert_eq!(steps(&history, "w-1"), ["stopped → starting (start_requested)", "starting → running (up)"]);
    let sessions = &history.figures.sessions;
    assert_eq!((sessions.requested, sessions.served, sessions.delayed), (1, 1, 1));
    assert!((180.0..220.0).contains(&sessions.mean_delay), "{sessions:?}");
}

#[test]
fn idle_worker_is_scaled_down_and_brought_back() {
    let planned = json!({"sessions": [{"at": 600, "lasts": 3600}, {"at": 36000, "lasts": 60}]});
    let history = simulate(&Fleet::new(1), planned, &scaling(0));
    assert_eq!(
        steps(&history, "w-1"),
        [
            "stopped → starting (start_requested)",
            "starting → running (up)",
            "running → stopping (scale_down_stop)",
            "stopping → stopped (ec2_stopped)",
            "stopped → starting (start_requested)",
            "starting → running (up)",
            "running → stopping (scale_down_stop)",
            "stopping → stopped (ec2_stopped)",
        ]
    );
    let without = simulate(&Fleet::new(1), json!({"sessions": [{"at": 600, "lasts": 3600}]}), &Policy::default());
    assert!(history.figures.instance_hours < 3.0 && without.figures.instance_hours > 23.0);
}

#[test]
fn session_ends_with_its_stopped_instance() {
    let stopped = json!({
        "sessions": [{"at": 0, "lasts": 7200}],
        "console": [{"at": 3600, "worker": "w-1", "action": "stop"}],
    });
    let history = simulate(&Fleet::new(1).with_running(1), stopped, &Policy::default());
    assert_eq!((history.figures.sessions.cut_short, history.figures.sessions.served), (1, 0));
    let steps = steps(&history, "w-1");
    assert_eq!(steps.last().map(String::as_str), Some("starting → running (up)"), "{steps:?}");
}

#[test]
fn chain_of_steps_explains_a_status() {
    let stopped = json!({"console": [{"at": 3600, "worker": "w-1", "action": "stop"}]});
    let history = simulate(&Fleet::new(1).with_running(1), stopped, &Policy::default());
    let chain = |at| history.why("w-1", seconds(&history, at)).iter().map(|step| step.reason.code).collect::<Vec<_>>();
    assert_eq!(chain(3599), []);
    assert_eq!(chain(86400).last(), Some(&ReasonCode::Up));
    assert!(chain(86400).contains(&ReasonCode::StartRequested), "{:?}", chain(86400));
    assert_eq!(history.status("w-1", seconds(&history, 0)), Some(WorkerStatus::Running));
    assert_eq!(history.status("w-9", seconds(&history, 0)), None);
}

#[test]
fn outage_delays_sessions() {
    let delay = |outages: Value| {
        let fields = json!({"sessions": [{"at": 600, "lasts": 60}], "outages": outages});
        simulate(&Fleet::new(1), fields, &Policy::default()).figures.sessions.mean_delay
    };
    assert!(delay(json!([{"from": 0, "to": 1800}])) > delay(json!([])) + 1000.0);
}

#[test]
fn standby_takes_over_faster_than_a_restart() {
    let delay = |controllers| {
        let fields = json!({"sessions": [{"at": 600, "lasts": 60}], "controller_failures": [600]});
        let fleet: Fleet = serde_json::from_value(json!({"workers": 1, "controllers": controllers})).expect("a fleet");
        simulate(&fleet, fields, &Policy::default()).figures.sessions.mean_delay
    };
    assert!(delay(2) < delay(1));
}

#[test]
fn license_is_registered() {
    let fields = json!({"licenses": [{"at": 600, "worker": "w-1"}]});
    let history = simulate(&Fleet::new(1).with_running(1), fields, &Policy::default());
    assert_eq!(history.figures.reasons.get(&ReasonCode::LicenseFinished), Some(&1), "{:?}", history.figures.reasons);
}

#[test]
fn skipped_polls_are_no_steps() {
    let history = simulate(&Fleet::new(10).with_running(10), json!({}), &Policy::default());
    assert_eq!((history.steps.len(), history.figures.instance_hours), (0, 240.0));
}

#[test]
fn invalid_numbers_are_named() {
    let error = |fleet: &Fleet, fields: Value, hours| {
        run(fleet, &events(fields), &Policy::default(), hours, 7).expect_err("invalid").to_string()
    };
    let fleet = Fleet::new(2);
    assert_eq!(error(&fleet, json!({}), 0.0), "invalid hours 0: expected more than 0, up to 8784");
    assert_eq!(error(&fleet, json!({"fault_rate": 2}), 1.0), "invalid fault_rate 2: expected 0 to 1");
    let unknown = json!({"console": [{"at": 0, "worker": "w-3", "action": "stop"}]});
    assert_eq!(error(&fleet, unknown, 1.0), "unknown worker 'w-3': the 2 workers of the fleet are w-1 to w-2");
    assert_eq!(
        error(&fleet.with_running(3), json!({}), 1.0),
        "invalid running 3: expected up to the number of workers"
    );
}

// The scenarios are YAML, which only the runtime reads.
#[cfg(feature = "runtime")]
#[test]
fn scenario_of_the_fake_cloud_is_simulated() {
    for name in ["bad-day", "drain", "orphans"] {
        let path = format!("{}/../fake-cloud/scenarios/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a scenario");
        let scenario = Scenario::from_json(serde_yaml_ng::from_str(&text).expect("YAML")).expect("a scenario");
        let history = run(&scenario.fleet, &scenario.events, &Policy::default(), 12.0, scenario.seed).expect("valid");
        let settled = |worker: &lcm_sdk::Worker| worker.is_at_rest() || worker.status == WorkerStatus::Running;
        assert!(history.records.iter().all(settled), "{name}: {:?}", history.records);
    }
}

/// Every requested session is in exactly one of the totals, or still waits or runs.
fn is_complete(figures: &Figures) -> bool {
    let sessions = &figures.sessions;
    sessions.served + sessions.lost() <= sessions.requested
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equal_seeds_give_equal_histories(seed in any::<u64>(), rate in 0.0..20.0, faults in 0.0..0.5) {
        let fields = json!({"sessions_per_hour": rate, "fault_rate": faults, "controller_failures": [3600, 40000]});
        let run = || run(&Fleet::new(6), &events(fields.clone()), &scaling(1), 24.0, seed).expect("valid");
        let history = run();
        prop_assert!(is_complete(&history.figures));
        prop_assert_eq!(history, run());
    }

    #[test]
    fn scale_down_loses_no_session(seed in any::<u64>(), rate in 0.1..6.0, minutes in 1.0..300.0, faults in 0.0..0.3) {
        let fields = json!({
            "sessions_per_hour": rate, "duration": {"exponential": minutes * 60.0}, "fault_rate": faults, "lead": 600,
            "patience": 1e7,
        });
        let fleet = Fleet::new(40);
        let history = run(&fleet, &events(fields), &scaling(0), 48.0, seed).expect("valid");
        prop_assert_eq!(history.figures.sessions.lost(), 0, "{}", history.figures);
    }
}
