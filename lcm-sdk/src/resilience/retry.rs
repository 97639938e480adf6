//! Retries calls within a circuit breaker, a rate limit and a deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::circuit_breaker::{BreakerSettings, CircuitBreaker, CircuitBreakers};
use super::rate_limit::{RateLimit, RateLimiter, TokenBucket};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::spans::{self, traced};
use crate::telemetry::Telemetry;

/// Maximum delay before the second attempt; it doubles for each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// Configuration of a [`CallPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallPolicySettings {
    /// Maximum number of attempts per call. Default: 3.
    pub max_attempts: u32,
    /// Time limit of a call, including all attempts and waiting for the rate limit. Default: 45 s.
    pub timeout: Duration,
    /// Settings of the circuit breakers.
    pub breaker: BreakerSettings,
}

impl Default for CallPolicySettings {
    fn default() -> Self {
        Self { max_attempts: 3, timeout: Duration::from_secs(45), breaker: BreakerSettings::default() }
    }
}

impl CallPolicySettings {
    /// Sets the maximum number of attempts per call.
    #[must_use]
    pub fn with_max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// Sets the time limit of a call, including all attempts.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the settings of the circuit breakers.
    #[must_use]
    pub fn with_breaker(self, breaker: BreakerSettings) -> Self {
        Self { breaker, ..self }
    }
}

/// A kind of call, which determines its circuit breaker and its token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallKind<'a> {
    /// Name of the service. Each service has one circuit breaker per region.
    pub service: &'a str,
    /// Name of the API. Each API has one token bucket per region.
    pub api: &'a str,
    /// Region of the service.
    pub region: &'a str,
    /// Rate limit of the API.
    pub rate_limit: RateLimit,
    /// Whether the call changes something.
    pub access: Access,
}

/// Whether a call changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads, so only the last attempt matters.
    Read,
    /// It writes, so an earlier attempt may have been executed, regardless of the response to the last one.
    Write,
}

/// Makes idempotent calls. Clones share circuit breakers and token buckets.
#[derive(Debug, Clone)]
pub struct CallPolicy {
    limiter: RateLimiter,
    breakers: CircuitBreakers,
    settings: CallPolicySettings,
}

impl CallPolicy {
    /// Creates a policy.
    pub fn new(settings: CallPolicySettings, telemetry: &Telemetry) -> Self {
        let breaker = BreakerSettings { failures: settings.breaker.failures.max(1), ..settings.breaker };
        Self {
            limiter: RateLimiter::new(telemetry.clone()),
            breakers: CircuitBreakers::new(breaker, telemetry.clone()),
            settings: CallPolicySettings { max_attempts: settings.max_attempts.max(1), ..settings },
        }
    }

    /// Makes a call that may be repeated.
    ///
    /// # Flow
    /// Circuit breaker, token bucket, attempt. An attempt that was throttled, unclear or unreachable is retried after a
    /// random delay; throttling also slows the bucket. All other failures are returned at once.
    ///
    /// # Cancel safety
    /// The service may still execute an attempt that was dropped.
    ///
    /// # Errors
    /// The failure of the last attempt. After an attempt of a write that may have been executed it is
    /// [`FailureKind::Unclear`], with the code of the last attempt. [`FailureKind::Unreachable`] while the circuit
    /// breaker is open.
    pub async fn call<T, F>(&self, kind: CallKind<'_>, attempt: impl Fn() -> F) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        let span = spans::call(kind.service, kind.api, kind.region);
        traced(span, self.attempts(kind, attempt)).await
    }

    async fn attempts<T, F>(&self, kind: CallKind<'_>, attempt: impl Fn() -> F) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        let CallKind { service, api, region, rate_limit, access } = kind;
        let breaker = self.breakers.get(&format!("{service}/{region}"));
        let bucket = self.limiter.bucket(api, region, rate_limit);
        let deadline = Instant::now() + self.settings.timeout;
        let mut unclear: Option<CallFailure> = None;
        let mut number = 0;
        loop {
            number += 1;
            let failure = match self.attempt(&breaker, &bucket, deadline, &attempt).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let is_retried = match failure.kind {
                FailureKind::Throttled | FailureKind::Unclear | FailureKind::Unreachable => true,
                FailureKind::NoCapacity
                | FailureKind::RefusedForNow
                | FailureKind::Unparsable
                | FailureKind::Conflict
                | FailureKind::Refused
                | FailureKind::NotSupported
                | FailureKind::LaunchDied => false,
            };
            let is_last = !is_retried
                || number >= self.settings.max_attempts
                || Instant::now() >= deadline
                || breaker.check().is_err();
            if is_last {
                return Err(match (unclear, access) {
                    (Some(earlier), Access::Write) => after_unclear(&earlier, failure),
                    (Some(earlier), Access::Read) if is_retried => earlier,
                    (Some(_), Access::Read) | (None, _) => failure,
                });
            }
            if !failure.kind.did_nothing() {
                unclear = Some(failure.clone());
            }
            tracing::debug!(target: "lcm::retry", service, api, region, attempt = number, %failure, "retrying");
            sleep(delay(number)).await;
        }
    }

