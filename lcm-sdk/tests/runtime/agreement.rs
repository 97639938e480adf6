//! A script ends in the same record in the simulator and in a reconciler on ports in memory.

use std::time::Duration;

use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::simulate::{Events, Fleet, run};
use lcm_sdk::{DesiredStatus, Ec2State, Requeue, Worker, WorkerStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::harness::{Harness, REGION, worker_id};

/// One event of a script, at a minute.
#[derive(Debug, Clone, Copy)]
enum Action {
    Desire(DesiredStatus),
    Console(&'static str),
}

/// Cycles of 30 s after the last event: enough to forget a terminated instance.
const REST: u32 = 200;

fn any_script() -> impl Strategy<Value = Vec<(u32, Action)>> {
    let action = prop_oneof![
        Just(Action::Desire(DesiredStatus::Running)),
        Just(Action::Desire(DesiredStatus::Stopped)),
        Just(Action::Desire(DesiredStatus::Terminated)),
        Just(Action::Console("start")),
        Just(Action::Console("stop")),
        Just(Action::Console("terminate")),
    ];
    proptest::collection::btree_map(1_u32..60, action, 0..7).prop_map(|script| script.into_iter().collect())
}

fn simulated(script: &[(u32, Action)], running: usize) -> Worker {
    let (mut console, mut desired) = (Vec::new(), Vec::new());
    for (minute, action) in script {
        let at = minute * 60;
        match action {
            Action::Desire(status) => desired.push(json!({"at": at, "worker": "w-1", "desired": status})),
            Action::Console(action) => console.push(json!({"at": at, "worker": "w-1", "action": action})),
        }
    }
    let events: Value = json!({"console": console, "desired": desired});
    let events: Events = serde_json::from_value(events).expect("events");
    let fleet: Fleet =
        serde_json::from_value(json!({"workers": 1, "running": running, "boot_time": 25})).expect("a fleet");
    let hours = f64::from(60 + REST / 2) / 60.0;
    let mut history = run(&fleet, &events, &Harness::new().policy, hours, 7).expect("valid");
    history.records.remove(0)
}

async fn reconciled(script: &[(u32, Action)], running: usize) -> Worker {
    let harness = Harness::new();
    let (status, ec2, desired) = match running {
        0 => (WorkerStatus::Stopped, Ec2State::Stopped, DesiredStatus::Stopped),
        _ => (WorkerStatus::Running, Ec2State::Running, DesiredStatus::Running),
    };
    harness.worker(1, status, ec2);
    let desire = |desired| harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(desired));
    desire(desired);
    harness.control_plane.edit(&worker_id(1), |worker| worker.is_idle_detection_enabled = false);
    let reconciler = Reconciler::new(harness.ports(), harness.policy.clone()).expect("a supported policy");
    for cycle in 0..120 + REST {
        harness.compute.settle();
        let mut is_due = !harness.record(1).is_at_rest();
        for (_, action) in script.iter().filter(|(minute, _)| minute * 2 == cycle) {
            match action {
                Action::Desire(desired) => is_due |= desire(*desired),
                Action::Console(action) => console(&harness, action),
            }
        }
        // A controller polls no worker at rest.
        for _ in 0..if is_due { 5 } else { 0 } {
            if harness.reconcile(&reconciler, 1).await.requeue != Requeue::Now {
                break;
            }
        }
        harness.clock.advance(Duration::from_secs(30));
    }
    harness.record(1)
}

/// Acts on the instance as EC2 would: an action that it refuses does nothing.
fn console(harness: &Harness, action: &str) {
    let state = match (action, harness.compute.all(REGION)[0].state) {
        ("start", Ec2State::Stopped) => Ec2State::Pending,
        ("stop", Ec2State::Running) => Ec2State::Stopping,
        ("terminate", Ec2State::Terminated) | ("start" | "stop", _) => return,
        _ => Ec2State::ShuttingDown,
    };
    harness.compute.set_state(REGION, &"i-1".into(), state);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn simulator_and_reconciler_end_in_the_same_record(script in any_script(), running in 0_usize..2) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let reconciled = runtime.expect("a runtime").block_on(reconciled(&script, running));
        let simulated = simulated(&script, running);
        let facts = |worker: &Worker| {
            (worker.status, worker.desired_status, worker.ec2_instance_id.is_some(), worker.notes.launch_generation,
                worker.notes.drain_started_at.is_some())
        };
        prop_assert_eq!(facts(&simulated), facts(&reconciled));
    }
}
