//! Rules, checked on the cloud's own state.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use fake_cloud::control_plane::{Generation, Worker};
use fake_cloud::world::{Instance, InstanceState, Lifecycle};
use lcm_sdk::lifecycle::transition::TABLE;
use serde_json::Value;

use crate::churn::{ChurnResult, text};
use crate::fixture::{Fixture, is_live};
use crate::hosts::Session;

/// Violations found, and the number of checks.
#[derive(Debug, Default)]
pub(crate) struct RuleReport {
    pub(crate) violations: Vec<String>,
    pub(crate) checked: u64,
}

impl RuleReport {
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.violations.extend(other.violations);
        Self { violations: self.violations, checked: self.checked + other.checked }
    }

    pub(crate) fn assert_clean(&self, seed: u64) {
        let shown = self.violations.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.violations.is_empty(), "{} violations with LCM_SEED={seed}:\n{shown}", self.violations.len());
    }

    fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        self.checked += 1;
        if !holds {
            self.violations.push(violation());
        }
    }
}

/// Checks that each worker has at most one live instance, and that no terminated record has one.
pub(crate) fn check_current_state(fixture: &Fixture) -> RuleReport {
    let mut report = RuleReport::default();
    // Records are read first: the instance of a terminated record cannot come back before the instances are read.
    let workers = fixture.cloud.workers();
    let (instances, now) = (fixture.instances(), fixture.cloud.now());
    let mut active: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for instance in instances.iter().filter(|instance| is_live(instance.state(now))) {
        if let Some(owner) = instance.tags.get("lcm:worker_id") {
            active.entry(owner).or_default().push(&instance.id);
        }
    }
    for (worker, instances) in &active {
        report.check(instances.len() == 1, || format!("{worker} has {instances:?}"));
    }
    for worker in workers.iter().filter(|worker| worker.status() == "terminated") {
        let state = fixture.ec2_state(worker);
        report
            .check(!state.is_some_and(is_live), || format!("{worker:?} is terminated, and its instance is {state:?}"));
    }
    report
}

/// Describes the workers without their desired status, and the live instances without an owner.
pub(crate) fn unsettled(fixture: &Fixture) -> Vec<String> {
    let workers = fixture.cloud.workers();
    let described = |worker: &&Arc<Worker>| {
        let (id, status, desired) = (worker.id(), worker.status(), worker.desired());
        format!("{id}: {status}, desired {desired:?}, EC2 state {:?}", fixture.ec2_state(worker))
    };
    let records = workers.iter().filter(|worker| !is_settled(fixture, worker)).map(|worker| described(&worker));
    let now = fixture.cloud.now();
    let instances = fixture.instances().into_iter().filter(|instance| is_live(instance.state(now)));
    let unowned = instances.filter(|instance| owners(&workers, instance).len() != 1);
    records.chain(unowned.map(|instance| format!("{} has no owner: {:?}", instance.id, instance.tags))).collect()
}

fn is_settled(fixture: &Fixture, worker: &Worker) -> bool {
    let state = fixture.ec2_state(worker);
    let gone = !state.is_some_and(is_live);
    match (worker.status(), worker.desired()) {
        ("terminated", _) => gone,
        ("running", None | Some("running")) => state == Some(InstanceState::Running),
        ("stopped", None | Some("stopped")) => state == Some(InstanceState::Stopped),
        // Never launched, because its desired status is stopped.
        ("pending", Some("stopped")) => gone,
        _ => false,
    }
}

/// Active records that reference an instance.
fn owners<'a>(workers: &'a [Arc<Worker>], instance: &Instance) -> Vec<&'a Arc<Worker>> {
    let named = |worker: &&Arc<Worker>| worker.instance_id() == Some(&instance.id) && worker.status() != "terminated";
    workers.iter().filter(named).collect()
}

/// Checks every rule on the history so far.
pub(crate) fn check_all(fixture: &Fixture, result: &ChurnResult) -> RuleReport {
    let mut report = check_current_state(fixture);
    check_launches(fixture, &mut report);
    check_transitions(fixture, &mut report);
    check_sessions(fixture, result, &mut report);
    report
}

