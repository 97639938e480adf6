//! The metrics loop: collects utilisation for all running workers at once, so that no pass has to ask alone.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::controller::shutdown::Shutdown;
use crate::controller::{LeaderLease, ShardOwnership};
use crate::lifecycle::counters::{Counter, Counts};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::{CloudMetrics, Lookup};
use crate::lifecycle::status::{Ec2State, WorkerStatus};
use crate::lifecycle::worker::Worker;
use crate::ports::Scope;
use crate::reconciler::Reconciler;
use crate::reconciler::cache::WriteKind;

/// How many CMLs are asked at the same time: one that hangs holds up one of these, not the loop.
const CONCURRENT_CMLS: usize = 32;

/// Collects and reports metrics.
#[derive(Debug, Clone)]
pub struct MetricsLoop {
    reconciler: Reconciler,
    ownership: ShardOwnership,
    interval: Duration,
}

/// What a round of metrics came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetricsReport {
    /// Workers that were looked at.
    pub workers: usize,
    /// Workers whose metrics were reported.
    pub reported: usize,
}

impl MetricsLoop {
    /// A loop over a reconciler's ports.
    pub fn new(reconciler: Reconciler, interval: Duration) -> Self {
        let ownership = ShardOwnership::from_lease(reconciler.lease().clone());
        Self { reconciler, ownership, interval }
    }

    /// The same, for the workers of a ownership alone.
    #[must_use]
    pub fn restricted_to(self, ownership: ShardOwnership) -> Self {
        Self { ownership, ..self }
    }

    /// Collects again and again until asked to stop.
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

    /// One round.
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

    /// Reports what answered. True if something was reported.
    async fn collect(&self, worker: &Worker, instance: Lookup<Instance>, cloud: Lookup<CloudMetrics>) -> bool {
        let running = instance.found().filter(|instance| instance.state == Ec2State::Running);
        let Some(instance) = running else { return false };
        // A password goes only to the address EC2 shows now: the one on the record may be a stranger's by today.
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
        // After the wait for the turn, which may have been long.
        let lease = self.ownership.lease(worker.id.as_str()).filter(LeaderLease::is_valid);
        let Some(lease) = lease else { return false };
        let fence = lease.fence();
        let told = self.reconciler.ports().control_plane.report_metrics(&worker.id, cloud, cml.as_ref(), at, fence);
        match told.await {
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
