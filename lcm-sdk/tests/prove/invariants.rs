//! The rules, and when they are held against what happens: at every call that is sent, at every change that is carried
//! out, and at every second.

use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::controller::election::ElectionConfig;
use lcm_sdk::lifecycle::transition::TABLE;
use lcm_sdk::lifecycle::{LicenseReport, SessionEnd, SessionStanding};
use lcm_sdk::{
    DesiredStatus, Ec2State, FleetView, Instance, InstanceId, Lookup, Patch, Worker, WorkerId, WorkerStatus,
};
use tokio::time::Instant;

use super::call::{Call, Matter};
use super::faults::{Fault, What, by_chance};
use super::ledger::{Ledger, Wish};
use super::process::{Process, Sending};
use super::world::{DRAIN_TIMEOUT, HERE, LONGEST_LAG, MIN_WORKERS, WRONG_CLOCK, World};

/// How long ago a controller may have seen what it acts on: calls are slow here, and a pass makes several.
const MEMORY: Duration = Duration::from_secs(120);

/// How long somebody's wish or session may be new to a controller that is about to act.
const NEWS: Duration = Duration::from_secs(60);

/// How long a live instance may be without an owner once nothing disturbs any more.
const ORPHANED: Duration = Duration::from_secs(400);

/// How long after a leadership what was done under it is still written down.
const LATE: Duration = Duration::from_secs(60);

/// How long a lease that etcd lost before its time is believed in.
const LEASE: Duration = Duration::from_secs(16);

impl World {
    /// A call is sent: it is counted, it may go wrong, and whoever changes the cloud must lead.
    pub(crate) fn send(&self, process: &Process, call: &Call) -> Sending {
        let number = {
            let mut ledger = self.ledger.lock();
            ledger.steps += 1;
            ledger.effects += u64::from(call.is_effect());
            ledger.calls.push(call.does());
            ledger.steps
        };
        self.check_lead(process, call);
        let (permille, planned) = {
            let trouble = self.trouble.lock();
            (trouble.permille, trouble.planned.iter().find(|(at, _)| *at == number).map(|(_, what)| *what))
        };
        let mut dice = self.dice.lock();
        let (mut way, back) = (dice.millis(2, 80), dice.millis(2, 80));
        let has_left = dice.roll(2) == 0;
        let mut fault = Fault::None;
        // Most calls are questions; the few that change something are where it hurts.
        let permille = if call.is_effect() { permille * 3 } else { permille };
        if dice.chance(permille) {
            let (chosen, word) = by_chance(&mut dice, call);
            fault = chosen;
            self.ledger.lock().fault(word);
        } else if dice.chance(permille / 2) {
            way += dice.millis(1_000, 12_000);
            self.ledger.lock().fault("slow call");
        }
        drop(dice);
        match planned {
            None => {}
            Some(What::Happens(planned)) => {
                fault = planned;
                self.ledger.lock().struck |= planned != Fault::Stale;
                self.tell(format!("here: {planned:?} at {} {}", call.name, call.about));
            }
            Some(What::Pair(pair)) => {
                self.ledger.lock().struck = true;
                self.cancel_out(pair);
            }
        }
        Sending { way, back, fault, has_left }
    }

    /// Sets the scene for a change that is about to be carried out.
    pub(crate) fn prepare(&self, call: &Call, fault: Fault) {
        match (&call.matter, fault) {
            (Matter::Write(about, _), Fault::Meddle) => {
                self.edit(&about.0.id, |worker| worker.name = Some("renamed".to_owned()));
            }
            (Matter::Write(..), Fault::CutWrite) => self.control_plane.cut_next_write(),
            _ => {}
        }
    }

    /// EC2 launched something, and may not show it yet.
    pub(crate) fn launched(&self, id: &InstanceId) {
        if self.nature.lock().born.insert(id.clone(), Instant::now()).is_some() {
            // The same launch once more: it has been there all the time.
            return;
        }
        let permille = self.trouble.lock().lag_permille;
        if self.dice.lock().chance(permille) {
            self.ledger.lock().fault("visibility lag");
            let lag = self.dice.lock().millis(5_000, LONGEST_LAG * 1000);
            self.hide(id, lag);
        }
    }

