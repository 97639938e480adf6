//! Simulated fleets: repeatable, without lost sessions, and different under another policy.

use std::time::Duration;

use lcm_sdk::lifecycle::ScaleDownPolicy;
use lcm_sdk::lifecycle::scale_down::ScaleDownVerdict;
use lcm_sdk::simulate::{Events, Figures, Fleet, History, Inputs, Scenario, run};
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
    let why = |at| history.why("w-1", seconds(&history, at)).expect("a known worker");
    let chain = |at| why(at).iter().map(|step| step.reason.code).collect::<Vec<_>>();
    assert_eq!(chain(3599), []);
    assert_eq!(chain(86400).last(), Some(&ReasonCode::Up));
    assert!(chain(86400).contains(&ReasonCode::StartRequested), "{:?}", chain(86400));
    assert_eq!(history.status("w-1", seconds(&history, 0)), Ok(WorkerStatus::Running));
    let unknown = history.why("w-9", seconds(&history, 0)).expect_err("no such worker").to_string();
    assert_eq!(unknown, "unknown worker 'w-9': the 1 workers of the simulation are w-1");
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

/// A session of ten hours on a worker that is drained after one.
fn drained(fields: Value) -> History {
    let mut events = json!({
        "sessions": [{"at": 0, "lasts": 36000, "worker": "w-1"}], "drains": [{"at": 3600, "worker": "w-1"}],
    });
    events.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    simulate(&Fleet::new(1).with_running(1), events, &Policy::default())
}

#[test]
fn drain_waits_until_its_deadline() {
    let history = drained(json!({}));
    assert_eq!(
        steps(&history, "w-1"),
        [
            "running → draining (drain_requested)",
            "draining → stopping (drain_timeout)",
            "stopping → stopped (ec2_stopped)",
        ]
    );
    assert_eq!(history.figures.sessions.cut_short, 1);
    assert_eq!(history.status("w-1", seconds(&history, 4 * 3600)), Ok(WorkerStatus::Draining));
}

#[test]
fn canceled_drain_ends_no_session() {
    let history = drained(json!({
        "drains": [{"at": 3600, "worker": "w-1"}, {"at": 7200, "worker": "w-1", "action": "cancel"}],
    }));
    let expected = ["running → draining (drain_requested)", "draining → running (drain_cancelled)"];
    assert_eq!(steps(&history, "w-1"), expected);
    assert_eq!((history.figures.sessions.served, history.figures.sessions.lost()), (1, 0));
}

#[test]
fn session_that_was_due_in_a_canceled_drain_begins_late() {
    // The control plane is not reconciled in between: the drain hands nothing back before it is canceled.
    let fields = json!({
        "sessions": [{"at": 0, "lasts": 60, "lead": 600, "worker": "w-1"}],
        "drains": [{"at": 599.9, "worker": "w-1"}, {"at": 600.2, "worker": "w-1", "action": "cancel"}],
    });
    let history = simulate(&Fleet::new(1).with_running(1), fields, &Policy::default());
    assert_eq!((history.figures.sessions.served, history.figures.sessions.lost()), (1, 0), "{}", history.figures);
}

#[test]
fn refused_actions_are_reported() {
    let fields = json!({
        "drains": [{"at": 60, "worker": "w-1"}, {"at": 90, "worker": "w-2", "action": "cancel"}],
        "console": [{"at": 120, "worker": "w-1", "action": "stop"}, {"at": 150, "worker": "w-1", "action": "terminate"},
            {"at": 9000, "worker": "w-1", "action": "start"}],
    });
    let history = simulate(&Fleet::new(2).with_running(1), fields, &Policy::default());
    let refused: Vec<_> = history.refused.iter().map(|refusal| (refusal.action, refusal.why.as_str())).collect();
    assert_eq!(
        refused,
        [
            ("cancel drain", "worker w-2 is stopped; only a draining worker has a drain to call off"),
            ("start", "the worker has no instance"),
        ]
    );
}

/// Three days of ten workers: sessions in office hours that are booked three hours ahead, and drains for maintenance while
/// they last.
fn office(change: impl FnOnce(&mut Fleet, &mut Events, &mut Policy)) -> History {
    let drains: Vec<Value> = (1..=4).map(|number| json!({"at": 36_000, "worker": format!("w-{number}")})).collect();
    let by_hour = [vec![0.0; 6], vec![1.0; 8], vec![0.0; 10]].concat();
    let mut fleet: Fleet = serde_json::from_value(json!({"workers": 10})).expect("a fleet");
    let mut events = events(json!({
        "sessions_per_hour": 8, "by_hour": by_hour, "drains": drains,
        "duration": {"exponential": 7200}, "lead": 10800, "patience": 36000,
    }));
    let mut policy = scaling(0);
    change(&mut fleet, &mut events, &mut policy);
    run(&fleet, &events, &policy, 72.0, 7).expect("valid")
}

