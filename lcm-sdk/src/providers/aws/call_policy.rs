//! What stands between us and every call: breaker, token bucket, attempts, and a limit of time.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use tokio::time::{Instant, sleep, timeout_at};

use super::account::Tuning;
use super::failure;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::resilience::circuit_breaker::{Breaker, BreakerSettings, Breakers};
use crate::resilience::rate_limit::{Bucket, Limiter, RateLimit};
use crate::telemetry::Telemetry;

/// The longest pause before the second attempt; it doubles for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The calls we make. Each has a token bucket of its own in each region, because AWS counts them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    DescribeInstances,
    DescribeImages,
    DescribeSubnets,
    RunInstances,
    StartInstances,
    StopInstances,
    TerminateInstances,
    GetMetricData,
    ListMetrics,
}

impl Api {
    const fn name(self) -> &'static str {
        match self {
            Self::DescribeInstances => "DescribeInstances",
            Self::DescribeImages => "DescribeImages",
            Self::DescribeSubnets => "DescribeSubnets",
            Self::RunInstances => "RunInstances",
            Self::StartInstances => "StartInstances",
            Self::StopInstances => "StopInstances",
            Self::TerminateInstances => "TerminateInstances",
            Self::GetMetricData => "GetMetricData",
            Self::ListMetrics => "ListMetrics",
        }
    }

    const fn service(self) -> &'static str {
        match self {
            Self::DescribeInstances
            | Self::DescribeImages
            | Self::DescribeSubnets
            | Self::RunInstances
            | Self::StartInstances
            | Self::StopInstances
            | Self::TerminateInstances => "ec2",
            Self::GetMetricData | Self::ListMetrics => "cloudwatch",
        }
    }

    /// No more than AWS publishes as the default of an account, and for reads about half: others are in it too.
    fn allowance(self) -> RateLimit {
        match self {
            Self::DescribeInstances | Self::DescribeImages | Self::DescribeSubnets => RateLimit::new(50.0, 10.0),
            Self::RunInstances | Self::StartInstances | Self::StopInstances => RateLimit::new(5.0, 2.0),
            Self::TerminateInstances => RateLimit::new(50.0, 5.0),
            Self::GetMetricData => RateLimit::new(25.0, 25.0),
            Self::ListMetrics => RateLimit::new(12.0, 12.0),
        }
    }
}

/// Lets calls through, or not. Clones share buckets and breakers.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    limiter: Limiter,
    breakers: Breakers,
    speed: f64,
    attempts: u32,
    limit: Duration,
}

impl Guard {
    pub(super) fn new(tuning: &Tuning, telemetry: &Telemetry) -> Self {
        let breaker = BreakerSettings { failures: tuning.breaker.failures.max(1), ..tuning.breaker };
        Self {
            limiter: Limiter::new(telemetry.clone()),
            breakers: Breakers::new(breaker, telemetry.clone()),
            speed: tuning.speed,
            attempts: tuning.attempts.max(1),
            limit: tuning.call,
        }
    }

    /// Makes a call that can be repeated without harm.
    ///
    /// # Flow
    /// Breaker, bucket, attempt. An attempt that was throttled or met nobody is repeated; throttling slows the bucket
    /// first. Everything else is the answer.
    ///
    /// # Cancel safety
    /// Can be dropped at any time; what was sent may still be carried out.
    ///
    /// # Errors
    /// The failure of the last attempt; [`FailureKind::Unreachable`] from an open breaker.
    pub(super) async fn call<T, E, F>(&self, api: Api, region: &str, attempt: impl Fn() -> F) -> Result<T, CallFailure>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let attempt = || {
            let sent = attempt();
            async move { sent.await.map_err(|error| failure(&error)) }
        };
        self.repeat(api, region, attempt).await
    }

    async fn repeat<T, F>(&self, api: Api, region: &str, attempt: impl Fn() -> F) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        check_region(region)?;
        let breaker = self.breakers.of(&format!("{}/{region}", api.service()));
        let bucket = self.limiter.bucket(api.name(), region, api.allowance().times(self.speed));
        let deadline = Instant::now() + self.limit;
        let mut unclear = None;
        let mut number = 0;
        loop {
            number += 1;
            let result = self.attempt(&breaker, &bucket, deadline, &attempt).await;
            let failure = match result {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match failure.kind {
                FailureKind::Throttled | FailureKind::Unclear | FailureKind::Unreachable => {}
                FailureKind::NoCapacity
                | FailureKind::Unparsable
                | FailureKind::Conflict
                | FailureKind::Refused
                | FailureKind::LaunchDied => return Err(failure),
            }
            if failure.kind == FailureKind::Unclear {
                unclear = Some(failure.clone());
            }
            let is_last = number >= self.attempts || Instant::now() >= deadline || breaker.check().is_err();
            if is_last {
                // An attempt before this one may have been carried out; that this one was not does not undo it.
                return Err(unclear.unwrap_or(failure));
            }
            tracing::debug!(target: "lcm::aws", api = api.name(), region, attempt = number, %failure, "tries again");
            sleep(pause(number)).await;
        }
    }

    async fn attempt<T, F>(
        &self,
        breaker: &Arc<Breaker>,
        bucket: &Bucket,
        deadline: Instant,
        attempt: &impl Fn() -> F,
    ) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        // Asked before waiting, so that nobody queues for a region that is left alone, and again after it.
        breaker.check()?;
        if timeout_at(deadline, bucket.acquire()).await.is_err() {
            let message = format!("held back by our own rate limit for {} s", self.limit.as_secs());
            return Err(CallFailure::new(FailureKind::Throttled, message));
        }
        let pass = breaker.admit()?;
        let result = timeout_at(deadline, attempt()).await.unwrap_or_else(|_| {
            let message = format!("no answer within {} s", self.limit.as_secs());
            Err(CallFailure::new(FailureKind::Unclear, message))
        });
        pass.settle(&result);
        if result.as_ref().is_err_and(|failure| failure.kind == FailureKind::Throttled) {
            bucket.throttled();
        }
        result
    }
}

