use async_trait::async_trait;
use serde_json::Value;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;

/// The CML system on one worker.
#[async_trait]
pub trait Cml: Send + Sync {
    /// What it reports about itself: version, readiness, labs and nodes. What it does not tell is missing alone.
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure>;

    /// Its telemetry events, as it wrote them. An empty list means that nothing happened.
    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure>;

    /// How its registration stands.
    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure>;

    /// Hands a token over. Success means *accepted*: how it goes is read from [`Cml::registration`] later.
    async fn register(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure>;

    /// The same, replacing a registration that is there.
    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure>;

    /// Gives the licence back. Done, done locally only, and already done are all success.
    async fn deregister(&self, at: &CmlTarget) -> Result<(), CallFailure>;
}

/// Where a CML is and how to sign in. It can be logged: the password cannot be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmlTarget {
    /// Its address, without a scheme; the port is the implementation's business.
    pub address: String,
    /// User.
    pub username: String,
    /// Password.
    pub password: Secret,
}
