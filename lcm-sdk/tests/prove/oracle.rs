//! The history of a world: counted, logged, and checked against the rules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lcm_sdk::ports::LeaseId;
use lcm_sdk::{InstanceId, WorkerId};
use tokio::time::Instant;

use super::call::CallEffect;
use super::clock::SimClock;
use super::rules::Rule;

/// Maximum number of log lines that are printed.
const LOG_LINES: usize = 250;

/// The log of a world, and the state that its rules are checked against.
#[derive(Debug)]
pub(crate) struct Oracle {
    clock: SimClock,
    /// Number of calls.
    pub(crate) steps: u64,
    /// Every call, by its effect.
    pub(crate) calls: Vec<CallEffect>,
    /// Whether the planned event took place.
    pub(crate) injected: bool,
    /// Calls that change something, since the last reset.
    pub(crate) effects: u64,
    /// Number of rules checked.
    pub(crate) checks: u64,
    /// Number of faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<Violation>,
    log: VecDeque<String>,
    /// Whether events are printed as they occur.
    prints_events: bool,
    digest: u64,
    /// The responses about each instance that each controller received, and when.
    pub(crate) evidence: BTreeMap<(u32, InstanceId), Evidence>,
    /// The requests of operators for each worker, and since when.
    pub(crate) requests: BTreeMap<WorkerId, Vec<(OperatorRequest, Instant)>>,
    /// Number of tokens that a CML accepted.
    pub(crate) submitted: BTreeMap<(String, String), u32>,
    /// Live instances that no record names, and since when.
    pub(crate) unowned: BTreeMap<InstanceId, Instant>,
    /// When the world was last changed from outside.
    pub(crate) disturbed_at: Instant,
    /// When etcd last lost leases early.
    pub(crate) leases_lost_at: Option<Instant>,
    /// The fencing tokens each controller won for a leader's key, and when it last held that key.
    pub(crate) terms: BTreeMap<(u32, String), Term>,
    /// The key that a controller holds with a lease.
    pub(crate) leases: BTreeMap<LeaseId, (u32, String)>,
    /// Requests of operators that wait for a controller, and since when.
    pub(crate) awaited: BTreeMap<WorkerId, Instant>,
    /// The longest time from a request to the first call for it, where the script measures it.
    pub(crate) slowest_start: Option<Duration>,
    /// When records were written, and scans made: the latest of each.
    pub(crate) recent_calls: BTreeMap<String, VecDeque<Instant>>,
    /// How often the end of a drain was announced for each worker since it was requested.
    pub(crate) timed_out: BTreeMap<WorkerId, u32>,
    /// The controllers that have read that discovery is switched off.
    pub(crate) knows_discovery_off: BTreeSet<u32>,
}

/// A violated rule.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) text: String,
}

/// The leases of a controller.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    /// Every token it won: a reconcile keeps the one it was begun under.
    pub(crate) tokens: Vec<i64>,
    pub(crate) held_at: Instant,
}

/// When a controller last received a response about an instance.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evidence {
    pub(crate) any: Option<Instant>,
    pub(crate) running: Option<Instant>,
    pub(crate) stopped: Option<Instant>,
    pub(crate) gone: Option<Instant>,
}

/// A request of an operator for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperatorRequest {
    Run,
    /// Wait for the sessions to end, then stop.
    Drain,
    /// Stop regardless of sessions.
    Stop,
}

impl Oracle {
    pub(crate) fn new(clock: &SimClock) -> Self {
        Self {
            clock: clock.clone(),
            steps: 0,
            calls: Vec::new(),
            injected: false,
            effects: 0,
            checks: 0,
            faults: BTreeMap::new(),
            violations: Vec::new(),
            log: VecDeque::new(),
            prints_events: std::env::var_os("LCM_STORY").is_some(),
            digest: 0xcbf2_9ce4_8422_2325,
            evidence: BTreeMap::new(),
            requests: BTreeMap::new(),
            submitted: BTreeMap::new(),
            unowned: BTreeMap::new(),
            disturbed_at: Instant::now(),
            leases_lost_at: None,
            terms: BTreeMap::new(),
            leases: BTreeMap::new(),
            awaited: BTreeMap::new(),
            slowest_start: None,
            recent_calls: BTreeMap::new(),
            timed_out: BTreeMap::new(),
            knows_discovery_off: BTreeSet::new(),
        }
    }

    /// Appends a line with the simulated time to the log and the digest.
    pub(crate) fn log(&mut self, event: &str) {
        let line = format!("{:>9.3} s  {event}", self.clock.seconds());
        for byte in line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.prints_events {
            println!("{line}");
        }
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    /// Counts an injected fault.
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
        self.disturbed_at = Instant::now();
    }

    /// Checks a rule.
    pub(crate) fn rule(&mut self, rule: Rule, holds: bool, violation: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            let violation = violation();
            self.log(&format!("!! {violation}"));
            // The first violations are enough to find the cause.
            if self.violations.len() < 20 {
                let text = format!("{:.1} s: {rule}: {violation}", self.clock.seconds());
                self.violations.push(Violation { rule, text });
            }
        }
    }

    /// Checks that calls of a kind are no more frequent than this.
    pub(crate) fn check_rate(&mut self, calls: String, most: usize, period: Duration) {
        let recent = self.recent_calls.entry(calls.clone()).or_default();
        while recent.front().is_some_and(|at| at.elapsed() > period) {
            recent.pop_front();
        }
        recent.push_back(Instant::now());
        let count = recent.len();
        self.rule(Rule::RateIsBounded, count <= most, || format!("{calls}: {count} times within {period:?}"));
    }

    /// The keys that a controller has led with, and its terms.
    pub(crate) fn terms_of(&self, process: u32) -> impl Iterator<Item = (&str, &Term)> {
        let keys = (process, String::new())..(process + 1, String::new());
        self.terms.range(keys).map(|((_, key), term)| (key.as_str(), term))
    }

    pub(crate) fn request(&mut self, worker: &WorkerId, request: OperatorRequest) {
        self.requests.entry(worker.clone()).or_default().push((request, Instant::now()));
    }

    /// Records a drain that was requested this long ago.
    pub(crate) fn backdate_drain(&mut self, worker: &WorkerId, age: Duration) {
        let since = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        self.requests.insert(worker.clone(), vec![(OperatorRequest::Drain, since)]);
    }

    /// Whether a request was valid at some time within a period before now.
    pub(crate) fn was_requested(
        &self,
        worker: &WorkerId,
        period: Duration,
        which: impl Fn(OperatorRequest, Instant) -> bool,
    ) -> bool {
        let requests = self.requests.get(worker).map_or(&[][..], Vec::as_slice);
        let ends = requests.iter().skip(1).map(|(_, at)| Some(*at)).chain([None]);
        requests
            .iter()
            .zip(ends)
            .any(|((request, since), end)| end.is_none_or(|end| end.elapsed() < period) && which(*request, *since))
    }

    /// Hash of the whole log: equal histories have equal hashes.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn log_text(&self) -> String {
        self.log.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
