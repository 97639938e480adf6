//! Shared state of the clones of one reconciler, and the lease one of them acts under.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::cache::{CachedFleet, FleetSnapshot, ScaleDowns, WorkerCache};
use super::gate::TrustGate;
use super::guards::Guards;
use super::last_known::LastKnown;
use super::outbox::Outbox;
use super::recent::Recent;
use super::requests::KeyRequests;
use super::result::Mode;
use crate::controller::LeaderLease;
use crate::controller::lease::FleetLockGuard;
use crate::history::{Ending, HistoryWriter, RecordedReconcile};
use crate::lifecycle::capabilities::Capabilities;
use crate::lifecycle::drain::Operation;
use crate::lifecycle::effect::EffectResult;
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::record::{Applied, Record};
use crate::lifecycle::region::RegionError;
use crate::lifecycle::scale_down::fleet_guards;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::trust::Place;
use crate::lifecycle::worker::Worker;
use crate::ports::{CloudEvent, CmlTarget, Fence, Ports, Scope};
use crate::telemetry::{Anomaly, Telemetry};

/// Maximum age of a fleet view that may keep a worker in service.
const FLEET_MAX_AGE: Duration = Duration::from_secs(5);

/// Credentials for a CML whose record names none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmlDefaults {
    /// User name, `admin` by default.
    pub username: String,
    /// Password, empty by default.
    pub password: Secret,
}

impl Default for CmlDefaults {
    fn default() -> Self {
        Self { username: "admin".to_owned(), password: Secret::from("") }
    }
}

impl CmlDefaults {
    /// Credentials of this user.
    pub fn new(username: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self { username: username.into(), password: password.into() }
    }
}

/// The dependencies of a reconcile. Clones share everything but the lease.
#[derive(Clone)]
pub(crate) struct Context {
    shared: Arc<Shared>,
    pub(super) lease: LeaderLease,
    requests: Option<KeyRequests>,
}

struct Shared {
    ports: Ports,
    policy: Policy,
    telemetry: Telemetry,
    cml_defaults: CmlDefaults,
    cache: WorkerCache,
    outbox: Outbox,
    recent: Recent,
    last_known: LastKnown,
    history_file: Option<HistoryFile>,
    fleet: Arc<tokio::sync::Mutex<CachedFleet>>,
    scale_down_epoch: AtomicU64,
    scale_downs: ScaleDowns,
    /// Whether the lapse of the external-stop policy was logged.
    policy_lapsed: AtomicBool,
}

/// The history file, and the policy as its reconciles share it.
struct HistoryFile {
    writer: HistoryWriter,
    policy: Arc<Policy>,
}

/// Whether a reconcile changed nothing but measurements.
fn is_routine(applied: &Applied) -> bool {
    let Applied { decision, results, .. } = applied;
    decision.transition.is_none()
        && decision.changes.is_none()
        && decision.notices.is_empty()
        && !decision.relies_on_record()
        && results.iter().all(EffectResult::is_success)
}

/// Exclusive use of the fleet view, from counting the fleet until the reconcile is recorded: two reconciles that count
/// the same fleet could together scale it down below its minimum.
pub(super) struct FleetGuard {
    cached: OwnedMutexGuard<CachedFleet>,
    /// The same among the controllers that share a fleet.
    lock: Option<FleetLockGuard>,
}

