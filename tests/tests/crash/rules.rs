//! What must hold, looked up in the cloud's own state.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use fake_cloud::control_plane::Worker;
use fake_cloud::world::{Instance, InstanceState, Lifecycle};
use lcm_sdk::lifecycle::transition::TABLE;
use serde_json::Value;

use crate::churn::{Churned, text};
use crate::fixture::{Fixture, lives};
use crate::hosts::Session;

/// What was found wrong, and how many times something was looked at.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    pub(crate) checked: u64,
}

impl Verdict {
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.violations.extend(other.violations);
        Self { violations: self.violations, checked: self.checked + other.checked }
    }

    pub(crate) fn assert_clean(&self, seed: u64) {
        let shown = self.violations.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.violations.is_empty(), "{} violations with LCM_SEED={seed}:\n{shown}", self.violations.len());
    }

    fn rule(&mut self, holds: bool, broken: impl FnOnce() -> String) {
        self.checked += 1;
        if !holds {
            self.violations.push(broken());
        }
    }
}

/// At most one live instance for each worker, and no record terminated whose instance lives.
pub(crate) fn at_every_moment(fixture: &Fixture) -> Verdict {
    let mut verdict = Verdict::default();
    // The records first: what they call dead cannot come to life before it is looked at.
    let workers = fixture.cloud.workers();
    let (instances, now) = (fixture.instances(), fixture.cloud.now());
    let mut living: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for instance in instances.iter().filter(|instance| lives(instance.state(now))) {
        if let Some(owner) = instance.tags.get("lcm:worker_id") {
            living.entry(owner).or_default().push(&instance.id);
        }
    }
    for (worker, instances) in &living {
        verdict.rule(instances.len() == 1, || format!("{worker} has {instances:?}"));
    }
    for worker in workers.iter().filter(|worker| worker.status() == "terminated") {
        let state = fixture.ec2_state(worker);
        verdict.rule(!state.is_some_and(lives), || format!("{worker:?} is terminated, and its instance is {state:?}"));
    }
    verdict
}

/// Everybody who is not as desired.
pub(crate) fn unsettled(fixture: &Fixture) -> Vec<String> {
    let workers = fixture.cloud.workers();
    let described = |worker: &&Arc<Worker>| {
        let (id, status, desired) = (worker.id(), worker.status(), worker.desired());
        format!("{id}: {status}, desired {desired:?}, EC2 says {:?}", fixture.ec2_state(worker))
    };
    let records = workers.iter().filter(|worker| !is_settled(fixture, worker)).map(|worker| described(&worker));
    let now = fixture.cloud.now();
    let instances = fixture.instances().into_iter().filter(|instance| lives(instance.state(now)));
    let strays = instances.filter(|instance| owners(&workers, instance).len() != 1);
    records.chain(strays.map(|stray| format!("{} lives without an owner: {:?}", stray.id, stray.tags))).collect()
}

fn is_settled(fixture: &Fixture, worker: &Worker) -> bool {
    let state = fixture.ec2_state(worker);
    let gone = !state.is_some_and(lives);
    match (worker.status(), worker.desired()) {
        ("terminated", _) => gone,
        ("running", None | Some("running")) => state == Some(InstanceState::Running),
        ("stopped", None | Some("stopped")) => state == Some(InstanceState::Stopped),
        // Never launched, because nobody wants it to run.
        ("pending", Some("stopped")) => gone,
        _ => false,
    }
}

/// The records that name an instance and have not ended.
fn owners<'a>(workers: &'a [Arc<Worker>], instance: &Instance) -> Vec<&'a Arc<Worker>> {
    let named = |worker: &&Arc<Worker>| worker.instance_id() == Some(&instance.id) && worker.status() != "terminated";
    workers.iter().filter(named).collect()
}

/// Every rule about what has happened so far.
pub(crate) fn judge(fixture: &Fixture, churned: &Churned) -> Verdict {
    let mut verdict = at_every_moment(fixture);
    one_life_after_the_other(fixture, &mut verdict);
    only_edges_of_the_table(fixture, &mut verdict);
    no_session_is_hurt(fixture, churned, &mut verdict);
    verdict
}

