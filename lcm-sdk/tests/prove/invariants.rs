//! The rules, checked at every call that is sent, at every change that is carried out, and at every second.

use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::controller::ElectionConfig;
use lcm_sdk::lifecycle::transition::TABLE;
use lcm_sdk::lifecycle::{LicenseReport, SessionEnd, SessionStanding};
use lcm_sdk::{
    DesiredStatus, Ec2State, FleetView, Instance, InstanceId, Lookup, Patch, Worker, WorkerId, WorkerStatus,
};
use tokio::time::Instant;

use super::call::{Call, Subject};
use super::faults::{Fault, What, by_chance};
use super::oracle::{Oracle, Wish};
use super::process::{Process, Sending};
use super::world::{DRAIN_TIMEOUT, HERE, LONGEST_LAG, MIN_WORKERS, WRONG_CLOCK, World};

/// Maximum age of an observation that a controller acts on: calls are slow here, and a reconcile makes several.
const MEMORY: Duration = Duration::from_secs(120);

/// How long a request or session may be unknown to a controller that is about to act.
const NEWS: Duration = Duration::from_secs(60);

/// How long a live instance may have no owner once faults have ended.
const ORPHANED: Duration = Duration::from_secs(400);

/// How long after the end of a lease effects carried out under it are still recorded.
const LATE: Duration = Duration::from_secs(60);

/// How long a lease that etcd lost early is still trusted.
const LEASE: Duration = Duration::from_secs(16);

impl World {
    /// A call is sent: count it, choose its fault, and check that a change of the cloud is made by a leader.
    pub(crate) fn send(&self, process: &Process, call: &Call) -> Sending {
        let number = {
            let mut oracle = self.oracle.lock();
            oracle.steps += 1;
            oracle.effects += u64::from(call.is_effect());
            oracle.calls.push(call.does());
            oracle.steps
        };
        self.check_lead(process, call);
        let (permille, planned) = {
            let trouble = self.trouble.lock();
            (trouble.permille, trouble.planned.iter().find(|(at, _)| *at == number).map(|(_, what)| *what))
        };
        let mut rng = self.rng.lock();
        let (mut way, back) = (rng.millis(2, 80), rng.millis(2, 80));
        let has_left = rng.roll(2) == 0;
        let mut fault = Fault::None;
        // Most calls are reads; the few changes are where faults subject.
        let permille = if call.is_effect() { permille * 3 } else { permille };
        if rng.chance(permille) {
            let (chosen, word) = by_chance(&mut rng, call);
            fault = chosen;
            self.oracle.lock().fault(word);
        } else if rng.chance(permille / 2) {
            way += rng.millis(1_000, 12_000);
            self.oracle.lock().fault("slow call");
        }
        drop(rng);
        match planned {
            None => {}
            Some(What::Happens(planned)) => {
                fault = planned;
                self.oracle.lock().struck |= planned != Fault::Stale;
                self.tell(format!("here: {planned:?} at {} {}", call.name, call.about));
            }
            Some(What::Pair(pair)) => {
                self.oracle.lock().struck = true;
                self.cancel_out(pair);
            }
        }
        Sending { way, back, fault, has_left }
    }

    /// Prepares a change that is about to be carried out.
    pub(crate) fn prepare(&self, call: &Call, fault: Fault) {
        match (&call.subject, fault) {
            (Subject::Write(about, _), Fault::Meddle) => {
                self.edit(&about.0.id, |worker| worker.name = Some("renamed".to_owned()));
            }
            (Subject::Write(..), Fault::CutWrite) => self.control_plane.cut_next_write(),
            _ => {}
        }
    }

    /// EC2 launched an instance, and may not show it yet.
    pub(crate) fn launched(&self, id: &InstanceId) {
        if self.nature.lock().born.insert(id.clone(), Instant::now()).is_some() {
            // A repeated launch: the instance has existed all the time.
            return;
        }
        let permille = self.trouble.lock().lag_permille;
        if self.rng.lock().chance(permille) {
            self.oracle.lock().fault("visibility lag");
            let lag = self.rng.lock().millis(5_000, LONGEST_LAG * 1000);
            self.hide(id, lag);
        }
    }

