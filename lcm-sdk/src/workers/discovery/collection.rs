//! Garbage collection: verifies instances missing from a scan and marks the records of those that are gone. The rules
//! are in [`crate::lifecycle::orphans`].

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt as _};

use super::{Discovery, RegionReport, ScanContext, unless_stopped};
use crate::controller::LeaderLease;
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::counters::{Counter, Counts};
use crate::lifecycle::discovery::Scan;
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::orphans::{Conclusion, OrphanReport, candidates, considers_records, evaluate, shows_a_record};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::trust::{Caller, Doubt, Place};
use crate::lifecycle::worker::Worker;
use crate::reconciler::Mode;
use crate::reconciler::cache::WriteKind;
use crate::reconciler::gate::credentials_changed;

/// Maximum number of records marked concurrently.
const AT_ONCE: usize = 8;

/// Result of marking an orphan.
enum Marked {
    Terminated(WorkerId),
    Failed(CallFailure),
    /// The record has changed, or this controller no longer owns it.
    LeftAlone,
}

/// Direct describes of the instances that a scan did not show, and the facts about the place.
pub(super) struct Evidence {
    verified: HashMap<InstanceId, Lookup<Instance>>,
    place: Result<Place, CallFailure>,
}

/// Whether unknown instances of a region may be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Imports {
    Allowed,
    Withheld,
}

impl Discovery {
    /// Describes missing instances directly, and collects the facts about the place that was scanned.
    pub(super) async fn verify(
        &self,
        caller: Option<&Result<Caller, CallFailure>>,
        scan: &Scan,
        workers: &[Worker],
    ) -> Evidence {
        let candidates = candidates(scan, workers, self.reconciler.policy());
        let ids: Vec<_> = candidates.iter().filter_map(|worker| worker.ec2_instance_id.clone()).collect();
        let lookups = match ids.is_empty() {
            true => Vec::new(),
            false => self.reconciler.ports().compute.instances(&scan.region, &ids).await,
        };
        let verified = ids.into_iter().zip(lookups).collect();
        let place = self.place(caller, scan, workers, &verified).await;
        Evidence { verified, place }
    }

    /// Whether unknown instances may be imported. In an account that is not proved they would become records, and make
    /// it look like the account of the others.
    pub(super) fn imports(&self, evidence: &Evidence, scan: &Scan, workers: &[Worker]) -> Imports {
        let policy = self.reconciler.policy();
        let expected = policy.aws_account_id.as_deref();
        let is_proved = evidence.place.as_ref().is_ok_and(|place| place.proves_region(expected, self.now()));
        if is_proved || !considers_records(scan, workers, policy) { Imports::Allowed } else { Imports::Withheld }
    }

    /// Marks the records of instances that are gone.
    pub(super) async fn collect(
        &self,
        scan: &Scan,
        workers: &[Worker],
        Evidence { verified, place }: Evidence,
        report: &mut RegionReport,
        context: ScanContext<'_>,
    ) {
        let (shutdown, policy) = (context.shutdown, self.reconciler.policy());
        let place = match place {
            Ok(place) => place,
            Err(failure) => {
                tracing::warn!(target: "lcm::discovery", region = scan.region, %failure, "the caller of a scan is not known; nothing is collected");
                report.error.get_or_insert(failure);
                return;
            }
        };
        let now = self.now();
        let OrphanReport { verdicts, patches, .. } = evaluate(scan, workers, &verified, &place, policy, now);
        report.verdicts = verdicts;
        let is_proved = place.proves_region(policy.aws_account_id.as_deref(), now);
        report.is_frozen = !is_proved && considers_records(scan, workers, policy);
        let unsure = report.verdicts.iter().filter(|verdict| verdict.conclusion == Conclusion::Unknown).count();
        if unsure > 0 {
            tracing::warn!(target: "lcm::discovery", region = scan.region, unsure, "describes of missing instances failed; nothing is concluded");
        }
        if context.mode == Mode::DryRun {
            return;
        }
        let keeps_records = report.frozen() > 0;
        if is_proved {
            self.reconciler.trust_region(&scan.region);
        } else if keeps_records && self.ownership.owns(&scan.region) {
            let doubt = Doubt::NotProved { caller: place.caller.account_id };
            self.reconciler.distrust_region(&scan.region, &doubt, now);
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
        let sessions_ended = self.reconciler.with_lease(lease.clone()).end_sessions(worker, patch.at).await;
        if !sessions_ended && !lease.is_valid() {
            // Once the record is terminated, no leader would look at its sessions again.
            return Marked::LeftAlone;
        }
        match self.reconciler.ports().control_plane.write(worker, patch, fence).await {
            Ok(version) => {
                self.reconciler.bump_scale_down_epoch();
                self.reconciler.cache().mark_written(&worker.id, version, WriteKind::Conditional);
                self.reconciler.telemetry().count(Counts::default().and(Counter::OrphansTerminated));
                if let Some(instance) = worker.ec2_instance_id.clone() {
                    tracing::warn!(target: "lcm::discovery", worker = %worker.id, %instance, "the instance is gone: marked terminated");
                    let event = Event::OrphanTerminated { instance };
                    self.reconciler.announce(worker.id.as_str(), &event, patch.at);
                }
                if !sessions_ended {
                    (self.demand)(&worker.id);
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

    /// The facts about the place that was scanned. They are searched for only if neither the scan nor the describes show
    /// a recorded instance.
    ///
    /// # Errors
    /// If the caller is not known, or not the same as before the scan.
    async fn place(
        &self,
        before: Option<&Result<Caller, CallFailure>>,
        scan: &Scan,
        workers: &[Worker],
        verified: &HashMap<InstanceId, Lookup<Instance>>,
    ) -> Result<Place, CallFailure> {
        let caller = self.reconciler.ports().compute.caller(&scan.region).await?;
        if before != Some(&Ok(caller.clone())) {
            return Err(credentials_changed());
        }
        let policy = self.reconciler.policy();
        if shows_a_record(scan, workers, verified, policy) {
            Ok(Place::new(caller).with_sighting(self.now()))
        } else if verified.values().any(|lookup| *lookup == Lookup::Absent) {
            Ok(self.reconciler.region_evidence(&scan.region, caller).await)
        } else {
            Ok(Place::new(caller))
        }
    }
}
