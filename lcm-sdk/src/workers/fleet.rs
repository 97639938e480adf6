//! The fleet of workers, as the resource of a controller.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::controller::queue::WorkResult;
use crate::controller::shards::{NOT_OURS, ShardOwnership};
use crate::controller::{Fetched, ListScope, Listing, Reconcile};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::observation::Observation;
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::worker::Worker;
use crate::ports::Scope;
use crate::reconciler::{Hints, Mode, ReconcileResult, Reconciler};

/// How long after our own write a change on a server without versions passes for its echo.
const ECHO_WINDOW: Duration = Duration::from_secs(2);

/// The workers of a control plane, kept honest by a [`Reconciler`].
#[derive(Clone)]
pub struct WorkerFleet {
    reconciler: Reconciler,
    mandate: ShardOwnership,
    mode: Mode,
    hooks: Hooks,
}

/// A worker, and when its record was read: by the time of its pass that may be a while ago.
#[derive(Debug, Clone)]
pub struct ReadWorker {
    /// The worker.
    pub worker: Worker,
    /// When it was asked for.
    pub read_at: Instant,
}

/// Is told how a pass went.
pub type OnPass = Arc<dyn Fn(&ReconcileResult) + Send + Sync>;

/// What else happens as the fleet is worked on.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Told of every pass: how a command line shows what it does.
    pub on_pass: Option<OnPass>,
    /// Called in every polling cycle.
    pub on_cycle: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl WorkerFleet {
    /// The fleet behind a reconciler's control plane.
    pub fn new(reconciler: Reconciler, mode: Mode, hooks: Hooks) -> Self {
        let mandate = ShardOwnership::fleet(reconciler.lease().clone());
        Self { reconciler, mandate, mode, hooks }
    }

    /// The part of it that is in a mandate: nobody else is listed, read or reconciled.
    #[must_use]
    pub fn within(self, mandate: ShardOwnership) -> Self {
        Self { mandate, ..self }
    }

    /// Whether a worker, if it exists, is ours.
    pub fn includes(&self, worker: &str) -> bool {
        self.mandate.includes(worker)
    }

    /// What keeps it honest.
    pub fn reconciler(&self) -> &Reconciler {
        &self.reconciler
    }
}

impl Reconcile for WorkerFleet {
    type Resource = ReadWorker;

    fn key<'a>(&self, read: &'a ReadWorker) -> &'a str {
        read.worker.id.as_str()
    }

    /// All workers of ours that are not terminated; those at rest need no look unless everything is looked at.
    async fn list(&self, scope: ListScope) -> Result<Listing<ReadWorker>, CallFailure> {
        let read_at = Instant::now();
        let mut listing = self.reconciler.ports().control_plane.workers(&Scope::living()).await?;
        listing.workers.retain(|worker| self.mandate.includes(worker.id.as_str()));
        for record in &listing.unreadable {
            let id = record.id.as_ref().map_or("(no id)", WorkerId::as_str);
            tracing::warn!(target: "lcm::fleet", worker = id, error = %record.error, "a record cannot be read and is left alone");
        }
        let statuses = listing.workers.iter().map(|worker| worker.status);
        let running = FleetView::from_workers(&listing.workers).running;
        self.reconciler.telemetry().set_fleet(statuses, running, listing.unreadable.len());
        let ids: HashSet<&WorkerId> = listing.workers.iter().map(|worker| &worker.id).collect();
        self.reconciler.cache().retain(|id| ids.contains(id));
        let (resting, active): (Vec<_>, Vec<_>) = match scope {
            ListScope::Everything => (Vec::new(), listing.workers),
            ListScope::Active => listing.workers.into_iter().partition(Worker::is_at_rest),
        };
        Ok(Listing {
            resources: active.into_iter().map(|worker| ReadWorker { worker, read_at }).collect(),
            resting: resting.iter().map(|worker| worker.id.as_str().to_owned()).collect(),
        })
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<ReadWorker>, CallFailure> {
        if !self.mandate.includes(key) {
            return Ok(Fetched::Gone);
        }
        let read_at = Instant::now();
        let worker = self.reconciler.ports().control_plane.worker(&key.into()).await?;
        Ok(worker.map_or(Fetched::Gone, |worker| Fetched::Resource(ReadWorker { worker, read_at })))
    }

    async fn reconcile(&self, read: ReadWorker) -> WorkResult {
        let hints = Hints { read_at: Some(read.read_at), ..Hints::default() };
        // Its shard may have gone to somebody else while it waited.
        let Some(charge) = self.mandate.over(read.worker.id.as_str()) else {
            return NOT_OURS;
        };
        let result = self.reconciler.with_guard(charge).reconcile_with(&read.worker, hints, self.mode).await;
        if let Some(told) = &self.hooks.on_pass {
            told(&result);
        }
        WorkResult {
            outcome: result.outcome,
            requeue: match self.mode {
                Mode::Real => result.requeue,
                // Nothing was done, so there is nothing new to see.
                Mode::DryRun => Requeue::OnChange,
            },
            code: result.reason.code.as_str(),
            error: result.error.map(|error| error.to_string().into()),
        }
    }

    /// Describes all instances that the passes will ask for, a thousand in a call instead of one.
    async fn prepare(&self, workers: &[ReadWorker]) {
        let policy = self.reconciler.policy();
        let now = self.reconciler.ports().clock.now();
        let mut by_region: BTreeMap<&str, (Vec<InstanceId>, Vec<&WorkerId>)> = BTreeMap::new();
        for ReadWorker { worker, .. } in workers {
            let asks = queries(worker, &Observation::default(), policy, now).contains(Query::Instance);
            if let (true, Some(region), Some(id)) = (asks, policy.regions.region_of(worker), &worker.ec2_instance_id) {
                let (ids, owners) = by_region.entry(region).or_default();
                ids.push(id.clone());
                owners.push(&worker.id);
            }
        }
        // For a single one a pass may as well ask itself, and is not given anything old.
        by_region.retain(|_, (ids, _)| ids.len() > 1);
        let describes = by_region.into_iter().map(|(region, (ids, owners))| async move {
            let at = Instant::now();
            let answers = self.reconciler.ports().compute.instances(region, &ids).await;
            for ((owner, id), answer) in owners.into_iter().zip(ids).zip(answers) {
                self.reconciler.cache().store_describe(owner, id, answer, at);
            }
        });
        join_all(describes).await;
    }

    fn is_echo(&self, read: &ReadWorker) -> bool {
        self.reconciler.cache().is_echo(&read.worker.id, read.worker.version, ECHO_WINDOW)
    }

    fn on_cycle(&self) {
        if let Some(called) = &self.hooks.on_cycle {
            called();
        }
    }
}