    /// A controller received a response about an instance.
    pub(crate) fn heard(&self, process: &Process, id: &InstanceId, answer: &Lookup<Instance>) {
        let mut oracle = self.oracle.lock();
        let evidence = oracle.evidence.entry((process.number, id.clone())).or_default();
        let now = Some(Instant::now());
        match answer {
            Lookup::Unknown(_) | Lookup::NotRequested => return,
            Lookup::Absent => evidence.gone = now,
            Lookup::Found(instance) => match instance.state {
                Ec2State::Running => evidence.running = now,
                Ec2State::Stopped => evidence.stopped = now,
                Ec2State::ShuttingDown | Ec2State::Terminated => evidence.gone = now,
                Ec2State::Pending | Ec2State::Stopping | Ec2State::Other => {}
            },
        }
        evidence.any = now;
    }

    /// Every change of the cloud is made by a valid leader, every write by a recent one.
    fn check_lead(&self, process: &Process, call: &Call) {
        if self.setup.controllers < 2 || (call.fence().is_none() && !call.changes_cloud()) {
            return;
        }
        let holds = self.etcd.value(ElectionConfig::WORKER_CONTROLLER).as_deref() == Some(&process.identity);
        let mut oracle = self.oracle.lock();
        if holds && let Some(term) = oracle.terms.get_mut(&process.number) {
            term.held_at = Instant::now();
        }
        let forced = oracle.leases_lost_at.is_some_and(|at| at.elapsed() < LEASE);
        let term = oracle.terms.get(&process.number).cloned();
        if call.changes_cloud() {
            oracle.rule(holds || forced, || {
                format!("{} does {} {} and does not lead", process.identity, call.name, call.about)
            });
        }
        if let Some(fence) = call.fence() {
            let own = term.as_ref().map_or(&[][..], |term| term.tokens.as_slice());
            let is_own = fence.0.is_some_and(|fence| own.contains(&fence));
            oracle.rule(is_own, || format!("{} writes with {fence:?}, its own tokens are {own:?}", process.identity));
            let recent = term.as_ref().is_some_and(|term| term.held_at.elapsed() < LATE);
            oracle.rule(recent, || {
                format!("{} writes long after it led: {} {}", process.identity, call.name, call.about)
            });
        }
    }

    /// Checks a change that is about to be carried out.
    pub(crate) fn judge(&self, process: &Process, call: &Call) {
        let mut oracle = self.oracle.lock();
        match &call.subject {
            Subject::Write(about, _) => {
                let (worker, patch) = &**about;
                if let Some(to) = patch.status {
                    self.judge_status(&mut oracle, process, worker, to);
                }
                if let Some(report) = patch.changes.license_report {
                    self.judge_license(&mut oracle, &worker.id, report);
                }
                self.judge_desired(&mut oracle, worker, patch);
                self.judge_scale_down(&mut oracle, worker, patch);
            }
            Subject::License(worker, report, _) => self.judge_license(&mut oracle, worker, *report),
            Subject::Stop(id) | Subject::Terminate(id) => self.judge_stop(&mut oracle, id),
            Subject::EndSession(session, reason, _) => {
                let Some(session) = self.control_plane.look_at_session(session) else { return };
                let Some(worker) = &session.worker_id else { return };
                let fine = match reason {
                    SessionEnd::DrainTimeout => may_force(&oracle, worker),
                    SessionEnd::MaxRetriesExceeded => session.retry_count >= self.policy.max_session_retries,
                    SessionEnd::WorkerStoppedDuringRetry => {
                        matches!(session.state.standing(), SessionStanding::Failed | SessionStanding::Over)
                    }
                };
                oracle.rule(fine, || format!("{} on {worker} is ended too early: {reason:?}", session.id));
            }
            Subject::Submit { .. }
            | Subject::Describe(_)
            | Subject::Read
            | Subject::Launch
            | Subject::Start
            | Subject::MoveSession(_)
            | Subject::Import(_)
            | Subject::Note => {}
        }
    }

