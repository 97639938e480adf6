//! The behavior as one table: every status × every desired status × every response of EC2.
//!
//! A change to the snapshot is a change of behavior and is reviewed as one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::common::{DESIRED, Ec2Response, LONG, SHORT, ago, instance, now, policy, proved_place, throttled, worker};
use lcm_sdk::lifecycle::transition::{EdgeKind, TABLE};
use lcm_sdk::lifecycle::{IdleReport, drain};
use lcm_sdk::{
    Decision, DesiredStatus, Ec2State, FleetView, Image, Instance, Lookup, Observation, Policy, Session, Template,
    Worker, WorkerStatus, decide,
};

/// Responses for rows that only vary EC2: no tagged instance, no sessions, a template, an AMI.
fn default_observation() -> Observation {
    Observation {
        tagged: Lookup::Found(Vec::new()),
        place: proved_place(),
        sessions: Lookup::Found(Vec::new()),
        template: Lookup::Found(Template::new("metal", "m5zn.metal")),
        images: Lookup::Found(vec![Image {
            id: "ami-1".into(),
            name: "cisco-cml2.9".into(),
            creation_date: "2026-01-01".into(),
        }]),
        ..Observation::default()
    }
}

/// Every response of EC2 about a worker whose record names no instance.
fn tagged() -> Vec<(&'static str, std::time::Duration, Lookup<Vec<Instance>>)> {
    vec![
        ("one live", LONG, Lookup::Found(vec![instance(Ec2State::Running)])),
        ("one terminated", LONG, Lookup::Found(vec![instance(Ec2State::Terminated)])),
        ("none, recent launch", SHORT, Lookup::Found(Vec::new())),
        ("none, old launch", LONG, Lookup::Found(Vec::new())),
        ("no response", LONG, Lookup::Unknown(throttled())),
    ]
}

fn with_instance(status: WorkerStatus, desired: Option<DesiredStatus>, response: Ec2Response) -> (Worker, Observation) {
    let worker = response.adjust(worker(status, desired));
    (worker, Observation { instance: response.lookup(), ..default_observation() })
}

fn without_instance(
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    (_, launched, tagged): &(&str, std::time::Duration, Lookup<Vec<Instance>>),
) -> (Worker, Observation) {
    let mut worker = worker(status, desired);
    worker.ec2_instance_id = None;
    worker.notes.launched_at = Some(ago(*launched));
    (worker, Observation { tagged: tagged.clone(), ..default_observation() })
}

/// One line of the table: outcome, new status, effects, record changes, reason.
fn line(decision: &Decision) -> String {
    let status = decision.transition.map_or("·".to_owned(), |transition| match transition.kind() {
        EdgeKind::Commanded => transition.to().to_string(),
        EdgeKind::Observed => format!("{} (obs.)", transition.to()),
    });
    let effects: Vec<_> = decision.effects.iter().map(|effect| effect.name().as_str()).collect();
    let effects = if effects.is_empty() { "·".to_owned() } else { effects.join(", ") };
    format!(
        "{:<8} {status:<20} {effects:<35} {:<13} {}",
        decision.outcome.as_str(),
        decision.requeue.to_string(),
        decision.reason.code
    )
}

/// Rows that differ only in the desired status are folded into one.
fn fold(rows: Vec<(Option<DesiredStatus>, String)>, label: &str, text: &mut String) {
    let mut folded: Vec<(Vec<&str>, String)> = Vec::new();
    for (desired, line) in rows {
        let desired = desired.map_or("none", |desired| desired.as_str());
        match folded.iter_mut().find(|(_, same)| *same == line) {
            Some((names, _)) => names.push(desired),
            None => folded.push((vec![desired], line)),
        }
    }
    for (names, line) in folded {
        let desired = if names.len() == DESIRED.len() { "any".to_owned() } else { names.join(", ") };
        let _ = writeln!(text, "  {label:<21} {desired:<27} {line}");
    }
}

#[test]
fn decisions_match_the_snapshot() {
    let policy = policy();
    let mut text = String::new();
    for &status in WorkerStatus::ALL {
        let _ = writeln!(
            text,
            "{}\n  {:<21} {:<27} {:<8} {:<20} {:<35} {:<13} reason",
            status.as_str().to_uppercase(),
            "EC2 response",
            "desired",
            "outcome",
            "status",
            "effects",
            "requeue"
        );
        for response in Ec2Response::ALL {
            let rows = DESIRED.map(|desired| {
                let (worker, observed) = with_instance(status, desired, response);
                (desired, line(&decide(&worker, &observed, &policy, now())))
            });
            fold(rows.into(), &response.label(), &mut text);
        }
        let _ = writeln!(text, "  -- no instance on the record; instances tagged for the worker:");
        for response in tagged() {
            let rows = DESIRED.map(|desired| {
                let (worker, observed) = without_instance(status, desired, &response);
                (desired, line(&decide(&worker, &observed, &policy, now())))
            });
            fold(rows.into(), response.0, &mut text);
        }
        text.push('\n');
    }
    insta::assert_snapshot!("decisions", text);
}