fn is_increasing(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[0] <= pair[1]) && values[0] < values[values.len() - 1]
}

#[test]
fn longer_drain_timeout_cuts_fewer_sessions_short() {
    let with = |hours: u64| {
        office(|fleet, _, _| fleet.drain_timeout = Duration::from_secs(hours * 3600)).figures.sessions.cut_short
    };
    let cut_short = [24, 2, 0].map(|hours| with(hours) as f64);
    assert!(is_increasing(&cut_short), "{cut_short:?}");
}

#[test]
fn longer_cooldown_costs_hours() {
    let with = |minutes: u64| {
        let cooldown = Duration::from_secs(minutes * 60);
        office(|_, _, policy| policy.scale_down = ScaleDownPolicy::new(0).with_cooldown(cooldown)).figures
    };
    let figures = [0, 60, 600].map(with);
    assert!(is_increasing(&figures.each_ref().map(|figures| figures.instance_hours)), "{figures:?}");
    assert!(figures[2].scale_down.contains_key(&ScaleDownVerdict::SkippedCooldown), "{figures:?}");
}

#[test]
fn higher_minimum_costs_hours() {
    let figures = [0, 3, 6].map(|minimum| office(|_, _, policy| *policy = scaling(minimum)).figures);
    assert!(is_increasing(&figures.each_ref().map(|figures| figures.instance_hours)), "{figures:?}");
    assert!(figures[2].scale_down.contains_key(&ScaleDownVerdict::SkippedMinWorkers), "{figures:?}");
}

#[test]
fn longer_look_ahead_moves_fewer_sessions() {
    let with = |minutes: u64| {
        let look_ahead = Duration::from_secs(minutes * 60);
        office(|_, _, policy| policy.scale_down = ScaleDownPolicy::new(0).with_look_ahead(look_ahead)).figures
    };
    let figures = [0, 30, 180].map(with);
    let moved = figures.each_ref().map(|figures| -(figures.sessions.handed_back as f64));
    assert!(is_increasing(&moved), "{figures:?}");
    assert!(figures[0].scale_down.contains_key(&ScaleDownVerdict::Drained), "{figures:?}");
    assert!(figures[2].scale_down.contains_key(&ScaleDownVerdict::SkippedUpcomingSession), "{figures:?}");
}

#[test]
fn more_faults_delay_starts() {
    let times = [0.0, 0.8].map(|rate| {
        office(|_, events, _| events.fault_rate = rate).figures.mean_time_to_running.expect("workers came up")
    });
    assert!(is_increasing(&times), "{times:?}");
}

#[test]
fn terminated_worker_is_replaced_by_another() {
    let fields = json!({
        "sessions": [{"at": 600, "lasts": 3600}],
        "console": [{"at": 610, "worker": "w-1", "action": "terminate"}],
    });
    let history = simulate(&Fleet::new(2), fields, &Policy::default());
    assert_eq!(history.status("w-1", seconds(&history, 86_400)), Ok(WorkerStatus::Terminated));
    assert_eq!(history.figures.sessions.served, 1, "{}", history.figures);
    assert_eq!(steps(&history, "w-2").last().map(String::as_str), Some("starting → running (up)"));
}

#[test]
fn stopped_worker_is_requested_shortly_before_its_session() {
    let fields = json!({"sessions": [{"at": 0, "lasts": 600, "lead": 36000}]});
    let history = simulate(&Fleet::new(1), fields, &scaling(0));
    assert_eq!(history.status("w-1", seconds(&history, 36000 - 901)), Ok(WorkerStatus::Stopped));
    assert_eq!(history.status("w-1", seconds(&history, 36000)), Ok(WorkerStatus::Running));
    assert_eq!((history.figures.sessions.served, history.figures.sessions.delayed), (1, 0));
}

#[test]
fn new_leader_sweeps_its_workers() {
    let reconciles = |fields: Value| {
        let fleet = serde_json::from_value(json!({"workers": 20, "running": 20, "shards": 2, "controllers": 2}));
        let figures = simulate(&fleet.expect("a fleet"), fields, &Policy::default()).figures;
        (figures.reconciles, figures.leader_changes)
    };
    let (before, none) = reconciles(json!({}));
    let (after, one) = reconciles(json!({"controller_failures": [3600]}));
    assert_eq!((after - before, none, one), (10, 0, 1), "a shard has half of the workers");
}

