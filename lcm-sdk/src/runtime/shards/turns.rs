//! One member at a time lets a worker of the shared fleet go.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::core::failure::{CallFailure, FailureKind};
use crate::ports::{Coordination, LeaseId};
use crate::runtime::leader::{ElectionConfig, claim};
use crate::runtime::leadership::Leadership;

/// Where members take turns.
pub(super) struct ScaleDownTurns {
    coordination: Arc<dyn Coordination>,
    config: ElectionConfig,
}

/// The right to count the fleet and let one of it go. It ends by itself, and when it is dropped.
pub(in crate::runtime) struct ScaleDownTurn {
    coordination: Arc<dyn Coordination>,
    lease: LeaseId,
    right: Leadership,
}

impl ScaleDownTurns {
    pub(super) fn new(coordination: Arc<dyn Coordination>, config: ElectionConfig) -> Self {
        Self { coordination, config }
    }

    pub(super) async fn take(&self) -> Result<ScaleDownTurn, CallFailure> {
        match claim(&*self.coordination, &self.config).await? {
            Some((right, lease)) => Ok(ScaleDownTurn { coordination: Arc::clone(&self.coordination), lease, right }),
            None => Err(CallFailure::new(FailureKind::Conflict, "another controller is about to scale the fleet down")),
        }
    }
}

impl ScaleDownTurn {
    /// Until when nobody else has it.
    pub(in crate::runtime) const fn right(&self) -> &Leadership {
        &self.right
    }
}

impl Drop for ScaleDownTurn {
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

impl std::fmt::Debug for ScaleDownTurns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaleDownTurns").field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ScaleDownTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaleDownTurn").field("right", &self.right).finish_non_exhaustive()
    }
}
