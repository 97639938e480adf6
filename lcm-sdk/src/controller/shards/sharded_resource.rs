//! The part of a controller's resources that is in a mandate.

use super::ownership::ShardOwnership;
use crate::controller::queue::WorkResult;
use crate::controller::{Fetched, ListScope, Listing, Reconcile};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::outcome::{Outcome, Requeue};

/// What a controller of any resources reconciles where several members share them: nobody else's is listed, read or
/// reconciled, and a shard is not handed over before the passes over its resources have ended.
///
/// Where the end of a right has to stop a pass, the resource asks [`ShardOwnership::includes`] before it changes anything.
#[derive(Debug, Clone)]
pub struct ShardedResource<C> {
    resources: C,
    mandate: ShardOwnership,
}

impl<C> ShardedResource<C> {
    /// Those of these resources that are in a mandate.
    pub const fn new(resources: C, mandate: ShardOwnership) -> Self {
        Self { resources, mandate }
    }
}

/// How a pass ends that is somebody else's by now.
pub(crate) const NOT_OURS: WorkResult =
    WorkResult { outcome: Outcome::Skip, requeue: Requeue::OnChange, code: "not_ours", error: None };

impl<C: Reconcile> Reconcile for ShardedResource<C> {
    type Resource = C::Resource;

    fn key<'a>(&self, resource: &'a C::Resource) -> &'a str {
        self.resources.key(resource)
    }

    async fn list(&self, scope: ListScope) -> Result<Listing<C::Resource>, CallFailure> {
        let mut listing = self.resources.list(scope).await?;
        listing.resources.retain(|resource| self.mandate.includes(self.resources.key(resource)));
        listing.resting.retain(|key| self.mandate.includes(key));
        Ok(listing)
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<C::Resource>, CallFailure> {
        match self.mandate.includes(key) {
            true => self.resources.fetch(key).await,
            false => Ok(Fetched::Gone),
        }
    }

    async fn reconcile(&self, resource: C::Resource) -> WorkResult {
        // Kept until the pass has ended.
        let charge = self.mandate.over(self.resources.key(&resource));
        match charge.as_ref().filter(|charge| charge.leadership.is_valid()) {
            Some(_) => self.resources.reconcile(resource).await,
            None => NOT_OURS,
        }
    }

    async fn prepare(&self, resources: &[C::Resource]) {
        self.resources.prepare(resources).await;
    }

    fn is_echo(&self, resource: &C::Resource) -> bool {
        self.resources.is_echo(resource)
    }

    fn on_cycle(&self) {
        self.resources.on_cycle();
    }
}
