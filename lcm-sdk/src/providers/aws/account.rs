//! How AWS is reached: credentials, endpoints, time limits, and how fast it is asked.

use std::fmt;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider, SharedHttpClient};

use super::call_policy::Guard;
use super::complete::CompleteResponse;
use crate::lifecycle::secret::Secret;
use crate::resilience::circuit_breaker::BreakerSettings;
use crate::telemetry::Telemetry;

/// How patient and how fast we are with AWS.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// How long a connection may take.
    pub connect: Duration,
    /// How long one attempt may take, connection included.
    pub attempt: Duration,
    /// How long a call may take with all its attempts and with waiting for its turn.
    pub call: Duration,
    /// How many attempts a call gets.
    pub attempts: u32,
    /// How many times faster than AWS's published request rates we may ask. More than 1 only if AWS raised them.
    pub speed: f64,
    /// When a region that does not answer is left alone.
    pub breaker: BreakerSettings,
    /// How long the AMIs that a pattern matches are remembered.
    pub images_kept: Duration,
    /// Accounts whose AMIs are taken, as AWS writes them: ids, `self`. Empty takes anybody's, public ones too: then a
    /// stranger can publish an AMI with a matching name and a newer date. Name the owners wherever they are known.
    pub image_owners: Vec<String>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            attempt: Duration::from_secs(10),
            call: Duration::from_secs(45),
            attempts: 3,
            speed: 1.0,
            breaker: BreakerSettings::default(),
            images_kept: Duration::from_secs(300),
            image_owners: Vec::new(),
        }
    }
}

/// An AWS account, as [`Ec2`](super::Ec2) and [`CloudWatch`](super::CloudWatch) reach it. Clones share the buckets
/// and breakers, so that all callers in a process slow down together.
///
/// The SDK's own retries are switched off: an attempt that the SDK repeats by itself would go past the token buckets
/// and the breakers. The attempts are made here instead, each one counted. Repeating is safe for every call we make:
/// a launch carries its client token, all other changes end in the same state however often they are asked for.
#[derive(Clone)]
pub struct Account {
    config: SdkConfig,
    tuning: Tuning,
    guard: Guard,
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
    /// Nothing is asked of AWS yet; credentials that are missing show when the first call is made.
    pub async fn from_environment(tuning: Tuning, telemetry: &Telemetry) -> Self {
        // Endpoints are per region and each client is told its own, so no region needs to be configured.
        Self::new(aws_config::defaults(BehaviorVersion::latest()).load().await, tuning, telemetry)
    }

    /// An account with credentials of its own behind an endpoint of its own, the same for all regions and services.
    pub fn at(endpoint: &str, access_key_id: &str, secret: &Secret, tuning: Tuning, telemetry: &Telemetry) -> Self {
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

    /// An account as somebody configured the SDK. Its retries and time limits are replaced by ours.
    pub fn new(config: SdkConfig, tuning: Tuning, telemetry: &Telemetry) -> Self {
        Self { config, guard: Guard::new(&tuning, telemetry), tuning }
    }

    pub(super) const fn guard(&self) -> &Guard {
        &self.guard
    }

    pub(super) const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    pub(super) fn ec2(&self, region: &str) -> aws_sdk_ec2::Client {
        let config = aws_sdk_ec2::config::Builder::from(&self.config)
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::disabled())
            .timeout_config(self.time_limits())
            .interceptor(CompleteResponse)
            .build();
        aws_sdk_ec2::Client::from_conf(config)
    }

    pub(super) fn cloudwatch(&self, region: &str) -> aws_sdk_cloudwatch::Client {
        let config = aws_sdk_cloudwatch::config::Builder::from(&self.config)
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::disabled())
            .timeout_config(self.time_limits())
            .build();
        aws_sdk_cloudwatch::Client::from_conf(config)
    }

    fn time_limits(&self) -> TimeoutConfig {
        TimeoutConfig::builder()
            .connect_timeout(self.tuning.connect)
            .operation_attempt_timeout(self.tuning.attempt)
            .operation_timeout(self.tuning.attempt)
            .build()
    }
}

/// Whether an endpoint is reached without encryption, and directly: a proxy may want to be spoken to with it.
fn is_plain(endpoint: &str) -> bool {
    const PROXIES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    endpoint.starts_with("http://") && PROXIES.iter().all(|name| std::env::var_os(name).is_none())
}

/// A client for addresses without encryption. It needs no authorities: to read those of the machine, as the SDK does
/// for every client it makes, takes longer than to ask for an instance.
fn plain_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new().build_http()
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn only_what_is_not_encrypted_does_without_authorities() {
        assert!(!is_plain("https://ec2.us-east-1.amazonaws.com"));
        assert!(!is_plain("ec2.us-east-1.amazonaws.com"));
        assert!(!is_plain(""));
    }
}
