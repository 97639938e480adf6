//! The history of a world: counted, logged, and checked against the rules.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lcm_sdk::{InstanceId, WorkerId};
use tokio::time::Instant;

use super::call::Does;
use super::clock::SimClock;

/// Maximum length of the log that is printed.
const STORY: usize = 250;

/// The log of a world, and the state that its rules are checked against.
#[derive(Debug)]
pub(crate) struct Oracle {
    clock: SimClock,
    /// Number of calls.
    pub(crate) steps: u64,
    /// Every call, by its effect.
    pub(crate) calls: Vec<Does>,
    /// Whether the planned event took place.
    pub(crate) struck: bool,
    /// Calls that change something, since the last reset.
    pub(crate) effects: u64,
    /// Number of rules checked.
    pub(crate) checks: u64,
    /// Number of faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
    story: VecDeque<String>,
    /// Whether events are printed as they occur.
    tells_all: bool,
    digest: u64,
    /// The responses about each instance that each controller received, and when.
    pub(crate) evidence: BTreeMap<(u32, InstanceId), Evidence>,
    /// The requests of operators for each worker, and since when.
    pub(crate) wishes: BTreeMap<WorkerId, Vec<(Wish, Instant)>>,
    /// Number of tokens that a CML accepted.
    pub(crate) submitted: BTreeMap<(String, String), u32>,
    /// Live instances that no record names, and since when.
    pub(crate) unowned: BTreeMap<InstanceId, Instant>,
    /// When the world was last changed from outside.
    pub(crate) disturbed_at: Instant,
    /// When etcd last lost leases early.
    pub(crate) leases_lost_at: Option<Instant>,
    /// The fencing tokens each controller won, and when it last held the key.
    pub(crate) terms: BTreeMap<u32, Term>,
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
pub(crate) enum Wish {
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
            struck: false,
            effects: 0,
            checks: 0,
            faults: BTreeMap::new(),
            violations: Vec::new(),
            story: VecDeque::new(),
            tells_all: std::env::var_os("LCM_STORY").is_some(),
            digest: 0xcbf2_9ce4_8422_2325,
            evidence: BTreeMap::new(),
            wishes: BTreeMap::new(),
            submitted: BTreeMap::new(),
            unowned: BTreeMap::new(),
            disturbed_at: Instant::now(),
            leases_lost_at: None,
            terms: BTreeMap::new(),
        }
    }

    pub(crate) fn tell(&mut self, happened: &str) {
        let line = format!("{:>9.3} s  {happened}", self.clock.seconds());
        for byte in line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.tells_all {
            println!("{line}");
        }
        if self.story.len() == STORY {
            self.story.pop_front();
        }
        self.story.push_back(line);
    }

    /// Counts an injected fault.
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
        self.disturbed_at = Instant::now();
    }

    /// Checks a rule.
    pub(crate) fn rule(&mut self, holds: bool, broken: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            let broken = broken();
            self.tell(&format!("!! {broken}"));
            // One violation is enough; a thousand would bury it.
            if self.violations.len() < 20 {
                self.violations.push(format!("{:.1} s: {broken}", self.clock.seconds()));
            }
        }
    }

    pub(crate) fn wish(&mut self, worker: &WorkerId, wish: Wish) {
        self.wishes.entry(worker.clone()).or_default().push((wish, Instant::now()));
    }

    /// A worker that was draining before this world began.
    pub(crate) fn drained_before(&mut self, worker: &WorkerId, by: Duration) {
        let since = Instant::now().checked_sub(by).unwrap_or_else(Instant::now);
        self.wishes.insert(worker.clone(), vec![(Wish::Drain, since)]);
    }

    /// Whether a request was valid at some time within a period before now.
    pub(crate) fn wished(&self, worker: &WorkerId, within: Duration, which: impl Fn(Wish, Instant) -> bool) -> bool {
        let wishes = self.wishes.get(worker).map_or(&[][..], Vec::as_slice);
        let ends = wishes.iter().skip(1).map(|(_, at)| Some(*at)).chain([None]);
        wishes
            .iter()
            .zip(ends)
            .any(|((wish, since), end)| end.is_none_or(|end| end.elapsed() < within) && which(*wish, *since))
    }

    /// A hash of the whole log: equal histories have equal hashes.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn story(&self) -> String {
        self.story.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
