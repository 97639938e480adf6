//! Discovery and garbage collection: what exists in each region, and which records have lost their instance.
//!
//! # Flow
//! Scan every region, list the records after that, then per region: import strangers, hand over what belongs to
//! somebody, verify what is missing, and mark what is gone. The rules are in `core::discovery` and `core::orphans`.
//!
//! # Guarantees
//! The cloud is listed before the records, so a worker that was launched in between is never taken for a stranger. A
//! region that could not be scanned completely is not garbage-collected, and never stops another one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use super::memory::Write;
use super::reconcile::{Handover, Mode, Reconciler};
use super::shutdown::Shutdown;
use super::telemetry::Mishap;
use crate::core::counters::{Counter, Counts};
use crate::core::discovery::{Completeness, Finding, Scan, explore};
use crate::core::event::Event;
use crate::core::failure::{CallFailure, FailureKind};
use crate::core::ids::WorkerId;
use crate::core::instance::Instance;
use crate::core::orphans::{Conclusion, Judgement, SubnetSight, Verdict, judge, suspects};
use crate::core::worker::Worker;
use crate::ports::{DiscoveryFilter, DiscoverySettings, Scope, WorkerListing};

/// What discovery looks for when the control plane does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// Time between two scans.
    pub interval: Duration,
    /// Time before the first one.
    pub initial_delay: Duration,
    /// The regions to scan.
    pub regions: Vec<String>,
    /// Which instances.
    pub filter: DiscoveryFilter,
}

impl Default for DiscoveryConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(300),
            initial_delay: Duration::from_secs(5),
            regions: Vec::new(),
            filter: DiscoveryFilter::default(),
        }
    }
}

/// Finds what exists and what is gone.
#[derive(Clone)]
pub struct Discovery {
    reconciler: Reconciler,
    config: DiscoveryConfig,
    /// Asks for a pass over a worker.
    demand: Arc<dyn Fn(&WorkerId) + Send + Sync>,
}

/// What a pass of discovery came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[must_use]
pub struct DiscoveryReport {
    /// One entry for each region.
    pub regions: Vec<RegionReport>,
    /// Why nothing was done at all, if so.
    pub error: Option<CallFailure>,
}

/// What discovery found in one region.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RegionReport {
    /// The region.
    pub region: String,
    /// Instances seen.
    pub seen: usize,
    /// Instances imported.
    pub imported: usize,
    /// Workers that were handed to the reconciler.
    pub handed_over: Vec<WorkerId>,
    /// Workers whose instance lives although the record says terminated.
    pub resurrected: Vec<WorkerId>,
    /// Records that were marked terminated.
    pub terminated: Vec<WorkerId>,
    /// What was concluded about every record that the scan did not show alive.
    pub verdicts: Vec<Verdict>,
    /// Why the scan is not complete, if so.
    pub error: Option<CallFailure>,
}

impl DiscoveryReport {
    /// How many records were marked terminated.
    pub fn orphans_terminated(&self) -> usize {
        self.regions.iter().map(|region| region.terminated.len()).sum()
    }
}

impl Discovery {
    /// Discovery over a reconciler's ports. `demand` asks for a pass over a worker that an instance belongs to.
    pub fn new(
        reconciler: Reconciler,
        config: DiscoveryConfig,
        demand: impl Fn(&WorkerId) + Send + Sync + 'static,
    ) -> Self {
        Self { reconciler, config, demand: Arc::new(demand) }
    }

