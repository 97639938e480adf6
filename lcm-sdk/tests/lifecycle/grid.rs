//! The whole behavior as one table: every status × every desired status × every response of EC2.
//!
//! The snapshot is the product's behavior. A change to it is a change of behavior and is reviewed as one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::common::{DESIRED, Ec2Said, LONG, SHORT, ago, instance, now, policy, throttled, worker};
use lcm_sdk::lifecycle::transition::{EdgeKind, TABLE};
use lcm_sdk::lifecycle::{IdleReport, drain};
use lcm_sdk::{
    Decision, DesiredStatus, Ec2State, FleetView, Image, Instance, Lookup, Observation, Policy, Session, Template,
    Worker, WorkerStatus, decide,
};

/// Responses for rows that only vary EC2: no sessions, a template, an AMI.
fn everything_else() -> Observation {
    Observation {
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
        ("one dead", LONG, Lookup::Found(vec![instance(Ec2State::Terminated)])),
        ("none, launch young", SHORT, Lookup::Found(Vec::new())),
        ("none, launch old", LONG, Lookup::Found(Vec::new())),
        ("no answer", LONG, Lookup::Unknown(throttled())),
    ]
}

fn with_instance(status: WorkerStatus, desired: Option<DesiredStatus>, said: Ec2Said) -> (Worker, Observation) {
    let worker = said.fit(worker(status, desired));
    (worker, Observation { instance: said.answer(), ..everything_else() })
}

fn without_instance(
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    (_, launched, tagged): &(&str, std::time::Duration, Lookup<Vec<Instance>>),
) -> (Worker, Observation) {
    let mut worker = worker(status, desired);
    worker.ec2_instance_id = None;
    worker.notes.launched_at = Some(ago(*launched));
    (worker, Observation { tagged: tagged.clone(), ..everything_else() })
}

/// One line of the table: outcome, new status, effects, record changes, reason.
fn line(decision: &Decision) -> String {
    let becomes = decision.transition.map_or("·".to_owned(), |transition| match transition.kind() {
        EdgeKind::Commanded => transition.to().to_string(),
        EdgeKind::Observed => format!("{} (obs.)", transition.to()),
    });
    let does: Vec<_> = decision.effects.iter().map(|effect| effect.name().as_str()).collect();
    let does = if does.is_empty() { "·".to_owned() } else { does.join(", ") };
    format!(
        "{:<8} {becomes:<20} {does:<35} {:<13} {}",
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
fn every_status_desired_status_and_ec2_answer() {
    let policy = policy();
    let mut text = String::new();
    for &status in WorkerStatus::ALL {
        let _ = writeln!(
            text,
            "{}\n  {:<21} {:<27} {:<8} {:<20} {:<35} {:<13} because",
            status.as_str().to_uppercase(),
            "EC2 says",
            "desired",
            "outcome",
            "becomes",
            "does",
            "look again"
        );
        for said in Ec2Said::ALL {
            let rows = DESIRED.map(|desired| {
                let (worker, seen) = with_instance(status, desired, said);
                (desired, line(&decide(&worker, &seen, &policy, now())))
            });
            fold(rows.into(), &said.label(), &mut text);
        }
        let _ = writeln!(text, "  -- no instance on the record; instances tagged for the worker:");
        for said in tagged() {
            let rows = DESIRED.map(|desired| {
                let (worker, seen) = without_instance(status, desired, &said);
                (desired, line(&decide(&worker, &seen, &policy, now())))
            });
            fold(rows.into(), said.0, &mut text);
        }
        text.push('\n');
    }
    insta::assert_snapshot!(text);
}

/// Every decision of the table above, and those of the commands and steps it does not show.
fn all_decisions() -> Vec<(Worker, Decision)> {
    let mut decisions = Vec::new();
    let mut add = |worker: Worker, seen: &Observation, policy: &Policy| {
        let decision = decide(&worker, seen, policy, now());
        decisions.push((worker, decision));
    };
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for said in Ec2Said::ALL {
                let (worker, seen) = with_instance(status, desired, said);
                add(worker, &seen, &policy());
            }
            for said in tagged() {
                let (worker, seen) = without_instance(status, desired, &said);
                add(worker, &seen, &policy());
            }
        }
    }
    let mut scaling = policy();
    scaling.scale_down.enabled = true;
    for sessions in [Vec::new(), vec![Session::new("s-1", "running")]] {
        let idle = IdleReport {
            telemetry_fetched: true,
            idle_check_performed: true,
            is_idle: true,
            eligible_for_pause: true,
            ..IdleReport::default()
        };
        let seen = Observation {
            instance: Lookup::Found(instance(Ec2State::Running)),
            idle: Lookup::Found(idle),
            fleet: Lookup::Found(FleetView { running: 2, last_scale_down_at: None }),
            sessions: Lookup::Found(sessions),
            ..Observation::default()
        };
        add(worker(WorkerStatus::Running, None), &seen, &scaling);
    }
    let no_template = Observation { template: Lookup::Absent, tagged: Lookup::Absent, ..Observation::default() };
    let (pending, _) = without_instance(WorkerStatus::Pending, None, &tagged()[3]);
    add(pending, &no_template, &policy());
    let draining = worker(WorkerStatus::Draining, None);
    let cancelled = drain::cancel(&draining, "alice", "needed").expect("it drains");
    decisions.push((draining, cancelled));
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
            assert_eq!(transition.from(), worker.status, "a decision starts where its worker is");
            Some((transition.from(), transition.to(), transition.kind()))
        })
        .collect();
    // Two edges are not decisions: an operator resets a failed worker, and garbage collection marks a worker whose
    // launch never came up. The second is covered in `orphans.rs`.
    taken.insert((WorkerStatus::Failed, WorkerStatus::Pending, EdgeKind::Commanded));
    taken.insert((WorkerStatus::Provisioning, WorkerStatus::Terminated, EdgeKind::Observed));
    let table: BTreeSet<_> = TABLE.iter().map(|edge| (edge.from, edge.to, edge.kind)).collect();
    assert_eq!(table.difference(&taken).collect::<Vec<_>>(), Vec::<&_>::new(), "never taken");
}

#[test]
fn unanswered_ec2_changes_nothing() {
    let silent = tagged().pop().expect("the last one is no answer");
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for (worker, seen) in
                [with_instance(status, desired, Ec2Said::Unknown), without_instance(status, desired, &silent)]
            {
                let decision = decide(&worker, &seen, &policy(), now());
                assert!(decision.does_nothing(), "{status} {desired:?}: {decision:?}");
            }
        }
    }
}
