//! What happened in a world: counted, told, and held against the rules.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lcm_sdk::{InstanceId, WorkerId};
use tokio::time::Instant;

use super::call::Does;
use super::clock::SimClock;

/// How much of a story is kept to be shown.
const STORY: usize = 250;

/// The story of a world, and everything that is remembered to judge it.
#[derive(Debug)]
pub(crate) struct Ledger {
    clock: SimClock,
    /// Calls that were made.
    pub(crate) steps: u64,
    /// Every call, by what it does.
    pub(crate) calls: Vec<Does>,
    /// Whether what was planned came about.
    pub(crate) struck: bool,
    /// Calls that change something, since the last time this was set to zero.
    pub(crate) effects: u64,
    /// Rules that were looked at.
    pub(crate) checks: u64,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
    story: VecDeque<String>,
    /// Whether everything is printed as it happens.
    tells_all: bool,
    digest: u64,
    /// What each controller was told about each instance, and when.
    pub(crate) evidence: BTreeMap<(u32, InstanceId), Evidence>,
    /// What operators wanted of each worker, and since when.
    pub(crate) wishes: BTreeMap<WorkerId, Vec<(Wish, Instant)>>,
    /// How often a CML took a token.
    pub(crate) submitted: BTreeMap<(String, String), u32>,
    /// Live instances that no record names, and since when.
    pub(crate) unowned: BTreeMap<InstanceId, Instant>,
    /// When something was last done to the world.
    pub(crate) disturbed_at: Instant,
    /// When etcd last lost leases before their time.
    pub(crate) leases_lost_at: Option<Instant>,
    /// The fencing tokens each controller won, and when it last held the key.
    pub(crate) terms: BTreeMap<u32, Term>,
}

/// What a controller has to show for its leading.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    /// Every token it won: a pass keeps the one it was begun under.
    pub(crate) tokens: Vec<i64>,
    pub(crate) held_at: Instant,
}

/// When a controller was last told something about an instance.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evidence {
    pub(crate) any: Option<Instant>,
    pub(crate) running: Option<Instant>,
    pub(crate) stopped: Option<Instant>,
    pub(crate) gone: Option<Instant>,
}

/// What an operator wants of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Run,
    /// Let the sessions end, then stop.
    Drain,
    /// Stop it, whatever runs there.
    Stop,
}

impl Ledger {
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

    /// A fault that was injected.
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
        self.disturbed_at = Instant::now();
    }

    /// Holds a rule against what happened.
    pub(crate) fn rule(&mut self, holds: bool, broken: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            let broken = broken();
            self.tell(&format!("!! {broken}"));
            // One is enough to know; a thousand would bury it.
            if self.violations.len() < 20 {
                self.violations.push(format!("{:.1} s: {broken}", self.clock.seconds()));
            }
        }
    }

    pub(crate) fn wish(&mut self, worker: &WorkerId, wish: Wish) {
        self.wishes.entry(worker.clone()).or_default().push((wish, Instant::now()));
    }

    /// A worker is drained since longer ago than this world exists.
    pub(crate) fn drained_before(&mut self, worker: &WorkerId, by: Duration) {
        let since = Instant::now().checked_sub(by).unwrap_or_else(Instant::now);
        self.wishes.insert(worker.clone(), vec![(Wish::Drain, since)]);
    }

    /// Whether a wish held at some time within a while before now.
    pub(crate) fn wished(&self, worker: &WorkerId, within: Duration, which: impl Fn(Wish, Instant) -> bool) -> bool {
        let wishes = self.wishes.get(worker).map_or(&[][..], Vec::as_slice);
        let ends = wishes.iter().skip(1).map(|(_, at)| Some(*at)).chain([None]);
        wishes
            .iter()
            .zip(ends)
            .any(|((wish, since), end)| end.is_none_or(|end| end.elapsed() < within) && which(*wish, *since))
    }

    /// One number for everything that was told: the same history has the same one.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn story(&self) -> String {
        self.story.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
