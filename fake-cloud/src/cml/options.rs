//! How a system is set up.

use std::fmt;
use std::time::Duration;

use super::boot::Boot;
use super::licensing::LicensingRules;
use super::system_stats::Hardware;
use crate::middleware::Middleware;

/// How a system is set up.
#[derive(Clone)]
pub struct Options {
    /// What it says its version is. Clients choose their way of logging in by it.
    pub version: String,
    /// Its host name.
    pub hostname: String,
    /// The address it is reached at.
    pub address: String,
    /// The instance it runs on; faults name it.
    pub instance_id: Option<String>,
    /// The name of its one user.
    pub username: String,
    /// That user's password.
    pub password: String,
    /// How it boots.
    pub boot: Boot,
    /// How long a node boots.
    pub node_boot: Duration,
    /// How licensing goes.
    pub licensing: LicensingRules,
    /// How long a login is good for.
    pub token_lifetime: Duration,
    /// What it runs on.
    pub hardware: Hardware,
    /// What ids are drawn from: the same seed gives the same ids.
    pub seed: u64,
    /// Injects faults into requests and observes them.
    pub middleware: Middleware,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: "2.9.1+build.7".into(),
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
    pub(super) fn is_at_least_2_10(&self) -> bool {
        let mut numbers = self.version.split(|sign: char| !sign.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (2_u32, 10_u32)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("version", &self.version)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
