//! State that all reconcilers of one process share, with any policies: worker locks, gates, and where instances were
//! last found.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::gate::TrustGate;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::trust::LastFound;

/// Worker locks, gates of the regions, and the memory of where instances were last found.
///
/// Reconcilers on the same ports share one, so that a worker is not reconciled twice at the same time, and no region is
/// trusted by one of them and untrusted by another. Clones share the state.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::ports::SystemClock;
/// use lcm_sdk::prelude::*;
/// use lcm_sdk::reconciler::Guards;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (ports, guards) = (Ports::in_memory(Arc::new(SystemClock)), Guards::default());
/// let patient = Reconciler::builder(ports.clone(), Policy::default()).guards(&guards).build();
/// let strict = Reconciler::builder(ports, Policy::default()).guards(&guards).build();
/// # drop((patient, strict));
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Guards {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    gate: TrustGate,
    workers: Mutex<HashMap<WorkerId, Entry>>,
}

#[derive(Default)]
struct Entry {
    lock: Weak<tokio::sync::Mutex<()>>,
    found: Option<(InstanceId, LastFound)>,
}

impl Guards {
    pub(super) fn gate(&self) -> &TrustGate {
        &self.shared.gate
    }

    /// Waits for the worker's lock, which serializes its reconciles.
    pub(super) async fn lock(&self, id: &WorkerId) -> OwnedMutexGuard<()> {
        self.worker_lock(id).lock_owned().await
    }

    /// The worker's lock, if it is free.
    pub(super) fn try_lock(&self, id: &WorkerId) -> Option<OwnedMutexGuard<()>> {
        self.worker_lock(id).try_lock_owned().ok()
    }

    fn worker_lock(&self, id: &WorkerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut workers = self.shared.workers.lock();
        let entry = workers.entry(id.clone()).or_default();
        entry.lock.upgrade().unwrap_or_else(|| {
            let lock = Arc::new(tokio::sync::Mutex::new(()));
            entry.lock = Arc::downgrade(&lock);
            lock
        })
    }

    /// Whether a reconcile of the worker is under way or waits.
    pub(super) fn is_locked(&self, id: &WorkerId) -> bool {
        self.shared.workers.lock().get(id).is_some_and(|entry| entry.lock.strong_count() > 0)
    }

    /// Notes where the worker's instance was found.
    pub(super) fn mark_found(&self, id: &WorkerId, instance: &InstanceId, found: LastFound) {
        self.shared.workers.lock().entry(id.clone()).or_default().found = Some((instance.clone(), found));
    }

    /// Where the instance that the record names was last found by this process.
    pub(super) fn last_found(&self, id: &WorkerId, instance: Option<&InstanceId>) -> Option<LastFound> {
        let workers = self.shared.workers.lock();
        let (found, place) = workers.get(id)?.found.as_ref()?;
        (Some(found) == instance).then(|| place.clone())
    }

    /// Drops the entries of workers that no longer exist, unless they are locked.
    pub(super) fn retain(&self, exists: impl Fn(&WorkerId) -> bool) {
        self.shared.workers.lock().retain(|id, entry| exists(id) || entry.lock.strong_count() > 0);
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guards").finish_non_exhaustive()
    }
}
