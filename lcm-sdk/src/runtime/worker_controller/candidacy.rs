//! Competing for the fleet, or for a part of it.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::Inner;
use crate::runtime::leader::{ElectionConfigError, ElectionHandle, LeaderElection};
use crate::runtime::shards::{Mandate, ShardedElection, ShardedHandle, Shards};
use crate::runtime::shutdown::Shutdown;

/// A candidate for the fleet, or for a part of it.
pub(super) enum Candidacy {
    Fleet(ElectionHandle),
    Shards(ShardedHandle),
}

impl Candidacy {
    /// Begins to compete, as configured. Without etcd nobody can share, and it leads everything.
    pub(super) fn begin(
        inner: &Inner,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, ElectionConfigError> {
        let (config, telemetry) = (&inner.config, inner.reconciler.telemetry().clone());
        let (election, handle) = match (&inner.coordination, config.shards) {
            (None, _) => LeaderElection::alone(telemetry),
            (Some(etcd), Shards::ONE) => LeaderElection::over(Arc::clone(etcd), config.election.clone(), telemetry)?,
            (Some(etcd), shards) => {
                let (election, grace) = (config.election.clone(), config.controller.grace);
                let (election, handle) = ShardedElection::over(Arc::clone(etcd), election, shards, grace, telemetry)?;
                tasks.spawn(election.run(shutdown.clone()));
                return Ok(Self::Shards(handle));
            }
        };
        tasks.spawn(election.run(shutdown.clone()));
        Ok(Self::Fleet(handle))
    }

    /// Waits until it leads. `None` if the election is over.
    pub(super) async fn elected(&self) -> Option<Mandate> {
        match self {
            Self::Fleet(handle) => handle.elected().await.map(Mandate::fleet),
            Self::Shards(handle) => handle.elected().await,
        }
    }

    /// Gives everything up.
    pub(super) async fn resign(&self) {
        match self {
            Self::Fleet(handle) => handle.resign().await,
            Self::Shards(handle) => handle.resign().await,
        }
    }
}
