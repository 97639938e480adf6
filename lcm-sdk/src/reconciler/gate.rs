//! The gate of a region: absences pass only with proof of the account that reported them. Reconciles, the sweep and
//! garbage collection share one gate per region. The rules are in [`crate::lifecycle::trust`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::trust::{Caller, Place, Sighting};
use crate::lifecycle::worker::Worker;
use crate::ports::{Ports, Scope};

/// Minimum time between two searches for proof in a region.
const SEARCH_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of recorded instances that one search describes.
const SEARCH_SIZE: usize = 10;

/// A region whose absences are not believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UntrustedRegion {
    /// Name of the region.
    pub region: String,
    /// When the first absence without proof was seen.
    pub since: Timestamp,
    /// The doubt about the account.
    pub doubt: String,
}

/// One gate per region.
#[derive(Debug, Default)]
pub(crate) struct TrustGate {
    regions: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Evidence>>>>,
    untrusted: Mutex<BTreeMap<String, UntrustedRegion>>,
    /// Number of untrusted regions, so that the usual reconcile takes no lock.
    untrusted_count: AtomicUsize,
}

/// The result of the last search for proof in a region.
#[derive(Debug, Default)]
struct Evidence {
    searched_at: Option<Instant>,
    sighting: Option<Sighting>,
    subnet_owner: Option<String>,
    /// Number of records that earlier searches skipped past, so that each search describes others.
    offset: usize,
}

impl TrustGate {
    /// Adds the proof of the last search, and searches if that is too old.
    pub(super) async fn with_evidence(&self, ports: &Ports, policy: &Policy, region: &str, place: Place) -> Place {
        let evidence = Arc::clone(self.regions.lock().entry(region.to_owned()).or_default());
        let mut evidence = evidence.lock().await;
        if evidence.searched_at.is_none_or(|at| at.elapsed() >= SEARCH_INTERVAL) {
            evidence.search(ports, policy, region, &place.caller).await;
        }
        Place { sighting: evidence.sighting.clone(), subnet_owner: evidence.subnet_owner.clone(), ..place }
    }

    /// Ends the distrust of a region. Returns whether it was untrusted.
    pub(super) fn trust(&self, region: &str) -> bool {
        if self.untrusted_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut untrusted = self.untrusted.lock();
        let was_untrusted = untrusted.remove(region).is_some();
        self.untrusted_count.store(untrusted.len(), Ordering::Release);
        was_untrusted
    }

    /// Begins the distrust of a region. Returns whether it was trusted before.
    pub(super) fn distrust(&self, region: &str, doubt: &str, now: Timestamp) -> bool {
        let mut untrusted = self.untrusted.lock();
        if untrusted.contains_key(region) {
            return false;
        }
        let entry = UntrustedRegion { region: region.to_owned(), since: now, doubt: doubt.to_owned() };
        untrusted.insert(region.to_owned(), entry);
        self.untrusted_count.store(untrusted.len(), Ordering::Release);
        true
    }

    /// The regions whose absences are not believed.
    pub(super) fn untrusted(&self) -> Vec<UntrustedRegion> {
        self.untrusted.lock().values().cloned().collect()
    }
}

impl Evidence {
    /// Describes some recorded instances of the region; if EC2 shows none of them, the configured subnet.
    async fn search(&mut self, ports: &Ports, policy: &Policy, region: &str, caller: &Caller) {
        *self = Self { searched_at: Some(Instant::now()), offset: self.offset, ..Self::default() };
        let at = ports.clock.now();
        let recorded: Vec<InstanceId> = match ports.control_plane.workers(&Scope::active()).await {
            Ok(listing) => {
                let here = |worker: &Worker| policy.regions.region_of(worker) == Some(region);
                let launched =
                    |worker: &Worker| !matches!(worker.status, WorkerStatus::Pending | WorkerStatus::Terminated);
                let workers = listing.workers.into_iter().filter(|worker| here(worker) && launched(worker));
                workers.filter_map(|worker| worker.ec2_instance_id).collect()
            }
            Err(failure) => {
                tracing::warn!(target: "lcm::trust", region, %failure, "the records of a region could not be listed");
                Vec::new()
            }
        };
        let from = self.offset.checked_rem(recorded.len()).unwrap_or_default();
        let ids: Vec<_> = recorded.iter().cycle().skip(from).take(SEARCH_SIZE.min(recorded.len())).cloned().collect();
        self.offset = from + ids.len();
        let found = match ids.is_empty() {
            true => Vec::new(),
            false => ports.compute.instances(region, &ids).await,
        };
        let sighting =
            found.iter().any(|lookup| lookup.found().is_some()).then(|| Sighting { at, caller: caller.clone() });
        let subnet = policy.regions.regions.get(region).map(|config| &config.subnet_id);
        let subnet_owner = match (&sighting, subnet.filter(|subnet| !subnet.is_empty())) {
            (None, Some(subnet)) => ports.compute.subnet_owner(region, subnet).await.unwrap_or_else(|failure| {
                tracing::warn!(target: "lcm::trust", region, subnet, %failure, "the subnet of a region could not be described");
                None
            }),
            (Some(_), _) | (None, None) => None,
        };
        // Responses to other credentials prove nothing about these.
        if ports.compute.caller(region).await.is_ok_and(|after| after == *caller) {
            (self.sighting, self.subnet_owner) = (sighting, subnet_owner);
        }
    }
}

/// The failure of reads during which the credentials were replaced.
pub(crate) fn credentials_changed() -> CallFailure {
    CallFailure::new(FailureKind::Unclear, "the credentials changed during the lookup")
}
