//! Shared state of the clones of one reconciler, and the lease one of them acts under.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::cache::{CachedFleet, FleetSnapshot, WorkerCache};
use super::result::Mode;
use crate::controller::LeaderLease;
use crate::controller::lease::FleetLockGuard;
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::region::RegionError;
use crate::lifecycle::scale_down::fleet_guards;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{CloudEvent, CmlTarget, Fence, Ports, Scope};
use crate::telemetry::{Anomaly, Telemetry};

/// Maximum age of a fleet view that may keep a worker in service.
const FLEET_MAX_AGE: Duration = Duration::from_secs(5);

/// Credentials for a CML whose record names none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmlDefaults {
    /// User name, `admin` by default.
    pub username: String,
    /// Password, empty by default.
    pub password: Secret,
}

impl Default for CmlDefaults {
    fn default() -> Self {
        Self { username: "admin".to_owned(), password: Secret::from("") }
    }
}

impl CmlDefaults {
    /// Credentials of this user.
    pub fn new(username: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self { username: username.into(), password: password.into() }
    }
}

/// The dependencies of a reconcile. Clones share everything but the lease.
#[derive(Clone)]
pub(crate) struct Context {
    shared: Arc<Shared>,
    pub(super) lease: LeaderLease,
}

struct Shared {
    ports: Ports,
    policy: Policy,
    telemetry: Telemetry,
    cml_defaults: CmlDefaults,
    cache: WorkerCache,
    fleet: Arc<tokio::sync::Mutex<CachedFleet>>,
    scale_down_epoch: AtomicU64,
}

/// Exclusive use of the fleet view, from counting the fleet until the reconcile is recorded: two reconciles that count
/// the same fleet could together scale it down below its minimum.
pub(super) struct FleetGuard {
    cached: OwnedMutexGuard<CachedFleet>,
    /// The same among the controllers that share a fleet.
    lock: Option<FleetLockGuard>,
}

impl Context {
    pub(super) fn new(ports: Ports, policy: Policy, cml_defaults: CmlDefaults, telemetry: Telemetry) -> Self {
        let shared = Shared {
            ports,
            policy,
            telemetry,
            cml_defaults,
            cache: WorkerCache::default(),
            fleet: Arc::default(),
            scale_down_epoch: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), lease: LeaderLease::unfenced() }
    }

    pub(super) fn with_lease(&self, lease: LeaderLease) -> Self {
        Self { shared: Arc::clone(&self.shared), lease }
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.shared.ports
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.shared.telemetry
    }

    pub(super) fn cache(&self) -> &WorkerCache {
        &self.shared.cache
    }

    pub(super) fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// Invalidates the cached fleet count after a worker may have left service.
    pub(super) fn bump_scale_down_epoch(&self) {
        self.shared.scale_down_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The worker's region.
    ///
    /// # Errors
    /// If neither the record nor the policy names one.
    pub(super) fn region<'a>(&'a self, worker: &'a Worker) -> Result<&'a str, CallFailure> {
        let missing = || CallFailure::new(FailureKind::Refused, RegionError::NoRegion.to_string());
        self.policy().regions.region_of(worker).ok_or_else(missing)
    }

    /// The worker's CML, at the address EC2 showed in this reconcile. An address from the record may belong to another
    /// customer's instance by now.
    pub(super) fn cml_target(&self, worker: &Worker, instance: Option<&Instance>) -> Option<CmlTarget> {
        let address = instance?.address()?.to_owned();
        Some(self.cml_target_at(worker, address))
    }

    pub(super) fn cml_target_at(&self, worker: &Worker, address: String) -> CmlTarget {
        let defaults = &self.shared.cml_defaults;
        CmlTarget {
            address,
            username: worker.cml_username.clone().unwrap_or_else(|| defaults.username.clone()),
            password: worker.cml_password.clone().unwrap_or_else(|| defaults.password.clone()),
        }
    }

    /// Publishes an event. A failed delivery is logged and counted, and nothing waits for it.
    pub(super) async fn announce(&self, subject: &str, event: &Event, at: Timestamp) -> Result<(), CallFailure> {
        let event = CloudEvent::new(subject, event, at);
        let published = self.ports().events.publish(&event).await;
        if let Err(failure) = &published {
            tracing::warn!(target: "lcm::events", subject, kind = event.kind, %failure, "an event was not delivered");
            self.telemetry().count_anomaly(Anomaly::EventUndelivered);
        }
        published
    }

    /// Counts the fleet. A cached view may keep a worker in service, which costs nothing; only a fresh one lets it go.
    pub(super) async fn fleet(&self, mode: Mode, now: Timestamp) -> (Result<FleetView, CallFailure>, FleetGuard) {
        let mut cached = Arc::clone(&self.shared.fleet).lock_owned().await;
        // Read before the records are listed: a worker that leaves meanwhile may or may not be in the listing.
        let scale_down_epoch = self.shared.scale_down_epoch.load(Ordering::Acquire);
        let recent = cached.snapshot.filter(|seen| seen.at.elapsed() < FLEET_MAX_AGE);
        let keeps = |view: &FleetView| fleet_guards(view, &self.policy().scale_down, now).is_some();
        if let Some(seen) = recent.filter(|seen| seen.scale_down_epoch == scale_down_epoch && keeps(&seen.view)) {
            return (Ok(seen.view), FleetGuard { cached, lock: None });
        }
        // Taken before the records are listed: another controller would count a worker that is about to leave.
        let lock = match mode {
            Mode::Real => match self.lease.lock_fleet().await {
                Ok(lock) => lock,
                Err(failure) => return (Err(failure), FleetGuard { cached, lock: None }),
            },
            Mode::DryRun => None,
        };
        let counted = self.ports().control_plane.workers(&Scope::everything()).await.map(|listing| {
            let view = FleetView::from_workers(&listing.workers);
            cached.snapshot = Some(FleetSnapshot { view, at: Instant::now(), scale_down_epoch });
            view
        });
        (counted, FleetGuard { cached, lock })
    }
}

impl FleetGuard {
    /// The lease on scaling the fleet down, where several controllers share one.
    pub(super) fn lease(&self) -> Option<&LeaderLease> {
        self.lock.as_ref().map(FleetLockGuard::lease)
    }

    /// Takes a worker that was scaled down out of the cached view. The epoch follows our own departure; if another
    /// worker left as well, the view stays invalid.
    pub(super) fn remove_worker(&mut self, now: Timestamp) {
        self.cached.snapshot = self.cached.snapshot.map(|seen| FleetSnapshot {
            view: seen.view.after_scale_down(now),
            scale_down_epoch: seen.scale_down_epoch + 1,
            ..seen
        });
    }
}
