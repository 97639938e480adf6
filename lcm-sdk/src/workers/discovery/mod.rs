//! Discovery and garbage collection: finds instances without a record and records without an instance.
//!
//! # Flow
//! Scan every region, list the records after that, then per region: import unknown instances, reconcile the owners of
//! known ones, verify missing ones, and mark the records of those that are gone. The rules are in
//! [`crate::lifecycle::discovery`] and [`crate::lifecycle::orphans`].
//!
//! # Guarantees
//! The cloud is listed before the records, so a worker launched in between is never taken for an unknown instance. A
//! region that was not scanned completely is not garbage-collected, and never stops another one.
//!
//! Where several controllers share a fleet, each scans everything and acts on the workers it owns: see
//! [`crate::controller::shards`].

mod collection;
mod report;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tracing::Instrument as _;

use crate::controller::ShardOwnership;
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::discovery::{Completeness, Finding, Scan, explore};
use crate::lifecycle::event::Event;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::worker::Worker;
use crate::ports::{DiscoveryFilter, ScanSettings, Scope, WorkerListing};
use crate::reconciler::{Hints, Mode, Reconciler};
use crate::telemetry::Anomaly;

pub use report::{DiscoveryReport, RegionReport};

/// Configuration of discovery, for settings that the control plane does not provide.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiscoveryConfig {
    /// Time between two scans.
    pub interval: Duration,
    /// Time before the first scan.
    pub initial_delay: Duration,
    /// The regions to scan.
    pub regions: Vec<String>,
    /// The instances to scan for.
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

impl DiscoveryConfig {
    /// Sets the time between two scans.
    #[must_use]
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the time before the first scan.
    #[must_use]
    pub fn with_initial_delay(self, initial_delay: Duration) -> Self {
        Self { initial_delay, ..self }
    }

    /// Sets the regions to scan.
    #[must_use]
    pub fn with_regions<R: Into<String>>(self, regions: impl IntoIterator<Item = R>) -> Self {
        Self { regions: regions.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the instances to scan for.
    #[must_use]
    pub fn with_filter(self, filter: DiscoveryFilter) -> Self {
        Self { filter, ..self }
    }
}

/// Scans regions and collects garbage.
#[derive(Clone)]
pub struct Discovery {
    reconciler: Reconciler,
    ownership: ShardOwnership,
    config: DiscoveryConfig,
    /// Enqueues a worker.
    demand: Arc<dyn Fn(&WorkerId) + Send + Sync>,
    /// The regions to scan, regardless of all settings.
    only: Option<Vec<String>>,
}

/// Mode of one run, and the signal that ends it early.
#[derive(Clone, Copy)]
struct ScanContext<'a> {
    mode: Mode,
    shutdown: &'a Shutdown,
}

impl Discovery {
    /// Creates discovery over a reconciler's ports. `demand` enqueues a worker whose instance was found.
    pub fn new(
        reconciler: Reconciler,
        config: DiscoveryConfig,
        demand: impl Fn(&WorkerId) + Send + Sync + 'static,
    ) -> Self {
        let ownership = ShardOwnership::from_lease(reconciler.lease().clone());
        Self { reconciler, ownership, config, demand: Arc::new(demand), only: None }
    }

    /// The same discovery, acting only on workers that `ownership` includes. It still scans everything: with its own
    /// records alone, every other instance would look unknown. Imports of a region belong to the owner of the region's
    /// name.
    #[must_use]
    pub fn with_ownership(self, ownership: ShardOwnership) -> Self {
        Self { ownership, ..self }
    }

    /// The same discovery in these regions only, regardless of the control plane and the configuration.
    #[must_use]
    pub fn with_regions(self, regions: Vec<String>) -> Self {
        Self { only: Some(regions), ..self }
    }

