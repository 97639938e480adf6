//! A model of election, fencing and launch, small enough to walk every history.
//!
//! Decisions come from the real lifecycle: `decide` and `record`, over real records. The model covers the rest: a lease
//! counted from when its renewal was sent, calls in flight while time passes, lost responses, controllers that die or
//! are cut off, an EC2 that does not show a new instance.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::{Change, Changes};
use lcm_sdk::{
    Applied, CallFailure, Decision, Ec2State, Effect, EffectResult, FailureKind, Image, Instance, Lookup, Observation,
    Patch, Policy, Query, RegionConfig, RegionConfigs, Template, Timestamp, Worker, WorkerStatus, decide, queries,
    record,
};

/// A moment is five seconds: a lease lives for three of them, and is trusted for two.
pub(crate) const LEASE: u8 = 3;
const MARGIN: u8 = 1;

/// The flaw of the controllers, to test whether the model detects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// A former leader believes that it still leads.
    LeaseNotLookedAt,
    /// Every launch has its own token.
    TokenOfItsOwn,
}

/// The protection against writes of a former leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The server keeps versions and ignores fencing tokens.
    Versions,
    /// The server keeps no versions and refuses a token older than one it has seen.
    Fences,
    /// No protection.
    Nothing,
}

/// Configuration of controllers and server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Make {
    pub(crate) flaw: Flaw,
    pub(crate) guard: Guard,
}

/// A value in a state: two are equal if their debug output is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ByDebug<T>(pub(crate) T);

impl<T: PartialEq> Eq for ByDebug<T> {}

impl<T: std::fmt::Debug> Hash for ByDebug<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{:?}", self.0).hash(hasher);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) time: u8,
    /// The holder of the key, its token, and until when etcd keeps it.
    pub(crate) key: Option<(usize, u8, u8)>,
    pub(crate) next_token: u8,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) record: ByDebug<Worker>,
    pub(crate) highest_fence: u8,
    /// A write of an older leader was accepted after one of a newer.
    pub(crate) went_back: bool,
    pub(crate) instances: Vec<Launched>,
    pub(crate) calls: Vec<Sent>,
    /// Remaining faults.
    pub(crate) faults_left: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Controller {
    /// Raised with every life: responses to an earlier life are dropped.
    pub(crate) life: u8,
    /// Since when it is cut off from etcd.
    pub(crate) cut_off: Option<u8>,
    /// Its token and until when it may act.
    pub(crate) lead: Option<(u8, u8)>,
    pub(crate) renewed_at: u8,
    pub(crate) pass: Option<Pass>,
}

/// A reconcile in progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pass {
    worker: ByDebug<Worker>,
    decision: ByDebug<Decision>,
    results: ByDebug<Vec<EffectResult>>,
    version: Option<u64>,
    /// The token of the lease it was begun under, which it keeps to its end.
    fence: u8,
    at: u8,
    is_waiting: bool,
    is_written: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Launched {
    pub(crate) token: String,
    at: u8,
    shown_from: u8,
}

/// A call in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) by: usize,
    pub(crate) life: u8,
    pub(crate) at: u8,
    fence: u8,
    what: ByDebug<Request>,
}

#[derive(Debug, Clone, PartialEq)]
enum Request {
    Launch(Box<LaunchPlan>),
    Note(Box<Patch>),
    Write(Box<Patch>),
}

impl State {
    pub(crate) fn new(controllers: usize, faults: u8) -> Self {
        let mut worker = Worker::new("w-1", WorkerStatus::Pending);
        worker.template_name = Some("metal".to_owned());
        worker.version = Some(1);
        worker.created_at = Some(moment(0));
        let idle = Controller { life: 0, cut_off: None, lead: None, renewed_at: 0, pass: None };
        Self {
            time: 0,
            key: None,
            next_token: 1,
            controllers: vec![idle; controllers],
            record: ByDebug(worker),
            highest_fence: 0,
            went_back: false,
            instances: Vec::new(),
            calls: Vec::new(),
            faults_left: faults,
        }
    }

    pub(crate) fn leads(&self, who: usize, flaw: Flaw) -> bool {
        self.controllers[who].lead.is_some_and(|(_, until)| flaw == Flaw::LeaseNotLookedAt || self.time < until)
    }

