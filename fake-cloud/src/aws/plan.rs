//! What the faults that strike mean for an AWS request.

use std::time::Duration;

use crate::clock::Clock;
use crate::faults::{Action, Strike, WaitOn};
use crate::world::{AwsError, Dice, Hidden, HiddenReason, PageCut, View};

/// What happens to a request.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The rules that struck.
    pub(super) rules: Vec<u64>,
    /// What it waits for first.
    pub(super) waits: Vec<(Duration, WaitOn)>,
    /// What happens instead of it.
    pub(super) instead: Option<Instead>,
    /// What it sees.
    pub(super) view: View,
    /// What becomes of the answer.
    pub(super) answer: AnswerFate,
}

/// What happens instead of a request.
#[derive(Debug)]
pub(super) enum Instead {
    /// It is refused.
    Refuse(AwsError),
    /// The connection is reset.
    Reset,
}

/// What becomes of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum AnswerFate {
    /// The caller gets it.
    #[default]
    Sent,
    /// Nobody gets it.
    Dropped,
}

impl Plan {
    /// Reads the strikes. Of several that end a request the first one counts; all others add up.
    pub(super) fn of(strikes: Vec<Strike>) -> Self {
        let mut plan = Self::default();
        for strike in strikes {
            plan.rules.push(strike.rule);
            plan.take(strike);
        }
        plan
    }

    fn take(&mut self, strike: Strike) {
        let instance = strike.instance;
        match strike.action {
            Action::Error { code, status, message } => {
                let mut error = AwsError::known(code);
                error.status = status.unwrap_or(error.status);
                error.message = message.unwrap_or(error.message);
                self.instead.get_or_insert(Instead::Refuse(error));
            }
            Action::Latency { seconds, on } => self.waits.push((duration(seconds), on)),
            Action::Reset => {
                self.instead.get_or_insert(Instead::Reset);
            }
            Action::DropResponse => self.answer = AnswerFate::Dropped,
            Action::VisibilityLag { seconds } => {
                self.view.hidden.push(Hidden { instance, reason: HiddenReason::Young(duration(seconds)) });
            }
            Action::Omit { fraction } => {
                let reason = HiddenReason::LeftOut { probability: fraction, roll: strike.roll };
                self.view.hidden.push(Hidden { instance, reason });
            }
            Action::EmptyPage => self.view.page = PageCut::Empty,
            Action::PartialPage { limit } => self.view.page = PageCut::AtMost(limit),
            Action::Shuffle => self.view.shuffle = Some(Dice::new(strike.roll, "shuffle")),
            // AWS has no actions of its own.
            Action::Custom { .. } => {}
        }
    }

    pub(super) async fn wait(&self, clock: &Clock) {
        for (duration, on) in &self.waits {
            match on {
                WaitOn::World => clock.sleep(*duration).await,
                WaitOn::Real => tokio::time::sleep(*duration).await,
            }
        }
    }
}

fn duration(seconds: f64) -> Duration {
    // Rules are checked when they are added; what is no duration is none.
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
