use async_trait::async_trait;
use serde_json::Value;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;

/// The CML systems on workers.
///
/// # Promises
/// - Systems report metrics. Metrics that need no login are reported even if the login fails.
/// - Unavailable systems never refuse: a system that is off or booting is `Unreachable` or `Unclear`.
/// - Wrong passwords are retryable, and no failure contains a password or token.
/// - Telemetry is complete, even after the login expired.
/// - Registrations are replaced and ended, and ending one twice is a success.
/// - Failed registrations are reported by the registration status.
#[async_trait]
pub trait Cml: Send + Sync {
    /// Reads version, readiness, and the number of labs and nodes. A field that the system does not report is `None`.
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure>;

    /// Reads the telemetry events, unchanged. An empty list means that there was no activity.
    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure>;

    /// Reads the status of the license registration.
    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure>;

    /// Submits a license token. Success means that it was accepted; [`Cml::registration`] reports the result.
    async fn register(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure>;

    /// Submits a license token that replaces the current registration.
    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure>;

    /// Returns the license. Succeeds if it was returned, returned locally only, or not registered.
    async fn deregister(&self, at: &CmlTarget) -> Result<(), CallFailure>;
}

/// Address and credentials of a CML system. `Debug` does not show the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmlTarget {
    /// IP address or host name, without scheme and port.
    pub address: String,
    /// User to log in as.
    pub username: String,
    /// Password of the user.
    pub password: Secret,
}
