//! A model of election, fencing and launch, small enough to check every history.
//!
//! Decisions come from the real lifecycle: `decide` and `record`, over real records. The model covers the rest: a lease
//! counted from when its renewal was sent, calls in flight while time passes, lost responses, controllers that crash or
//! are cut off, an EC2 that does not show a new instance yet.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::trust::Place;
use lcm_sdk::lifecycle::{Change, Changes, LaunchedInstance};
use lcm_sdk::{
    Applied, CallFailure, Decision, Ec2State, Effect, EffectResult, FailureKind, Image, Instance, Lookup, Observation,
    Patch, Policy, Query, RegionConfig, RegionConfigs, Template, Timestamp, Worker, WorkerStatus, decide, queries,
    record,
};

/// Duration of a lease in ticks of five seconds. It is trusted for `MARGIN` less.
pub(crate) const LEASE: u8 = 3;
const MARGIN: u8 = 1;

/// A deliberate defect of the controllers, which the model must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// A former leader believes that it still leads.
    LeaseNotChecked,
    /// Every launch has its own token.
    UniqueToken,
}

/// The protection against writes of a former leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The server keeps versions and ignores fencing tokens.
    Versions,
    /// The server keeps no versions and refuses a token older than one it has accepted.
    Fences,
    /// The server accepts every write.
    None,
}

/// Configuration of controllers and server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) flaw: Flaw,
    pub(crate) guard: Guard,
}

/// A value that is hashed by its debug output.
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
    /// Whether a write of an older leader was accepted after one of a newer leader.
    pub(crate) stale_write_accepted: bool,
    pub(crate) instances: Vec<Launched>,
    pub(crate) calls: Vec<Sent>,
    /// Number of faults that may still occur.
    pub(crate) faults_left: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Controller {
    /// Number of crashes. Responses to calls from before a crash are dropped.
    pub(crate) crashes: u8,
    /// Since when it is cut off from etcd.
    pub(crate) cut_off: Option<u8>,
    /// Its token and until when it may act.
    pub(crate) lead: Option<(u8, u8)>,
    pub(crate) renewed_at: u8,
    pub(crate) reconcile: Option<Reconcile>,
}

/// A reconcile in progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reconcile {
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
    visible_from: u8,
}