/// No instance of a worker was launched while another one of it lived, and each launch had a token of its own.
fn one_life_after_the_other(fixture: &Fixture, verdict: &mut Verdict) {
    let mut lives: BTreeMap<String, Vec<Arc<Instance>>> = BTreeMap::new();
    for instance in fixture.instances() {
        if let Some(owner) = instance.tags.get("lcm:worker_id") {
            lives.entry(owner.clone()).or_default().push(instance);
        }
    }
    for (worker, mut instances) in lives {
        instances.sort_by_key(|instance| instance.sequence);
        for pair in instances.windows(2) {
            let over = match pair[0].lifecycle {
                Lifecycle::Terminating { requested_at, .. } => Some(requested_at),
                Lifecycle::Running { .. } | Lifecycle::Stopping { .. } => None,
            };
            verdict.rule(over.is_some_and(|over| over <= pair[1].created_at), || {
                format!("{worker}: {} was launched while {} lived", pair[1].id, pair[0].id)
            });
            verdict.rule(pair[0].client_token != pair[1].client_token, || format!("{worker}: one token, two launches"));
        }
    }
}

fn only_edges_of_the_table(fixture: &Fixture, verdict: &mut Verdict) {
    for worker in fixture.cloud.workers() {
        let history = worker.get("state_history").and_then(Value::as_array).cloned().unwrap_or_default();
        for step in history.iter().filter_map(Value::as_object) {
            let (from, to) = (text(step, "from"), text(step, "to"));
            let is_edge = TABLE.iter().any(|edge| (edge.from.as_str(), edge.to.as_str()) == (from, to));
            verdict.rule(is_edge, || format!("{}: {from} → {to} is no edge of the table", worker.id()));
        }
    }
}

/// No session ends, and no worker stops under one, before its drain is past its deadline; and one that had not begun is
/// never ended at all.
fn no_session_is_hurt(fixture: &Fixture, churned: &Churned, verdict: &mut Verdict) {
    let hosts = &churned.hosts;
    let mut by_worker: BTreeMap<&str, Vec<&Session>> = BTreeMap::new();
    for session in &hosts.sessions {
        by_worker.entry(&session.worker).or_default().push(session);
        let now = fixture.cloud.session(&session.id).expect("it exists");
        let ended = DateTime::parse_from_rfc3339(text(&now, "terminated_at")).map(|at| at.with_timezone(&Utc));
        let fine = match (text(&now, "status"), ended) {
            ("terminated", Ok(ended)) => hosts.may_be_forced(session, ended),
            ("terminated", Err(_)) => false,
            _ => true,
        };
        verdict.rule(fine, || format!("{} was ended too early: {now:?}", session.id));
    }
    for session in &hosts.scheduled {
        let now = fixture.cloud.session(session).expect("it exists");
        verdict.rule(matches!(text(&now, "status"), "scheduled" | "pending"), || format!("{session} is lost: {now:?}"));
    }
    let owner: BTreeMap<String, String> = fixture
        .instances()
        .iter()
        .filter_map(|instance| Some((instance.id.clone(), instance.tags.get("lcm:worker_id")?.clone())))
        .collect();
    for ending in fixture.journal.endings() {
        for worker in ending.instances.split(',').filter_map(|instance| owner.get(instance.trim())) {
            for session in by_worker.get(worker.as_str()).into_iter().flatten() {
                let active = session.since < ending.at && session.until.is_none_or(|until| ending.at < until);
                let hurt = active && !is_over_by_force(fixture, session, ending.at);
                verdict.rule(!hurt || hosts.may_be_forced(session, ending.at), || {
                    format!("{worker} was stopped at {} under {session:?}", ending.at)
                });
            }
        }
    }
}

/// Whether a controller had ended a session by then, which is judged by itself.
fn is_over_by_force(fixture: &Fixture, session: &Session, by: DateTime<Utc>) -> bool {
    let now = fixture.cloud.session(&session.id).expect("it exists");
    let ended = DateTime::parse_from_rfc3339(text(&now, "terminated_at"));
    ended.is_ok_and(|ended| ended.with_timezone(&Utc) <= by)
}
