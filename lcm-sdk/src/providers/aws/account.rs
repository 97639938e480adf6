//! AWS account: credentials, endpoints, time limits and rate limits.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider, SharedHttpClient};
use parking_lot::Mutex;

use super::access_key::{KeyInterceptor, LastKey};
use super::api::Caller;
use super::complete::CompleteResponse;
use super::invocation::CallIds;
use crate::lifecycle::instance::ImageOwners;
use crate::lifecycle::secret::Secret;
use crate::resilience::circuit_breaker::BreakerSettings;
use crate::resilience::retry::{CallPolicy, CallPolicySettings};
use crate::telemetry::Telemetry;

/// Time limits and rate limits of AWS calls.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Tuning {
    /// Time limit for opening a connection. Default: 3 s.
    pub connect_timeout: Duration,
    /// Time limit of one attempt, including the connection. Default: 10 s.
    pub attempt_timeout: Duration,
    /// Time limit of a call, including all attempts and waiting for the rate limit. Default: 45 s.
    pub call_timeout: Duration,
    /// Maximum number of attempts per call. Default: 3.
    pub max_attempts: u32,
    /// Factor on the request rates that AWS publishes. Default: 1. Use more only if AWS raised the limits.
    pub rate_factor: f64,
    /// Circuit breakers, one per service and region.
    pub breaker: BreakerSettings,
    /// Time to live of cached AMI lists. Default: 5 min.
    pub image_cache_ttl: Duration,
    /// Owners of accepted AMIs. Default: `self`.
    pub image_owners: ImageOwners,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            attempt_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(45),
            max_attempts: 3,
            rate_factor: 1.0,
            breaker: BreakerSettings::default(),
            image_cache_ttl: Duration::from_secs(300),
            image_owners: ImageOwners::default(),
        }
    }
}

impl Tuning {
    /// Sets the time limit for opening a connection.
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets the time limit of one attempt.
    #[must_use]
    pub fn with_attempt_timeout(self, attempt_timeout: Duration) -> Self {
        Self { attempt_timeout, ..self }
    }

    /// Sets the time limit of a call, including all attempts.
    #[must_use]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    /// Sets the maximum number of attempts per call.
    #[must_use]
    pub fn with_max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// Sets the factor on the request rates that AWS publishes.
    #[must_use]
    pub fn with_rate_factor(self, rate_factor: f64) -> Self {
        Self { rate_factor, ..self }
    }

    /// Sets the settings of the circuit breakers.
    #[must_use]
    pub fn with_breaker(self, breaker: BreakerSettings) -> Self {
        Self { breaker, ..self }
    }

    /// Sets the time to live of cached AMI lists.
    #[must_use]
    pub fn with_image_cache_ttl(self, image_cache_ttl: Duration) -> Self {
        Self { image_cache_ttl, ..self }
    }

    /// Sets the owners of accepted AMIs.
    #[must_use]
    pub fn with_image_owners(self, image_owners: ImageOwners) -> Self {
        Self { image_owners, ..self }
    }
}

/// An AWS account for [`Ec2`](super::Ec2) and [`CloudWatch`](super::CloudWatch). Clones share rate limits and circuit
/// breakers.
///
/// Retries of the SDK are disabled, because they would bypass the rate limits and circuit breakers. Calls are retried
/// here instead. That is safe for all calls: a launch carries a client token, and the other changes are idempotent.
#[derive(Clone)]
pub struct Account {
    config: SdkConfig,
    tuning: Tuning,
    caller: Caller,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration holds credentials.
        f.debug_struct("Account").field("tuning", &self.tuning).finish_non_exhaustive()
    }
}

impl Account {
    /// The account of the standard AWS environment: variables (`AWS_PROFILE`, `AWS_ENDPOINT_URL`,
    /// `AWS_ENDPOINT_URL_EC2`, …), profiles, web identity, container and instance credentials.
    ///
    /// Makes no AWS call. Missing credentials fail the first call.
    pub async fn from_environment(tuning: Tuning, telemetry: &Telemetry) -> Self {
        // Each client sets its own region, so none needs to be configured.
        Self::new(aws_config::defaults(BehaviorVersion::latest()).load().await, tuning, telemetry)
    }

