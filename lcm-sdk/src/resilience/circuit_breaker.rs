//! Stops calls to a target that does not respond.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::telemetry::{BreakerState, Telemetry};

/// Configuration of a [`CircuitBreaker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerSettings {
    /// Number of consecutive unanswered calls that open the breaker. Default: 5.
    pub failures: u32,
    /// Time after which an open breaker permits a trial call. Default: 10 s.
    pub open_for: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(10) }
    }
}

impl BreakerSettings {
    /// Sets the number of consecutive unanswered calls that open the breaker.
    #[must_use]
    pub fn with_failures(self, failures: u32) -> Self {
        Self { failures, ..self }
    }

    /// Sets the time after which an open breaker permits a trial call.
    #[must_use]
    pub fn with_open_for(self, open_for: Duration) -> Self {
        Self { open_for, ..self }
    }
}

/// Circuit breakers by target. Clones share them.
#[derive(Debug, Clone)]
pub struct CircuitBreakers {
    settings: BreakerSettings,
    telemetry: Telemetry,
    breakers: Arc<Mutex<HashMap<String, Arc<CircuitBreaker>>>>,
}

impl CircuitBreakers {
    /// Creates a set without breakers.
    pub fn new(settings: BreakerSettings, telemetry: Telemetry) -> Self {
        Self { settings, telemetry, breakers: Arc::default() }
    }