    /// A controller was told something about an instance.
    pub(crate) fn heard(&self, process: &Process, id: &InstanceId, answer: &Lookup<Instance>) {
        let mut ledger = self.ledger.lock();
        let evidence = ledger.evidence.entry((process.number, id.clone())).or_default();
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

    /// Every change of the cloud is made by a valid leader, every write by one who was just now.
    fn check_lead(&self, process: &Process, call: &Call) {
        if self.setup.controllers < 2 || (call.fence().is_none() && !call.changes_cloud()) {
            return;
        }
        let holds = self.etcd.value(ElectionConfig::WORKER_CONTROLLER).as_deref() == Some(&process.identity);
        let mut ledger = self.ledger.lock();
        if holds && let Some(term) = ledger.terms.get_mut(&process.number) {
            term.held_at = Instant::now();
        }
        let forced = ledger.leases_lost_at.is_some_and(|at| at.elapsed() < LEASE);
        let term = ledger.terms.get(&process.number).cloned();
        if call.changes_cloud() {
            ledger.rule(holds || forced, || {
                format!("{} does {} {} and does not lead", process.identity, call.name, call.about)
            });
        }
        if let Some(fence) = call.fence() {
            let own = term.as_ref().map_or(&[][..], |term| term.tokens.as_slice());
            let is_own = fence.0.is_some_and(|fence| own.contains(&fence));
            ledger.rule(is_own, || format!("{} writes with {fence:?}, its own tokens are {own:?}", process.identity));
            let recent = term.as_ref().is_some_and(|term| term.held_at.elapsed() < LATE);
            ledger.rule(recent, || {
                format!("{} writes long after it led: {} {}", process.identity, call.name, call.about)
            });
        }
    }

    /// A change is about to be carried out: is it one that may be?
    pub(crate) fn judge(&self, process: &Process, call: &Call) {
        let mut ledger = self.ledger.lock();
        match &call.matter {
            Matter::Write(about, _) => {
                let (worker, patch) = &**about;
                if let Some(to) = patch.status {
                    self.judge_status(&mut ledger, process, worker, to);
                }
                if let Some(report) = patch.changes.license_report {
                    self.judge_license(&mut ledger, &worker.id, report);
                }
                self.judge_desired(&mut ledger, worker, patch);
                self.judge_scale_down(&mut ledger, worker, patch);
            }
            Matter::License(worker, report, _) => self.judge_license(&mut ledger, worker, *report),
            Matter::Stop(id) | Matter::Terminate(id) => self.judge_stop(&mut ledger, id),
            Matter::EndSession(session, reason, _) => {
                let Some(session) = self.control_plane.look_at_session(session) else { return };
                let Some(worker) = &session.worker_id else { return };
                let fine = match reason {
                    SessionEnd::DrainTimeout => may_force(&ledger, worker),
                    SessionEnd::MaxRetriesExceeded => session.retry_count >= self.policy.max_session_retries,
                    SessionEnd::WorkerStoppedDuringRetry => {
                        matches!(session.state.standing(), SessionStanding::Failed | SessionStanding::Over)
                    }
                };
                ledger.rule(fine, || format!("{} on {worker} is ended too early: {reason:?}", session.id));
            }
            Matter::Submit { .. }
            | Matter::Describe(_)
            | Matter::Read
            | Matter::Launch
            | Matter::Start
            | Matter::MoveSession(_)
            | Matter::Import(_)
            | Matter::Note => {}
        }
    }

    /// Only edges of the table; nothing is concluded from no answer; nobody is terminated while his instance lives.
    fn judge_status(&self, ledger: &mut Ledger, process: &Process, worker: &Worker, to: WorkerStatus) {
        let Some(current) = self.control_plane.look(&worker.id) else { return };
        if worker.version.is_some() && worker.version != current.version {
            // It will be refused.
            return;
        }
        let from = worker.status;
        let is_edge = from == to || TABLE.iter().any(|edge| (edge.from, edge.to) == (from, to));
        ledger.rule(is_edge, || format!("{}: {from} → {to} is no edge of the table", worker.id));
        let Some(id) = &worker.ec2_instance_id else { return };
        let evidence = ledger.evidence.get(&(process.number, id.clone())).copied().unwrap_or_default();
        let commanded = matches!(worker.desired_status, Some(DesiredStatus::Stopped | DesiredStatus::Terminated));
        let seen = match to {
            // What an operator commands needs no evidence.
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
        ledger.rule(backed, || format!("{}: {from} → {to}, and EC2 did not say so: {evidence:?}", worker.id));
        if to == WorkerStatus::Terminated {
            let lives = self.instance(id).is_some_and(|instance| instance.state.is_live());
            ledger.rule(!lives, || format!("{} is terminated while {id} lives", worker.id));
        }
    }

    /// A wish of an operator that was not told to us yet is not overwritten.
    fn judge_desired(&self, ledger: &mut Ledger, worker: &Worker, patch: &Patch) {
        let Some(current) = self.control_plane.look(&worker.id) else { return };
        if patch.changes.desired_status.is_some() && self.setup.versions == lcm_sdk::providers::memory::Versions::Kept {
            let guarded = patch.expected_version.is_some();
            ledger.rule(guarded, || format!("{}: a wish is written over {:?} unguarded", worker.id, current.version));
        }
    }

    /// Nobody is sent home who is needed. While things change behind our back the count may be wrong by the time it is
    /// used; once they do not, it may not.
    fn judge_scale_down(&self, ledger: &mut Ledger, worker: &Worker, patch: &Patch) {
        let Some(current) = self.control_plane.look(&worker.id) else { return };
        let refused = worker.version.is_some() && patch.expected_version != current.version;
        if patch.changes.scaled_down_at.is_some() && !refused && ledger.disturbed_at.elapsed() > NEWS {
            let others = self.workers().into_iter().filter(|other| other.id != worker.id);
            let left = FleetView::from_workers(&others.collect::<Vec<_>>()).running;
            ledger.rule(left >= MIN_WORKERS, || format!("{} is scaled down, and {left} are left", worker.id));
        }
    }

    /// No session is hurt before its time.
    fn judge_stop(&self, ledger: &mut Ledger, id: &InstanceId) {
        let Some(instance) = self.instance(id) else { return };
        let owner = self.workers().into_iter().find(|worker| worker.ec2_instance_id.as_ref() == Some(id));
        let Some(worker) = owner.filter(|_| instance.state == Ec2State::Running) else { return };
        let sessions: Vec<_> = self.nature.lock().sessions.iter().map(|(id, since)| (id.clone(), *since)).collect();
        for (session, since) in sessions {
            let hurt = self.control_plane.look_at_session(&session).is_some_and(|session| {
                session.worker_id.as_ref() == Some(&worker.id) && session.state.standing() == SessionStanding::Active
            });
            if hurt && since.is_some_and(|since| since.elapsed() > NEWS) {
                let wanted = ledger.wished(&worker.id, NEWS, |wish, _| wish == Wish::Stop);
                let fine = wanted || may_force(ledger, &worker.id);
                ledger.rule(fine, || format!("{} is stopped under {session}, which nobody wanted", worker.id));
            }
        }
    }

    /// What is reported about a licence is what CML did, and an intent is carried out once.
    fn judge_license(&self, ledger: &mut Ledger, worker: &WorkerId, report: LicenseReport) {
        let Some(record) = self.control_plane.look(worker) else { return };
        if report != LicenseReport::CompleteRegistration {
            return;
        }
        let Some(token) = record.license.pending_token.as_ref().map(|token| token.expose().to_owned()) else { return };
        let taken = ledger.submitted.keys().any(|(_, submitted)| *submitted == token);
        ledger.rule(taken, || format!("{worker}: {token} is reported as registered, and no CML ever saw it"));
    }

    /// A change was carried out.
    pub(crate) fn carried_out(&self, call: &Call, done: bool) {
        if let (Matter::Write(about, _), true) = (&call.matter, done)
            && about.1.status == Some(WorkerStatus::Draining)
        {
            // Nobody but scale-down begins a drain on our side.
            self.ledger.lock().wish(&about.0.id, Wish::Drain);
        }
        if let (Matter::Submit { address, token: Some(token) }, true) = (&call.matter, done) {
            let mut ledger = self.ledger.lock();
            let times = ledger.submitted.entry((address.clone(), token.clone())).or_default();
            *times += 1;
            let times = *times;
            ledger.rule(times == 1, || format!("{token} is registered {times} times at {address}"));
        }
        self.check();
    }

    /// What must hold at every moment.
    pub(crate) fn check(&self) {
        let (now, instances, workers) = (Instant::now(), self.compute.all(HERE), self.workers());
        let mut owned: BTreeMap<&str, Vec<&InstanceId>> = BTreeMap::new();
        let mut ledger = self.ledger.lock();
        let mut unowned = BTreeMap::new();
        for instance in instances.iter().filter(|instance| instance.state.is_live()) {
            if let Some(owner) = instance.owner() {
                owned.entry(owner).or_default().push(&instance.id);
            }
            let owners = workers.iter().filter(|worker| {
                worker.ec2_instance_id.as_ref() == Some(&instance.id) && worker.status != WorkerStatus::Terminated
            });
            if owners.count() != 1 {
                let since = ledger.unowned.get(&instance.id).copied().unwrap_or(now);
                unowned.insert(instance.id.clone(), since);
            }
        }
        let disturbed_at = ledger.disturbed_at;
        ledger.unowned = unowned;
        let forgotten = ledger.unowned.iter().find(|(_, since)| since.max(&&disturbed_at).elapsed() > ORPHANED);
        let forgotten = forgotten.map(|(id, _)| id.clone());
        ledger.rule(forgotten.is_none(), || format!("{} lives and has no owner", forgotten.expect("some")));
        for (worker, instances) in owned {
            ledger.rule(instances.len() == 1, || format!("{worker} has {instances:?}"));
        }
    }
}

/// Whether a drain is past its deadline, as far as clocks that are wrong can tell.
fn may_force(ledger: &Ledger, worker: &WorkerId) -> bool {
    let slack = Duration::from_secs(2 * WRONG_CLOCK.unsigned_abs() + 1);
    ledger.wished(worker, NEWS, |wish, since| {
        wish == Wish::Stop || (wish == Wish::Drain && since.elapsed() + slack >= DRAIN_TIMEOUT)
    })
}
