//! The metrics loop: collects utilization of all running workers in batches, so that no reconcile has to.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

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

/// Maximum number of concurrent calls to CML. One that hangs delays one of these, not the loop.
const CONCURRENT_CMLS: usize = 32;

/// Collects and reports metrics.
#[derive(Debug, Clone)]
pub struct MetricsLoop {
    reconciler: Reconciler,
    ownership: ShardOwnership,
    interval: Duration,
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
        Self { reconciler, ownership, interval }
    }

    /// The same loop, for the workers that `ownership` includes.
    #[must_use]
    pub fn with_ownership(self, ownership: ShardOwnership) -> Self {
        Self { ownership, ..self }
    }

    /// Collects periodically until shutdown.
    pub async fn run(&self, shutdown: &Shutdown) {
        loop {
            let round = async {
                match self.run_once().await {
                    Ok(report) => tracing::debug!(target: "lcm::metrics", ?report, "metrics collected"),
                    Err(failure) => {
                        tracing::warn!(target: "lcm::metrics", %failure, "the workers could not be listed");
                    }
                }
                tokio::time::sleep(self.interval).await;
            };
            tokio::select! {
                biased;
                () = shutdown.requested() => return,
                () = round => {}
            }
        }
    }

    /// Collects and reports once.
    ///
    /// # Errors
    /// If the workers cannot be listed.
    pub async fn run_once(&self) -> Result<MetricsReport, CallFailure> {
        let listing = self.reconciler.ports().control_plane.workers(&Scope::active()).await?;
        let policy = self.reconciler.policy();
        let mut by_region: BTreeMap<&str, Vec<(&Worker, InstanceId)>> = BTreeMap::new();
        let ours = |worker: &&Worker| self.ownership.owns(worker.id.as_str());
        for worker in listing.workers.iter().filter(|worker| worker.status == WorkerStatus::Running).filter(ours) {
            if let (Some(region), Some(id)) = (policy.regions.region_of(worker), &worker.ec2_instance_id) {
                by_region.entry(region).or_default().push((worker, id.clone()));
            }
        }
        let mut report = MetricsReport::default();
        for (region, workers) in by_region {
            report.workers += workers.len();
            report.reported += self.region(region, &workers).await;
        }
        Ok(report)
    }

    async fn region(&self, region: &str, workers: &[(&Worker, InstanceId)]) -> usize {
        let ids: Vec<InstanceId> = workers.iter().map(|(_, id)| id.clone()).collect();
        let ports = self.reconciler.ports();
        let (instances, cloud) = tokio::join!(
            ports.compute.instances(region, &ids),
            ports.metrics.utilization(region, &ids, ports.clock.now()),
        );
        let mut collecting = FuturesUnordered::new();
        let mut reported = 0;
        for (((worker, _), instance), cloud) in workers.iter().zip(instances).zip(cloud) {
            if collecting.len() >= CONCURRENT_CMLS {
                reported += usize::from(collecting.next().await.unwrap_or_default());
            }
            collecting.push(self.collect(worker, instance, cloud));
        }
        while let Some(done) = collecting.next().await {
            reported += usize::from(done);
        }
        reported
    }

    /// Reports the sources that responded. Returns whether a report was made.
    async fn collect(&self, worker: &Worker, instance: Lookup<Instance>, cloud: Lookup<CloudMetrics>) -> bool {
        let running = instance.found().filter(|instance| instance.state == Ec2State::Running);
        let Some(instance) = running else { return false };
        // A password goes only to the address EC2 shows now: the one on the record may belong to another customer's
        // instance.
        let cml = match self.reconciler.cml_target(worker, instance) {
            Some(target) => self.reconciler.ports().cml.system(&target).await.ok(),
            None => None,
        };
        let cloud = cloud.found();
        if cloud.is_none() && cml.is_none() {
            return false;
        }
        let at = self.reconciler.ports().clock.now();
        let _turn = self.reconciler.cache().lock(&worker.id).await;
        // Checked after waiting for the lock, which may take long.
        let lease = self.ownership.lease(worker.id.as_str()).filter(LeaderLease::is_valid);
        let Some(lease) = lease else { return false };
        let fence = lease.fence();
        let reported = self.reconciler.ports().control_plane.report_metrics(&worker.id, cloud, cml.as_ref(), at, fence);
        match reported.await {
            Ok(version) => {
                self.reconciler.cache().mark_written(&worker.id, version, WriteKind::Unconditional);
                self.reconciler.cache().mark_metrics_reported(&worker.id, at);
                self.reconciler.telemetry().count(Counts::default().and(Counter::MetricsCollected));
                true
            }
            Err(failure) => {
                tracing::warn!(target: "lcm::metrics", worker = %worker.id, %failure, "metrics could not be reported");
                false
            }
        }
    }
}
