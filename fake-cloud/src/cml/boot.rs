//! What a system answers while it boots.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// How far a system has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BootStage {
    /// Nothing listens: connections are refused.
    Refused,
    /// nginx is up, what it stands for is not: 502 with a page of HTML.
    BadGateway,
    /// The API answers, but no compute can start nodes: `ready` is false.
    NotReady,
    /// All is up.
    Ready,
}

/// How long each stage takes, on the world's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Boot {
    /// How long connections are refused.
    pub refused: Duration,
    /// How long nginx answers alone after that.
    pub bad_gateway: Duration,
    /// How long the API says it is not ready after that.
    pub not_ready: Duration,
}

impl Boot {
    /// Ready at once.
    pub const INSTANT: Self = Self { refused: Duration::ZERO, bad_gateway: Duration::ZERO, not_ready: Duration::ZERO };

    /// About as long as on a real instance: four minutes in all.
    pub const REALISTIC: Self = Self {
        refused: Duration::from_secs(90),
        bad_gateway: Duration::from_secs(60),
        not_ready: Duration::from_secs(90),
    };

    /// Where a system stands that was switched on at `since`.
    pub(super) fn stage(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> BootStage {
        [BootStage::BadGateway, BootStage::NotReady, BootStage::Ready]
            .into_iter()
            .rfind(|stage| now >= self.reaches(*stage, since))
            .unwrap_or(BootStage::Refused)
    }

    /// When a system that was switched on at `since` reaches a stage.
    pub(super) fn reaches(&self, stage: BootStage, since: DateTime<Utc>) -> DateTime<Utc> {
        let after = match stage {
            BootStage::Refused => Duration::ZERO,
            BootStage::BadGateway => self.refused,
            BootStage::NotReady => self.refused.saturating_add(self.bad_gateway),
            BootStage::Ready => self.refused.saturating_add(self.bad_gateway).saturating_add(self.not_ready),
        };
        let after = TimeDelta::from_std(after).unwrap_or(TimeDelta::MAX);
        since.checked_add_signed(after).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}
