//! The histories that were run and their results, as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::oracle::Violation;
use super::world::Setup;

/// The result of one history.
#[derive(Debug)]
pub(crate) struct HistoryResult {
    pub(crate) setup: Setup,
    pub(crate) steps: u64,
    pub(crate) checks: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) simulated: Duration,
    pub(crate) violations: Vec<Violation>,
    /// The longest time from a measured change to the first call for it.
    pub(crate) slowest_start: Option<Duration>,
    pub(crate) digest: u64,
    /// The log of a history with violations, else empty.
    pub(crate) log: String,
}

/// A broken variant, and how it was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) variant: &'static str,
    /// Numbers of the defects that it puts back.
    pub(crate) defects: &'static [u8],
    /// The script of the first history that violates a rule.
    pub(crate) script: &'static str,
    /// That rule.
    pub(crate) rule: &'static str,
}

/// The results of all histories.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) histories: u64,
    pub(crate) steps: u64,
    pub(crate) checks: u64,
    pub(crate) simulated: Duration,
    /// The longest time from a measured change to the first call for it.
    pub(crate) slowest_start: Option<Duration>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Points of scripted histories at which an event was injected, by event.
    pub(crate) points: BTreeMap<&'static str, u64>,
    pub(crate) caught: Vec<Caught>,
    pub(crate) missed: Vec<&'static str>,
    pub(crate) states: Vec<(String, usize)>,
    /// Remarks printed besides the table.
    pub(crate) notes: Vec<String>,
    pub(crate) violations: Vec<String>,
}

impl Summary {
    /// Adds a history, and keeps its log if it violated a rule.
    pub(crate) fn add(&mut self, name: &str, result: HistoryResult) {
        self.histories += 1;
        self.steps += result.steps;
        self.checks += result.checks;
        self.simulated += result.simulated;
        self.slowest_start = self.slowest_start.max(result.slowest_start);
        for (kind, count) in result.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        if !result.violations.is_empty() {
            let violations: Vec<_> = result.violations.iter().map(|violation| violation.text.as_str()).collect();
            let violations = violations.join("\n  ");
            self.violations.push(format!("{name}, {:?}\n{}\n  {violations}", result.setup, result.log));
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.histories += other.histories;
        self.steps += other.steps;
        self.checks += other.checks;
        self.simulated += other.simulated;
        self.slowest_start = self.slowest_start.max(other.slowest_start);
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, count) in other.points {
            *self.points.entry(kind).or_default() += count;
        }
        self.caught.extend(other.caught);
        self.missed.extend(other.missed);
        self.states.extend(other.states);
        self.notes.extend(other.notes);
        self.violations.extend(other.violations);
    }

    /// Whether a history was run or a model was checked.
    pub(crate) fn has_results(&self) -> bool {
        self.histories > 0 || !self.caught.is_empty() || !self.states.is_empty()
    }

    /// Reports a violation for each kind of fault that never occurred.
    pub(crate) fn require_variety(&mut self) {
        for kind in VARIETY {
            if !self.faults.contains_key(kind) {
                self.violations.push(format!("fault {kind:?} did not occur in {} histories", self.histories));
            }
        }
        if self.steps < 100_000 {
            self.violations.push(format!("{} calls were made; expected at least 100,000", self.steps));
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.violations.is_empty() && self.missed.is_empty()
    }
}

/// The faults that must have occurred in the quick set.
const VARIETY: [&str; 45] = [
    "clock jump",
    "clock set back",
    "compaction",
    "conflicting write",
    "controller crash",
    "credentials expired",
    "credentials of another account",
    "default region changed",
    "desired status changed",
    "drain canceled",
    "drain started",
    "etcd call failed",
    "etcd unavailable",
    "events not accepted",
    "external start",
    "external stop",
    "external termination",
    "instance hidden",
    "instance of another control plane",
    "instance removed from EC2",
    "launch refused after a lost response",
    "lease lost",
    "license requested",
    "machine suspended",
    "no capacity",
    "partial pages",
    "partial write",
    "record edited",
    "record with unreadable fields",
    "session placed",
    "session that cannot be ended",
    "slow CML",
    "slow call",
    "stalled watch",
    "throttled",
    "timeout after execution",
    "timeout before execution",
    "two leaders overlap",
    "unknown instance state",
    "unmanaged instance",
    "unparsable response",
    "unreachable",
    "visibility lag",
    "watch event lost",
    "watch events reordered",
];

/// The rows of a table in Markdown.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.points.is_empty() {
            writeln!(f, "| injected events at points of scripts | {} |", by_kind(&self.points))?;
        }
        writeln!(f, "| injected faults and external changes | {} |", by_kind(&self.faults))?;
        writeln!(f, "| simulated hours | {:.0} |", self.simulated.as_secs_f64() / 3600.0)?;
        writeln!(
            f,
            "| histories, calls made by controllers | {}, {} |",
            with_separators(self.histories),
            with_separators(self.steps)
        )?;
        writeln!(f, "| invariants checked | {} |", with_separators(self.checks))?;
        if let Some(slowest) = self.slowest_start {
            writeln!(f, "| slowest start of a change behind a backlog | {:.2} s |", slowest.as_secs_f64())?;
        }
        if !self.states.is_empty() {
            let states = self.states.iter().map(|(_, states)| *states as u64).sum();
            writeln!(
                f,
                "| states of {} exhaustively checked models | {} |",
                self.states.len(),
                with_separators(states)
            )?;
        }
        if !self.caught.is_empty() || !self.missed.is_empty() {
            let all = self.caught.len() + self.missed.len();
            writeln!(f, "| broken variants caught | {} of {all} |", self.caught.len())?;
        }
        writeln!(f, "| violations in the simulator | {} |", self.violations.len())
    }
}

/// The sum and its parts.
fn by_kind(counts: &BTreeMap<&'static str, u64>) -> String {
    let kinds: Vec<_> = counts.iter().map(|(kind, count)| format!("{kind} {}", with_separators(*count))).collect();
    format!("{}: {}", with_separators(counts.values().sum()), kinds.join(", "))
}

pub(crate) fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
