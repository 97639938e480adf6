//! The workers of a control plane as the resource of a controller.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::controller::{
    LeaderLease, ListRequest, ListScope, Resource, ResourceList, WorkReason, WorkResult, first_segment,
};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::observation::Observation;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::time;
use crate::lifecycle::worker::Worker;
use crate::ports::Scope;
use crate::reconciler::requests::{KeyRequests, SyncRequest};
use crate::reconciler::{Hints, MetricsScope, Mode, ReconcileResult, Reconciler};
use crate::workers::records::RecordReports;

/// Time after an own write for which a change counts as its echo, on a server without versions.
const ECHO_WINDOW: Duration = Duration::from_secs(2);

/// The workers of a control plane, reconciled by a [`Reconciler`].
#[derive(Clone)]
pub struct WorkerFleet {
    reconciler: Reconciler,
    mode: Mode,
    on_progress: Option<OnProgress>,
    records: Arc<RecordReports>,
    requests: Option<KeyRequests>,
    /// Prefixes whose requests are listed, because no watch reports them.
    listed_prefixes: Vec<String>,
}

/// A worker, and the time at which its record was requested: its reconcile may begin much later.
#[derive(Debug, Clone)]
pub struct FetchedWorker {
    /// The worker as its record describes it.
    pub worker: Worker,
    /// Time at which the record was requested.
    pub read_at: Instant,
}

/// Progress of a sweep.
#[derive(Debug, Clone, Copy)]
pub enum SweepProgress<'a> {
    /// The workers are listed: this many are reconciled.
    Listed(usize),
    /// A reconcile has ended.
    Reconciled(&'a ReconcileResult),
}

