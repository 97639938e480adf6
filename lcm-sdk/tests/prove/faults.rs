//! Faults of a call: by chance, or exactly once at a chosen point.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::{CallFailure, FailureKind};
use tokio::time::Instant;

use super::call::{Call, Subject};
use super::pairs::Pair;
use super::rng::Rng;

/// The fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It fails, and nothing is done.
    Fail(FailureKind),
    /// It is carried out, and its response is lost.
    LoseAnswer,
    /// The controller dies before it is carried out.
    CrashBefore,
    /// It is carried out, and the controller dies before the response.
    CrashAfter,
    /// The previous response is returned.
    Stale,
    /// All of a write but the status is written, and the response is lost.
    CutWrite,
    /// Another client writes to the record a moment earlier.
    Meddle,
    /// Some pages of a scan fail.
    PartialPages,
}

/// The event at a chosen point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Happens(Fault),
    /// Two events that cancel each other out, between two calls.
    Pair(Pair),
}

/// The rate of faults, and where they occur.
#[derive(Default)]
pub(crate) struct Trouble {
    /// Faulty calls per thousand.
    pub(crate) permille: u64,
    /// Events at the calls with these numbers.
    pub(crate) planned: Vec<(u64, What)>,
    /// Launches per thousand that EC2 does not show for a while.
    pub(crate) lag_permille: u64,
    /// Whether responses are kept, to be returned once more.
    pub(crate) remembers: bool,
    answers: BTreeMap<String, Remembered>,
}

struct Remembered {
    shown: String,
    last: Box<dyn Any + Send>,
    seen_at: Instant,
    before: Option<(Box<dyn Any + Send>, Instant)>,
}

/// Maximum age of an outdated response.
const OLDEST_ANSWER: Duration = Duration::from_secs(60);

impl Trouble {
    /// Keeps a response, and returns the previous one if there is one that is not too old.
    pub(crate) fn older<R: Clone + std::fmt::Debug + Send + 'static>(&mut self, call: &Call, now: &R) -> Option<R> {
        let shown = format!("{now:?}");
        let key = format!("{} {}", call.name, call.about);
        let entry = self.answers.entry(key).or_insert_with(|| Remembered {
            shown: shown.clone(),
            last: Box::new(now.clone()),
            seen_at: Instant::now(),
            before: None,
        });
        if entry.shown != shown {
            let last = std::mem::replace(&mut entry.last, Box::new(now.clone()));
            entry.before = Some((last, entry.seen_at));
            entry.shown = shown;
        }
        entry.seen_at = Instant::now();
        let (before, at) = entry.before.as_ref()?;
        before.downcast_ref::<R>().filter(|_| at.elapsed() < OLDEST_ANSWER).cloned()
    }
}

/// Chooses the fault of a call by chance, and the name it is counted under.
pub(crate) fn by_chance(rng: &mut Rng, call: &Call) -> (Fault, &'static str) {
    use FailureKind::{NoCapacity, Throttled, Unclear, Unparsable, Unreachable};
    let failing = |rng: &mut Rng| {
        let kind = rng.pick(&[Throttled, Unclear, Unreachable, Unparsable]);
        let word = match kind {
            Throttled => "throttled",
            Unclear => "timed out before it was carried out",
            Unreachable => "unreachable",
            _ => "unparsable response",
        };
        (Fault::Fail(kind), word)
    };
    match &call.subject {
        Subject::Launch => match rng.roll(3) {
            0 => (Fault::Fail(NoCapacity), "no capacity"),
            1 => (Fault::LoseAnswer, "timed out after it was carried out"),
            _ => failing(rng),
        },
        Subject::Read if call.name == "scan" => match rng.roll(2) {
            0 => (Fault::PartialPages, "partial pages"),
            _ => failing(rng),
        },
        Subject::Write(..) => match rng.roll(6) {
            0 => (Fault::CutWrite, "write cut halfway"),
            1 | 2 => (Fault::Meddle, "conflicting write"),
            3 | 4 => (Fault::LoseAnswer, "timed out after it was carried out"),
            _ => failing(rng),
        },
        Subject::Start
        | Subject::Stop(_)
        | Subject::Terminate(_)
        | Subject::License(..)
        | Subject::EndSession(..)
        | Subject::MoveSession(_)
        | Subject::Import(_)
        | Subject::Submit { .. } => match rng.roll(2) {
            0 => (Fault::LoseAnswer, "timed out after it was carried out"),
            _ => failing(rng),
        },
        Subject::Read | Subject::Describe(_) | Subject::Note => failing(rng),
    }
}

/// The failure that the caller receives.
pub(crate) fn failure(kind: FailureKind) -> CallFailure {
    CallFailure::new(kind, "a bad day")
}
