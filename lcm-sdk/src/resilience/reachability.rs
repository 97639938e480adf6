//! Tracks whether a service can be reached, for operators.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::time::Timestamp;
use crate::ports::{Claim, Clock, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream};

/// Whether a service can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceStatus {
    /// Name of the service.
    pub service: &'static str,
    /// Address of the service, where the port knows it.
    pub url: Option<String>,
    /// Whether the last call succeeded; `None` before the first call.
    pub reachable: Option<bool>,
    /// Time of the first failed call since the last that succeeded.
    pub since: Option<Timestamp>,
    /// Error of the last failed call since then.
    pub last_error: Option<String>,
}

impl ServiceStatus {
    /// The outage as a sentence; `None` if the service can be reached.
    pub fn outage(&self) -> Option<String> {
        let (since, error) = (self.since?, self.last_error.as_ref()?);
        let at = self.url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
        Some(format!("{}{at} cannot be reached since {}: {error}", self.service, since.to_rfc3339()))
    }
}

/// Results of the calls to one service.
pub(crate) struct Reachability {
    clock: Arc<dyn Clock>,
    status: Mutex<ServiceStatus>,
}

impl Reachability {
    pub(crate) fn new(service: &'static str, url: Option<String>, clock: Arc<dyn Clock>) -> Self {
        let status = ServiceStatus { service, url, reachable: None, since: None, last_error: None };
        Self { clock, status: Mutex::new(status) }
    }

    pub(crate) fn status(&self) -> ServiceStatus {
        self.status.lock().clone()
    }

    /// Notes the result of a call. Logs the begin and the end of an outage.
    pub(crate) fn note<T>(&self, result: &Result<T, CallFailure>) {
        let mut status = self.status.lock();
        let (service, url) = (status.service, status.url.clone().unwrap_or_default());
        match result {
            Ok(_) => {
                status.reachable = Some(true);
                status.last_error = None;
                if let Some(since) = status.since.take() {
                    tracing::info!(target: "lcm::reachability", service, url, since = since.to_rfc3339(), "can be reached again");
                }
            }
            Err(failure) => {
                if status.since.is_none() {
                    status.since = Some(self.clock.now());
                    tracing::warn!(target: "lcm::reachability", service, url, %failure, "cannot be reached");
                }
                status.reachable = Some(false);
                status.last_error = Some(failure.to_string());
            }
        }
    }
}

/// A [`Coordination`] that notes the result of every call.
pub(crate) struct MonitoredCoordination {
    inner: Arc<dyn Coordination>,
    reachability: Arc<Reachability>,
}

impl MonitoredCoordination {
    pub(crate) fn new(inner: Arc<dyn Coordination>, reachability: Arc<Reachability>) -> Self {
        Self { inner, reachability }
    }

    fn noted<T>(&self, result: Result<T, CallFailure>) -> Result<T, CallFailure> {
        self.reachability.note(&result);
        result
    }
}

#[async_trait]
impl Coordination for MonitoredCoordination {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.noted(self.inner.grant(ttl).await)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.noted(self.inner.renew(lease).await)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.noted(self.inner.revoke(lease).await)
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        self.noted(self.inner.claim(key, value, lease).await)
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        self.noted(self.inner.list(prefix).await)
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        self.noted(self.inner.watch(prefix, from_revision).await)
    }

    async fn value(&self, key: &str) -> Result<Option<String>, CallFailure> {
        self.noted(self.inner.value(key).await)
    }

    fn url(&self) -> Option<String> {
        self.inner.url()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::failure::FailureKind;
    use crate::providers::memory::ManualClock;

    #[test]
    fn outage_names_url_error_and_begin() {
        let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("a timestamp"));
        let etcd = Reachability::new("etcd", Some("http://etcd:2379".to_owned()), Arc::new(clock.clone()));
        assert_eq!((etcd.status().reachable, etcd.status().outage()), (None, None));
        let failed = |message: &str| Err::<(), _>(CallFailure::new(FailureKind::Unreachable, message));
        etcd.note(&failed("first"));
        clock.advance(Duration::from_secs(60));
        etcd.note(&failed("connection refused"));
        let outage = etcd.status().outage().expect("an outage");
        for part in ["etcd at http://etcd:2379", "2026-02-06T08:00:00", "connection refused"] {
            assert!(outage.contains(part), "{part} is not in {outage}");
        }
        etcd.note(&Ok(()));
        assert_eq!((etcd.status().reachable, etcd.status().outage()), (Some(true), None));
    }
}
