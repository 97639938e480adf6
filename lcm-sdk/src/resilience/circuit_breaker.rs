//! Leaving a target alone that does not answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::telemetry::{BreakerState, Telemetry};

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Opens after this many calls in a row without an answer.
    pub failures: u32,
    /// Lets a trial through after this time.
    pub open_for: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(10) }
    }
}

/// The breakers of all targets. Clones share them.
#[derive(Debug, Clone)]
pub struct Breakers {
    settings: BreakerSettings,
    telemetry: Telemetry,
    breakers: Arc<Mutex<HashMap<String, Arc<Breaker>>>>,
}

impl Breakers {
    /// No target yet.
    pub fn new(settings: BreakerSettings, telemetry: Telemetry) -> Self {
        Self { settings, telemetry, breakers: Arc::default() }
    }

    /// The breaker of a target, such as `ec2/us-east-1`.
    pub fn of(&self, target: &str) -> Arc<Breaker> {
        let mut breakers = self.breakers.lock();
        if let Some(breaker) = breakers.get(target) {
            return Arc::clone(breaker);
        }
        self.telemetry.set_breaker(target, BreakerState::Closed);
        let breaker = Arc::new(Breaker {
            target: target.to_owned(),
            settings: self.settings,
            telemetry: self.telemetry.clone(),
            state: Mutex::new(State::Closed { failures: 0 }),
            last: Mutex::default(),
        });
        breakers.insert(target.to_owned(), Arc::clone(&breaker));
        breaker
    }
}

/// Whether one target is called.
///
/// # Guarantees
/// - It opens after so many calls in a row that met nobody ([`FailureKind::Unclear`], [`FailureKind::Unreachable`]).
///   Every other answer, a refusal too, comes from somebody who is there, and closes it.
/// - While it is open calls fail at once, with [`FailureKind::Unreachable`]: nothing was sent.
/// - After its time one trial is let through; its answer decides. A trial that is abandoned decides nothing and makes
///   room for the next.
#[derive(Debug)]
pub struct Breaker {
    target: String,
    settings: BreakerSettings,
    telemetry: Telemetry,
    state: Mutex<State>,
    /// What the last call without an answer met, for whoever wonders why the breaker is open.
    last: Mutex<String>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    Trying,
}

impl Breaker {
    /// Asks to make a call.
    ///
    /// # Errors
    /// [`FailureKind::Unreachable`] while the breaker is open.
    pub fn admit(self: &Arc<Self>) -> Result<Pass, CallFailure> {
        let mut state = self.state.lock();
        let role = match *state {
            State::Closed { .. } => Role::Ordinary,
            State::Open { until } if Instant::now() >= until => {
                *state = State::Trying;
                Role::Trial
            }
            State::Open { .. } | State::Trying => return Err(self.refusal()),
        };
        Ok(Pass { breaker: Arc::clone(self), role, verdict: Verdict::None })
    }

    /// Whether a call would be admitted, without taking the place of a trial.
    ///
    /// # Errors
    /// As [`Breaker::admit`].
    pub fn check(&self) -> Result<(), CallFailure> {
        match *self.state.lock() {
            State::Closed { .. } => Ok(()),
            State::Open { until } if Instant::now() >= until => Ok(()),
            State::Open { .. } | State::Trying => Err(self.refusal()),
        }
    }

    fn refusal(&self) -> CallFailure {
        let Self { target, settings, .. } = self;
        let message = format!(
            "{target} did not answer {} calls in a row and is left alone for a while; last: {}",
            settings.failures,
            self.last.lock()
        );
        CallFailure::new(FailureKind::Unreachable, message)
    }

    fn answered(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Closed { failures: 0 });
        match before {
            State::Closed { .. } => {}
            State::Open { .. } | State::Trying => {
                tracing::info!(target: "lcm::breaker", target = self.target, "answers again");
                self.telemetry.set_breaker(&self.target, BreakerState::Closed);
            }
        }
    }

    fn unanswered(&self, role: Role) {
        let mut state = self.state.lock();
        *state = match (*state, role) {
            (State::Closed { failures }, Role::Ordinary | Role::Trial) if failures + 1 < self.settings.failures => {
                State::Closed { failures: failures + 1 }
            }
            (State::Closed { .. }, Role::Ordinary | Role::Trial) => {
                tracing::warn!(target: "lcm::breaker", target = self.target, "does not answer; left alone for a while");
                self.telemetry.set_breaker(&self.target, BreakerState::Open);
                self.opened()
            }
            (State::Trying, Role::Trial) => self.opened(),
            // A call from before it opened says nothing new.
            (unchanged @ (State::Open { .. } | State::Trying), Role::Ordinary | Role::Trial) => unchanged,
        };
    }

    fn abandoned(&self, role: Role) {
        let mut state = self.state.lock();
        if let (State::Trying, Role::Trial) = (*state, role) {
            *state = State::Open { until: Instant::now() };
        }
    }

    fn opened(&self) -> State {
        State::Open { until: Instant::now() + self.settings.open_for }
    }
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Ordinary,
    Trial,
}