    pub(crate) fn is_in_service(&self) -> bool {
        self.record.0.status == WorkerStatus::Running && self.record.0.ec2_instance_id.is_some()
    }

    /// The key is free: this controller takes it.
    pub(crate) fn claim(&mut self, who: usize) {
        self.key = Some((who, self.next_token, self.time + LEASE));
        self.controllers[who].lead = Some((self.next_token, self.time + LEASE - MARGIN));
        self.controllers[who].renewed_at = self.time;
        self.next_token += 1;
    }

    pub(crate) fn renew(&mut self, who: usize) {
        let Some((holder, token, _)) = self.key.filter(|(holder, ..)| *holder == who) else { return };
        self.key = Some((holder, token, self.time + LEASE));
        self.controllers[who].lead = Some((token, self.time + LEASE - MARGIN));
        self.controllers[who].renewed_at = self.time;
    }

    /// Time passes; a lease that was not renewed ends.
    pub(crate) fn tick(&mut self, flaw: Flaw) {
        self.time += 1;
        self.key = self.key.filter(|(_, _, until)| self.time < *until);
        for who in 0..self.controllers.len() {
            if !self.leads(who, flaw) {
                self.controllers[who].lead = None;
            }
        }
    }

    pub(crate) fn crash(&mut self, who: usize) {
        let life = self.controllers[who].life + 1;
        self.controllers[who] = Controller { life, cut_off: None, lead: None, renewed_at: 0, pass: None };
    }

    /// Observes record and cloud, and decides.
    pub(crate) fn look(&mut self, who: usize) {
        let worker = self.record.0.clone();
        let (now, policy) = (moment(self.time), policy());
        let mut seen = Observation::default();
        loop {
            let due = queries(&worker, &seen, &policy, now);
            if due.is_empty() {
                break;
            }
            for query in due.iter() {
                match query {
                    Query::Instance => {
                        let shown = self.shown().find(|instance| Some(&instance.id) == worker.ec2_instance_id.as_ref());
                        seen.instance = shown.map_or(Lookup::Absent, Lookup::Found);
                    }
                    Query::Tagged => seen.tagged = Lookup::Found(self.shown().collect()),
                    Query::Template => seen.template = Lookup::Found(Template::new("metal", "m5zn.metal")),
                    Query::Images => {
                        let (id, name, creation_date) = ("ami-1".into(), "cisco-cml".into(), "2026".into());
                        seen.images = Lookup::Found(vec![Image { id, name, creation_date }]);
                    }
                    other => panic!("{other:?} is not part of this model"),
                }
            }
        }
        let decision = decide(&worker, &seen, &policy, now);
        let fence = self.controllers[who].lead.map_or(0, |(token, _)| token);
        if decision.does_nothing() {
            return;
        }
        self.controllers[who].pass = Some(Pass {
            worker: ByDebug(worker),
            decision: ByDebug(decision),
            results: ByDebug(Vec::new()),
            version: None,
            fence,
            at: self.time,
            is_waiting: false,
            is_written: false,
        });
    }

    fn shown(&self) -> impl Iterator<Item = Instance> {
        let (time, instances) = (self.time, self.instances.clone());
        instances.into_iter().enumerate().filter(move |(_, launched)| launched.shown_from <= time).map(
            move |(number, launched)| {
                let state = if launched.at < time { Ec2State::Running } else { Ec2State::Pending };
                let mut instance = Instance::new(format!("i-{number}"), state);
                instance.client_token = Some(launched.token);
                instance.launched_at = Some(moment(launched.at));
                instance.private_ip = Some("10.0.0.1".to_owned());
                instance.tags.insert("lcm:worker_id".to_owned(), "w-1".to_owned());
                instance
            },
        )
    }