/// Every decision of the snapshot, and those of commands and steps that are not in it.
fn all_decisions() -> Vec<(Worker, Decision)> {
    let mut decisions = Vec::new();
    let mut add = |worker: Worker, observed: &Observation, policy: &Policy| {
        let decision = decide(&worker, observed, policy, now());
        decisions.push((worker, decision));
    };
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for response in Ec2Response::ALL {
                let (worker, observed) = with_instance(status, desired, response);
                add(worker, &observed, &policy());
            }
            for response in tagged() {
                let (worker, observed) = without_instance(status, desired, &response);
                add(worker, &observed, &policy());
            }
        }
    }
    let mut scaling = policy();
    scaling.scale_down.enabled = true;
    for sessions in [Vec::new(), vec![Session::new("s-1", "pending")]] {
        let idle = IdleReport {
            telemetry_fetched: true,
            idle_check_performed: true,
            is_idle: true,
            eligible_for_pause: true,
            ..IdleReport::default()
        };
        let observed = Observation {
            instance: Lookup::Found(instance(Ec2State::Running)),
            idle: Lookup::Found(idle),
            fleet: Lookup::Found(FleetView { running: 2, last_scale_down_at: None }),
            sessions: Lookup::Found(sessions),
            ..Observation::default()
        };
        add(worker(WorkerStatus::Running, None), &observed, &scaling);
    }
    let no_template = Observation { template: Lookup::Absent, tagged: Lookup::Absent, ..Observation::default() };
    let (pending, _) = without_instance(WorkerStatus::Pending, None, &tagged()[3]);
    add(pending, &no_template, &policy());
    let draining = worker(WorkerStatus::Draining, None);
    let canceled = drain::cancel(&draining, "alice", "needed").expect("it drains");
    decisions.push((draining, canceled));
    decisions
}

#[test]
fn decisions_take_exactly_the_edges_of_the_table() {
    let mut taken: BTreeSet<_> = all_decisions()
        .into_iter()
        .filter_map(|(worker, decision)| {
            // A decision that needed an edge outside the table has no transition and names the reason.
            assert_ne!(decision.reason.code.as_str(), "no_such_transition", "{worker:?}");
            let transition = decision.transition?;
            assert_eq!(transition.from(), worker.status, "a transition starts at the status of its worker");
            Some((transition.from(), transition.to(), transition.kind()))
        })
        .collect();
    // These edges are not decisions: an operator or the server takes them, and garbage collection marks a worker whose
    // launch never succeeded (covered in `orphans.rs`).
    let by_others = [
        (WorkerStatus::Failed, WorkerStatus::Pending, EdgeKind::Commanded),
        (WorkerStatus::Starting, WorkerStatus::Stopping, EdgeKind::Commanded),
        (WorkerStatus::Running, WorkerStatus::Failed, EdgeKind::Commanded),
        (WorkerStatus::Draining, WorkerStatus::Failed, EdgeKind::Commanded),
        (WorkerStatus::Stopping, WorkerStatus::Failed, EdgeKind::Commanded),
        (WorkerStatus::Provisioning, WorkerStatus::Terminated, EdgeKind::Observed),
    ];
    for edge in by_others {
        assert!(taken.insert(edge), "{edge:?} is a decision: take it off this list");
    }
    let table: BTreeSet<_> = TABLE.iter().map(|edge| (edge.from, edge.to, edge.kind)).collect();
    assert_eq!(table.difference(&taken).collect::<Vec<_>>(), Vec::<&_>::new(), "edges that no decision takes");
}

#[test]
fn missing_response_of_ec2_changes_nothing() {
    let unknown = tagged().pop().expect("the last case is a missing response");
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for (worker, observed) in
                [with_instance(status, desired, Ec2Response::Unknown), without_instance(status, desired, &unknown)]
            {
                let decision = decide(&worker, &observed, &policy(), now());
                assert!(decision.does_nothing(), "{status} {desired:?}: {decision:?}");
            }
        }
    }
}
