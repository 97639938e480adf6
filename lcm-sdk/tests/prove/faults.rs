//! What goes wrong with a call: by chance, or exactly once at a chosen point.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::{CallFailure, FailureKind};
use tokio::time::Instant;

use super::call::{Call, Matter};
use super::dice::Dice;
use super::pairs::Pair;

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It fails, and nothing is done.
    Fail(FailureKind),
    /// It is carried out, and its answer is lost.
    LoseAnswer,
    /// The controller dies before it is carried out.
    CrashBefore,
    /// It is carried out, and the controller dies before it hears of it.
    CrashAfter,
    /// The answer is the one before.
    Stale,
    /// All of a write but the status is written, and the answer is lost.
    CutWrite,
    /// Somebody else writes to the record a moment earlier.
    Meddle,
    /// Some pages of a scan fail.
    PartialPages,
}

/// What happens at a chosen point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Happens(Fault),
    /// Two events that cancel each other out, between two calls.
    Pair(Pair),
}

/// How much goes wrong, and where.
#[derive(Default)]
pub(crate) struct Trouble {
    /// How many calls in a thousand go wrong.
    pub(crate) permille: u64,
    /// What happens at the calls with these numbers.
    pub(crate) planned: Vec<(u64, What)>,
    /// How many launches in a thousand EC2 does not show for a while.
    pub(crate) lag_permille: u64,
    /// Whether answers are remembered, to be given once more.
    pub(crate) remembers: bool,
    answers: BTreeMap<String, Remembered>,
}

struct Remembered {
    shown: String,
    last: Box<dyn Any + Send>,
    seen_at: Instant,
    before: Option<(Box<dyn Any + Send>, Instant)>,
}

/// How old an answer may be: no service shows yesterday's world.
const OLDEST_ANSWER: Duration = Duration::from_secs(60);

impl Trouble {
    /// Remembers an answer, and gives the one before it, if there is one that is not too old.
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

/// Chooses what goes wrong with a call by chance, and the word it is counted under.
pub(crate) fn by_chance(dice: &mut Dice, call: &Call) -> (Fault, &'static str) {
    use FailureKind::{NoCapacity, Throttled, Unclear, Unparsable, Unreachable};
    let failing = |dice: &mut Dice| {
        let kind = dice.pick(&[Throttled, Unclear, Unreachable, Unparsable]);
        let word = match kind {
            Throttled => "throttled",
            Unclear => "timed out before it was carried out",
            Unreachable => "unreachable",
            _ => "unparsable answer",
        };
        (Fault::Fail(kind), word)
    };
    match &call.matter {
        Matter::Launch => match dice.roll(3) {
            0 => (Fault::Fail(NoCapacity), "no capacity"),
            1 => (Fault::LoseAnswer, "timed out after it was carried out"),
            _ => failing(dice),
        },
        Matter::Read if call.name == "scan" => match dice.roll(2) {
            0 => (Fault::PartialPages, "partial pages"),
            _ => failing(dice),
        },
        Matter::Write(..) => match dice.roll(6) {
            0 => (Fault::CutWrite, "write cut halfway"),
            1 | 2 => (Fault::Meddle, "conflicting write"),
            3 | 4 => (Fault::LoseAnswer, "timed out after it was carried out"),
            _ => failing(dice),
        },
        Matter::Start
        | Matter::Stop(_)
        | Matter::Terminate(_)
        | Matter::License(..)
        | Matter::EndSession(..)
        | Matter::MoveSession(_)
        | Matter::Import(_)
        | Matter::Submit { .. } => match dice.roll(2) {
            0 => (Fault::LoseAnswer, "timed out after it was carried out"),
            _ => failing(dice),
        },
        Matter::Read | Matter::Describe(_) | Matter::Note => failing(dice),
    }
}

/// What the caller is told.
pub(crate) fn failure(kind: FailureKind) -> CallFailure {
    CallFailure::new(kind, "a bad day")
}