#[test]
fn only_the_shard_without_a_leader_waits() {
    let fleet = json!({"workers": 2, "shards": 2, "sessions_per_worker": 1, "restart_time": 3600});
    let fields = json!({
        "sessions": [{"at": 600, "lasts": 60}, {"at": 600, "lasts": 60}], "controller_failures": [600],
        "patience": 7200,
    });
    let history = simulate(&serde_json::from_value(fleet).expect("a fleet"), fields, &Policy::default());
    assert_eq!(history.status("w-1", seconds(&history, 1800)), Ok(WorkerStatus::Stopped));
    assert_eq!(history.status("w-2", seconds(&history, 1800)), Ok(WorkerStatus::Running));
}

#[test]
fn calls_beyond_the_limit_are_throttled() {
    let history = |limit: Value| {
        let sessions: Vec<Value> = (0..40).map(|_| json!({"at": 600, "lasts": 3600})).collect();
        let fleet = serde_json::from_value(json!({"workers": 40, "sessions_per_worker": 1})).expect("a fleet");
        simulate(&fleet, json!({"sessions": sessions, "call_limit": limit}), &Policy::default())
    };
    let slowest = |history: &History| history.figures.longest_time_to_running.expect("workers came up");
    let (free, limited) = (history(Value::Null), history(json!({"per_second": 0.2, "burst": 5})));
    assert!(slowest(&limited) > slowest(&free) + 120.0, "{} {}", limited.figures, free.figures);
    assert!(limited.figures.reasons.values().sum::<u64>() > free.figures.reasons.values().sum::<u64>());
    assert_eq!(limited.figures.starts, 40, "every worker comes up in the end");
}

#[test]
fn polls_are_counted_as_describes() {
    let history = simulate(&Fleet::new(1500).with_running(1500), json!({}), &Policy::default());
    // Two calls in each of 2,880 cycles, and the first sweep.
    assert_eq!(history.figures.describes, 2 * 2880 + 1);
}

#[test]
fn license_may_fail_or_take_too_long() {
    let registered = |license: Value| {
        let fields = json!({"licenses": [license]});
        let history = simulate(&Fleet::new(1).with_running(1), fields, &Policy::default());
        let steps = history.steps.iter().map(|step| (step.reason.code, step.at - history.started_at));
        let finished = [ReasonCode::LicenseFinished, ReasonCode::LicenseTimedOut];
        let (code, after) = steps.into_iter().find(|(code, _)| finished.contains(code)).expect("it is finished");
        (code, after.num_seconds(), history.records[0].license.status.clone())
    };
    let (code, quick, _) = registered(json!({"at": 600, "worker": "w-1"}));
    assert_eq!(code, ReasonCode::LicenseFinished);
    let (code, slow, _) = registered(json!({"at": 600, "worker": "w-1", "takes": 300}));
    assert_eq!(code, ReasonCode::LicenseFinished);
    assert!((600..610).contains(&quick) && (900..910).contains(&slow), "{quick} {slow}");
    let (code, late, _) = registered(json!({"at": 600, "worker": "w-1", "takes": 3600}));
    assert_eq!(code, ReasonCode::LicenseTimedOut);
    assert!((1500..1560).contains(&late), "{late}");
    let failed = json!({"licenses": [{"at": 600, "worker": "w-1", "result": "failed"}]});
    let history = simulate(&Fleet::new(1).with_running(1), failed, &Policy::default());
    let sentences: Vec<String> = history.steps.iter().map(|step| step.reason.to_string()).collect();
    assert!(sentences.iter().any(|sentence| sentence.contains("FAILED")), "{sentences:?}");
}

#[test]
fn history_is_repeated_from_its_inputs() {
    let history = office(|_, _, _| {});
    let text = serde_json::to_string(&history).expect("JSON");
    let written: Value = serde_json::from_str(&text).expect("JSON");
    let inputs: Inputs = serde_json::from_value(written["inputs"].clone()).expect("inputs");
    assert_eq!(inputs, history.inputs);
    assert_eq!(inputs.digest(), history.inputs.digest());
    assert_eq!(inputs.run().expect("valid"), history);
    let other = office(|fleet, _, _| fleet.interval = Duration::from_secs(29));
    assert_ne!(other.inputs.digest(), history.inputs.digest());
}

fn scenario(extra: Value) -> Result<Scenario, String> {
    let mut fields = json!({
        "fleet": [{"name": "blue", "state": "running", "age": "1d", "type": "m5.metal", "tags": {"team": "a"},
            "region": "eu-west-1"}],
        "workers": [{"id": "w-1", "name": "one", "status": "running", "desired_status": "running", "instance": "blue",
            "age": "2d"}],
        "sessions": [{"id": "s-1", "worker": "w-1", "status": "running", "began": "10m", "lasts": "2h"}],
    });
    fields.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    Scenario::from_json(fields).map_err(|error| error.to_string())
}