    async fn attempt<T, F>(
        &self,
        breaker: &Arc<CircuitBreaker>,
        bucket: &TokenBucket,
        deadline: Instant,
        attempt: &impl Fn() -> F,
    ) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        // Checked before waiting, so that calls do not queue for an unreachable region, and again after it.
        breaker.check()?;
        let limit = self.settings.timeout.as_secs();
        if timeout_at(deadline, bucket.acquire()).await.is_err() {
            let message = format!("held back by the client's own rate limit for {limit} s");
            return Err(CallFailure::new(FailureKind::Throttled, message));
        }
        let permit = breaker.try_acquire()?;
        let result = timeout_at(deadline, attempt())
            .await
            .unwrap_or_else(|_| Err(CallFailure::new(FailureKind::Unclear, format!("no response within {limit} s"))));
        permit.record(&result);
        if result.as_ref().is_err_and(|failure| failure.kind == FailureKind::Throttled) {
            bucket.record_throttle();
        }
        result
    }
}

/// The failure of a write whose earlier attempt may have been executed. Keeps the code of the last attempt, which may
/// state that the write is already in effect.
fn after_unclear(earlier: &CallFailure, last: CallFailure) -> CallFailure {
    let message = match last.kind.did_nothing() {
        true => format!("{}; an earlier attempt may have been executed ({earlier})", last.message),
        false => last.message,
    };
    CallFailure { kind: FailureKind::Unclear, message, ..last }
}

/// A random delay with a maximum that doubles per attempt, so that callers do not retry in lockstep.
fn delay(attempt: u32) -> Duration {
    FIRST_DELAY.mul_f64(f64::from(2_u32.pow(attempt.clamp(1, 7) - 1)) * rand::random::<f64>())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::telemetry::Anomaly;

    const LAUNCH: CallKind<'_> = CallKind {
        service: "ec2",
        api: "RunInstances",
        region: "us-east-1",
        rate_limit: RateLimit { burst: 5.0, per_second: 2.0 },
        access: Access::Write,
    };

    fn policy(telemetry: &Telemetry) -> CallPolicy {
        CallPolicy::new(CallPolicySettings::default(), telemetry)
    }

    /// Makes a call whose attempts fail with `kinds`, then succeed. Returns the result and the number of attempts.
    async fn call(policy: &CallPolicy, kinds: &[FailureKind]) -> (Result<(), FailureKind>, usize) {
        call_as(LAUNCH, policy, kinds).await
    }

    async fn call_as(
        call: CallKind<'_>,
        policy: &CallPolicy,
        kinds: &[FailureKind],
    ) -> (Result<(), FailureKind>, usize) {
        let attempts = Mutex::new(0);
        let attempt = || async {
            let mut attempts = attempts.lock();
            let kind = kinds.get(*attempts).copied();
            *attempts += 1;
            kind.map_or(Ok(()), |kind| Err(CallFailure::new(kind, "planned")))
        };
        let result = policy.call(call, attempt).await;
        (result.map_err(|failure| failure.kind), attempts.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn only_transient_failures_are_retried() {
        use FailureKind::{Conflict, NoCapacity, Refused, Throttled, Unclear};
        let telemetry = Telemetry::default();
        for (kinds, result, attempts) in [
            (vec![], Ok(()), 1),
            (vec![Throttled, Unclear], Ok(()), 3),
            (vec![Throttled; 5], Err(Throttled), 3),
            (vec![Refused], Err(Refused), 1),
            (vec![NoCapacity], Err(NoCapacity), 1),
            (vec![Conflict], Err(Conflict), 1),
        ] {
            assert_eq!(call(&policy(&telemetry), &kinds).await, (result, attempts), "{kinds:?}");
        }
        assert_eq!(telemetry.anomalies(Anomaly::Throttled), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_of_a_write_after_an_unclear_attempt_is_unclear() {
        use FailureKind::{Conflict, LaunchDied, NoCapacity, Refused, RefusedForNow, Throttled, Unclear};
        let policy = || policy(&Telemetry::default());
        assert_eq!(call(&policy(), &[Unclear, Throttled, Throttled]).await, (Err(Unclear), 3));
        for last in [Refused, RefusedForNow, NoCapacity, Conflict, LaunchDied] {
            assert_eq!(call(&policy(), &[Unclear, last]).await, (Err(Unclear), 2), "{last:?}");
            assert_eq!(call(&policy(), &[Throttled, last]).await, (Err(last), 2), "{last:?}");
        }
        // A read changes nothing, so its last response holds.
        let describe = CallKind { access: Access::Read, ..LAUNCH };
        assert_eq!(call_as(describe, &policy(), &[Unclear, Refused]).await, (Err(Refused), 2));
    }

    #[test]
    fn unclear_write_keeps_the_last_code() {
        let earlier = CallFailure::new(FailureKind::Unclear, "no response within 10 s");
        let last = CallFailure::with_code(FailureKind::Refused, "RequestExpired", "Request has expired.");
        let told = after_unclear(&earlier, last);
        assert_eq!((told.kind, told.code.as_deref()), (FailureKind::Unclear, Some("RequestExpired")));
        assert!(told.message.ends_with("(no response within 10 s)"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_per_region() {
        let policy = policy(&Telemetry::default());
        assert_eq!(call(&policy, &[FailureKind::Unclear; 9]).await, (Err(FailureKind::Unclear), 3));
        assert_eq!(call(&policy, &[FailureKind::Unclear; 9]).await, (Err(FailureKind::Unclear), 2));
        assert_eq!(call(&policy, &[]).await, (Err(FailureKind::Unreachable), 0));
        let elsewhere = policy.call(CallKind { region: "eu-west-1", ..LAUNCH }, || async { Ok(()) }).await;
        assert_eq!(elsewhere, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_call_times_out() {
        let policy = policy(&Telemetry::default());
        let start = Instant::now();
        let stuck = policy.call(LAUNCH, std::future::pending::<Result<(), _>>);
        assert_eq!(stuck.await.expect_err("a timeout").kind, FailureKind::Unclear);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
