//! One member at a time lets a worker of the shared fleet go.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::controller::election::{ElectionConfig, claim};
use crate::controller::lease::LeaderLease;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{Coordination, LeaseId};

/// Where members take turns.
pub(crate) struct ScaleDownLocks {
    coordination: Arc<dyn Coordination>,
    config: ElectionConfig,
}

/// The right to count the fleet and let one of it go. It ends by itself, and when it is dropped.
pub(crate) struct ScaleDownLock {
    coordination: Arc<dyn Coordination>,
    lease: LeaseId,
    right: LeaderLease,
}

impl ScaleDownLocks {
    pub(crate) fn new(coordination: Arc<dyn Coordination>, config: ElectionConfig) -> Self {
        Self { coordination, config }
    }

    pub(crate) async fn take(&self) -> Result<ScaleDownLock, CallFailure> {
        match claim(&*self.coordination, &self.config).await? {
            Some((right, lease)) => Ok(ScaleDownLock { coordination: Arc::clone(&self.coordination), lease, right }),
            None => Err(CallFailure::new(FailureKind::Conflict, "another controller is about to scale the fleet down")),
        }
    }
}

impl ScaleDownLock {
    /// Until when nobody else has it.
    pub(crate) const fn right(&self) -> &LeaderLease {
        &self.right
    }
}

impl Drop for ScaleDownLock {
    fn drop(&mut self) {
        let (coordination, lease) = (Arc::clone(&self.coordination), self.lease);
        // Without a runtime everything ends; the lease does so by itself.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Err(failure) = coordination.revoke(lease).await {
                    tracing::debug!(target: "lcm::leader", %failure, "a turn could not be given back; it runs out");
                }
            });
        }
    }
}

impl std::fmt::Debug for ScaleDownLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaleDownLocks").field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ScaleDownLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaleDownLock").field("right", &self.right).finish_non_exhaustive()
    }
}