/// A random part of a time that doubles, so that callers who failed together do not come back together.
fn pause(attempt: u32) -> Duration {
    FIRST_PAUSE.mul_f64(f64::from(2_u32.pow(attempt.clamp(1, 7) - 1)) * rand::random::<f64>())
}

/// A name that cannot be a region would become part of an address.
fn check_region(region: &str) -> Result<(), CallFailure> {
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if (1..=32).contains(&region.len()) && region.bytes().all(is_letter) {
        return Ok(());
    }
    let message = format!("{region:?} is no AWS region; they look like us-east-1");
    Err(CallFailure::new(FailureKind::Refused, message))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::telemetry::Anomaly;

    fn guard(telemetry: &Telemetry) -> Guard {
        Guard::new(&Tuning::default(), telemetry)
    }

    /// Makes a call whose attempts fare like this, one after the other; says how it ended and how many were made.
    async fn fares(guard: &Guard, kinds: &[FailureKind]) -> (Result<(), FailureKind>, usize) {
        let made = Mutex::new(0);
        let attempt = || async {
            let mut made = made.lock();
            let kind = kinds.get(*made).copied();
            *made += 1;
            kind.map_or(Ok(()), |kind| Err(CallFailure::new(kind, "so it went")))
        };
        let result = guard.repeat(Api::RunInstances, "us-east-1", attempt).await;
        (result.map_err(|failure| failure.kind), made.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_pass_is_tried_again_and_an_answer_is_not() {
        use FailureKind::{Conflict, NoCapacity, Refused, Throttled, Unclear};
        let telemetry = Telemetry::default();
        for (kinds, result, made) in [
            (vec![], Ok(()), 1),
            (vec![Throttled, Unclear], Ok(()), 3),
            (vec![Throttled; 5], Err(Throttled), 3),
            (vec![Refused], Err(Refused), 1),
            (vec![NoCapacity], Err(NoCapacity), 1),
            (vec![Conflict], Err(Conflict), 1),
        ] {
            assert_eq!(fares(&guard(&telemetry), &kinds).await, (result, made), "{kinds:?}");
        }
        assert_eq!(telemetry.anomalies(Anomaly::Throttled), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_may_have_been_carried_out_is_never_called_nothing() {
        use FailureKind::{Throttled, Unclear};
        let guard = guard(&Telemetry::default());
        assert_eq!(fares(&guard, &[Unclear, Throttled, Throttled]).await, (Err(Unclear), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_region_that_does_not_answer_is_left_alone_and_others_are_not() {
        let guard = guard(&Telemetry::default());
        assert_eq!(fares(&guard, &[FailureKind::Unclear; 9]).await, (Err(FailureKind::Unclear), 3));
        assert_eq!(fares(&guard, &[FailureKind::Unclear; 9]).await, (Err(FailureKind::Unclear), 2));
        assert_eq!(fares(&guard, &[]).await, (Err(FailureKind::Unreachable), 0));
        let elsewhere = guard.repeat(Api::RunInstances, "eu-west-1", || async { Ok(()) }).await;
        assert_eq!(elsewhere, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_ends() {
        let guard = guard(&Telemetry::default());
        let start = Instant::now();
        let stuck = guard.repeat(Api::DescribeImages, "us-east-1", std::future::pending::<Result<(), _>>);
        assert_eq!(stuck.await.expect_err("it ends").kind, FailureKind::Unclear);
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_region_is_refused_with_an_example() {
        let guard = guard(&Telemetry::default());
        for region in ["", "evil.example/", "US-EAST-1"] {
            let refused = guard.repeat(Api::DescribeImages, region, || async { Ok(()) }).await.expect_err("no region");
            assert_eq!(refused.kind, FailureKind::Refused);
            assert!(refused.to_string().contains("us-east-1"), "{refused}");
        }
    }
}