    /// Scans periodically until shutdown. A run in progress stops reading at once, and finishes its writes.
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
            let report = self.scan_regions(&settings, ScanContext { mode: Mode::Real, shutdown }).await;
            tracing::info!(
                target: "lcm::discovery",
                regions = report.regions.len(),
                seen = report.regions.iter().map(|region| region.seen).sum::<usize>(),
                imported = report.regions.iter().map(|region| region.imported).sum::<usize>(),
                orphans_terminated = report.orphans_terminated(),
                "discovery run ended"
            );
        }
    }

    /// Runs once, under the settings of the control plane.
    ///
    /// # Cancel safety
    /// When dropped, it stops reading at once; a record that is being written is written and announced.
    pub async fn run_once(&self) -> DiscoveryReport {
        self.once(Mode::Real).await
    }

    /// Returns the plan of a run: performs every read and no write, and publishes nothing.
    pub async fn dry_run(&self) -> DiscoveryReport {
        self.once(Mode::DryRun).await
    }

    async fn once(&self, mode: Mode) -> DiscoveryReport {
        let shutdown = Shutdown::new();
        let _stops_when_dropped = StopOnDrop(shutdown.clone());
        let discovery = self.clone();
        let task = tokio::spawn(
            async move {
                let Some(settings) = unless_stopped(&shutdown, discovery.settings()).await else {
                    return DiscoveryReport::default();
                };
                if settings.enabled {
                    discovery.scan_regions(&settings, ScanContext { mode, shutdown: &shutdown }).await
                } else {
                    DiscoveryReport::refused("discovery is switched off in the control plane's settings")
                }
            }
            .in_current_span(),
        );
        match task.await {
            Ok(report) => report,
            // The caller isolates panics.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => DiscoveryReport::refused(&error.to_string()),
            },
        }
    }

    /// The settings of the control plane, completed by the configuration; the configuration alone if they cannot be
    /// read.
    async fn settings(&self) -> ScanSettings {
        let own = ScanSettings {
            enabled: true,
            regions: self.config.regions.clone(),
            ami_name_pattern: self.config.filter.ami_name_pattern.clone(),
            scan_interval: Some(self.config.interval),
        };
        let settings = match self.reconciler.ports().control_plane.discovery_settings().await {
            Ok(Some(remote)) => ScanSettings {
                enabled: remote.enabled,
                regions: if remote.regions.is_empty() { own.regions } else { remote.regions },
                ami_name_pattern: remote.ami_name_pattern.or(own.ami_name_pattern),
                scan_interval: remote.scan_interval.or(own.scan_interval),
            },
            Ok(None) => own,
            Err(failure) => {
                tracing::warn!(target: "lcm::discovery", %failure, "discovery settings could not be read; using our own");
                own
            }
        };
        ScanSettings { regions: self.only.clone().unwrap_or(settings.regions), ..settings }
    }

    async fn scan_regions(&self, settings: &ScanSettings, context: ScanContext<'_>) -> DiscoveryReport {
        let filter = DiscoveryFilter {
            ami_name_pattern: settings.ami_name_pattern.clone(),
            tags: self.config.filter.tags.clone(),
        };
        if filter.is_empty() {
            let message = "discovery has neither an AMI name pattern nor a tag filter; it would take the whole account";
            tracing::error!(target: "lcm::discovery", "{message}");
            return DiscoveryReport::refused(message);
        }
        let ports = self.reconciler.ports();
        let reads = async {
            let scans = join_all(settings.regions.iter().map(|region| ports.compute.scan(region, &filter))).await;
            // After the scans, never before: an instance launched in between already has a record.
            (scans, ports.control_plane.workers(&Scope::everything()).await)
        };
        let (scans, listing) = match unless_stopped(context.shutdown, reads).await {
            None => return DiscoveryReport::default(),
            Some((scans, Ok(listing))) => (scans, listing),
            Some((_, Err(failure))) => {
                tracing::warn!(target: "lcm::discovery", %failure, "the records could not be listed; nothing is concluded");
                return DiscoveryReport { regions: Vec::new(), error: Some(failure) };
            }
        };
        let regions = join_all(scans.iter().map(|scan| self.region(scan, &listing, context))).await;
        DiscoveryReport { regions, error: None }
    }

    async fn region(&self, scan: &Scan, listing: &WorkerListing, context: ScanContext<'_>) -> RegionReport {
        let error = match &scan.completeness {
            Completeness::Complete => None,
            Completeness::Partial(failure) => {
                tracing::warn!(target: "lcm::discovery", region = scan.region, %failure, "a scan is not complete; nothing is collected");
                self.reconciler.telemetry().count_anomaly(Anomaly::ScanFailed);
                Some(failure.clone())
            }
        };
        let mut report =
            RegionReport { region: scan.region.clone(), seen: scan.instances.len(), error, ..RegionReport::default() };
        self.import(scan, listing, &mut report, context).await;
        self.collect(scan, &listing.workers, &mut report, context).await;
        report
    }

    /// Imports unknown instances and reconciles the owners of known ones.
    async fn import(&self, scan: &Scan, listing: &WorkerListing, report: &mut RegionReport, context: ScanContext<'_>) {
        let ScanContext { mode, shutdown } = context;
        let instances: HashMap<&str, &Instance> =
            scan.instances.iter().map(|instance| (instance.id.as_str(), instance)).collect();
        let workers: HashMap<&WorkerId, &Worker> = listing.workers.iter().map(|worker| (&worker.id, worker)).collect();
        let mut unknown = Vec::new();
        for finding in explore(scan, &listing.workers, &listing.unreadable) {
            if shutdown.is_requested() {
                return;
            }
            match finding {
                Finding::Import { instance } => {
                    unknown.extend(instances.get(instance.as_str()).map(|instance| (*instance).clone()));
                }
                Finding::HandOver { worker, .. }
                | Finding::Drifted { worker, .. }
                | Finding::Resurrect { worker, .. }
                    if !self.ownership.owns(worker.as_str()) => {}
                Finding::HandOver { instance, worker } => {
                    let other = workers.get(&worker).and_then(|worker| worker.ec2_instance_id.as_ref());
                    if mode == Mode::Real {
                        if other.is_some_and(|other| *other != instance) {
                            let event = Event::DuplicateInstance { extra: instance };
                            self.reconciler.announce(worker.as_str(), &event, self.now()).await;
                        }
                        (self.demand)(&worker);
                    }
                    report.handed_over.push(worker);
                }
                Finding::Drifted { instance, worker } => {
                    tracing::info!(target: "lcm::discovery", %worker, %instance, "a stopped worker's instance is not stopped");
                    (self.demand)(&worker);
                    report.handed_over.push(worker);
                }
                Finding::Resurrect { instance, worker } => {
                    // The scan is older than the listing: the instance of a worker that was terminated in between may
                    // be gone.
                    let live = self.reconciler.ports().compute.instance(&scan.region, &instance);
                    let Some(lookup) = unless_stopped(shutdown, live).await else { return };
                    if let (Some(worker), Some(instance)) = (workers.get(&worker), lookup.found())
                        && instance.state.is_live()
                    {
                        if mode == Mode::Real {
                            self.reconciler.telemetry().count_anomaly(Anomaly::Resurrection);
                            self.resurrect(worker, instance, shutdown).await;
                        }
                        report.resurrected.push(worker.id.clone());
                    }
                }
            }
        }
        // An unknown instance belongs to the owner of the region's name.
        let Some(lease) = self.ownership.lease(&scan.region) else { return };
        if mode == Mode::DryRun {
            report.imported = unknown.len();
            return;
        }
        if unknown.is_empty() || !lease.is_valid() {
            return;
        }
        let fence = lease.fence();
        // Not awaited after shutdown: an import may take long, and the next scan finds its result.
        let importing = self.reconciler.ports().control_plane.import(&scan.region, &unknown, fence);
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
            let hints = Hints { instance: Some(instance.clone()), read_at: None };
            let Some(lease) = self.ownership.lease(worker.id.as_str()) else { return };
            let reconciler = self.reconciler.with_lease(lease);
            let reconcile = reconciler.reconcile_with(worker, hints, Mode::Real);
            let Some(result) = unless_stopped(shutdown, reconcile).await else { return };
            tracing::warn!(target: "lcm::discovery", worker = %worker.id, instance = %instance.id, to = %result.to_status, "a terminated record has a live instance");
        } else {
            let event = Event::Resurrected { instance: instance.id.clone() };
            self.reconciler.announce(worker.id.as_str(), &event, self.now()).await;
        }
    }

    fn now(&self) -> crate::lifecycle::time::Timestamp {
        self.reconciler.ports().clock.now()
    }
}

/// Runs a read until shutdown.
async fn unless_stopped<T>(shutdown: &Shutdown, reads: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = shutdown.requested() => None,
        seen = reads => Some(seen),
    }
}

struct StopOnDrop(Shutdown);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.request();
    }
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery").field("config", &self.config).finish_non_exhaustive()
    }
}