    /// Only edges of the table are taken; nothing is concluded from an unanswered call; no record is terminated while
    /// its instance lives.
    fn judge_status(&self, oracle: &mut Oracle, process: &Process, worker: &Worker, to: WorkerStatus) {
        let Some(current) = self.control_plane.look(&worker.id) else { return };
        if worker.version.is_some() && worker.version != current.version {
            // It will be refused.
            return;
        }
        let from = worker.status;
        let is_edge = from == to || TABLE.iter().any(|edge| (edge.from, edge.to) == (from, to));
        oracle.rule(is_edge, || format!("{}: {from} → {to} is no edge of the table", worker.id));
        let Some(id) = &worker.ec2_instance_id else { return };
        let evidence = oracle.evidence.get(&(process.number, id.clone())).copied().unwrap_or_default();
        let commanded = matches!(worker.desired_status, Some(DesiredStatus::Stopped | DesiredStatus::Terminated));
        let seen = match to {
            // A command of an operator needs no evidence.
            WorkerStatus::Stopping | WorkerStatus::Terminating if commanded => Some(Instant::now()),
            WorkerStatus::Running if from == WorkerStatus::Draining => evidence.any,
            WorkerStatus::Running => evidence.running,
            WorkerStatus::Stopped => evidence.stopped,
            WorkerStatus::Terminated => evidence.gone,
            WorkerStatus::Pending
            | WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Terminating
            | WorkerStatus::Failed
            | WorkerStatus::Unknown => evidence.any,
        };
        let backed = seen.is_some_and(|at| at.elapsed() < MEMORY);
        oracle.rule(backed, || format!("{}: {from} → {to}, and EC2 did not say so: {evidence:?}", worker.id));
        if to == WorkerStatus::Terminated {
            let lives = self.instance(id).is_some_and(|instance| instance.state.is_live());
            oracle.rule(!lives, || format!("{} is terminated while {id} lives", worker.id));
        }
    }

    /// A request of an operator that the controller has not seen is not overwritten.
    fn judge_desired(&self, oracle: &mut Oracle, worker: &Worker, patch: &Patch) {
        let Some(current) = self.control_plane.look(&worker.id) else { return };
        if patch.changes.desired_status.is_some() && self.setup.versions == lcm_sdk::providers::memory::Versions::Kept {
            let guarded = patch.expected_version.is_some();
            oracle.rule(guarded, || format!("{}: a wish is written over {:?} unguarded", worker.id, current.version));
        }
    }

    /// Scale-down keeps the minimum. While faults occur the count may be outdated by the time it is used; after that it
    /// may not.
    fn judge_scale_down(&self, oracle: &mut Oracle, worker: &Worker, patch: &Patch) {
        let Some(current) = self.control_plane.look(&worker.id) else { return };
        let refused = worker.version.is_some() && patch.expected_version != current.version;
        if patch.changes.scaled_down_at.is_some() && !refused && oracle.disturbed_at.elapsed() > NEWS {
            let others = self.workers().into_iter().filter(|other| other.id != worker.id);
            let left = FleetView::from_workers(&others.collect::<Vec<_>>()).running;
            oracle.rule(left >= MIN_WORKERS, || format!("{} is scaled down, and {left} are left", worker.id));
        }
    }

