//! Discovery and garbage collection: finds instances without a record and records without an instance.
//!
//! # Flow
//! Scan every region, list the records after that, then per region: import unknown instances, reconcile the owners of
//! known ones, verify missing ones, and mark the records of those that are gone. The rules are in
//! [`crate::lifecycle::discovery`] and [`crate::lifecycle::orphans`].
//!
//! Without an AMI name pattern or a tag there is no scan, because it would return the whole account. The instances of the
//! records are described by id instead: nothing is imported, and garbage collection works all the same.
//!
//! # Guarantees
//! The cloud is listed before the records, so a worker launched in between is never taken for an unknown instance. A
//! region that was not scanned completely is not garbage-collected, and never stops another one. Terminated records, which
//! only become more, are listed only if a scan shows a live instance that no living record names.
//!
//! A control plane that switched discovery off keeps it off until it says otherwise: a failed read keeps the last answer,
//! and before the first answer there is no run.
//!
//! Where several controllers share a fleet, each scans everything and acts on the workers it owns: see
//! [`crate::controller::shards`].

mod collection;
mod report;
mod runs;
mod state;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::controller::ShardOwnership;
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::discovery::{Completeness, Finding, ForeignInstances, Scan, explore};
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::orphans::candidates;
use crate::lifecycle::trust::Caller;
use crate::lifecycle::worker::Worker;
use crate::ports::{DiscoveryFilter, Scope, WorkerListing};
use crate::reconciler::{Hints, Mode, Reconciler};
use crate::spans;
use crate::telemetry::{Anomaly, ScanFigures};

use collection::Imports;
pub use report::{DiscoveryReport, RegionReport};
pub use runs::{DiscoveryRun, ExplainedVerdict, RegionRun};
pub(crate) use state::DiscoveryState;
pub use state::{DiscoveryStats, RegionStats};

/// Default of the shortest time between two scans.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

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
    /// The instances to scan for. Without a condition nothing is imported, and records are verified by id.
    pub filter: DiscoveryFilter,
    /// Treatment of instances that another control plane manages.
    pub foreign: ForeignInstances,
    /// Shortest time between two scans, also for an interval that the control plane sets.
    pub min_interval: Duration,
}

impl Default for DiscoveryConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(300),
            initial_delay: Duration::from_secs(5),
            regions: Vec::new(),
            filter: DiscoveryFilter::default(),
            foreign: ForeignInstances::Report,
            min_interval: MIN_INTERVAL,
        }
    }
}

impl DiscoveryConfig {
    /// Sets the time between two scans.
    #[must_use]
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the shortest time between two scans.
    #[must_use]
    pub fn with_min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }

    /// Sets the treatment of instances that another control plane manages.
    #[must_use]
    pub fn with_foreign(self, foreign: ForeignInstances) -> Self {
        Self { foreign, ..self }
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
    state: Arc<DiscoveryState>,
}

/// Settings of one run.
struct RunSettings {
    is_enabled: bool,
    regions: Vec<String>,
    filter: DiscoveryFilter,
    interval: Duration,
}

/// The instances and records of one run.
struct Inventory {
    scans: Vec<Scan>,
    listing: WorkerListing,
    /// When the instances were requested.
    requested_at: Instant,
    /// Why instances that no living record names cannot be told from those of terminated records.
    terminated: Result<(), CallFailure>,
    /// Failed describes by region, if the records were verified by id.
    failures: HashMap<String, CallFailure>,
    /// The identity behind the calls in each region, before the first of them.
    callers: HashMap<String, Result<Caller, CallFailure>>,
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
        Self { reconciler, ownership, config, demand: Arc::new(demand), only: None, state: Arc::default() }
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

    /// The same discovery with the state of earlier terms.
    pub(crate) fn with_state(self, state: Arc<DiscoveryState>) -> Self {
        Self { state, ..self }
    }

    /// Statistics of its runs.
    pub fn stats(&self) -> DiscoveryStats {
        self.state.stats()
    }

