//! Competing for the whole of something, or for a part of it, as it is configured.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::election::{ShardedElection, ShardedHandle};
use super::ownership::ShardOwnership;
use crate::controller::election::{ElectionConfig, ElectionConfigError, ElectionHandle, LeaderElection};
use crate::controller::hash::Shards;
use crate::controller::shutdown::Shutdown;
use crate::ports::Coordination;
use crate::telemetry::Telemetry;

/// A candidate for the whole, or for a part of it: what a controller leads under, whichever it is.
///
/// ```
/// use lcm_sdk::controller::shards::Candidate;
/// use lcm_sdk::controller::shutdown::Shutdown;
/// use lcm_sdk::telemetry::Telemetry;
/// use tokio::task::JoinSet;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut tasks = JoinSet::new();
/// let alone = Candidate::alone(Telemetry::default(), &Shutdown::new(), &mut tasks);
/// let mandate = alone.elected().await.expect("nobody else is there");
/// assert!(mandate.includes("anybody"));
/// alone.resign().await;
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Candidate(Handle);

#[derive(Debug, Clone)]
enum Handle {
    Whole(ElectionHandle),
    Shards(ShardedHandle),
}

impl Candidate {
    /// Competes with whoever else does. `grace` is how long a shard that is handed over waits for what is under way.
    ///
    /// # Errors
    /// When the election cannot work.
    pub fn over(
        coordination: Arc<dyn Coordination>,
        (election, shards): (ElectionConfig, Shards),
        grace: Duration,
        telemetry: Telemetry,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, ElectionConfigError> {
        if shards == Shards::ONE {
            let (election, handle) = LeaderElection::over(coordination, election, telemetry)?;
            tasks.spawn(election.run(shutdown.clone()));
            return Ok(Self(Handle::Whole(handle)));
        }
        let (election, handle) = ShardedElection::over(coordination, election, shards, grace, telemetry)?;
        tasks.spawn(election.run(shutdown.clone()));
        Ok(Self(Handle::Shards(handle)))
    }

    /// Leads everything at once, without anybody to compete or share with.
    pub fn alone(telemetry: Telemetry, shutdown: &Shutdown, tasks: &mut JoinSet<()>) -> Self {
        let (election, handle) = LeaderElection::alone(telemetry);
        tasks.spawn(election.run(shutdown.clone()));
        Self(Handle::Whole(handle))
    }

    /// Waits until it leads. `None` if the election is over.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn elected(&self) -> Option<ShardOwnership> {
        match &self.0 {
            Handle::Whole(handle) => handle.elected().await.map(ShardOwnership::fleet),
            Handle::Shards(handle) => handle.elected().await,
        }
    }

    /// Gives everything up, and ends the election.
    ///
    /// # Cancel safety
    /// Once it was polled the election ends, whether or not somebody waits for it.
    pub async fn resign(&self) {
        match &self.0 {
            Handle::Whole(handle) => handle.resign().await,
            Handle::Shards(handle) => handle.resign().await,
        }
    }
}
