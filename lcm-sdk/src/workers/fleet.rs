//! The workers of a control plane as the resource of a controller.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::controller::{LeaderLease, ListRequest, ListScope, Resource, ResourceList, WorkReason, WorkResult};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::observation::Observation;
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::worker::Worker;
use crate::ports::Scope;
use crate::reconciler::{Hints, Mode, ReconcileResult, Reconciler};

/// Time after an own write for which a change counts as its echo, on a server without versions.
const ECHO_WINDOW: Duration = Duration::from_secs(2);

/// The workers of a control plane, reconciled by a [`Reconciler`].
#[derive(Clone)]
pub struct WorkerFleet {
    reconciler: Reconciler,
    mode: Mode,
    on_result: Option<OnResult>,
}

/// A worker, and the time at which its record was requested: its reconcile may begin much later.
#[derive(Debug, Clone)]
pub struct FetchedWorker {
    /// The worker as its record describes it.
    pub worker: Worker,
    /// Time at which the record was requested.
    pub read_at: Instant,
}

/// Called with the result of every reconcile.
type OnResult = Arc<dyn Fn(&ReconcileResult) + Send + Sync>;

impl WorkerFleet {
    /// The fleet of a reconciler's control plane.
    pub fn new(reconciler: Reconciler, mode: Mode) -> Self {
        Self { reconciler, mode, on_result: None }
    }

    /// Calls a function with the result of every reconcile.
    #[must_use]
    pub fn on_result(self, called: impl Fn(&ReconcileResult) + Send + Sync + 'static) -> Self {
        Self { on_result: Some(Arc::new(called)), ..self }
    }
}

impl fmt::Debug for WorkerFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerFleet").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Resource for WorkerFleet {
    type Object = FetchedWorker;

    fn key<'a>(&self, read: &'a FetchedWorker) -> &'a str {
        read.worker.id.as_str()
    }

    /// Lists all owned workers that are not terminated. In the scope [`ListScope::Active`], workers at rest need no
    /// reconcile.
    async fn list(&self, request: &ListRequest) -> Result<ResourceList<FetchedWorker>, CallFailure> {
        let read_at = Instant::now();
        let mut listing = self.reconciler.ports().control_plane.workers(&Scope::active()).await?;
        listing.workers.retain(|worker| request.owns(worker.id.as_str()));
        for record in &listing.unreadable {
            let id = record.id.as_ref().map_or("(no id)", WorkerId::as_str);
            tracing::warn!(target: "lcm::fleet", worker = id, error = %record.error, "a record cannot be parsed and is skipped");
        }
        let statuses = listing.workers.iter().map(|worker| worker.status);
        let running = FleetView::from_workers(&listing.workers).running;
        self.reconciler.telemetry().set_fleet(statuses, running, listing.unreadable.len());
        let ids: HashSet<&WorkerId> = listing.workers.iter().map(|worker| &worker.id).collect();
        self.reconciler.cache().retain(|id| ids.contains(id));
        let (resting, active): (Vec<_>, Vec<_>) = match request.scope() {
            ListScope::Everything => (Vec::new(), listing.workers),
            ListScope::Active => listing.workers.into_iter().partition(Worker::is_at_rest),
        };
        Ok(ResourceList {
            objects: active.into_iter().map(|worker| FetchedWorker { worker, read_at }).collect(),
            resting: resting.iter().map(|worker| worker.id.as_str().to_owned()).collect(),
        })
    }

    async fn fetch(&self, key: &str) -> Result<Option<FetchedWorker>, CallFailure> {
        let read_at = Instant::now();
        let worker = self.reconciler.ports().control_plane.worker(&key.into()).await?;
        Ok(worker.map(|worker| FetchedWorker { worker, read_at }))
    }

    async fn reconcile(&self, read: FetchedWorker, lease: LeaderLease) -> WorkResult {
        let hints = Hints { read_at: Some(read.read_at), ..Hints::default() };
        let result = self.reconciler.with_lease(lease).reconcile_with(&read.worker, hints, self.mode).await;
        if let Some(on_result) = &self.on_result {
            on_result(&result);
        }
        WorkResult {
            outcome: result.outcome,
            requeue: match self.mode {
                Mode::Real => result.requeue,
                // A dry run changes nothing, so a second one would return the same.
                Mode::DryRun => Requeue::OnChange,
            },
            reason: WorkReason::Lifecycle(result.reason.code),
            error: result.error.map(|error| error.to_string().into()),
        }
    }

    /// Describes all instances that the reconciles will need, a thousand per call.
    async fn prepare(&self, workers: &[FetchedWorker]) {
        let policy = self.reconciler.policy();
        let now = self.reconciler.ports().clock.now();
        let mut by_region: BTreeMap<&str, (Vec<InstanceId>, Vec<&WorkerId>)> = BTreeMap::new();
        for FetchedWorker { worker, .. } in workers {
            let is_needed = queries(worker, &Observation::default(), policy, now).contains(Query::Instance);
            if let (true, Some(region), Some(id)) =
                (is_needed, policy.regions.region_of(worker), &worker.ec2_instance_id)
            {
                let (ids, owners) = by_region.entry(region).or_default();
                ids.push(id.clone());
                owners.push(&worker.id);
            }
        }
        // A single instance is described by its own reconcile, which then sees a newer state.
        by_region.retain(|_, (ids, _)| ids.len() > 1);
        let describes = by_region.into_iter().map(|(region, (ids, owners))| async move {
            let at = Instant::now();
            let responses = self.reconciler.ports().compute.instances(region, &ids).await;
            for ((owner, id), response) in owners.into_iter().zip(ids).zip(responses) {
                self.reconciler.cache().store_describe(owner, id, response, at);
            }
        });
        join_all(describes).await;
    }

    fn is_echo(&self, read: &FetchedWorker) -> bool {
        self.reconciler.cache().is_echo(&read.worker.id, read.worker.version, ECHO_WINDOW)
    }
}