    /// Scans periodically until shutdown. A run in progress stops reading at once, and finishes its writes.
    pub async fn run(&self, shutdown: &Shutdown) {
        let mut wait = self.config.initial_delay;
        loop {
            let _busy = tokio::select! {
                biased;
                () = shutdown.requested() => return,
                busy = self.reconciler.timers().sleep(wait) => busy,
            };
            let settings = tokio::select! {
                biased;
                () = shutdown.requested() => return,
                settings = self.settings() => settings,
            };
            let Ok(settings) = settings else {
                wait = self.config.min_interval;
                continue;
            };
            wait = settings.interval;
            if !settings.is_enabled {
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
                let settings = match settings {
                    Ok(settings) => settings,
                    Err(failure) => {
                        let message = format!("the discovery settings could not be read: {failure}");
                        return DiscoveryReport::refused(&message);
                    }
                };
                if settings.is_enabled {
                    discovery.scan_regions(&settings, ScanContext { mode, shutdown: &shutdown }).await
                } else {
                    DiscoveryReport::refused("discovery is switched off in the control plane's settings")
                }
            }
            .instrument(spans::requested("controller.discovery"))
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

    /// The settings of the control plane, completed by the configuration. If they cannot be read or are missing, the last
    /// ones count; the configuration alone only if the control plane has none.
    ///
    /// # Errors
    /// If they cannot be read and never were: discovery may be switched off.
    async fn settings(&self) -> Result<RunSettings, CallFailure> {
        let settings = match self.reconciler.ports().control_plane.discovery_settings().await {
            Ok(Some(read)) => self.state.remember(read),
            Ok(None) => self.state.remember_none(),
            Err(failure) => match self.state.last_settings() {
                Some(last) => {
                    tracing::warn!(target: "lcm::discovery", %failure, "discovery settings could not be read; using the last ones");
                    last
                }
                None => {
                    tracing::warn!(target: "lcm::discovery", %failure, "discovery settings could not be read; discovery waits for the first ones");
                    return Err(failure);
                }
            },
        };
        let config = &self.config;
        let regions = Some(settings.regions).filter(|regions| !regions.is_empty());
        let pattern = settings.ami_name_pattern.filter(|pattern| !pattern.trim().is_empty());
        Ok(RunSettings {
            is_enabled: settings.enabled.unwrap_or(true),
            regions: self.only.clone().or(regions).unwrap_or_else(|| config.regions.clone()),
            filter: DiscoveryFilter {
                ami_name_pattern: pattern.or_else(|| config.filter.ami_name_pattern.clone()),
                tags: config.filter.tags.clone(),
            },
            interval: settings.scan_interval.unwrap_or(config.interval).max(config.min_interval),
        })
    }

    async fn scan_regions(&self, settings: &RunSettings, context: ScanContext<'_>) -> DiscoveryReport {
        let compute = &self.reconciler.ports().compute;
        let reads = async {
            // Before the scans: garbage collection checks that the credentials stayed the same.
            let callers =
                settings.regions.iter().map(|region| async { (region.clone(), compute.caller(region).await) });
            let callers = join_all(callers).await.into_iter().collect();
            let inventory = if settings.filter.is_empty() {
                self.describe_recorded(&settings.regions).await
            } else {
                self.state.note_filter();
                self.scan_filtered(settings).await
            };
            inventory.map(|inventory| Inventory { callers, ..inventory })
        };
        let report = match unless_stopped(context.shutdown, reads).await {
            None => return DiscoveryReport::default(),
            Some(Ok(inventory)) => {
                let regions = inventory.scans.iter().map(|scan| self.region(scan, &inventory, context));
                DiscoveryReport { regions: join_all(regions).await, error: inventory.terminated.err() }
            }
            Some(Err(failure)) => {
                tracing::warn!(target: "lcm::discovery", %failure, "the records could not be listed; nothing is concluded");
                DiscoveryReport { regions: Vec::new(), error: Some(failure) }
            }
        };
        if context.mode == Mode::Real {
            self.count(&report);
        }
        report
    }

    /// Adds a run to the statistics and metrics.
    fn count(&self, report: &DiscoveryReport) {
        let now = self.now();
        self.state.count(report, now);
        for region in &report.regions {
            self.reconciler.telemetry().scanned(
                &region.region,
                &ScanFigures {
                    found: region.seen,
                    foreign: region.foreign.len(),
                    imported: region.imported,
                    orphans: region.terminated.len(),
                    frozen: region.frozen(),
                    is_frozen: region.is_frozen,
                    completed_at: region.is_complete.then_some(now),
                },
            );
        }
    }

    /// Scans the regions and lists the records.
    ///
    /// # Errors
    /// If the living records cannot be listed.
    async fn scan_filtered(&self, settings: &RunSettings) -> Result<Inventory, CallFailure> {
        let (ports, requested_at) = (self.reconciler.ports(), self.reconciler.timers().now());
        let scans = join_all(settings.regions.iter().map(|region| ports.compute.scan(region, &settings.filter))).await;
        // After the scans, never before: an instance launched in between already has a record.
        let mut listing = ports.control_plane.workers(&Scope::active()).await?;
        let is_unknown = |scan| self.explore(scan, &listing).iter().any(Finding::is_unknown);
        let mut terminated = Ok(());
        if scans.iter().any(is_unknown) {
            match ports.control_plane.workers(&Scope::everything()).await {
                Ok(everything) => listing = everything,
                Err(failure) => {
                    tracing::warn!(target: "lcm::discovery", %failure, "terminated records could not be listed; nothing is imported");
                    terminated = Err(failure);
                }
            }
        }
        Ok(Inventory { scans, listing, requested_at, terminated, failures: HashMap::new(), callers: HashMap::new() })
    }

    /// Describes the instances that the living records name, in place of a scan.
    ///
    /// # Errors
    /// If the living records cannot be listed.
    async fn describe_recorded(&self, regions: &[String]) -> Result<Inventory, CallFailure> {
        if self.state.notes_missing_filter() {
            tracing::warn!(target: "lcm::discovery", "discovery has neither an AMI name pattern nor a tag filter: nothing is imported, records are verified by id");
        }
        let ports = self.reconciler.ports();
        let listing = ports.control_plane.workers(&Scope::active()).await?;
        let requested_at = self.reconciler.timers().now();
        let describes = regions.iter().map(|region| async {
            let mut scan = Scan { region: region.clone(), instances: Vec::new(), completeness: Completeness::Complete };
            let named = candidates(&scan, &listing.workers, self.reconciler.policy());
            let ids: HashSet<InstanceId> = named.iter().filter_map(|worker| worker.ec2_instance_id.clone()).collect();
            let ids: Vec<_> = ids.into_iter().collect();
            let mut failed = None;
            if !ids.is_empty() {
                for lookup in ports.compute.instances(region, &ids).await {
                    failed = failed.or_else(|| Some((region.clone(), lookup.failure()?.clone())));
                    scan.instances.extend(lookup.found().cloned());
                }
            }
            (scan, failed)
        });
        let (scans, failures): (Vec<_>, Vec<_>) = join_all(describes).await.into_iter().unzip();
        let failures = failures.into_iter().flatten().collect();
        Ok(Inventory { scans, listing, requested_at, terminated: Ok(()), failures, callers: HashMap::new() })
    }

    fn explore(&self, scan: &Scan, listing: &WorkerListing) -> Vec<Finding> {
        explore(scan, &listing.workers, &listing.unreadable, self.config.foreign)
    }

    async fn region(&self, scan: &Scan, inventory: &Inventory, context: ScanContext<'_>) -> RegionReport {
        let error = match &scan.completeness {
            Completeness::Complete => inventory.failures.get(&scan.region).cloned(),
            Completeness::Partial(failure) => {
                tracing::warn!(target: "lcm::discovery", region = scan.region, %failure, "a scan is not complete; nothing is collected");
                self.reconciler.telemetry().count_anomaly(Anomaly::ScanFailed);
                Some(failure.clone())
            }
        };
        let mut report = RegionReport {
            region: scan.region.clone(),
            seen: scan.instances.len(),
            is_complete: error.is_none(),
            error,
            ..RegionReport::default()
        };
        let workers = &inventory.listing.workers;
        let verifying = self.verify(inventory.callers.get(&scan.region), scan, workers);
        let Some(evidence) = unless_stopped(context.shutdown, verifying).await else { return report };
        let imports = self.imports(&evidence, scan, workers);
        self.sort(scan, inventory, imports, &mut report, context).await;
        self.collect(scan, workers, evidence, &mut report, context).await;
        report
    }

    /// Imports unknown instances and reconciles the owners of known ones.
    async fn sort(
        &self,
        scan: &Scan,
        inventory: &Inventory,
        imports: Imports,
        report: &mut RegionReport,
        context: ScanContext<'_>,
    ) {
        let ScanContext { mode, shutdown } = context;
        let listing = &inventory.listing;
        let instances: HashMap<&InstanceId, &Instance> =
            scan.instances.iter().map(|instance| (&instance.id, instance)).collect();
        if mode == Mode::Real && report.is_complete {
            self.state.retain(&scan.region, |id| instances.contains_key(id));
        }
        let workers: HashMap<&WorkerId, &Worker> = listing.workers.iter().map(|worker| (&worker.id, worker)).collect();
        let mut unknown = Vec::new();
        let mut handed_over: BTreeMap<WorkerId, Vec<Instance>> = BTreeMap::new();
        for finding in self.explore(scan, listing) {
            if shutdown.is_requested() {
                return;
            }
            match finding {
                // They may belong to terminated records.
                Finding::Import { .. } | Finding::Foreign { .. } if inventory.terminated.is_err() => {}
                Finding::Import { .. } if imports == Imports::Withheld => {}
                Finding::Import { instance } => {
                    unknown.extend(instances.get(&instance).map(|instance| (*instance).clone()));
                }
                Finding::Foreign { instance } => {
                    if let Some(instance) = instances.get(&instance) {
                        self.report_foreign(&scan.region, instance, mode);
                    }
                    report.foreign.push(instance);
                }
                Finding::HandOver { worker, .. }
                | Finding::Drifted { worker, .. }
                | Finding::Resurrect { worker, .. }
                    if !self.ownership.owns(worker.as_str()) => {}
                Finding::HandOver { instance, worker } => {
                    let of_worker = handed_over.entry(worker).or_default();
                    of_worker.extend(instances.get(&instance).map(|instance| (*instance).clone()));
                }
                Finding::Drifted { instance, worker } => {
                    tracing::info!(target: "lcm::discovery", %worker, %instance, "a stopped worker's instance is not stopped");
                    if mode == Mode::Real {
                        (self.demand)(&worker);
                    }
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
                            self.resurrect(worker, instance, &scan.region, shutdown).await;
                        }
                        report.resurrected.push(worker.id.clone());
                    }
                }
            }
        }
        for (worker, found) in handed_over {
            if let (Mode::Real, Some(record)) = (mode, workers.get(&worker)) {
                self.hand_over(record, found, &scan.region, inventory.requested_at);
            }
            report.handed_over.push(worker);
        }
        self.import(&scan.region, &unknown, report, context).await;
    }