    /// Scans again and again until asked to stop; a pass under way stops looking at once, and finishes what it writes.
    pub async fn run(&self, shutdown: &Shutdown) {
        let mut wait = self.config.initial_delay;
        loop {
            tokio::select! {
                biased;
                () = shutdown.requested() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let settings = tokio::select! {
                biased;
                () = shutdown.requested() => return,
                settings = self.settings() => settings,
            };
            wait = settings.scan_interval.unwrap_or(self.config.interval);
            if !settings.enabled {
                continue;
            }
            let report = self.pass(&settings, shutdown).await;
            tracing::info!(
                target: "lcm::discovery",
                regions = report.regions.len(),
                seen = report.regions.iter().map(|region| region.seen).sum::<usize>(),
                imported = report.regions.iter().map(|region| region.imported).sum::<usize>(),
                orphans_terminated = report.orphans_terminated(),
                "discovery pass ended"
            );
        }
    }

    /// One pass, under the settings of the control plane.
    pub async fn run_once(&self) -> DiscoveryReport {
        let settings = self.settings().await;
        if settings.enabled { self.pass(&settings, &Shutdown::new()).await } else { DiscoveryReport::default() }
    }

    /// What operators set, completed by our own configuration; ours alone if the control plane does not tell.
    async fn settings(&self) -> DiscoverySettings {
        let own = DiscoverySettings {
            enabled: true,
            regions: self.config.regions.clone(),
            ami_name_pattern: self.config.filter.ami_name_pattern.clone(),
            scan_interval: Some(self.config.interval),
        };
        match self.reconciler.ports().control_plane.discovery_settings().await {
            Ok(Some(theirs)) => DiscoverySettings {
                enabled: theirs.enabled,
                regions: if theirs.regions.is_empty() { own.regions } else { theirs.regions },
                ami_name_pattern: theirs.ami_name_pattern.or(own.ami_name_pattern),
                scan_interval: theirs.scan_interval.or(own.scan_interval),
            },
            Ok(None) => own,
            Err(failure) => {
                tracing::warn!(target: "lcm::discovery", %failure, "discovery settings could not be read; using our own");
                own
            }
        }
    }

    async fn pass(&self, settings: &DiscoverySettings, shutdown: &Shutdown) -> DiscoveryReport {
        let filter = DiscoveryFilter {
            ami_name_pattern: settings.ami_name_pattern.clone(),
            tags: self.config.filter.tags.clone(),
        };
        if filter.is_empty() {
            let message = "discovery has neither an AMI name pattern nor a tag filter; it would take the whole account";
            let failure = CallFailure::new(FailureKind::Refused, message);
            tracing::error!(target: "lcm::discovery", "{message}");
            return DiscoveryReport { regions: Vec::new(), error: Some(failure) };
        }
        let ports = self.reconciler.ports();
        let looking = async {
            let scans = join_all(settings.regions.iter().map(|region| ports.compute.scan(region, &filter))).await;
            // After the scans, never before: what was launched in between has a record already.
            (scans, ports.control_plane.workers(&Scope::everything()).await)
        };
        let (scans, listing) = match unless_stopped(shutdown, looking).await {
            None => return DiscoveryReport::default(),
            Some((scans, Ok(listing))) => (scans, listing),
            Some((_, Err(failure))) => {
                tracing::warn!(target: "lcm::discovery", %failure, "the records could not be listed; nothing is concluded");
                return DiscoveryReport { regions: Vec::new(), error: Some(failure) };
            }
        };
        let regions = join_all(scans.iter().map(|scan| self.region(scan, &listing, shutdown))).await;
        DiscoveryReport { regions, error: None }
    }

    async fn region(&self, scan: &Scan, listing: &WorkerListing, shutdown: &Shutdown) -> RegionReport {
        let error = match &scan.completeness {
            Completeness::Complete => None,
            Completeness::Partial(failure) => {
                tracing::warn!(target: "lcm::discovery", region = scan.region, %failure, "a scan is not complete; nothing is collected");
                self.reconciler.telemetry().mishap(Mishap::ScanFailed);
                Some(failure.clone())
            }
        };
        let mut report =
            RegionReport { region: scan.region.clone(), seen: scan.instances.len(), error, ..RegionReport::default() };
        self.take_in(scan, listing, &mut report, shutdown).await;
        self.collect(scan, &listing.workers, &mut report, shutdown).await;
        report
    }

    /// Imports strangers and hands over what belongs to somebody.
    async fn take_in(&self, scan: &Scan, listing: &WorkerListing, report: &mut RegionReport, shutdown: &Shutdown) {
        let instances: HashMap<&str, &Instance> =
            scan.instances.iter().map(|instance| (instance.id.as_str(), instance)).collect();
        let workers: HashMap<&WorkerId, &Worker> = listing.workers.iter().map(|worker| (&worker.id, worker)).collect();
        let mut strangers = Vec::new();
        for finding in explore(scan, &listing.workers, &listing.unreadable) {
            if shutdown.is_requested() {
                return;
            }
            match finding {
                Finding::Import { instance } => {
                    strangers.extend(instances.get(instance.as_str()).map(|instance| (*instance).clone()));
                }
                Finding::HandOver { instance, worker } => {
                    let other = workers.get(&worker).and_then(|worker| worker.instance_id.as_ref());
                    if other.is_some_and(|other| *other != instance) {
                        let event = Event::DuplicateInstance { extra: instance };
                        drop(self.reconciler.announce(worker.as_str(), &event, self.now()).await);
                    }
                    (self.demand)(&worker);
                    report.handed_over.push(worker);
                }
                Finding::Drifted { instance, worker } => {
                    tracing::info!(target: "lcm::discovery", %worker, %instance, "a stopped worker's instance is not stopped");
                    (self.demand)(&worker);
                    report.handed_over.push(worker);
                }
                Finding::Resurrect { instance, worker } => {
                    // The scan is older than the listing: a worker that was terminated in between is none that lives.
                    let live = self.reconciler.ports().compute.instance(&scan.region, &instance);
                    let Some(answer) = unless_stopped(shutdown, live).await else { return };
                    if let (Some(worker), Some(instance)) = (workers.get(&worker), answer.found())
                        && instance.state.is_live()
                    {
                        self.reconciler.telemetry().mishap(Mishap::Resurrection);
                        self.resurrect(worker, instance, shutdown).await;
                        report.resurrected.push(worker.id.clone());
                    }
                }
            }
        }
        if strangers.is_empty() || !self.reconciler.leadership().is_valid() {
            return;
        }
        let fence = self.reconciler.leadership().fence();
        // Not waited for when asked to stop: many may take long, and the next scan finds what came of it.
        let importing = self.reconciler.ports().control_plane.import(&scan.region, &strangers, fence);
        match unless_stopped(shutdown, importing).await {
            None => {}
            Some(Ok(summary)) => report.imported = summary.imported,
            Some(Err(failure)) => {
                tracing::warn!(target: "lcm::discovery", region = scan.region, %failure, "instances could not be imported");
                report.error.get_or_insert(failure);
            }
        }
    }

    async fn resurrect(&self, worker: &Worker, instance: &Instance, shutdown: &Shutdown) {
        if self.reconciler.policy().resurrect_terminated {
            let handover = Handover { instance: Some(instance.clone()), read_at: None };
            let pass = self.reconciler.pass(worker, handover, Mode::Real);
            let Some(result) = unless_stopped(shutdown, pass).await else { return };
            tracing::warn!(target: "lcm::discovery", worker = %worker.id, instance = %instance.id, to = %result.to, "a terminated record has a live instance");
        } else {
            let event = Event::Resurrected { instance: instance.id.clone() };
            drop(self.reconciler.announce(worker.id.as_str(), &event, self.now()).await);
        }
    }

    /// Verifies what is missing by direct describe, and marks what is gone.
    async fn collect(&self, scan: &Scan, workers: &[Worker], report: &mut RegionReport, shutdown: &Shutdown) {
        let policy = self.reconciler.policy();
        let ids: Vec<_> =
            suspects(scan, workers, policy).iter().filter_map(|worker| worker.instance_id.clone()).collect();
        let looking = async {
            let answers = match ids.is_empty() {
                true => Vec::new(),
                false => self.reconciler.ports().compute.instances(&scan.region, &ids).await,
            };
            (answers, self.subnet_sight(scan).await)
        };
        let Some((answers, subnet)) = unless_stopped(shutdown, looking).await else { return };
        let verified = ids.into_iter().zip(answers).collect();
        let Judgement { verdicts, patches, events } = judge(scan, workers, &verified, subnet, policy, self.now());
        for event in events.iter().filter(|event| matches!(event, Event::OrphansFrozen { .. })) {
            self.reconciler.telemetry().mishap(Mishap::RegionFrozen);
            tracing::error!(target: "lcm::discovery", region = scan.region, "the scan shows nothing where records exist; the region is frozen");
            drop(self.reconciler.announce(&scan.region, event, self.now()).await);
        }
        let by_id: HashMap<&WorkerId, &Worker> = workers.iter().map(|worker| (&worker.id, worker)).collect();
        for patch in patches {
            let Some(worker) = by_id.get(&patch.worker_id) else { continue };
            let turn = self.reconciler.memory().turn(&worker.id);
            let Some(_turn) = unless_stopped(shutdown, turn).await else { break };
            // After the wait for the turn, which may have been long.
            if !self.reconciler.leadership().is_valid() {
                break;
            }
            if !self.is_as_listed(worker).await {
                tracing::info!(target: "lcm::discovery", worker = %worker.id, "an orphan's record has changed; the next pass looks again");
                continue;
            }
            let fence = self.reconciler.leadership().fence();
            match self.reconciler.ports().control_plane.write(worker, &patch, fence).await {
                Ok(version) => {
                    self.reconciler.departed();
                    self.reconciler.memory().wrote(&worker.id, version, Write::Conditional);
                    self.reconciler.telemetry().count(Counts::default().and(Counter::OrphansTerminated));
                    if let Some(instance) = worker.instance_id.clone() {
                        tracing::warn!(target: "lcm::discovery", worker = %worker.id, %instance, "the instance is gone: marked terminated");
                        let event = Event::OrphanTerminated { instance };
                        drop(self.reconciler.announce(worker.id.as_str(), &event, patch.at).await);
                    }
                    report.terminated.push(patch.worker_id);
                }
                Err(failure) => {
                    tracing::warn!(target: "lcm::discovery", worker = %worker.id, %failure, "an orphan could not be marked; the next pass tries again");
                }
            }
        }
        let unsure = verdicts.iter().filter(|verdict| verdict.conclusion == Conclusion::Unknown).count();
        if unsure > 0 {
            tracing::warn!(target: "lcm::discovery", region = scan.region, unsure, "EC2 gave no answer about missing instances; nothing is concluded");
        }
        report.verdicts = verdicts;
    }

    /// Whether nobody has changed a record since it was listed. Where there are versions, the server sees to that.
    async fn is_as_listed(&self, worker: &Worker) -> bool {
        match worker.version {
            Some(_) => true,
            None => self.reconciler.ports().control_plane.worker(&worker.id).await.is_ok_and(|current| {
                current
                    .is_some_and(|current| current.status == worker.status && current.instance_id == worker.instance_id)
            }),
        }
    }

    /// The proof that an empty answer comes from the right account; asked for only where it matters.
    async fn subnet_sight(&self, scan: &Scan) -> SubnetSight {
        if !scan.instances.is_empty() || scan.completeness != Completeness::Complete {
            return SubnetSight::NotVisible;
        }
        let Some(config) = self.reconciler.policy().regions.regions.get(&scan.region) else {
            return SubnetSight::NotVisible;
        };
        match self.reconciler.ports().compute.sees_subnet(&scan.region, &config.subnet_id).await {
            Ok(true) => SubnetSight::Visible,
            Ok(false) | Err(_) => SubnetSight::NotVisible,
        }
    }

    fn now(&self) -> crate::core::time::Timestamp {
        self.reconciler.ports().clock.now()
    }
}

/// Looks, or stops looking when asked to.
async fn unless_stopped<T>(shutdown: &Shutdown, looking: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = shutdown.requested() => None,
        seen = looking => Some(seen),
    }
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery").field("config", &self.config).finish_non_exhaustive()
    }
}
