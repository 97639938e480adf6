//! The metrics loop: collects utilization of all running workers in batches, so that no reconcile has to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::controller::shutdown::Shutdown;
use crate::controller::{LeaderLease, ShardOwnership};
use crate::lifecycle::counters::{Counter, Counts};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::CloudMetrics;
use crate::lifecycle::status::{Ec2State, WorkerStatus};
use crate::lifecycle::worker::Worker;
use crate::ports::Scope;
use crate::reconciler::Reconciler;
use crate::reconciler::cache::WriteKind;
use crate::spans;

/// Maximum number of concurrent calls to CML. One that hangs delays one of these, not the loop.
const CONCURRENT_CMLS: usize = 32;

/// Maximum age of the cost that a template names.
const COST_MAX_AGE: Duration = Duration::from_secs(600);

/// Cost per hour of each template, if it names one, and when it was read.
type KnownCosts = HashMap<String, (Instant, Option<f64>)>;

/// Maximum age of a describe whose address gets a password.
const DESCRIBE_MAX_AGE: Duration = Duration::from_secs(10);

/// Collects and reports metrics.
#[derive(Debug, Clone)]
pub struct MetricsLoop {
    reconciler: Reconciler,
    ownership: ShardOwnership,
    interval: Duration,
    /// The cost per hour that each template names, and when it was read.
    costs: Arc<Mutex<KnownCosts>>,
}

/// Result of one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetricsReport {
    /// Number of workers considered.
    pub workers: usize,
    /// Number of workers whose metrics were reported.
    pub reported: usize,
}

impl MetricsLoop {
    /// Creates a loop over a reconciler's ports.
    pub fn new(reconciler: Reconciler, interval: Duration) -> Self {
        let ownership = ShardOwnership::from_lease(reconciler.lease().clone());
        Self { reconciler, ownership, interval, costs: Arc::default() }
    }

    /// The same loop, for the workers that `ownership` includes.
    #[must_use]
    pub fn with_ownership(self, ownership: ShardOwnership) -> Self {
        Self { ownership, ..self }
    }

    /// Collects periodically until shutdown.
    pub async fn run(&self, shutdown: &Shutdown) {
        loop {
            let timers = self.reconciler.timers();
            let (started_at, busy) = (timers.now(), timers.busy());
            let round = async {
                match self.run_once().instrument(spans::round("controller.metrics")).await {
                    Ok(report) => tracing::debug!(target: "lcm::metrics", ?report, "metrics collected"),
                    Err(failure) => {
                        tracing::warn!(target: "lcm::metrics", %failure, "the workers could not be listed");
                    }
                }
                drop(busy);
                drop(timers.sleep_until(started_at + self.interval).await);
            };
            tokio::select! {
                biased;
                () = shutdown.requested() => return,
                () = round => {}
            }
        }
    }

    /// Collects and reports once. Until it is done, reconciles leave the metrics to it.
    ///
    /// # Errors
    /// If the workers cannot be listed.
    pub async fn run_once(&self) -> Result<MetricsReport, CallFailure> {
        let _round = self.reconciler.cache().begin_metrics_round();
        let listing = self.reconciler.ports().control_plane.workers(&Scope::active()).await?;
        let policy = self.reconciler.policy();
        let mut by_region: BTreeMap<&str, Vec<(&Worker, InstanceId)>> = BTreeMap::new();
        let ours = |worker: &&Worker| self.ownership.owns(worker.id.as_str());
        for worker in listing.workers.iter().filter(|worker| worker.status == WorkerStatus::Running).filter(ours) {
            if let (Some(region), Some(id)) = (policy.regions.region_of(worker), &worker.ec2_instance_id) {
                by_region.entry(region).or_default().push((worker, id.clone()));
            }
        }
        self.sum_up_costs(listing.workers.iter().filter(ours)).await;
        let mut report = MetricsReport::default();
        for (region, workers) in by_region {
            report.workers += workers.len();
            report.reported += self.region(region, &workers).await;
        }
        Ok(report)
    }

