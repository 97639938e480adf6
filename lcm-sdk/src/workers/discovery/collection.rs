//! Garbage collection: verifies instances missing from a scan and marks the records of those that are gone. The rules
//! are in [`crate::lifecycle::orphans`].

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt as _};

use super::{Discovery, RegionReport, ScanContext, unless_stopped};
use crate::controller::LeaderLease;
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::counters::{Counter, Counts};
use crate::lifecycle::discovery::{Completeness, Scan};
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::orphans::{Conclusion, OrphanReport, SubnetVisibility, candidates, evaluate};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::worker::Worker;
use crate::reconciler::Mode;
use crate::reconciler::cache::WriteKind;
use crate::telemetry::Anomaly;

/// Maximum number of records marked concurrently.
const AT_ONCE: usize = 8;

/// Result of marking an orphan.
enum Marked {
    Terminated(WorkerId),
    Failed(CallFailure),
    /// The record has changed, or this controller no longer owns it.
    LeftAlone,
}

impl Discovery {
    /// Describes missing instances directly, and marks the records of those that are gone.
    pub(super) async fn collect(
        &self,
        scan: &Scan,
        workers: &[Worker],
        report: &mut RegionReport,
        context: ScanContext<'_>,
    ) {
        let shutdown = context.shutdown;
        let policy = self.reconciler.policy();
        let ids: Vec<_> =
            candidates(scan, workers, policy).iter().filter_map(|worker| worker.ec2_instance_id.clone()).collect();
        let reads = async {
            let lookups = match ids.is_empty() {
                true => Vec::new(),
                false => self.reconciler.ports().compute.instances(&scan.region, &ids).await,
            };
            (lookups, self.subnet_visibility(scan).await)
        };
        let Some((lookups, subnet)) = unless_stopped(shutdown, reads).await else { return };
        let verified = ids.into_iter().zip(lookups).collect();
        let OrphanReport { verdicts, patches, events } = evaluate(scan, workers, &verified, subnet, policy, self.now());
        report.verdicts = verdicts;
        let unsure = report.verdicts.iter().filter(|verdict| verdict.conclusion == Conclusion::Unknown).count();
        if unsure > 0 {
            tracing::warn!(target: "lcm::discovery", region = scan.region, unsure, "describes of missing instances failed; nothing is concluded");
        }
        if context.mode == Mode::DryRun {
            return;
        }
        for event in events.iter().filter(|event| matches!(event, Event::OrphansFrozen { .. })) {
            self.reconciler.telemetry().count_anomaly(Anomaly::RegionFrozen);
            tracing::error!(target: "lcm::discovery", region = scan.region, "the scan shows nothing where records exist; the region is frozen");
            if !self.ownership.owns(&scan.region) {
                continue;
            }
            self.reconciler.announce(&scan.region, event, self.now()).await;
        }
        let by_id: HashMap<&WorkerId, &Worker> = workers.iter().map(|worker| (&worker.id, worker)).collect();
        let mut marks = Vec::with_capacity(patches.len());
        for patch in &patches {
            if let Some(worker) = by_id.get(&patch.worker_id) {
                marks.push(self.mark(worker, patch, shutdown));
            }
        }
        let mut marking = stream::iter(marks).buffered(AT_ONCE);
        while let Some(marked) = marking.next().await {
            match marked {
                Marked::Terminated(worker) => report.terminated.push(worker),
                Marked::Failed(failure) => drop(report.error.get_or_insert(failure)),
                Marked::LeftAlone => {}
            }
        }
    }

    /// Marks one record terminated, unless it was reconciled in the meantime.
    async fn mark(&self, worker: &Worker, patch: &Patch, shutdown: &Shutdown) -> Marked {
        let turn = self.reconciler.cache().lock(&worker.id);
        let Some(_turn) = unless_stopped(shutdown, turn).await else { return Marked::LeftAlone };
        // Checked after waiting for the lock, which may take long.
        let lease = self.ownership.lease(worker.id.as_str()).filter(LeaderLease::is_valid);
        let Some(lease) = lease else { return Marked::LeftAlone };
        if !self.is_as_listed(worker).await {
            tracing::info!(target: "lcm::discovery", worker = %worker.id, "an orphan's record has changed; the next run checks it again");
            return Marked::LeftAlone;
        }
        let fence = lease.fence();
        match self.reconciler.ports().control_plane.write(worker, patch, fence).await {
            Ok(version) => {
                self.reconciler.bump_scale_down_epoch();
                self.reconciler.cache().mark_written(&worker.id, version, WriteKind::Conditional);
                self.reconciler.telemetry().count(Counts::default().and(Counter::OrphansTerminated));
                if let Some(instance) = worker.ec2_instance_id.clone() {
                    tracing::warn!(target: "lcm::discovery", worker = %worker.id, %instance, "the instance is gone: marked terminated");
                    let event = Event::OrphanTerminated { instance };
                    self.reconciler.announce(worker.id.as_str(), &event, patch.at).await;
                }
                Marked::Terminated(worker.id.clone())
            }
            Err(failure) => {
                tracing::warn!(target: "lcm::discovery", worker = %worker.id, %failure, "an orphan could not be marked; the next run tries again");
                Marked::Failed(failure)
            }
        }
    }

    /// Whether a record is unchanged since it was listed. Where the server keeps versions, the conditional write checks
    /// that.
    async fn is_as_listed(&self, worker: &Worker) -> bool {
        match worker.version {
            Some(_) => true,
            None => self.reconciler.ports().control_plane.worker(&worker.id).await.is_ok_and(|current| {
                current.is_some_and(|current| {
                    current.status == worker.status && current.ec2_instance_id == worker.ec2_instance_id
                })
            }),
        }
    }

    /// The proof that an empty response comes from the right account; requested only after an empty scan.
    async fn subnet_visibility(&self, scan: &Scan) -> SubnetVisibility {
        if !scan.instances.is_empty() || scan.completeness != Completeness::Complete {
            return SubnetVisibility::NotVisible;
        }
        let Some(config) = self.reconciler.policy().regions.regions.get(&scan.region) else {
            return SubnetVisibility::NotVisible;
        };
        match self.reconciler.ports().compute.sees_subnet(&scan.region, &config.subnet_id).await {
            Ok(true) => SubnetVisibility::Visible,
            Ok(false) | Err(_) => SubnetVisibility::NotVisible,
        }
    }
}
