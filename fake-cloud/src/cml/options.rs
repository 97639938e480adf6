//! Options of a CML server and its boot sequence.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::licensing::LicensingRules;
use super::release::{DEFAULT_VERSION, Release};
use super::system_stats::Hardware;
use crate::middleware::Middleware;

/// Options of a CML server.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// Reported version; responses have the shapes of its release. Without one, the server of an instance has the
    /// version of its image, and any other server has 2.9.1.
    pub version: Option<String>,
    /// Host name in system statistics and the licensing status.
    pub hostname: String,
    /// Address of the compute host in responses.
    pub address: String,
    /// EC2 instance of the server; fault rules match it.
    pub instance_id: Option<String>,
    /// Name of the built-in admin.
    pub username: String,
    /// Password of the built-in admin, until it is changed.
    pub password: String,
    /// Duration of each boot stage.
    pub boot: Boot,
    /// Boot time of a node.
    pub node_boot: Duration,
    /// Durations and status names of licensing.
    pub licensing: LicensingRules,
    /// Lifetime of a login token.
    pub token_lifetime: Duration,
    /// Reported capacity of the host.
    pub hardware: Hardware,
    /// Seed of the generated ids; equal seeds give equal ids.
    pub seed: u64,
    /// Injects faults into requests and observes them.
    #[serde(skip)]
    pub middleware: Middleware,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: None,
            hostname: "cml-controller".into(),
            address: "127.0.0.1".into(),
            instance_id: None,
            username: "admin".into(),
            password: "admin".into(),
            boot: Boot::INSTANT,
            node_boot: Duration::from_secs(5),
            licensing: LicensingRules::default(),
            token_lifetime: Duration::from_secs(24 * 3600),
            hardware: Hardware::default(),
            seed: 0,
            middleware: Middleware::default(),
        }
    }
}

impl Options {
    /// Reported version.
    pub fn version(&self) -> &str {
        self.version.as_deref().unwrap_or(DEFAULT_VERSION)
    }

    pub(super) fn release(&self) -> Release {
        Release::from_version(self.version())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("version", &self.version())
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Stage of the boot sequence, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum BootStage {
    /// No listener: connections are refused.
    Refused,
    /// nginx runs, its backend does not: 502 with an HTML page.
    BadGateway,
    /// The API responds, but no compute host can start nodes: `ready` is false.
    NotReady,
    /// Every service responds and `ready` is true.
    Ready,
}

/// When a server leaves [`BootStage::Refused`] and begins to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listens {
    Now,
    At(DateTime<Utc>),
    /// When a test releases the stage to which it pinned the server.
    Unknown,
}

/// Duration of each boot stage, on the world's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Boot {
    /// Time until the server accepts connections.
    pub refused: Duration,
    /// Time after that until the API replaces the 502 page of nginx.
    pub bad_gateway: Duration,
    /// Time after that until `ready` is true.
    pub not_ready: Duration,
}

impl Boot {
    /// Ready immediately, without intermediate stages.
    pub const INSTANT: Self = Self { refused: Duration::ZERO, bad_gateway: Duration::ZERO, not_ready: Duration::ZERO };

    /// Four minutes in total, close to a real instance.
    pub const REALISTIC: Self = Self {
        refused: Duration::from_secs(90),
        bad_gateway: Duration::from_secs(60),
        not_ready: Duration::from_secs(90),
    };

    /// Stage at `now` of a server that was powered on at `since`.
    pub(super) fn stage(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> BootStage {
        [BootStage::BadGateway, BootStage::NotReady, BootStage::Ready]
            .into_iter()
            .rfind(|stage| now >= self.reached_at(*stage, since))
            .unwrap_or(BootStage::Refused)
    }

    /// When a server that was powered on at `since` begins to listen.
    pub(super) fn listens(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> Listens {
        match self.reached_at(BootStage::BadGateway, since) {
            time if time <= now => Listens::Now,
            time => Listens::At(time),
        }
    }

    /// Time at which a server that was powered on at `since` reaches `stage`.
    pub(super) fn reached_at(&self, stage: BootStage, since: DateTime<Utc>) -> DateTime<Utc> {
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