/// Checks that no instance was launched while another one of the same worker was live, and that no token was used twice.
fn check_launches(fixture: &Fixture, report: &mut RuleReport) {
    let mut by_worker: BTreeMap<String, Vec<Arc<Instance>>> = BTreeMap::new();
    for instance in fixture.instances() {
        if let Some(owner) = instance.tags.get("lcm:worker_id") {
            by_worker.entry(owner.clone()).or_default().push(instance);
        }
    }
    for (worker, mut instances) in by_worker {
        instances.sort_by_key(|instance| instance.sequence);
        for pair in instances.windows(2) {
            let ended = match pair[0].lifecycle {
                Lifecycle::Terminating { requested_at, .. } => Some(requested_at),
                Lifecycle::Running { .. } | Lifecycle::Stopping { .. } => None,
            };
            report.check(ended.is_some_and(|ended| ended <= pair[1].created_at), || {
                format!("{worker}: {} was launched while {} was live", pair[1].id, pair[0].id)
            });
            report.check(pair[0].client_token != pair[1].client_token, || {
                format!("{worker}: two launches with one token")
            });
        }
    }
}

/// Checks that every recorded transition is in the table. The original server guards no write: one of a killed leader may
/// arrive after those of its successor.
fn check_transitions(fixture: &Fixture, report: &mut RuleReport) {
    match fixture.generation {
        Generation::Original => return,
        Generation::Extended => {}
    }
    for worker in fixture.cloud.workers() {
        let history = worker.get("state_history").and_then(Value::as_array).cloned().unwrap_or_default();
        for step in history.iter().filter_map(Value::as_object) {
            let (from, to) = (text(step, "from"), text(step, "to"));
            let is_edge = TABLE.iter().any(|edge| (edge.from.as_str(), edge.to.as_str()) == (from, to));
            report.check(is_edge, || format!("{}: {from} → {to} is not in the table", worker.id()));
        }
    }
}

/// Checks that no session is terminated, and no worker with a session is stopped, before the deadline of its drain, and
/// that no scheduled session is terminated.
fn check_sessions(fixture: &Fixture, result: &ChurnResult, report: &mut RuleReport) {
    let hosts = &result.hosts;
    let mut by_worker: BTreeMap<&str, Vec<&Session>> = BTreeMap::new();
    for session in &hosts.sessions {
        by_worker.entry(&session.worker).or_default().push(session);
        let now = fixture.cloud.session(&session.id).expect("an existing session");
        let ended = DateTime::parse_from_rfc3339(text(&now, "terminated_at")).map(|at| at.with_timezone(&Utc));
        let is_allowed = match (text(&now, "status"), ended) {
            ("terminated", Ok(ended)) => hosts.may_be_terminated(session, ended),
            ("terminated", Err(_)) => false,
            _ => true,
        };
        report.check(is_allowed, || format!("{} was terminated too early: {now:?}", session.id));
    }
    for session in &hosts.scheduled {
        let now = fixture.cloud.session(session).expect("an existing session");
        report.check(matches!(text(&now, "status"), "scheduled" | "pending"), || format!("{session} is lost: {now:?}"));
    }
    let owner: BTreeMap<String, String> = fixture
        .instances()
        .iter()
        .filter_map(|instance| Some((instance.id.clone(), instance.tags.get("lcm:worker_id")?.clone())))
        .collect();
    for stop in fixture.journal.stop_requests() {
        for worker in stop.instances.split(',').filter_map(|instance| owner.get(instance.trim())) {
            for session in by_worker.get(worker.as_str()).into_iter().flatten() {
                let active = session.since < stop.at && session.until.is_none_or(|until| stop.at < until);
                let interrupted = active && !was_terminated(fixture, session, stop.at);
                report.check(!interrupted || hosts.may_be_terminated(session, stop.at), || {
                    format!("{worker} was stopped at {} with {session:?}", stop.at)
                });
            }
        }
    }
}

/// Whether a controller had already terminated a session, which is checked separately.
fn was_terminated(fixture: &Fixture, session: &Session, by: DateTime<Utc>) -> bool {
    let now = fixture.cloud.session(&session.id).expect("an existing session");
    let ended = DateTime::parse_from_rfc3339(text(&now, "terminated_at"));
    ended.is_ok_and(|ended| ended.with_timezone(&Utc) <= by)
}