    /// Returns the breaker of a target, such as `ec2/us-east-1`.
    pub fn get(&self, target: &str) -> Arc<CircuitBreaker> {
        let mut breakers = self.breakers.lock();
        if let Some(breaker) = breakers.get(target) {
            return Arc::clone(breaker);
        }
        self.telemetry.set_breaker(target, BreakerState::Closed);
        let breaker = Arc::new(CircuitBreaker {
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

/// Circuit breaker of one target.
///
/// # Guarantees
/// - It opens after consecutive calls without a response ([`FailureKind::Unclear`], [`FailureKind::Unreachable`]). Every
///   other result, including a refusal, shows that the target responds, and closes it.
/// - While it is open, calls fail at once with [`FailureKind::Unreachable`].
/// - After [`BreakerSettings::open_for`] it permits one trial call, which closes or opens it. A trial that is dropped
///   without a result makes room for the next.
#[derive(Debug)]
pub struct CircuitBreaker {
    target: String,
    settings: BreakerSettings,
    telemetry: Telemetry,
    state: Mutex<State>,
    /// Failure of the last unanswered call, quoted in refusals.
    last: Mutex<String>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen,
}

impl CircuitBreaker {
    /// Acquires a permit for one call.
    ///
    /// # Errors
    /// [`FailureKind::Unreachable`] while the breaker is open.
    pub fn try_acquire(self: &Arc<Self>) -> Result<Permit, CallFailure> {
        let mut state = self.state.lock();
        let role = match *state {
            State::Closed { .. } => Role::Ordinary,
            State::Open { until } if Instant::now() >= until => {
                *state = State::HalfOpen;
                Role::Trial
            }
            State::Open { .. } | State::HalfOpen => return Err(self.refusal()),
        };
        Ok(Permit { breaker: Arc::clone(self), role, result: CallResult::Unknown })
    }

    /// Checks whether a call would be permitted, without starting a trial.
    ///
    /// # Errors
    /// Like [`CircuitBreaker::try_acquire`].
    pub fn check(&self) -> Result<(), CallFailure> {
        match *self.state.lock() {
            State::Closed { .. } => Ok(()),
            State::Open { until } if Instant::now() >= until => Ok(()),
            State::Open { .. } | State::HalfOpen => Err(self.refusal()),
        }
    }

    fn refusal(&self) -> CallFailure {
        let Self { target, settings, .. } = self;
        let message = format!(
            "circuit breaker of {target} is open after {} calls without a response; last: {}",
            settings.failures,
            self.last.lock()
        );
        CallFailure::new(FailureKind::Unreachable, message)
    }

    fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Closed { failures: 0 });
        match before {
            State::Closed { .. } => {}
            State::Open { .. } | State::HalfOpen => {
                tracing::info!(target: "lcm::breaker", target = self.target, "circuit breaker closed");
                self.telemetry.set_breaker(&self.target, BreakerState::Closed);
            }
        }
    }

    fn count_failure(&self, role: Role) {
        let mut state = self.state.lock();
        *state = match (*state, role) {
            (State::Closed { failures }, Role::Ordinary | Role::Trial) if failures + 1 < self.settings.failures => {
                State::Closed { failures: failures + 1 }
            }
            (State::Closed { .. }, Role::Ordinary | Role::Trial) => {
                tracing::warn!(target: "lcm::breaker", target = self.target, "circuit breaker opened");
                self.telemetry.set_breaker(&self.target, BreakerState::Open);
                self.open_state()
            }
            (State::HalfOpen, Role::Trial) => self.open_state(),
            // A call that started before the breaker opened does not extend it.
            (unchanged @ (State::Open { .. } | State::HalfOpen), Role::Ordinary | Role::Trial) => unchanged,
        };
    }

    fn abandon_trial(&self, role: Role) {
        let mut state = self.state.lock();
        if let (State::HalfOpen, Role::Trial) = (*state, role) {
            *state = State::Open { until: Instant::now() };
        }
    }

    fn open_state(&self) -> State {
        State::Open { until: Instant::now() + self.settings.open_for }
    }
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Ordinary,
    Trial,
}

#[derive(Debug, Clone, Copy)]
enum CallResult {
    Unknown,
    Responded,
    Unanswered,
}

/// Permission for one call. Report its result with [`Permit::record`]; dropping the permit reports none.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    breaker: Arc<CircuitBreaker>,
    role: Role,
    result: CallResult,
}

impl Permit {
    /// Reports the result of the call.
    pub fn record<T>(mut self, result: &Result<T, CallFailure>) {
        self.result = CallResult::Responded;
        let Err(failure) = result else { return };
        match failure.kind {
            FailureKind::Unclear | FailureKind::Unreachable => {
                self.result = CallResult::Unanswered;
                *self.breaker.last.lock() = failure.to_string();
            }
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::RefusedForNow
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::Refused
            | FailureKind::NotSupported
            | FailureKind::LaunchDied => {}
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.result {
            CallResult::Unknown => self.breaker.abandon_trial(self.role),
            CallResult::Responded => self.breaker.close(),
            CallResult::Unanswered => self.breaker.count_failure(self.role),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "lcm_breaker_open{target=\"ec2/here\"} 1";

    fn breaker() -> (Telemetry, Arc<CircuitBreaker>) {
        let telemetry = Telemetry::default();
        let settings = BreakerSettings { failures: 3, open_for: Duration::from_secs(10) };
        (telemetry.clone(), CircuitBreakers::new(settings, telemetry).get("ec2/here"))
    }

    fn call(breaker: &Arc<CircuitBreaker>, result: Result<(), FailureKind>) -> Result<(), CallFailure> {
        let permit = breaker.try_acquire()?;
        permit.record(&result.map_err(|kind| CallFailure::new(kind, "planned")));
        Ok(())
    }

    fn open(breaker: &Arc<CircuitBreaker>) {
        for _ in 0..3 {
            call(breaker, Err(FailureKind::Unclear)).expect("still closed");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_after_consecutive_failures() {
        let (telemetry, breaker) = breaker();
        for result in [Err(FailureKind::Unclear), Err(FailureKind::Unreachable), Err(FailureKind::Refused)] {
            call(&breaker, result).expect("closed");
        }
        assert!(!telemetry.to_prometheus().contains(OPEN));
        open(&breaker);
        let refused = call(&breaker, Ok(())).expect_err("open");
        assert_eq!(refused.kind, FailureKind::Unreachable);
        assert!(refused.kind.did_nothing());
        assert!(refused.to_string().contains("ec2/here") && refused.to_string().contains("planned"), "{refused}");
        assert!(telemetry.to_prometheus().contains(OPEN));
    }

    #[tokio::test(start_paused = true)]
    async fn trial_call_closes_or_reopens() {
        let (telemetry, breaker) = breaker();
        open(&breaker);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let trial = breaker.try_acquire().expect("a trial");
        assert!(breaker.try_acquire().is_err() && breaker.check().is_err(), "one trial at a time");
        trial.record(&Err::<(), _>(CallFailure::new(FailureKind::Unclear, "still nothing")));
        assert!(breaker.check().is_err(), "open again");
        tokio::time::sleep(Duration::from_secs(10)).await;
        call(&breaker, Ok(())).expect("a second trial");
        assert!(breaker.try_acquire().is_ok() && breaker.try_acquire().is_ok());
        assert!(!telemetry.to_prometheus().contains(OPEN));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_trial_makes_room_for_the_next() {
        let (_, breaker) = breaker();
        open(&breaker);
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(breaker.try_acquire().expect("a trial"));
        assert!(breaker.try_acquire().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn late_failure_does_not_extend_an_open_breaker() {
        let (_, breaker) = breaker();
        let slow = breaker.try_acquire().expect("closed");
        open(&breaker);
        tokio::time::sleep(Duration::from_secs(9)).await;
        slow.record(&Err::<(), _>(CallFailure::new(FailureKind::Unclear, "late")));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(breaker.check().is_ok());
    }
}
