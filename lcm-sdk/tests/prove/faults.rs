//! Faults of a call: random ones, or one at a chosen call.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
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
    /// The call fails and has no effect.
    Fail(FailureKind),
    /// The call is carried out and its response is lost.
    LoseResponse,
    /// The controller crashes before the call is carried out.
    CrashBefore,
    /// The call is carried out and the controller crashes before the response.
    CrashAfter,
    /// The launch is carried out, its response is lost, and a second attempt is refused.
    RefuseAfterLoss,
    /// The call is carried out and the machine of the controller is suspended.
    Suspend,
    /// The previous response is returned.
    Stale,
    /// All of a write but the status is written, and the response is lost.
    PartialWrite,
    /// Another client writes to the record a moment earlier.
    ConflictingWrite,
    /// Some pages of a scan fail.
    PartialPages,
}

/// An event at a chosen call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Injection {
    Fault(Fault),
    /// Two events that cancel each other out, between two calls.
    Pair(Pair),
}

/// The rates of random faults, and the planned events.
#[derive(Default)]
pub(crate) struct FaultPlan {
    /// Faulty calls per thousand.
    pub(crate) permille: u64,
    /// Events at the calls with these numbers.
    pub(crate) planned: Vec<(u64, Injection)>,
    /// Faults of the next launches.
    pub(crate) launches: VecDeque<Fault>,
    /// Launches per thousand that EC2 does not show for a while.
    pub(crate) lag_permille: u64,
    /// Whether responses are kept, to be returned once more.
    pub(crate) keeps_responses: bool,
    responses: BTreeMap<String, KeptResponse>,
}

struct KeptResponse {
    shown: String,
    last: Box<dyn Any + Send>,
    seen_at: Instant,
    before: Option<(Box<dyn Any + Send>, Instant)>,
}

/// Maximum age of an outdated response.
const MAX_RESPONSE_AGE: Duration = Duration::from_secs(60);

impl FaultPlan {
    /// Keeps a response, and returns the previous one if there is one that is not too old.
    pub(crate) fn previous_response<R: Clone + std::fmt::Debug + Send + 'static>(
        &mut self,
        call: &Call,
        now: &R,
    ) -> Option<R> {
        let shown = format!("{now:?}");
        let key = format!("{} {}", call.name, call.about);
        let entry = self.responses.entry(key).or_insert_with(|| KeptResponse {
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
        before.downcast_ref::<R>().filter(|_| at.elapsed() < MAX_RESPONSE_AGE).cloned()
    }
}

/// Chooses a random fault for a call, and the label of its counter.
pub(crate) fn random_fault(rng: &mut Rng, call: &Call) -> (Fault, &'static str) {
    use FailureKind::{NoCapacity, Throttled, Unclear, Unparsable, Unreachable};
    let failing = |rng: &mut Rng| {
        let kind = rng.pick(&[Throttled, Unclear, Unreachable, Unparsable]);
        let label = match kind {
            Throttled => "throttled",
            Unclear => "timeout before execution",
            Unreachable => "unreachable",
            _ => "unparsable response",
        };
        (Fault::Fail(kind), label)
    };
    match &call.subject {
        Subject::Launch(..) => match rng.roll(4) {
            0 => (Fault::Fail(NoCapacity), "no capacity"),
            1 => (Fault::RefuseAfterLoss, "launch refused after a lost response"),
            2 => (Fault::LoseResponse, "timeout after execution"),
            _ => failing(rng),
        },
        Subject::Read if call.name == "scan" => match rng.roll(2) {
            0 => (Fault::PartialPages, "partial pages"),
            _ => failing(rng),
        },
        Subject::Write(..) => match rng.roll(6) {
            0 => (Fault::PartialWrite, "partial write"),
            1 | 2 => (Fault::ConflictingWrite, "conflicting write"),
            3 | 4 => (Fault::LoseResponse, "timeout after execution"),
            _ => failing(rng),
        },
        Subject::Start(_)
        | Subject::Stop(_)
        | Subject::Terminate(_)
        | Subject::License(..)
        | Subject::EndSession(..)
        | Subject::MoveSession(..)
        | Subject::Import(..)
        | Subject::Submit { .. } => match rng.roll(2) {
            0 => (Fault::LoseResponse, "timeout after execution"),
            _ => failing(rng),
        },
        Subject::Read | Subject::Describe(_) | Subject::Note => failing(rng),
    }
}

/// The failure that the caller receives.
pub(crate) fn failure(kind: FailureKind) -> CallFailure {
    CallFailure::new(kind, "injected fault")
}