impl Context {
    pub(super) fn new(
        ports: Ports,
        policy: Policy,
        cml_defaults: CmlDefaults,
        telemetry: Telemetry,
        requests: Option<KeyRequests>,
        history: Option<HistoryWriter>,
        cache: WorkerCache,
    ) -> Self {
        let history_file = history.map(|writer| HistoryFile { writer, policy: Arc::new(policy.clone()) });
        let (events, audits) = (Arc::clone(&ports.events), Arc::clone(&ports.control_plane));
        let outbox = Outbox::new(events, audits, telemetry.clone(), cache.timers().clone());
        let shared = Shared {
            outbox,
            ports,
            policy,
            telemetry,
            cml_defaults,
            cache,
            recent: Recent::default(),
            last_known: LastKnown::default(),
            history_file,
            fleet: Arc::default(),
            scale_down_epoch: AtomicU64::new(0),
            scale_downs: ScaleDowns::default(),
            policy_lapsed: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), lease: LeaderLease::unfenced(), requests }
    }

    pub(super) fn with_lease(&self, lease: LeaderLease) -> Self {
        Self { lease, ..self.clone() }
    }

    /// The same context, which reads license requests below these prefixes although no watch notes them.
    pub(super) fn with_unwatched_requests(&self, prefixes: &[String]) -> Self {
        let requests = self.requests.clone().map(|requests| requests.unwatched(prefixes));
        Self { requests, ..self.clone() }
    }

    /// Logs once that external stops are not respected, because the control plane has shown that it does not store the
    /// desired status with which they are recorded.
    pub(super) fn warn_of_lapsed_policy(&self, known: &Capabilities) {
        let configured = self.policy().external_stop_policy;
        if configured != configured.effective(known) && !self.shared.policy_lapsed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "lcm::reconcile", %configured,
                "the external stop policy has lapsed: the control plane does not store a desired status, so workers that \
                 are stopped from outside are started again"
            );
        }
    }

    /// Adds operations to a record that the control plane requests beside it.
    pub(super) async fn add_requests(&self, worker: &mut Worker) {
        if let Some(requests) = &self.requests {
            requests.add_license(worker).await;
        }
    }

    /// Forgets the request for a license operation that was reported as completed or failed.
    pub(super) fn license_done(&self, worker: &Worker) {
        if let Some(requests) = &self.requests {
            requests.license_done(&worker.id);
        }
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.shared.ports
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.shared.telemetry
    }

    pub(super) fn cache(&self) -> &WorkerCache {
        &self.shared.cache
    }

    /// The state that the reconcilers of the process share.
    pub(super) fn guards(&self) -> &Guards {
        self.shared.cache.guards()
    }

    pub(super) fn gate(&self) -> &TrustGate {
        self.guards().gate()
    }

    pub(super) fn recent(&self) -> &Recent {
        &self.shared.recent
    }

    pub(super) fn last_known(&self) -> &LastKnown {
        &self.shared.last_known
    }

    /// Queues a reconcile for the history file, if there is one. Of those that changed nothing, few are written.
    pub(super) fn write_history(
        &self,
        worker: &Worker,
        observation: &Observation,
        operation: Option<Operation>,
        applied: &Applied,
        record: Option<&Record>,
    ) {
        let Some(HistoryFile { writer, policy }) = &self.shared.history_file else { return };
        let Applied { decision, results, at, .. } = applied;
        if is_routine(applied) && !writer.takes_sample() {
            return;
        }
        let reconcile = RecordedReconcile::new(worker, observation, Arc::clone(policy), *at, decision, results);
        let ended = record.and_then(|record| Ending::of(decision, record));
        writer.write(RecordedReconcile { operation, ended, ..reconcile });
    }

    /// The directory of the history files, if they are written.
    pub(super) fn history_directory(&self) -> Option<&Path> {
        self.shared.history_file.as_ref().map(|file| file.writer.directory())
    }

    /// Waits until the history is in its file, up to a limit. Returns whether it is.
    pub(super) async fn flush_history(&self, limit: Duration) -> bool {
        match &self.shared.history_file {
            Some(file) => file.writer.flush(limit).await,
            None => true,
        }
    }

    pub(super) fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// Invalidates the cached fleet count after a worker may have left service.
    pub(super) fn bump_scale_down_epoch(&self) {
        self.shared.scale_down_epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn scale_downs(&self) -> &ScaleDowns {
        &self.shared.scale_downs
    }

    /// The worker's region.
    ///
    /// # Errors
    /// If neither the record nor the policy names one.
    pub(super) fn region<'a>(&'a self, worker: &'a Worker) -> Result<&'a str, CallFailure> {
        let missing = || CallFailure::new(FailureKind::Refused, RegionError::NoRegion.to_string());
        self.policy().regions.region_of(worker).ok_or_else(missing)
    }

    /// The worker's CML, at the address EC2 showed in this reconcile. An address from the record may belong to another
    /// customer's instance by now.
    pub(super) fn cml_target(&self, worker: &Worker, instance: Option<&Instance>) -> Option<CmlTarget> {
        let address = instance?.address()?.to_owned();
        Some(self.cml_target_at(worker, address))
    }

    pub(super) fn cml_target_at(&self, worker: &Worker, address: String) -> CmlTarget {
        let defaults = &self.shared.cml_defaults;
        CmlTarget {
            address,
            username: worker.cml_username.clone().unwrap_or_else(|| defaults.username.clone()),
            password: worker.cml_password.clone().unwrap_or_else(|| defaults.password.clone()),
        }
    }

    /// Queues an event for delivery. A failed delivery is logged and counted, and nothing waits for it.
    ///
    /// # Errors
    /// If the queue is full. The event is dropped and counted.
    pub(super) fn announce(&self, subject: &str, event: &Event, at: Timestamp) -> Result<(), CallFailure> {
        self.shared.outbox.publish(CloudEvent::new(subject, event, at))
    }

    /// The queues of events and audits.
    pub(super) fn outbox(&self) -> &Outbox {
        &self.shared.outbox
    }

    /// Adds the proof of a region's account to the facts about a place.
    pub(super) async fn with_evidence(&self, region: &str, place: Place) -> Place {
        self.gate().with_evidence(self.ports(), self.policy(), self.cache().timers(), region, place).await
    }

    /// Ends the doubt about a region; with a worker, also the doubt about that one.
    pub(super) fn trust(&self, region: &str, worker: Option<&WorkerId>) {
        if self.gate().trust(region, worker) {
            self.telemetry().set_region_trusted(region);
            tracing::info!(target: "lcm::trust", region, "the account of the region is proved again");
        }
    }

    /// Begins the distrust of a region, because of all its records or of one worker, and announces it once.
    pub(super) fn distrust(&self, region: &str, worker: Option<&WorkerId>, doubt: &str, now: Timestamp) {
        if !self.gate().distrust(region, worker, doubt, now) {
            return;
        }
        self.telemetry().set_region_untrusted(region);
        self.telemetry().count_anomaly(Anomaly::RegionNotTrusted);
        tracing::error!(target: "lcm::trust", region, doubt, "absences in the region are not believed");
        let event = Event::RegionNotTrusted { region: region.to_owned(), doubt: doubt.to_owned() };
        // `announce` counts an event that it drops.
        drop(self.announce(region, &event, now));
    }

    /// Drops the doubts about regions and workers that are not among the records.
    pub(super) fn retain_doubts(&self, workers: &[Worker]) {
        let regions = &self.policy().regions;
        let has_records = |region: &str| workers.iter().any(|worker| regions.region_of(worker) == Some(region));
        let exists = |id: &WorkerId| workers.iter().any(|worker| worker.id == *id);
        for region in self.gate().retain(has_records, exists) {
            self.telemetry().set_region_trusted(&region);
        }
    }

    /// Drops all doubts: another controller leads.
    pub(super) fn forget_doubts(&self) {
        for region in self.gate().clear() {
            self.telemetry().set_region_trusted(&region);
        }
    }

    /// Counts the fleet. A cached view may keep a worker in service, which costs nothing; only a fresh one lets it go.
    pub(super) async fn fleet(&self, mode: Mode, now: Timestamp) -> (Result<FleetView, CallFailure>, FleetGuard) {
        let mut cached = Arc::clone(&self.shared.fleet).lock_owned().await;
        // Read before the records are listed: a worker that leaves meanwhile may or may not be in the listing.
        let scale_down_epoch = self.shared.scale_down_epoch.load(Ordering::Acquire);
        let recent = cached.snapshot.filter(|seen| self.cache().timers().elapsed(seen.at) < FLEET_MAX_AGE);
        let keeps = |view: &FleetView| fleet_guards(view, &self.policy().scale_down, now).is_some();
        if let Some(seen) = recent.filter(|seen| seen.scale_down_epoch == scale_down_epoch && keeps(&seen.view)) {
            return (Ok(seen.view), FleetGuard { cached, lock: None });
        }
        // Taken before the records are listed: another controller would count a worker that is about to leave.
        let lock = match mode {
            Mode::Real => match self.lease.lock_fleet().await {
                Ok(lock) => lock,
                Err(failure) => return (Err(failure), FleetGuard { cached, lock: None }),
            },
            Mode::DryRun => None,
        };
        let counted = self.count_fleet(now).await.inspect(|view| {
            cached.snapshot = Some(FleetSnapshot { view: *view, at: self.cache().timers().now(), scale_down_epoch });
        });
        (counted, FleetGuard { cached, lock })
    }

    /// Counts the living records. Terminated ones, which only become more, are listed once: the last scale-down may be
    /// on one of them.
    async fn count_fleet(&self, now: Timestamp) -> Result<FleetView, CallFailure> {
        let (control_plane, scale_downs) = (&self.ports().control_plane, self.scale_downs());
        let everything = match scale_downs.is_complete() {
            true => None,
            false => Some(control_plane.workers(&Scope::everything()).await),
        };
        let listing = match everything {
            Some(Ok(everything)) => everything,
            Some(Err(failure)) => {
                let living = control_plane.workers(&Scope::active()).await?;
                tracing::warn!(target: "lcm::reconcile", %failure, "terminated records could not be listed; the cooldown of scale-down begins now");
                scale_downs.note(Some(now), now);
                living
            }
            None => control_plane.workers(&Scope::active()).await?,
        };
        let view = FleetView::from_workers(&listing.workers, now);
        scale_downs.note(view.last_scale_down_at, now);
        scale_downs.mark_complete();
        Ok(FleetView { last_scale_down_at: scale_downs.last(), ..view })
    }
}

impl FleetGuard {
    /// The lease on scaling the fleet down, where several controllers share one.
    pub(super) fn lease(&self) -> Option<&LeaderLease> {
        self.lock.as_ref().map(FleetLockGuard::lease)
    }

    /// Takes a worker that was scaled down out of the cached view. The epoch follows our own departure; if another
    /// worker left as well, the view stays invalid.
    pub(super) fn remove_worker(&mut self, now: Timestamp) {
        self.cached.snapshot = self.cached.snapshot.map(|seen| FleetSnapshot {
            view: seen.view.after_scale_down(now),
            scale_down_epoch: seen.scale_down_epoch + 1,
            ..seen
        });
    }
}