    /// Sends the next effect of a reconcile if the lease is valid; at the end, the patch.
    pub(crate) fn send(&mut self, who: usize, flaw: Flaw) {
        let leads = self.leads(who, flaw);
        let (life, time) = (self.controllers[who].life, self.time);
        let Some(pass) = &mut self.controllers[who].pass else { return };
        let failed = pass.results.0.iter().any(|result| matches!(result, EffectResult::Failed(_)));
        let next = pass.decision.0.effects.get(pass.results.0.len()).filter(|_| leads && !failed).cloned();
        let what = match next {
            Some(Effect::RecordLaunchPlan { plan, begun_at }) => {
                let changes =
                    Changes { launch_plan: Change::Set(plan), launched_at: Some(begun_at), ..Changes::default() };
                let mut patch = Patch::from_changes(&pass.worker.0, changes, begun_at);
                patch.expected_version = pass.version.or(patch.expected_version);
                Request::Note(Box::new(patch))
            }
            Some(Effect::LaunchInstance { plan, .. }) => Request::Launch(plan),
            Some(other) => panic!("{other} is not part of this model"),
            None => {
                let applied = Applied {
                    decision: pass.decision.0.clone(),
                    results: pass.results.0.clone(),
                    at: moment(pass.at),
                    version: pass.version,
                };
                let patch = record(&pass.worker.0, &applied).patch;
                let did_something = !pass.results.0.is_empty();
                if patch.is_empty() || (!leads && !did_something) {
                    self.controllers[who].pass = None;
                    return;
                }
                pass.is_written = true;
                Request::Write(Box::new(patch))
            }
        };
        pass.is_waiting = true;
        let fence = pass.fence;
        self.calls.push(Sent { by: who, life, at: time, fence, what: ByDebug(what) });
    }

    /// A call arrives and is carried out; its response may be lost.
    pub(crate) fn arrive(&mut self, number: usize, arrival: Arrival, make: Make) {
        let sent = self.calls.remove(number);
        let result = match &sent.what.0 {
            Request::Launch(plan) => self.launch(plan, arrival, make.flaw),
            Request::Note(patch) | Request::Write(patch) => self.write(patch, sent.fence, make.guard),
        };
        let controller = &mut self.controllers[sent.by];
        let Some(pass) = controller.pass.as_mut().filter(|_| controller.life == sent.life) else { return };
        if pass.is_written {
            controller.pass = None;
            return;
        }
        let lost = || EffectResult::Failed(CallFailure::new(FailureKind::Unclear, "lost"));
        pass.is_waiting = false;
        pass.results.0.push(if arrival == Arrival::AnswerLost { lost() } else { result });
        if matches!((&sent.what.0, arrival), (Request::Note(_), Arrival::Fine)) {
            pass.version = self.record.0.version;
        }
    }

    fn launch(&mut self, plan: &LaunchPlan, arrival: Arrival, flaw: Flaw) -> EffectResult {
        let known = self.instances.iter().position(|launched| launched.token == plan.client_token);
        let number = known.filter(|_| flaw != Flaw::TokenOfItsOwn).unwrap_or_else(|| {
            let shown_from = if arrival == Arrival::ShownLate { self.time + 2 } else { self.time };
            self.instances.push(Launched { token: plan.client_token.clone(), at: self.time, shown_from });
            self.instances.len() - 1
        });
        EffectResult::Launched(format!("i-{number}").into())
    }

    fn write(&mut self, patch: &Patch, fence: u8, guard: Guard) -> EffectResult {
        let is_refused = match guard {
            Guard::Versions => patch.expected_version != self.record.0.version,
            Guard::Fences => fence < self.highest_fence,
            Guard::Nothing => false,
        };
        if is_refused {
            return EffectResult::Failed(CallFailure::new(FailureKind::Conflict, "another client wrote"));
        }
        self.went_back |= fence < self.highest_fence;
        self.highest_fence = self.highest_fence.max(fence);
        let version = self.record.0.version.map(|version| version + 1);
        self.record = ByDebug(patch.apply_to(&self.record.0));
        self.record.0.version = version;
        EffectResult::Done
    }
}

impl Pass {
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting
    }
}

/// The fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Arrival {
    Fine,
    AnswerLost,
    /// The launched instance is not shown for a while.
    ShownLate,
}

impl Sent {
    pub(crate) fn is_launch(&self) -> bool {
        matches!(self.what.0, Request::Launch(_))
    }
}

fn moment(time: u8) -> Timestamp {
    let begin: Timestamp = "2026-02-06T08:00:00Z".parse().expect("a moment");
    begin + Duration::from_secs(5 * u64::from(time))
}

fn policy() -> Policy {
    let regions = RegionConfigs::default()
        .with_region("us-east-1", RegionConfig::new("subnet-1", ["sg-1"]))
        .with_default_region("us-east-1");
    Policy { regions, ..Policy::default() }
}