    /// No session is ended before its deadline.
    fn judge_stop(&self, oracle: &mut Oracle, id: &InstanceId) {
        let Some(instance) = self.instance(id) else { return };
        let owner = self.workers().into_iter().find(|worker| worker.ec2_instance_id.as_ref() == Some(id));
        let Some(worker) = owner.filter(|_| instance.state == Ec2State::Running) else { return };
        let sessions: Vec<_> = self.nature.lock().sessions.iter().map(|(id, since)| (id.clone(), *since)).collect();
        for (session, since) in sessions {
            let hurt = self.control_plane.look_at_session(&session).is_some_and(|session| {
                session.worker_id.as_ref() == Some(&worker.id) && session.state.standing() == SessionStanding::Active
            });
            if hurt && since.is_some_and(|since| since.elapsed() > NEWS) {
                let wanted = oracle.wished(&worker.id, NEWS, |wish, _| wish == Wish::Stop);
                let fine = wanted || may_force(oracle, &worker.id);
                oracle.rule(fine, || format!("{} is stopped under {session}, which no operator requested", worker.id));
            }
        }
    }

    /// A license report matches what CML did, and an intent is carried out once.
    fn judge_license(&self, oracle: &mut Oracle, worker: &WorkerId, report: LicenseReport) {
        let Some(record) = self.control_plane.look(worker) else { return };
        if report != LicenseReport::CompleteRegistration {
            return;
        }
        let Some(token) = record.license.pending_token.as_ref().map(|token| token.expose().to_owned()) else { return };
        let taken = oracle.submitted.keys().any(|(_, submitted)| *submitted == token);
        oracle.rule(taken, || format!("{worker}: {token} is reported as registered, and no CML ever saw it"));
    }

    /// A change was carried out.
    pub(crate) fn carried_out(&self, call: &Call, done: bool) {
        if let (Subject::Write(about, _), true) = (&call.subject, done)
            && about.1.status == Some(WorkerStatus::Draining)
        {
            // Only scale-down begins a drain on the controller's side.
            self.oracle.lock().wish(&about.0.id, Wish::Drain);
        }
        if let (Subject::Submit { address, token: Some(token) }, true) = (&call.subject, done) {
            let mut oracle = self.oracle.lock();
            let times = oracle.submitted.entry((address.clone(), token.clone())).or_default();
            *times += 1;
            let times = *times;
            oracle.rule(times == 1, || format!("{token} is registered {times} times at {address}"));
        }
        self.check();
    }

    /// The rules that hold at every moment.
    pub(crate) fn check(&self) {
        let (now, instances, workers) = (Instant::now(), self.compute.all(HERE), self.workers());
        let mut owned: BTreeMap<&str, Vec<&InstanceId>> = BTreeMap::new();
        let mut oracle = self.oracle.lock();
        let mut unowned = BTreeMap::new();
        for instance in instances.iter().filter(|instance| instance.state.is_live()) {
            if let Some(owner) = instance.owner() {
                owned.entry(owner).or_default().push(&instance.id);
            }
            let owners = workers.iter().filter(|worker| {
                worker.ec2_instance_id.as_ref() == Some(&instance.id) && worker.status != WorkerStatus::Terminated
            });
            if owners.count() != 1 {
                let since = oracle.unowned.get(&instance.id).copied().unwrap_or(now);
                unowned.insert(instance.id.clone(), since);
            }
        }
        let disturbed_at = oracle.disturbed_at;
        oracle.unowned = unowned;
        let forgotten = oracle.unowned.iter().find(|(_, since)| since.max(&&disturbed_at).elapsed() > ORPHANED);
        let forgotten = forgotten.map(|(id, _)| id.clone());
        oracle.rule(forgotten.is_none(), || format!("{} lives and has no owner", forgotten.expect("some")));
        for (worker, instances) in owned {
            oracle.rule(instances.len() == 1, || format!("{worker} has {instances:?}"));
        }
    }
}

/// Whether a drain is past its deadline, as far as wrong clocks can determine.
fn may_force(oracle: &Oracle, worker: &WorkerId) -> bool {
    let slack = Duration::from_secs(2 * WRONG_CLOCK.unsigned_abs() + 1);
    oracle.wished(worker, NEWS, |wish, since| {
        wish == Wish::Stop || (wish == Wish::Drain && since.elapsed() + slack >= DRAIN_TIMEOUT)
    })
}