    /// Passes the instances that carry a worker's tag to its reconcile, or reports them if its record names another one.
    fn hand_over(&self, worker: &Worker, found: Vec<Instance>, region: &str, requested_at: Instant) {
        match &worker.ec2_instance_id {
            None => self.reconciler.cache().store_tagged(&worker.id, found, requested_at),
            Some(_) => {
                for extra in found {
                    let event = Event::DuplicateInstance { extra: extra.id.clone() };
                    if self.state.is_new(region, &extra.id, &event) {
                        self.reconciler.announce(worker.id.as_str(), &event, self.now());
                    }
                }
            }
        }
        (self.demand)(&worker.id);
    }

    /// Reports an instance of another control plane once. It belongs to the owner of the region's name.
    fn report_foreign(&self, region: &str, instance: &Instance, mode: Mode) {
        let worker = instance.owner().map(str::to_owned);
        let event = Event::ForeignInstance { instance: instance.id.clone(), region: region.to_owned(), worker };
        if mode == Mode::Real && self.ownership.owns(region) && self.state.is_new(region, &instance.id, &event) {
            tracing::warn!(target: "lcm::discovery", region, instance = %instance.id, owner = instance.owner(), "another control plane manages an instance; it is not imported");
            self.reconciler.telemetry().count_anomaly(Anomaly::ForeignInstance);
            self.reconciler.announce(instance.id.as_str(), &event, self.now());
        }
    }

