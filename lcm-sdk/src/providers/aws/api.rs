//! AWS APIs with their rate limits.

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};

use super::errors::failure;
use super::invocation;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::resilience::rate_limit::RateLimit;
use crate::resilience::retry::{Access, CallKind, CallPolicy};

/// The APIs in use. AWS limits the rate of each per region.
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
    GetCallerIdentity,
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
            Self::GetCallerIdentity => "GetCallerIdentity",
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
            Self::GetCallerIdentity => "sts",
        }
    }

    const fn access(self) -> Access {
        match self {
            Self::DescribeInstances
            | Self::DescribeImages
            | Self::DescribeSubnets
            | Self::GetMetricData
            | Self::ListMetrics
            | Self::GetCallerIdentity => Access::Read,
            Self::RunInstances | Self::StartInstances | Self::StopInstances | Self::TerminateInstances => Access::Write,
        }
    }

    /// The default limits that AWS publishes; for reads half of them, because other clients share the account.
    fn rate_limit(self) -> RateLimit {
        match self {
            Self::DescribeInstances | Self::DescribeImages | Self::DescribeSubnets => RateLimit::new(50.0, 10.0),
            Self::RunInstances | Self::StartInstances | Self::StopInstances => RateLimit::new(5.0, 2.0),
            Self::TerminateInstances => RateLimit::new(50.0, 5.0),
            Self::GetMetricData => RateLimit::new(25.0, 25.0),
            Self::ListMetrics => RateLimit::new(12.0, 12.0),
            Self::GetCallerIdentity => RateLimit::new(25.0, 25.0),
        }
    }
}

/// Makes AWS calls with a [`CallPolicy`]. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    policy: CallPolicy,
    rate_factor: f64,
}

impl Caller {
    pub(super) fn new(policy: CallPolicy, rate_factor: f64) -> Self {
        Self { policy, rate_factor }
    }

    /// Makes an idempotent call. See [`CallPolicy::call`].
    pub(super) async fn call<T, E, F>(&self, api: Api, region: &str, attempt: impl Fn() -> F) -> Result<T, CallFailure>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        check_region(region)?;
        let rate_limit = api.rate_limit().scale(self.rate_factor);
        let access = api.access();
        let kind = CallKind { service: api.service(), api: api.name(), region, rate_limit, access };
        // All attempts share an id, so that AWS, and faults of a fake, can tell a retry from another call.
        let id = invocation::new();
        let attempt = || {
            // Boxed: the client's futures fill tens of kilobytes of each stack frame that holds them.
            let response = invocation::attempt(id.clone(), Box::pin(attempt()));
            async move { response.await.map_err(|error| failure(&error)) }
        };
        self.policy.call(kind, attempt).await
    }
}

/// Refuses names that are not a region, because the name becomes part of a URL.
fn check_region(region: &str) -> Result<(), CallFailure> {
    let is_allowed = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if (1..=32).contains(&region.len()) && region.bytes().all(is_allowed) {
        return Ok(());
    }
    let message = format!("invalid AWS region {region:?}: expected a name such as us-east-1");
    Err(CallFailure::new(FailureKind::Refused, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_region_is_refused() {
        for region in ["", "evil.example/", "US-EAST-1"] {
            let refused = check_region(region).expect_err("no region");
            assert_eq!(refused.kind, FailureKind::Refused);
            assert!(refused.to_string().contains("us-east-1"), "{refused}");
        }
        check_region("us-gov-west-1").expect("a region");
    }
}