#[test]
fn entries_of_a_scenario_keep_their_fields() {
    let member = scenario(json!({})).expect("valid").fleet.members.remove(0);
    assert_eq!((member.age.as_secs(), member.instance_age.as_secs()), (2 * 86_400, 86_400));
    assert_eq!((member.region.as_deref(), member.instance_type.as_deref()), (Some("eu-west-1"), Some("m5.metal")));
    assert_eq!(member.tags.get("team").map(String::as_str), Some("a"));
    let history = run(&scenario(json!({})).expect("valid").fleet, &Events::default(), &Policy::default(), 1.0, 7);
    assert_eq!(history.expect("valid").records[0].aws_region.as_deref(), Some("eu-west-1"));
}

#[test]
fn timeline_of_a_scenario_is_simulated() {
    let timeline = json!({
        "templates": [{"name": "metal", "drain_timeout_hours": 1}],
        "timeline": [
            {"at": "3h", "heal": "all"},
            {"at": "10m", "fault": {"service": "ec2", "action": {"kind": "error", "code": "InternalError"}}},
            {"at": "1h", "session": {"id": "s-1", "status": "stopped"}},
            {"at": "2h", "drain": "one"},
            {"at": "4h", "worker": {"id": "w-1", "desired_status": "running", "metadata": {}}},
            {"at": "5h", "stop": "blue"},
            {"at": "6h", "interrupt": "blue"},
            {"at": "6h", "metric": {"instance": "blue", "name": "CPUUtilization", "value": 9}},
        ],
    });
    let read = scenario(timeline).expect("valid");
    let events = &read.events;
    assert_eq!((events.outages[0].from.as_secs(), events.outages[0].to.as_secs()), (600, 3 * 3600));
    assert_eq!(events.sessions[0].lasts.as_secs(), 3600);
    assert_eq!((events.drains[0].at.as_secs(), events.drains[0].worker.as_str()), (7200, "w-1"));
    assert_eq!((events.desired.len(), events.console[0].worker.as_str()), (1, "w-1"));
    assert_eq!(
        read.not_modeled,
        [
            "timeline[4]: field metadata of w-1",
            "timeline[6]: interrupt of blue",
            r#"timeline[7]: metric {"instance":"blue","name":"CPUUtilization","value":9}"#,
        ]
    );
    let history = run(&read.fleet, events, &Policy::default(), 12.0, read.seed).expect("valid");
    let codes: Vec<ReasonCode> = history.steps.iter().map(|step| step.reason.code).collect();
    assert!(codes.contains(&ReasonCode::DrainRequested) && codes.contains(&ReasonCode::Drained), "{codes:?}");
    assert_eq!(history.status("w-1", seconds(&history, 12 * 3600)), Ok(WorkerStatus::Running));
}

#[test]
fn invalid_entries_of_a_scenario_are_named() {
    let refused = |extra: Value| scenario(extra).expect_err("invalid");
    let timeline = |step: Value| refused(json!({"timeline": [step]}));
    assert_eq!(
        timeline(json!({"at": "1h", "drain": "two"})),
        "timeline[0]: no worker or instance \"two\" in the scenario; accepted: blue, one, w-1"
    );
    assert!(timeline(json!({"at": "1h"})).starts_with("timeline[0]: no step; accepted: one of start, "));
    assert!(timeline(json!({"at": "1h", "stop": "blue", "start": "blue"})).contains("several steps"));
    assert!(timeline(json!({"at": "1h", "explode": "blue"})).contains("unknown step \"explode\""));
    assert!(timeline(json!({"at": "soon", "stop": "blue"})).contains("invalid time span \"soon\""));
    assert!(timeline(json!({"at": "1h", "heal": "most"})).contains("accepted: all"));
    assert!(refused(json!({"flet": []})).starts_with("unknown field `flet`"));
    assert!(refused(json!({"fleet": [{"name": "blue", "colour": "red"}]})).starts_with("unknown field `colour`"));
    assert!(refused(json!({"workers": [{"id": "w-1", "instance": "red"}]})).contains("no instance \"red\""));
}

// The scenarios are YAML, which only the runtime reads.
#[cfg(feature = "runtime")]
#[test]
fn scenario_of_the_fake_cloud_is_simulated() {
    for name in ["bad-day", "drain", "orphans"] {
        let path = format!("{}/../fake-cloud/scenarios/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a scenario");
        let scenario = Scenario::from_yaml(&text).expect("a scenario");
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
