//! What an election is about.

use std::time::Duration;

use thiserror::Error;

/// What an election is about. Whoever competes for the same key competes for the same right: give every shard a key of
/// its own to have a leader per shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The key the leader holds.
    pub key: String,
    /// Who we are; the value of the key. Two processes of the same name never share a leadership.
    pub identity: String,
    /// How long the lease lives without renewal; it is renewed three times as often.
    pub ttl: Duration,
    /// How long before the lease ends we stop trusting it: what was begun right before still has to reach the cloud,
    /// and no two clocks run equally fast.
    pub margin: Duration,
    /// How often a standby looks whether the key is free, beside watching it.
    pub retry_interval: Duration,
}

impl ElectionConfig {
    /// The key of the worker controller.
    pub const WORKER_CONTROLLER: &'static str = "/lcm/worker-controller/leader";

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// Says what is wrong and what is accepted.
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
        }
    }
}

/// An election that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ElectionConfigError {
    /// There is nothing to compete for.
    #[error("the election has no key; accepted: any text, such as {}", ElectionConfig::WORKER_CONTROLLER)]
    NoKey,
    /// Nobody could tell who leads.
    #[error("the election has no identity; accepted: any text that names this process")]
    NoIdentity,
    /// etcd counts in seconds.
    #[error("the lease lives for {ttl:?}; accepted: a second or more")]
    ShortTtl {
        /// What was asked for.
        ttl: Duration,
    },
    /// A single renewal that is late would end the leadership.
    #[error("the margin of {margin:?} leaves too little of a lease of {ttl:?}; accepted: less than half of it")]
    LargeMargin {
        /// What was asked for.
        margin: Duration,
        /// The lease.
        ttl: Duration,
    },
    /// A standby would never rest.
    #[error("the retry interval is zero; accepted: anything longer")]
    NoRetryInterval,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_election_works_and_what_cannot_work_is_refused() {
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
