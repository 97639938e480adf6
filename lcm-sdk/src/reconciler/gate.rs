//! The gate of a region: absences pass only with proof of the account that reported them. Reconciles, the sweep and
//! garbage collection share one gate per region. The rules are in [`crate::lifecycle::trust`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::controller::timers::Timers;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
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
    /// By region and configured subnet, which may differ between two policies.
    evidence: Mutex<BTreeMap<(String, String), SharedEvidence>>,
    distrust: Mutex<BTreeMap<String, Distrust>>,
    /// Number of untrusted regions, so that the usual reconcile takes no lock.
    untrusted_count: AtomicUsize,
}

/// The evidence of a region; its lock is held during a search, so that concurrent callers share one.
type SharedEvidence = Arc<tokio::sync::Mutex<Evidence>>;

/// The doubts about a region.
#[derive(Debug)]
struct Distrust {
    shown: UntrustedRegion,
    extent: Extent,
}

/// The records that a doubt is about.
#[derive(Debug, Default)]
struct Extent {
    is_regional: bool,
    /// Workers whose own place is in doubt, although the region is proved for others.
    workers: BTreeSet<WorkerId>,
}

impl Extent {
    fn is_empty(&self) -> bool {
        !self.is_regional && self.workers.is_empty()
    }
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
    pub(super) async fn with_evidence(
        &self,
        ports: &Ports,
        policy: &Policy,
        timers: &Timers,
        region: &str,
        place: Place,
    ) -> Place {
        let key = (region.to_owned(), subnet(policy, region).unwrap_or_default().to_owned());
        let evidence = Arc::clone(self.evidence.lock().entry(key).or_default());
        let mut evidence = evidence.lock().await;
        if evidence.searched_at.is_none_or(|at| timers.elapsed(at) >= SEARCH_INTERVAL) {
            evidence.search(ports, policy, region, &place.caller, timers.now()).await;
        }
        Place { sighting: evidence.sighting.clone(), subnet_owner: evidence.subnet_owner.clone(), ..place }
    }

    /// Ends the doubt about a region; with a worker, also the doubt about that one. Returns whether the region is trusted
    /// again by this.
    pub(super) fn trust(&self, region: &str, worker: Option<&WorkerId>) -> bool {
        if self.untrusted_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let ended = self.reduce(|name, extent| {
            if name != region {
                return;
            }
            extent.is_regional = false;
            if let Some(worker) = worker {
                extent.workers.remove(worker);
            }
        });
        !ended.is_empty()
    }

    /// Begins a doubt: about all records of a region, or about one worker if the region is proved for others. Returns
    /// whether the region was trusted before.
    pub(super) fn distrust(&self, region: &str, worker: Option<&WorkerId>, doubt: &str, now: Timestamp) -> bool {
        let mut distrust = self.distrust.lock();
        let is_new = !distrust.contains_key(region);
        let entry = distrust.entry(region.to_owned()).or_insert_with(|| Distrust {
            shown: UntrustedRegion { region: region.to_owned(), since: now, doubt: doubt.to_owned() },
            extent: Extent::default(),
        });
        match worker {
            Some(worker) => {
                entry.extent.workers.insert(worker.clone());
            }
            None => entry.extent.is_regional = true,
        }
        self.untrusted_count.store(distrust.len(), Ordering::Release);
        is_new
    }

    /// Drops the doubts about regions and workers without a record. Returns the regions that are trusted again by this.
    pub(super) fn retain(&self, has_records: impl Fn(&str) -> bool, exists: impl Fn(&WorkerId) -> bool) -> Vec<String> {
        if self.untrusted_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.reduce(|region, extent| {
            extent.is_regional &= has_records(region);
            extent.workers.retain(&exists);
        })
    }

    /// Drops all doubts. Returns the regions that were untrusted.
    pub(super) fn clear(&self) -> Vec<String> {
        self.reduce(|_, extent| *extent = Extent::default())
    }

    /// Reduces the doubts, and returns the regions that are trusted again by this.
    fn reduce(&self, reduce: impl Fn(&str, &mut Extent)) -> Vec<String> {
        let mut distrust = self.distrust.lock();
        let mut ended = Vec::new();
        distrust.retain(|region, entry| {
            reduce(region, &mut entry.extent);
            if entry.extent.is_empty() {
                ended.push(region.clone());
            }
            !entry.extent.is_empty()
        });
        self.untrusted_count.store(distrust.len(), Ordering::Release);
        ended
    }

    /// The regions whose absences are not believed.
    pub(super) fn untrusted(&self) -> Vec<UntrustedRegion> {
        self.distrust.lock().values().map(|entry| entry.shown.clone()).collect()
    }
}

impl Evidence {
    /// Describes some recorded instances of the region; if EC2 shows none of them, the configured subnet.
    async fn search(&mut self, ports: &Ports, policy: &Policy, region: &str, caller: &Caller, now: Instant) {
        *self = Self { searched_at: Some(now), offset: self.offset, ..Self::default() };
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
        let subnet_owner = match (&sighting, subnet(policy, region)) {
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

/// The configured subnet of a region.
fn subnet<'a>(policy: &'a Policy, region: &str) -> Option<&'a str> {
    let config = policy.regions.regions.get(region)?;
    Some(config.subnet_id.as_str()).filter(|subnet| !subnet.is_empty())
}

/// The failure of reads during which the credentials were replaced.
pub(crate) fn credentials_changed() -> CallFailure {
    CallFailure::new(FailureKind::Unclear, "the credentials changed during the lookup")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: &str = "us-east-1";

    fn now() -> Timestamp {
        "2026-02-06T08:00:00Z".parse().expect("valid")
    }

    #[test]
    fn doubt_about_one_worker_outlasts_proof_of_another() {
        let (gate, ours, theirs) = (TrustGate::default(), WorkerId::from("w-1"), WorkerId::from("w-2"));
        assert!(gate.distrust(REGION, Some(&theirs), "another account", now()));
        assert!(!gate.distrust(REGION, Some(&theirs), "another account", now()), "announced once");
        assert!(!gate.trust(REGION, Some(&ours)));
        assert!(!gate.trust(REGION, None));
        assert_eq!(gate.untrusted().len(), 1);
        assert!(gate.trust(REGION, Some(&theirs)));
        assert_eq!(gate.untrusted(), []);
    }

    #[test]
    fn any_proof_ends_a_regional_doubt() {
        let gate = TrustGate::default();
        assert!(gate.distrust(REGION, None, "unknown", now()));
        assert!(!gate.trust("eu-west-1", None), "another region");
        assert!(gate.trust(REGION, Some(&"w-1".into())));
    }

    #[test]
    fn doubts_end_with_the_last_record() {
        let gate = TrustGate::default();
        gate.distrust(REGION, None, "unknown", now());
        gate.distrust(REGION, Some(&"w-1".into()), "another account", now());
        gate.distrust("eu-west-1", None, "unknown", now());
        assert_eq!(gate.retain(|region| region == REGION, |_| true), ["eu-west-1"]);
        assert_eq!(gate.retain(|_| false, |_| true), [""; 0], "the worker is still in doubt");
        assert_eq!(gate.retain(|_| false, |_| false), [REGION]);
        gate.distrust(REGION, None, "unknown", now());
        assert_eq!((gate.clear(), gate.untrusted()), (vec![REGION.to_owned()], vec![]));
    }
}
