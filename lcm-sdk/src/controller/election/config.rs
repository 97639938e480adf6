//! Settings of an election.

use std::time::Duration;

use thiserror::Error;

use crate::controller::lease_clock::LeaseClock;

/// Settings of an election. Candidates with the same key compete for the same lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionConfig {
    /// Key that the leader holds.
    pub key: String,
    /// Value of the key: names this process to operators. Two processes with the same identity still compete.
    pub identity: String,
    /// Lifetime of the lease without renewal. It is renewed every third of that.
    pub ttl: Duration,
    /// Time before the lease ends at which the leader stops trusting it. Covers requests in flight and clock drift.
    pub margin: Duration,
    /// Interval at which a standby reads the key, in addition to watching it.
    pub retry_interval: Duration,
    /// Clock on which the lease expires.
    pub clock: LeaseClock,
}

impl ElectionConfig {
    /// Default key of the worker controller.
    pub const WORKER_CONTROLLER: &'static str = "/lcm/worker-controller/leader";

    /// Default settings with another key.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Sets the name of this process.
    #[must_use]
    pub fn with_identity(self, identity: impl Into<String>) -> Self {
        Self { identity: identity.into(), ..self }
    }

    /// Sets the lifetime of the lease without renewal.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Sets the time before the lease ends at which the leader stops trusting it.
    #[must_use]
    pub fn with_margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// Sets the interval at which a standby reads the key.
    #[must_use]
    pub fn with_retry_interval(self, retry_interval: Duration) -> Self {
        Self { retry_interval, ..self }
    }

    /// Sets the clock on which the lease expires.
    #[must_use]
    pub fn with_clock(self, clock: LeaseClock) -> Self {
        Self { clock, ..self }
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// Names the first setting that cannot work and what is accepted.
    pub fn check(&self) -> Result<(), ElectionConfigError> {
        if self.key.is_empty() {
            return Err(ElectionConfigError::NoKey);
        }
        if self.identity.is_empty() {
            return Err(ElectionConfigError::NoIdentity);
        }
        if self.ttl < Duration::from_secs(1) {
            return Err(ElectionConfigError::ShortTtl { ttl: self.ttl });
        }
        if self.margin >= self.ttl / 2 {
            return Err(ElectionConfigError::LargeMargin { margin: self.margin, ttl: self.ttl });
        }
        if self.retry_interval.is_zero() {
            return Err(ElectionConfigError::NoRetryInterval);
        }
        Ok(())
    }
}

impl Default for ElectionConfig {
    fn default() -> Self {
        Self {
            key: Self::WORKER_CONTROLLER.to_owned(),
            identity: format!("lcm-{}-{:08x}", std::process::id(), rand::random::<u32>()),
            ttl: Duration::from_secs(15),
            margin: Duration::from_secs(2),
            retry_interval: Duration::from_secs(5),
            clock: LeaseClock::default(),
        }
    }
}

impl From<&str> for ElectionConfig {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

/// Election settings that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ElectionConfigError {
    /// The key is empty.
    #[error("the election has no key; accepted: any text, such as {}", ElectionConfig::WORKER_CONTROLLER)]
    NoKey,
    /// The identity is empty.
    #[error("the election has no identity; accepted: any text that names this process")]
    NoIdentity,
    /// The lease is shorter than a second, the unit of etcd.
    #[error("the lease lives for {ttl:?}; accepted: a second or more")]
    ShortTtl {
        /// The rejected lifetime.
        ttl: Duration,
    },
    /// The margin is so large that a single late renewal would end the lease.
    #[error("the margin of {margin:?} leaves too little of a lease of {ttl:?}; accepted: less than half of it")]
    LargeMargin {
        /// The rejected margin.
        margin: Duration,
        /// Lifetime of the lease.
        ttl: Duration,
    },
    /// A standby would poll without pause.
    #[error("the retry interval is zero; accepted: anything longer")]
    NoRetryInterval,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_rejected() {
        let usual = ElectionConfig::default();
        assert_eq!(usual.check(), Ok(()));
        assert_ne!(usual.identity, ElectionConfig::default().identity);
        let refused = |config: ElectionConfig| config.check().expect_err("refused").to_string();
        assert!(
            refused(ElectionConfig { key: String::new(), ..usual.clone() }).contains("/lcm/worker-controller/leader")
        );
        assert!(refused(ElectionConfig { identity: String::new(), ..usual.clone() }).contains("identity"));
        assert!(refused(ElectionConfig { ttl: Duration::from_millis(10), ..usual.clone() }).contains("10ms"));
        assert!(refused(ElectionConfig { margin: usual.ttl, ..usual.clone() }).contains("half"));
        assert!(refused(ElectionConfig { retry_interval: Duration::ZERO, ..usual }).contains("zero"));
    }
}