#[derive(Debug, Clone, Copy)]
enum Verdict {
    None,
    Answered,
    Unanswered,
}

/// Leave to make one call. Say how it went with [`Pass::settle`]; dropping it says that nobody knows.
#[derive(Debug)]
#[must_use]
pub struct Pass {
    breaker: Arc<Breaker>,
    role: Role,
    verdict: Verdict,
}

impl Pass {
    /// Says how the call went.
    pub fn settle<T>(mut self, result: &Result<T, CallFailure>) {
        self.verdict = Verdict::Answered;
        let Err(failure) = result else { return };
        match failure.kind {
            FailureKind::Unclear | FailureKind::Unreachable => {
                self.verdict = Verdict::Unanswered;
                *self.breaker.last.lock() = failure.to_string();
            }
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::Refused
            | FailureKind::LaunchDied => {}
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        match self.verdict {
            Verdict::None => self.breaker.abandoned(self.role),
            Verdict::Answered => self.breaker.answered(),
            Verdict::Unanswered => self.breaker.unanswered(self.role),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "lcm_breaker_open{target=\"ec2/here\"} 1";

    fn breaker() -> (Telemetry, Arc<Breaker>) {
        let telemetry = Telemetry::default();
        let settings = BreakerSettings { failures: 3, open_for: Duration::from_secs(10) };
        (telemetry.clone(), Breakers::new(settings, telemetry).of("ec2/here"))
    }

    fn call(breaker: &Arc<Breaker>, result: Result<(), FailureKind>) -> Result<(), CallFailure> {
        let pass = breaker.admit()?;
        pass.settle(&result.map_err(|kind| CallFailure::new(kind, "so it went")));
        Ok(())
    }

    fn open(breaker: &Arc<Breaker>) {
        for _ in 0..3 {
            call(breaker, Err(FailureKind::Unclear)).expect("still closed");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_so_many_in_a_row_and_an_answer_in_between_starts_over() {
        let (telemetry, breaker) = breaker();
        for result in [Err(FailureKind::Unclear), Err(FailureKind::Unreachable), Err(FailureKind::Refused)] {
            call(&breaker, result).expect("closed");
        }
        assert!(!telemetry.to_prometheus().contains(OPEN));
        open(&breaker);
        let refused = call(&breaker, Ok(())).expect_err("open");
        assert_eq!(refused.kind, FailureKind::Unreachable);
        assert!(refused.kind.did_nothing());
        assert!(refused.to_string().contains("ec2/here") && refused.to_string().contains("so it went"), "{refused}");
        assert!(telemetry.to_prometheus().contains(OPEN));
    }

    #[tokio::test(start_paused = true)]
    async fn one_trial_goes_through_and_its_answer_decides() {
        let (telemetry, breaker) = breaker();
        open(&breaker);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let trial = breaker.admit().expect("a trial");
        assert!(breaker.admit().is_err() && breaker.check().is_err(), "one at a time");
        trial.settle(&Err::<(), _>(CallFailure::new(FailureKind::Unclear, "still nothing")));
        assert!(breaker.check().is_err(), "open again");
        tokio::time::sleep(Duration::from_secs(10)).await;
        call(&breaker, Ok(())).expect("a second trial");
        assert!(breaker.admit().is_ok() && breaker.admit().is_ok());
        assert!(!telemetry.to_prometheus().contains(OPEN));
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_trial_makes_room_for_the_next() {
        let (_, breaker) = breaker();
        open(&breaker);
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(breaker.admit().expect("a trial"));
        assert!(breaker.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_failure_does_not_prolong_an_open_breaker() {
        let (_, breaker) = breaker();
        let slow = breaker.admit().expect("closed");
        open(&breaker);
        tokio::time::sleep(Duration::from_secs(9)).await;
        slow.settle(&Err::<(), _>(CallFailure::new(FailureKind::Unclear, "late")));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(breaker.check().is_ok());
    }
}