    /// Imports instances without an owner. They belong to the owner of the region's name.
    async fn import(&self, region: &str, unknown: &[Instance], report: &mut RegionReport, context: ScanContext<'_>) {
        let Some(lease) = self.ownership.lease(region) else { return };
        if context.mode == Mode::DryRun {
            report.imported = unknown.len();
            return;
        }
        if unknown.is_empty() || !lease.is_valid() {
            return;
        }
        let fence = lease.fence();
        // Not awaited after shutdown: an import may take long, and the next scan finds its result.
        let importing = self.reconciler.ports().control_plane.import(region, unknown, fence);
        match unless_stopped(context.shutdown, importing).await {
            None => {}
            Some(Ok(summary)) => report.imported = summary.imported,
            Some(Err(failure)) => {
                tracing::warn!(target: "lcm::discovery", region, %failure, "instances could not be imported");
                report.error.get_or_insert(failure);
            }
        }
    }

    async fn resurrect(&self, worker: &Worker, instance: &Instance, region: &str, shutdown: &Shutdown) {
        if self.reconciler.policy().resurrect_terminated {
            self.reconciler.telemetry().count_anomaly(Anomaly::Resurrection);
            let hints = Hints { instance: Some(instance.clone()), ..Hints::default() };
            let Some(lease) = self.ownership.lease(worker.id.as_str()) else { return };
            let reconciler = self.reconciler.with_lease(lease);
            let reconcile = reconciler.reconcile_with(worker, hints, Mode::Real);
            let Some(result) = unless_stopped(shutdown, reconcile).await else { return };
            tracing::warn!(target: "lcm::discovery", worker = %worker.id, instance = %instance.id, to = %result.to_status, "a terminated record has a live instance");
            return;
        }
        let event = Event::Resurrected { instance: instance.id.clone() };
        if self.state.is_new(region, &instance.id, &event) {
            self.reconciler.telemetry().count_anomaly(Anomaly::Resurrection);
            self.reconciler.announce(worker.id.as_str(), &event, self.now());
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