    /// An account with explicit credentials and one endpoint for all regions and services.
    pub fn with_endpoint(
        endpoint: &str,
        access_key_id: &str,
        secret: &Secret,
        tuning: Tuning,
        telemetry: &Telemetry,
    ) -> Self {
        let credentials = Credentials::new(access_key_id, secret.expose(), None, None, "lcm");
        let mut config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(endpoint)
            .credentials_provider(SharedCredentialsProvider::new(credentials));
        if is_plain(endpoint) {
            config.set_http_client(Some(plain_client()));
        }
        Self::new(config.build(), tuning, telemetry)
    }

    /// An account with an SDK configuration. Its retries and time limits are replaced.
    pub fn new(config: SdkConfig, tuning: Tuning, telemetry: &Telemetry) -> Self {
        let settings = CallPolicySettings {
            max_attempts: tuning.max_attempts,
            timeout: tuning.call_timeout,
            breaker: tuning.breaker,
        };
        let caller = Caller::new(CallPolicy::new(settings, telemetry), tuning.rate_factor);
        Self { config, caller, tuning }
    }

    pub(super) const fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// A client for STS, which notes the access key of its requests.
    pub(super) fn sts(&self, region: &str, key: LastKey) -> aws_sdk_sts::Client {
        let config = aws_sdk_sts::config::Builder::from(&self.config)
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::disabled())
            .invocation_id_generator(CallIds)
            .timeout_config(self.timeouts())
            .interceptor(KeyInterceptor(key))
            .build();
        aws_sdk_sts::Client::from_conf(config)
    }

    /// A client for EC2, which notes the access key of its requests.
    pub(super) fn ec2(&self, region: &str, key: LastKey) -> aws_sdk_ec2::Client {
        let config = aws_sdk_ec2::config::Builder::from(&self.config)
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::disabled())
            .invocation_id_generator(CallIds)
            .timeout_config(self.timeouts())
            .interceptor(CompleteResponse)
            .interceptor(KeyInterceptor(key))
            .build();
        aws_sdk_ec2::Client::from_conf(config)
    }

    pub(super) fn cloudwatch(&self, region: &str) -> aws_sdk_cloudwatch::Client {
        let config = aws_sdk_cloudwatch::config::Builder::from(&self.config)
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::disabled())
            .invocation_id_generator(CallIds)
            .timeout_config(self.timeouts())
            .build();
        aws_sdk_cloudwatch::Client::from_conf(config)
    }

    fn timeouts(&self) -> TimeoutConfig {
        TimeoutConfig::builder()
            .connect_timeout(self.tuning.connect_timeout)
            .operation_attempt_timeout(self.tuning.attempt_timeout)
            .operation_timeout(self.tuning.attempt_timeout)
            .build()
    }
}

/// Maximum number of cached clients per service, which is more than AWS has regions.
const MAX_CLIENTS: usize = 64;

/// Clients of one service by region, created on demand.
pub(super) struct ClientCache<C>(Mutex<HashMap<String, C>>);

impl<C> fmt::Debug for ClientCache<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Clients hold credentials.
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl<C> Default for ClientCache<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Clone> ClientCache<C> {
    pub(super) fn get(&self, region: &str, create: impl FnOnce() -> C) -> C {
        let mut clients = self.0.lock();
        if let Some(client) = clients.get(region) {
            return client.clone();
        }
        let client = create();
        if clients.len() < MAX_CLIENTS {
            clients.insert(region.to_owned(), client.clone());
        }
        client
    }
}

/// Whether an endpoint uses plain HTTP without a proxy, which might need TLS.
fn is_plain(endpoint: &str) -> bool {
    const PROXIES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    endpoint.starts_with("http://") && PROXIES.iter().all(|name| std::env::var_os(name).is_none())
}

/// A client for plain HTTP. Loading the certificate authorities of the machine, as the SDK does for every client, would
/// take longer than a call.
fn plain_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new().build_http()
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn https_endpoints_are_not_plain() {
        assert!(!is_plain("https://ec2.us-east-1.amazonaws.com"));
        assert!(!is_plain("ec2.us-east-1.amazonaws.com"));
        assert!(!is_plain(""));
    }
}
