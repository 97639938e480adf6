//! The rules, checked for every call, for every change, and once per second.

use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::lifecycle::transition::TABLE;
use lcm_sdk::lifecycle::{LicenseReport, SessionEnd, SessionPhase};
use lcm_sdk::ports::{CloudEvent, CmlTarget};
use lcm_sdk::{
    CallFailure, DesiredStatus, Ec2State, FailureKind, FleetView, Instance, InstanceId, Lookup, Patch, SessionId,
    Worker, WorkerId, WorkerStatus,
};
use tokio::time::Instant;

use super::call::{Call, Subject};
use super::faults::{Fault, Injection, random_fault};
use super::oracle::{OperatorRequest, Oracle};
use super::process::{Process, Sending};
use super::rules::Rule;
use super::world::{DRAIN_TIMEOUT, MAX_CLOCK_ERROR, MAX_LAG, MIN_WORKERS, PUBLIC_IMAGE, World};

/// Maximum age of an observation that a controller acts on: calls are slow here and a reconcile makes several.
const MAX_EVIDENCE_AGE: Duration = Duration::from_secs(120);

/// How long a request or session may be unknown to a controller that is about to act.
const PROPAGATION: Duration = Duration::from_secs(60);

/// How long a live instance may have no owner once faults have ended.
const MAX_ORPHAN_AGE: Duration = Duration::from_secs(400);

/// How long after the end of a lease effects carried out under it are still recorded.
const LATE_WRITE: Duration = Duration::from_secs(60);

/// The longest time from a change in etcd to the first call for it: half a second in which changes are collected, and a
/// second to begin.
const MAX_START: Duration = Duration::from_millis(1_600);

/// The most writes to one record within ten seconds.
const MAX_WRITES: usize = 40;

/// The most scans of one region within thirty seconds.
const MAX_SCANS: usize = 6;

/// How often the end of a drain may be announced: again after a crash before it was recorded.
const MAX_ANNOUNCEMENTS: u32 = 3;

/// How long a lease that etcd lost early is still trusted.
const LEASE: Duration = Duration::from_secs(16);

impl World {
    /// Counts a call that is sent, chooses its fault, and checks that only a leader changes the cloud.
    pub(crate) fn send(&self, process: &Process, call: &Call) -> Sending {
        let number = {
            let mut oracle = self.oracle.lock();
            oracle.steps += 1;
            oracle.effects += u64::from(call.is_effect());
            oracle.calls.push(call.effect());
            oracle.steps
        };
        self.check_leadership(process, call);
        let (permille, planned) = {
            let plan = self.fault_plan.lock();
            (plan.permille, plan.planned.iter().find(|(call, _)| *call == number).map(|(_, injection)| *injection))
        };
        if call.name == "worker" {
            self.note_start(&call.about);
        }
        let mut rng = self.rng.lock();
        let (mut request_delay, response_delay) = (rng.millis(2, 80), rng.millis(2, 80));
        let has_left = rng.roll(2) == 0;
        let mut fault = Fault::None;
        // Most calls are reads; faults matter most in the few changes.
        let permille = if call.is_effect() { permille * 3 } else { permille };
        if rng.chance(permille) {
            let (chosen, label) = random_fault(&mut rng, call);
            fault = chosen;
            self.oracle.lock().fault(label);
        } else if rng.chance(permille / 2) {
            request_delay += rng.millis(1_000, 12_000);
            self.oracle.lock().fault("slow call");
        }
        drop(rng);
        if matches!(call.subject, Subject::Launch(..))
            && let Some(scripted) = self.fault_plan.lock().launches.pop_front()
        {
            fault = scripted;
        }
        match planned {
            None => {}
            Some(Injection::Fault(planned)) => {
                fault = planned;
                self.oracle.lock().injected |= planned != Fault::Stale;
                self.log(format!("injected: {planned:?} at {} {}", call.name, call.about));
            }
            Some(Injection::Pair(pair)) => {
                self.oracle.lock().injected = true;
                self.apply_pair(pair);
            }
        }
        Sending { request_delay, response_delay, fault, has_left }
    }

    /// Prepares a change that is about to be carried out.
    pub(crate) fn prepare(&self, call: &Call, fault: Fault) {
        match (&call.subject, fault) {
            (Subject::Write(about, _), Fault::ConflictingWrite) => {
                self.edit(&about.0.id, |worker| worker.name = Some("renamed".to_owned()));
            }
            (Subject::Write(..), Fault::PartialWrite) => self.control_plane.interrupt_next_write(),
            _ => {}
        }
    }