/// Called with the progress of a sweep.
type OnProgress = Arc<dyn Fn(SweepProgress<'_>) + Send + Sync>;

impl WorkerFleet {
    /// The fleet of a reconciler's control plane.
    pub fn new(reconciler: Reconciler, mode: Mode) -> Self {
        Self {
            reconciler,
            mode,
            on_progress: None,
            records: Arc::default(),
            requests: None,
            listed_prefixes: Vec::new(),
        }
    }

    /// Calls a function after every listing, and with the result of every reconcile.
    #[must_use]
    pub fn on_progress(self, called: impl Fn(SweepProgress<'_>) + Send + Sync + 'static) -> Self {
        Self { on_progress: Some(Arc::new(called)), ..self }
    }

    /// Synchronizes workers on request. The keys below the prefixes are listed together with the workers; none are where
    /// a watch reports them.
    #[must_use]
    pub(crate) fn with_requests(self, requests: Option<KeyRequests>, listed_prefixes: Vec<String>) -> Self {
        Self { requests, listed_prefixes, ..self }
    }

    /// Lists the requests that no watch reports.
    async fn list_requests(&self) {
        let Some(requests) = &self.requests else { return };
        if let Err(failure) = requests.list(&self.listed_prefixes, first_segment).await {
            tracing::warn!(target: "lcm::requests", %failure, "requests could not be listed");
        }
    }

    /// Reads the request to synchronize a worker, if there is one.
    async fn sync_request(&self, id: &WorkerId) -> Option<SyncRequest> {
        match (&self.requests, self.mode) {
            (Some(requests), Mode::Real) => requests.sync(id).await,
            (None, _) | (_, Mode::DryRun) => None,
        }
    }

    /// Clears the request that a reconcile has answered. It stays if the reconcile has to be retried, or if another
    /// request replaced it meanwhile.
    async fn clear_sync(&self, id: &WorkerId, request: &SyncRequest, lease: &LeaderLease) {
        let Some(requests) = &self.requests else { return };
        if !lease.is_valid() || !requests.is_current(id, request).await {
            return;
        }
        match self.reconciler.ports().control_plane.clear_sync(id, lease.fence()).await {
            Ok(()) => requests.sync_done(id),
            Err(failure) => {
                tracing::warn!(target: "lcm::requests", worker = %id, %failure, "a request to synchronize could not be cleared");
            }
        }
    }

    /// Problems of the records it read.
    pub(crate) fn records(&self) -> Arc<RecordReports> {
        Arc::clone(&self.records)
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
        self.list_requests().await;
        let read_at = self.reconciler.timers().now();
        let mut listing = self.reconciler.ports().control_plane.workers(&Scope::active()).await?;
        // The worker that was scaled down last may be terminated before the fleet is counted again.
        let now = self.reconciler.ports().clock.now();
        self.reconciler.note_scale_down(FleetView::from_workers(&listing.workers, now).last_scale_down_at, now);
        self.reconciler.retain_doubts(&listing.workers);
        listing.workers.retain(|worker| request.owns(worker.id.as_str()));
        self.records.update(&listing);
        let statuses = listing.workers.iter().map(|worker| worker.status);
        let running = FleetView::from_workers(&listing.workers, now).running;
        let degraded = listing.workers.iter().filter(|worker| !worker.warnings.is_empty()).count();
        self.reconciler.telemetry().set_fleet(statuses, running);
        self.reconciler.telemetry().set_records(listing.unreadable.len(), degraded);
        let ages = listing.workers.iter().map(|worker| {
            let since = self.reconciler.cache().status_since(worker, now);
            (worker.status, worker.id.as_str(), time::age(since, now))
        });
        self.reconciler.telemetry().set_status_ages(ages);
        let ids: HashSet<&WorkerId> = listing.workers.iter().map(|worker| &worker.id).collect();
        self.reconciler.cache().retain(|id| ids.contains(id));
        self.reconciler.last_known().list(listing.workers.iter(), read_at, now);
        let (resting, active): (Vec<_>, Vec<_>) = match request.scope() {
            ListScope::Everything => (Vec::new(), listing.workers),
            ListScope::Active => listing.workers.into_iter().partition(Worker::is_at_rest),
        };
        if let Some(on_progress) = &self.on_progress {
            on_progress(SweepProgress::Listed(active.len()));
        }
        Ok(ResourceList {
            objects: active.into_iter().map(|worker| FetchedWorker { worker, read_at }).collect(),
            resting: resting.iter().map(|worker| worker.id.as_str().to_owned()).collect(),
        })
    }

    async fn fetch(&self, key: &str) -> Result<Option<FetchedWorker>, CallFailure> {
        let read_at = self.reconciler.timers().now();
        let id = WorkerId::from(key);
        let worker = self.reconciler.ports().control_plane.worker(&id).await?;
        self.records.update_one(&id, worker.as_ref());
        if let Some(worker) = &worker {
            self.reconciler.last_known().read(worker, read_at, self.reconciler.ports().clock.now());
        }
        Ok(worker.map(|worker| FetchedWorker { worker, read_at }))
    }

    async fn reconcile(&self, read: FetchedWorker, lease: LeaderLease) -> WorkResult {
        let sync = self.sync_request(&read.worker.id).await;
        let metrics = if sync.is_some() { MetricsScope::All } else { MetricsScope::Due };
        let hints = Hints { read_at: Some(read.read_at), metrics, ..Hints::default() };
        let result = self.reconciler.with_lease(lease.clone()).reconcile_with(&read.worker, hints, self.mode).await;
        if let Some(request) = sync.filter(|_| result.outcome != Outcome::Retry) {
            self.clear_sync(&read.worker.id, &request, &lease).await;
        }
        if let Some(on_progress) = &self.on_progress {
            on_progress(SweepProgress::Reconciled(&result));
        }
        WorkResult {
            outcome: result.outcome,
            requeue: match self.mode {
                Mode::Real => result.requeue,
                // A dry run changes nothing, so a second one would return the same.
                Mode::DryRun => Requeue::OnChange,
            },
            status: Some(result.to_status.as_str()),
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
            let at = self.reconciler.timers().now();
            let responses = self.reconciler.ports().compute.instances(region, &ids).await;
            for ((owner, id), response) in owners.into_iter().zip(ids).zip(responses) {
                self.reconciler.cache().store_describe(owner, id, response, at);
            }
        });
        join_all(describes).await;
    }

    fn is_known(&self, read: &FetchedWorker) -> bool {
        self.reconciler.cache().is_known(&read.worker)
    }

    fn note_key(&self, name: &str, key: &[u8]) {
        if let Some(requests) = &self.requests {
            requests.note_key(name, key);
        }
    }

    fn is_echo(&self, read: &FetchedWorker) -> bool {
        let is_requested = self.requests.as_ref().is_some_and(|requests| requests.may_sync(&read.worker.id));
        !is_requested && self.reconciler.cache().is_echo(&read.worker, ECHO_WINDOW)
    }
}