    /// Sums up the cost of the workers by status.
    async fn sum_up_costs<'a>(&self, workers: impl Iterator<Item = &'a Worker>) {
        let workers: Vec<&Worker> = workers.collect();
        let names: BTreeSet<&str> = workers.iter().filter_map(|worker| worker.template_name.as_deref()).collect();
        for name in names {
            let known = self.costs.lock().get(name).copied();
            if known.is_some_and(|(read_at, _)| self.reconciler.timers().elapsed(read_at) < COST_MAX_AGE) {
                continue;
            }
            match self.reconciler.ports().control_plane.template(name).await {
                Ok(template) => {
                    let cost = template.and_then(|template| template.extra.get("cost_per_hour_usd")?.as_f64());
                    let cost = cost.filter(|cost| cost.is_finite() && *cost >= 0.0);
                    self.costs.lock().insert(name.to_owned(), (self.reconciler.timers().now(), cost));
                }
                // The last known cost counts on.
                Err(failure) => {
                    tracing::debug!(target: "lcm::metrics", template = name, %failure, "a template could not be read");
                }
            }
        }
        let costs = self.costs.lock();
        let cost_of = |worker: &Worker| costs.get(worker.template_name.as_deref()?)?.1;
        self.reconciler.telemetry().set_costs(workers.into_iter().map(|worker| (worker.status, cost_of(worker))));
    }

    async fn region(&self, region: &str, workers: &[(&Worker, InstanceId)]) -> usize {
        let ids: Vec<InstanceId> = workers.iter().map(|(_, id)| id.clone()).collect();
        let ports = self.reconciler.ports();
        let described_at = self.reconciler.timers().now();
        let (instances, cloud) = tokio::join!(
            ports.compute.instances(region, &ids),
            ports.metrics.utilization(region, &ids, ports.clock.now()),
        );
        let mut collecting = FuturesUnordered::new();
        let mut reported = 0;
        for (((worker, id), instance), cloud) in workers.iter().zip(instances).zip(cloud) {
            if collecting.len() >= CONCURRENT_CMLS {
                reported += usize::from(collecting.next().await.unwrap_or_default());
            }
            collecting.push(async move {
                // A password goes only to an address that EC2 shows now; a round over a large fleet takes minutes.
                let instance = match self.reconciler.timers().elapsed(described_at) < DESCRIBE_MAX_AGE {
                    true => instance,
                    false => ports.compute.instances(region, std::slice::from_ref(id)).await.pop().unwrap_or_default(),
                };
                self.collect(worker, instance, cloud).await
            });
        }
        while let Some(done) = collecting.next().await {
            reported += usize::from(done);
        }
        reported
    }

    /// Reports the sources that responded, or the attempt if none did. Returns whether metrics were reported.
    async fn collect(&self, worker: &Worker, instance: Lookup<Instance>, cloud: Lookup<CloudMetrics>) -> bool {
        let running = instance.found().filter(|instance| instance.state == Ec2State::Running);
        let Some(instance) = running else { return false };
        // Not at the address on the record, which may belong to another customer's instance.
        let cml = match self.reconciler.cml_target(worker, instance) {
            Some(target) => self.reconciler.ports().cml.system(&target).await.ok(),
            None => None,
        };
        let cloud = cloud.found();
        let at = self.reconciler.ports().clock.now();
        let cml = cml.map(|cml| cml.with_uptime(instance, at));
        let _turn = self.reconciler.cache().lock(&worker.id).await;
        // Checked after waiting for the lock, which may take long.
        let lease = self.ownership.lease(worker.id.as_str()).filter(LeaderLease::is_valid);
        let Some(lease) = lease else { return false };
        let fence = lease.fence();
        let reported = self.reconciler.ports().control_plane.report_metrics(&worker.id, cloud, cml.as_ref(), at, fence);
        match reported.await {
            Ok(version) => {
                self.reconciler.cache().mark_written(&worker.id, version, WriteKind::Measurement);
                self.reconciler.cache().mark_metrics_reported(&worker.id, at);
                let is_collected = cloud.is_some() || cml.is_some();
                if is_collected {
                    self.reconciler.telemetry().count(Counts::default().and(Counter::MetricsCollected));
                }
                is_collected
            }
            Err(failure) => {
                tracing::warn!(target: "lcm::metrics", worker = %worker.id, %failure, "metrics could not be reported");
                false
            }
        }
    }
}