    /// Records a launched instance, which EC2 may not show yet.
    pub(crate) fn record_launch(&self, id: &InstanceId) {
        if self.background.lock().launched_at.insert(id.clone(), Instant::now()).is_some() {
            // A repeated launch: the instance has existed all the time.
            return;
        }
        let permille = self.fault_plan.lock().lag_permille;
        if self.rng.lock().chance(permille) {
            self.oracle.lock().fault("visibility lag");
            let lag = self.rng.lock().millis(5_000, MAX_LAG * 1000);
            self.hide(id, lag);
        }
    }

    /// Records the response about an instance that a controller received.
    pub(crate) fn record_response(&self, process: &Process, id: &InstanceId, response: &Lookup<Instance>) {
        if !self.uses_own_account() {
            // A response about another account is no evidence.
            return;
        }
        let mut oracle = self.oracle.lock();
        let evidence = oracle.evidence.entry((process.number, id.clone())).or_default();
        let now = Some(Instant::now());
        match response {
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

    /// Checks that the cloud is changed by a valid leader only, and records by a recent one.
    fn check_leadership(&self, process: &Process, call: &Call) {
        if self.setup.controllers < 2 || (call.fence().is_none() && !call.changes_cloud()) {
            return;
        }
        // The session or the record may be gone: then the call has no effect either.
        let Some(led_by) = call.led_by(self) else { return };
        let key = self.leader_key(&led_by);
        let holds = self.etcd.value(&key).as_deref() == Some(&process.identity);
        let mut oracle = self.oracle.lock();
        let term = (process.number, key);
        if holds && let Some(term) = oracle.terms.get_mut(&term) {
            term.held_at = Instant::now();
        }
        let forced = oracle.leases_lost_at.is_some_and(|at| at.elapsed() < LEASE);
        let term = oracle.terms.get(&term).cloned();
        if call.changes_cloud() {
            oracle.rule(Rule::LeaderActs, holds || forced, || {
                format!("{} sends {} {} without being the leader", process.identity, call.name, call.about)
            });
        }
        if let Some(fence) = call.fence() {
            let own = term.as_ref().map_or(&[][..], |term| term.tokens.as_slice());
            let is_own = fence.0.is_some_and(|fence| own.contains(&fence));
            oracle.rule(Rule::TokenIsOwn, is_own, || {
                format!("{} writes with {fence:?}; its own tokens are {own:?}", process.identity)
            });
            let recent = term.as_ref().is_some_and(|term| term.held_at.elapsed() < LATE_WRITE);
            oracle.rule(Rule::WriteIsTimely, recent, || {
                format!("{} writes long after the end of its lease: {} {}", process.identity, call.name, call.about)
            });
        }
    }

    /// Checks a change that is about to be carried out.
    pub(crate) fn check_change(&self, process: &Process, call: &Call) {
        let mut oracle = self.oracle.lock();
        match &call.subject {
            Subject::Write(about, _) => {
                let (worker, patch) = &**about;
                if let Some(to) = patch.status {
                    self.check_status(&mut oracle, process, worker, to);
                }
                if let Some(report) = patch.changes.license_report {
                    self.check_license_report(&mut oracle, &worker.id, report);
                }
                self.check_desired_status(&mut oracle, worker, patch);
                self.check_scale_down(&mut oracle, worker, patch);
            }
            Subject::License(worker, report, _) => self.check_license_report(&mut oracle, worker, *report),
            Subject::Stop(id) | Subject::Terminate(id) => self.check_stop(&mut oracle, id),
            Subject::EndSession(session, reason, _) => {
                let Some(session) = self.control_plane.stored_session(session) else { return };
                let Some(worker) = &session.worker_id else { return };
                let is_gone = || {
                    let record = self.control_plane.stored_worker(worker);
                    let instance = record.and_then(|record| record.ec2_instance_id).and_then(|id| self.instance(&id));
                    instance.is_none_or(|instance| !instance.state.is_live())
                };
                let is_due = match reason {
                    SessionEnd::WorkerTerminated => is_gone(),
                    SessionEnd::DrainTimeout => may_force(&oracle, worker),
                    SessionEnd::MaxRetriesExceeded => session.retry_count >= self.policy.max_session_retries,
                    SessionEnd::WorkerStoppedDuringRetry => {
                        matches!(session.state.phase(), SessionPhase::Failed | SessionPhase::Over)
                    }
                };
                oracle.rule(Rule::SessionIsNotEndedEarly, is_due, || {
                    format!("{} on {worker} is ended too early: {reason:?}", session.id)
                });
            }
            Subject::Launch(_, image) => {
                // EC2 refuses images of the other account; it launches public ones of any account.
                let is_public = image == PUBLIC_IMAGE;
                oracle.rule(Rule::ImageIsOwn, !is_public, || format!("{image} of another account is launched"));
            }
            Subject::Import(_, instances, _) => self.check_import(&mut oracle, instances),
            Subject::Submit { .. }
            | Subject::Describe(_)
            | Subject::Read
            | Subject::Start(_)
            | Subject::MoveSession(..)
            | Subject::Note => {}
        }
    }

    /// Checks that a status change is an edge of the table, that a response of EC2 supports it, and that no record is
    /// terminated while its instance is live.
    fn check_status(&self, oracle: &mut Oracle, process: &Process, worker: &Worker, to: WorkerStatus) {
        let Some(current) = self.control_plane.stored_worker(&worker.id) else { return };
        if worker.version.is_some() && worker.version != current.version {
            // The server will refuse it.
            return;
        }
        let from = worker.status;
        let is_edge = from == to || TABLE.iter().any(|edge| (edge.from, edge.to) == (from, to));
        oracle.rule(Rule::EdgeOfTheTable, is_edge, || {
            format!("{}: {from} → {to} is not an edge of the table", worker.id)
        });
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
        let is_supported = seen.is_some_and(|at| at.elapsed() < MAX_EVIDENCE_AGE);
        oracle.rule(Rule::EvidenceSupportsStatus, is_supported, || {
            format!("{}: {from} → {to} without evidence from EC2: {evidence:?}", worker.id)
        });
        if to == WorkerStatus::Terminated {
            let is_live = self.instance(id).is_some_and(|instance| instance.state.is_live());
            oracle.rule(Rule::LiveWorkerIsNotTerminated, !is_live, || {
                format!("{} is terminated while {id} is live", worker.id)
            });
        }
    }

    /// Checks that a request of an operator that the controller has not seen is not overwritten.
    fn check_desired_status(&self, oracle: &mut Oracle, worker: &Worker, patch: &Patch) {
        let Some(current) = self.control_plane.stored_worker(&worker.id) else { return };
        if patch.changes.desired_status.is_some() && self.setup.versions == lcm_sdk::providers::memory::Versions::Kept {
            let is_guarded = patch.expected_version.is_some();
            oracle.rule(Rule::CommandIsConditional, is_guarded, || {
                format!(
                    "{}: the desired status is written over version {:?} without a condition",
                    worker.id, current.version
                )
            });
        }
    }

    /// Checks that scale-down keeps the minimum of the fleet. The check is skipped while faults occur, because the count
    /// may then be outdated.
    fn check_scale_down(&self, oracle: &mut Oracle, worker: &Worker, patch: &Patch) {
        let Some(current) = self.control_plane.stored_worker(&worker.id) else { return };
        let refused = worker.version.is_some() && patch.expected_version != current.version;
        if patch.changes.scaled_down_at.is_some() && !refused && oracle.disturbed_at.elapsed() > PROPAGATION {
            let others = self.workers().into_iter().filter(|other| other.id != worker.id);
            let left = FleetView::from_workers(&others.collect::<Vec<_>>(), self.clock.true_time()).running;
            oracle.rule(Rule::MinimumOfFleet, left >= MIN_WORKERS, || {
                format!("{} is scaled down to {left} running workers; the minimum is {MIN_WORKERS}", worker.id)
            });
        }
    }

    /// Checks that a stop ends no session before its deadline.
    fn check_stop(&self, oracle: &mut Oracle, id: &InstanceId) {
        let Some(instance) = self.instance(id) else { return };
        let owner = self.workers().into_iter().find(|worker| worker.ec2_instance_id.as_ref() == Some(id));
        let Some(worker) = owner.filter(|_| instance.state == Ec2State::Running) else { return };
        let sessions: Vec<_> = self.background.lock().sessions.iter().map(|(id, since)| (id.clone(), *since)).collect();
        for (session, since) in sessions {
            let is_active = self.control_plane.stored_session(&session).is_some_and(|session| {
                session.worker_id.as_ref() == Some(&worker.id) && session.state.phase() == SessionPhase::Active
            });
            if is_active && since.is_some_and(|since| since.elapsed() > PROPAGATION) {
                let requested =
                    oracle.was_requested(&worker.id, PROPAGATION, |request, _| request == OperatorRequest::Stop);
                let is_allowed = requested || may_force(oracle, &worker.id);
                oracle.rule(Rule::SessionIsNotEndedEarly, is_allowed, || {
                    format!("{} is stopped with active session {session} and without a request", worker.id)
                });
            }
        }
    }

    /// Checks that a registration is reported only after a CML server received its token.
    fn check_license_report(&self, oracle: &mut Oracle, worker: &WorkerId, report: LicenseReport) {
        let Some(record) = self.control_plane.stored_worker(worker) else { return };
        if report != LicenseReport::CompleteRegistration {
            return;
        }
        let Some(token) = record.license.pending_token.as_ref().map(|token| token.expose().to_owned()) else { return };
        let is_submitted = oracle.submitted.keys().any(|(_, submitted)| *submitted == token);
        oracle.rule(Rule::LicenseIsRegisteredOnce, is_submitted, || {
            format!("{worker}: {token} is reported as registered but was never submitted")
        });
    }

    /// Records a change that was carried out, and checks that no token is registered twice.
    pub(crate) fn record_change(&self, call: &Call, done: bool) {
        if let (Subject::Write(about, _), true) = (&call.subject, done)
            && about.1.status == Some(WorkerStatus::Draining)
        {
            // Only scale-down begins a drain on the controller's side.
            self.oracle.lock().request(&about.0.id, OperatorRequest::Drain);
        }
        if call.changes_cloud() {
            self.wake();
        }
        if let (Subject::Submit { address, token: Some(token) }, true) = (&call.subject, done) {
            let mut oracle = self.oracle.lock();
            let times = oracle.submitted.entry((address.clone(), token.clone())).or_default();
            *times += 1;
            let times = *times;
            oracle.rule(Rule::LicenseIsRegisteredOnce, times == 1, || {
                format!("{token} is registered {times} times at {address}")
            });
        }
        self.check();
    }

    /// Checks the rules that hold at every moment.
    pub(crate) fn check(&self) {
        let now = Instant::now();
        // The records that name each instance, and those of them that are not terminated.
        let mut named: BTreeMap<InstanceId, (usize, usize)> = BTreeMap::new();
        self.control_plane.each_worker(|worker| {
            let Some(id) = &worker.ec2_instance_id else { return };
            let is_active = usize::from(worker.status != WorkerStatus::Terminated);
            match named.get_mut(id) {
                Some((all, active)) => (*all, *active) = (*all + 1, *active + is_active),
                None => drop(named.insert(id.clone(), (1, is_active))),
            }
        });
        let mut owned: BTreeMap<String, Vec<InstanceId>> = BTreeMap::new();
        let mut oracle = self.oracle.lock();
        let mut unowned = BTreeMap::new();
        self.each_instance(|instance| {
            if !instance.state.is_live() {
                return;
            }
            let (all, active) = named.get(&instance.id).copied().unwrap_or_default();
            if is_of_another_control_plane(instance) {
                oracle.rule(Rule::ForeignInstanceIsLeftAlone, all == 0, || format!("{} is imported", instance.id));
                return;
            }
            if let Some(owner) = instance.owner() {
                owned.entry(owner.to_owned()).or_default().push(instance.id.clone());
            }
            if active != 1 {
                let since = oracle.unowned.get(&instance.id).copied().unwrap_or(now);
                unowned.insert(instance.id.clone(), since);
            }
        });
        let late = oracle.awaited.iter().find(|(_, since)| since.elapsed() > MAX_START).map(|(id, _)| id.clone());
        oracle.rule(Rule::ChangeStartsInTime, late.is_none(), || {
            format!("the change of {} was not begun within {MAX_START:?}", late.expect("a worker"))
        });
        let disturbed_at = oracle.disturbed_at;
        oracle.unowned = unowned;
        let longest = MAX_ORPHAN_AGE + 2 * self.setup.discovery_interval.saturating_sub(Duration::from_secs(60));
        let orphan = oracle.unowned.iter().find(|(_, since)| since.max(&&disturbed_at).elapsed() > longest);
        let orphan = orphan.map(|(id, _)| id.clone());
        oracle.rule(Rule::InstanceHasAnOwner, orphan.is_none(), || {
            format!("{} is live and has no owner", orphan.expect("an orphan"))
        });
        for (worker, instances) in owned {
            oracle.rule(Rule::OneInstancePerWorker, instances.len() == 1, || {
                format!("{worker} has several live instances: {instances:?}")
            });
        }
    }
}

impl World {
    /// Notes the first call for a worker whose change is awaited.
    fn note_start(&self, worker: &str) {
        let mut oracle = self.oracle.lock();
        if let Some(since) = oracle.awaited.remove(&WorkerId::from(worker)) {
            let waited = since.elapsed();
            oracle.slowest_start = oracle.slowest_start.max(Some(waited));
            oracle.rule(Rule::ChangeStartsInTime, waited <= MAX_START, || {
                format!("the change of {worker} was begun after {waited:?}")
            });
        }
    }

    /// Checks that writes to one record are not repeated without a pause.
    pub(crate) fn check_write_rate(&self, worker: &WorkerId) {
        self.oracle.lock().check_rate(format!("writes to {worker}"), MAX_WRITES, Duration::from_secs(10));
    }

    /// Checks that scans are not repeated without a pause, and that there is none while discovery is off.
    pub(crate) fn check_scan(&self, process: &Process) {
        let mut oracle = self.oracle.lock();
        let most = MAX_SCANS * self.setup.regions.len();
        oracle.check_rate(format!("scans of {}", process.identity), most, Duration::from_secs(30));
        let is_off = oracle.knows_discovery_off.contains(&process.number);
        oracle.rule(Rule::DiscoveryStaysOff, !is_off, || format!("{} scans", process.identity));
    }

    /// Checks that a password or token goes to an address that belongs to one of our instances, or did a moment ago.
    pub(crate) fn check_address(&self, at: &CmlTarget) {
        let is_used = |instance: &Instance| {
            [&instance.public_ip, &instance.private_ip].into_iter().flatten().any(|address| *address == at.address)
        };
        let seen_at = self.background.lock().addresses.get(&at.address).copied();
        let was_used = seen_at.is_some_and(|seen_at| seen_at.elapsed() < PROPAGATION);
        let is_own = was_used || {
            let mut is_own = false;
            self.each_instance(|instance| is_own |= is_used(instance));
            is_own
        };
        let mut oracle = self.oracle.lock();
        oracle.rule(Rule::AddressIsOwn, is_own, || format!("credentials are sent to {}", at.address));
    }

    /// Refuses a change of a session that the server holds on to.
    pub(crate) fn check_stuck(&self, session: &SessionId) -> Result<(), CallFailure> {
        if self.stuck_sessions.lock().contains(session) {
            return Err(CallFailure::with_code(FailureKind::Refused, "403", "the session is locked"));
        }
        Ok(())
    }

    /// Counts the announcements of a drain that timed out.
    pub(crate) fn record_event(&self, event: &CloudEvent) {
        if event.kind == "cml_worker.drain.timed_out.v1" {
            let mut oracle = self.oracle.lock();
            let times = oracle.timed_out.entry(WorkerId::from(event.subject.as_str())).or_default();
            *times += 1;
            let times = *times;
            oracle.rule(Rule::TimedOutIsAnnouncedOnce, times <= MAX_ANNOUNCEMENTS, || {
                format!("the end of the drain of {} is announced {times} times", event.subject)
            });
        }
    }

    /// Checks that no instance of another account becomes a record. Without any record of its own a control plane cannot
    /// tell.
    fn check_import(&self, oracle: &mut Oracle, instances: &[InstanceId]) {
        let is_own = instances.iter().all(|id| self.instance(id).is_some());
        let has_records = self.workers().iter().any(|worker| {
            !matches!(worker.status, WorkerStatus::Pending | WorkerStatus::Terminated)
                && worker.ec2_instance_id.is_some()
        });
        oracle.rule(Rule::AccountIsProved, is_own || !has_records, || format!("{instances:?} are imported"));
    }
}

/// Whether an instance carries the tags of a control plane that is not ours.
fn is_of_another_control_plane(instance: &Instance) -> bool {
    instance.owner().is_some_and(|owner| owner.starts_with("staging-"))
}

/// Whether a drain may be past its deadline, given the largest clock error.
fn may_force(oracle: &Oracle, worker: &WorkerId) -> bool {
    let slack = Duration::from_secs(2 * MAX_CLOCK_ERROR.unsigned_abs() + 1);
    oracle.was_requested(worker, PROPAGATION, |request, since| {
        request == OperatorRequest::Stop
            || (request == OperatorRequest::Drain && since.elapsed() + slack >= DRAIN_TIMEOUT)
    })
}