/// A call in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) controller: usize,
    pub(crate) crashes: u8,
    pub(crate) at: u8,
    fence: u8,
    request: ByDebug<Request>,
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
        worker.created_at = Some(timestamp(0));
        let idle = Controller { crashes: 0, cut_off: None, lead: None, renewed_at: 0, reconcile: None };
        Self {
            time: 0,
            key: None,
            next_token: 1,
            controllers: vec![idle; controllers],
            record: ByDebug(worker),
            highest_fence: 0,
            stale_write_accepted: false,
            instances: Vec::new(),
            calls: Vec::new(),
            faults_left: faults,
        }
    }

    pub(crate) fn leads(&self, index: usize, flaw: Flaw) -> bool {
        self.controllers[index].lead.is_some_and(|(_, until)| flaw == Flaw::LeaseNotChecked || self.time < until)
    }

    pub(crate) fn is_in_service(&self) -> bool {
        self.record.0.status == WorkerStatus::Running && self.record.0.ec2_instance_id.is_some()
    }

    /// The key is free: this controller takes it.
    pub(crate) fn claim(&mut self, index: usize) {
        self.key = Some((index, self.next_token, self.time + LEASE));
        self.controllers[index].lead = Some((self.next_token, self.time + LEASE - MARGIN));
        self.controllers[index].renewed_at = self.time;
        self.next_token += 1;
    }

    pub(crate) fn renew(&mut self, index: usize) {
        let Some((holder, token, _)) = self.key.filter(|(holder, ..)| *holder == index) else { return };
        self.key = Some((holder, token, self.time + LEASE));
        self.controllers[index].lead = Some((token, self.time + LEASE - MARGIN));
        self.controllers[index].renewed_at = self.time;
    }

    /// Time passes; a lease that was not renewed ends.
    pub(crate) fn tick(&mut self, flaw: Flaw) {
        self.time += 1;
        self.key = self.key.filter(|(_, _, until)| self.time < *until);
        for index in 0..self.controllers.len() {
            if !self.leads(index, flaw) {
                self.controllers[index].lead = None;
            }
        }
    }

    pub(crate) fn crash(&mut self, index: usize) {
        let crashes = self.controllers[index].crashes + 1;
        self.controllers[index] = Controller { crashes, cut_off: None, lead: None, renewed_at: 0, reconcile: None };
    }

    /// Observes record and cloud, and decides.
    pub(crate) fn observe(&mut self, index: usize) {
        let worker = self.record.0.clone();
        let (now, policy) = (timestamp(self.time), policy());
        let mut observation = Observation::default();
        loop {
            let due = queries(&worker, &observation, &policy, now);
            if due.is_empty() {
                break;
            }
            for query in due.iter() {
                match query {
                    Query::Instance => {
                        let found =
                            self.visible().find(|instance| Some(&instance.id) == worker.ec2_instance_id.as_ref());
                        observation.instance = found.map_or(Lookup::Absent, Lookup::Found);
                    }
                    Query::Tagged => observation.tagged = Lookup::Found(self.visible().collect()),
                    Query::Place => observation.place = Lookup::Found(Place::default().with_sighting(now)),
                    Query::Template => observation.template = Lookup::Found(Template::new("metal", "m5zn.metal")),
                    Query::Images => {
                        let (id, name, creation_date) = ("ami-1".into(), "cisco-cml".into(), "2026".into());
                        observation.images = Lookup::Found(vec![Image { id, name, creation_date }]);
                    }
                    other => panic!("{other:?} is not part of this model"),
                }
            }
        }
        let decision = decide(&worker, &observation, &policy, now);
        let fence = self.controllers[index].lead.map_or(0, |(token, _)| token);
        if decision.does_nothing() {
            return;
        }
        self.controllers[index].reconcile = Some(Reconcile {
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

    fn visible(&self) -> impl Iterator<Item = Instance> {
        let (time, instances) = (self.time, self.instances.clone());
        instances.into_iter().enumerate().filter(move |(_, launched)| launched.visible_from <= time).map(
            move |(number, launched)| {
                let state = if launched.at < time { Ec2State::Running } else { Ec2State::Pending };
                let mut instance = Instance::new(format!("i-{number}"), state);
                instance.client_token = Some(launched.token);
                instance.launched_at = Some(timestamp(launched.at));
                instance.private_ip = Some("10.0.0.1".to_owned());
                instance.tags.insert("lcm:worker_id".to_owned(), "w-1".to_owned());
                instance
            },
        )
    }

    /// Sends the next effect of a reconcile if the lease is valid; at the end, the patch.
    pub(crate) fn send(&mut self, index: usize, flaw: Flaw) {
        let leads = self.leads(index, flaw);
        let (crashes, time) = (self.controllers[index].crashes, self.time);
        let Some(reconcile) = &mut self.controllers[index].reconcile else { return };
        let failed = reconcile.results.0.iter().any(|result| matches!(result, EffectResult::Failed(_)));
        let next = reconcile.decision.0.effects.get(reconcile.results.0.len()).filter(|_| leads && !failed).cloned();
        let request = match next {
            Some(Effect::RecordLaunchPlan { plan }) => {
                let begun_at = timestamp(time);
                let changes =
                    Changes { launch_plan: Change::Set(plan), launched_at: Some(begun_at), ..Changes::default() };
                let mut patch = Patch::from_changes(&reconcile.worker.0, changes, begun_at);
                patch.expected_version = reconcile.version.or(patch.expected_version);
                Request::Note(Box::new(patch))
            }
            Some(Effect::LaunchInstance { plan, .. }) => Request::Launch(plan),
            Some(other) => panic!("{other} is not part of this model"),
            None => {
                let applied = Applied {
                    decision: reconcile.decision.0.clone(),
                    results: reconcile.results.0.clone(),
                    at: timestamp(reconcile.at),
                    version: reconcile.version,
                };
                let patch = record(&reconcile.worker.0, &applied).patch;
                let has_effects = !reconcile.results.0.is_empty();
                if patch.is_empty() || (!leads && !has_effects) {
                    self.controllers[index].reconcile = None;
                    return;
                }
                reconcile.is_written = true;
                Request::Write(Box::new(patch))
            }
        };
        reconcile.is_waiting = true;
        let fence = reconcile.fence;
        self.calls.push(Sent { controller: index, crashes, at: time, fence, request: ByDebug(request) });
    }

    /// A call arrives and is carried out; its response may be lost.
    pub(crate) fn arrive(&mut self, number: usize, arrival: Arrival, variant: Variant) {
        let sent = self.calls.remove(number);
        let result = match &sent.request.0 {
            Request::Launch(plan) => self.launch(plan, sent.at, arrival, variant.flaw),
            Request::Note(patch) | Request::Write(patch) => self.write(patch, sent.fence, variant.guard),
        };
        let controller = &mut self.controllers[sent.controller];
        let Some(reconcile) = controller.reconcile.as_mut().filter(|_| controller.crashes == sent.crashes) else {
            return;
        };
        if reconcile.is_written {
            controller.reconcile = None;
            return;
        }
        let lost = || EffectResult::Failed(CallFailure::new(FailureKind::Unclear, "lost"));
        reconcile.is_waiting = false;
        reconcile.results.0.push(if arrival == Arrival::ResponseLost { lost() } else { result });
        if matches!((&sent.request.0, arrival), (Request::Note(_), Arrival::Delivered)) {
            reconcile.version = self.record.0.version;
        }
    }

    fn launch(&mut self, plan: &LaunchPlan, sent_at: u8, arrival: Arrival, flaw: Flaw) -> EffectResult {
        let known = self.instances.iter().position(|launched| launched.token == plan.client_token);
        let number = known.filter(|_| flaw != Flaw::UniqueToken).unwrap_or_else(|| {
            let visible_from = if arrival == Arrival::VisibilityLag { self.time + 2 } else { self.time };
            self.instances.push(Launched { token: plan.client_token.clone(), at: self.time, visible_from });
            self.instances.len() - 1
        });
        let id = format!("i-{number}").into();
        EffectResult::Launched(LaunchedInstance { id, requested_at: timestamp(sent_at) })
    }

    fn write(&mut self, patch: &Patch, fence: u8, guard: Guard) -> EffectResult {
        let is_refused = match guard {
            Guard::Versions => patch.expected_version != self.record.0.version,
            Guard::Fences => fence < self.highest_fence,
            Guard::None => false,
        };
        if is_refused {
            return EffectResult::Failed(CallFailure::new(FailureKind::Conflict, "another client wrote"));
        }
        self.stale_write_accepted |= fence < self.highest_fence;
        self.highest_fence = self.highest_fence.max(fence);
        let version = self.record.0.version.map(|version| version + 1);
        self.record = ByDebug(patch.apply_to(&self.record.0));
        self.record.0.version = version;
        EffectResult::Done
    }
}

impl Reconcile {
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting
    }
}

/// How a call is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Arrival {
    Delivered,
    ResponseLost,
    /// The launched instance is not shown for a while.
    VisibilityLag,
}

impl Sent {
    pub(crate) fn is_launch(&self) -> bool {
        matches!(self.request.0, Request::Launch(_))
    }
}

fn timestamp(time: u8) -> Timestamp {
    let begin: Timestamp = "2026-02-06T08:00:00Z".parse().expect("a timestamp");
    begin + Duration::from_secs(5 * u64::from(time))
}

fn policy() -> Policy {
    let regions = RegionConfigs::default()
        .with_region("us-east-1", RegionConfig::new("subnet-1", ["sg-1"]))
        .with_default_region("us-east-1");
    Policy { regions, ..Policy::default() }
}
