//! Caches and batches descriptions of AMIs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lifecycle::instance::ImageDetails;
use crate::lifecycle::lookup::Lookup;
use crate::ports::Compute;

/// Number of cached AMIs per region above which the cache starts anew.
const MAX_CACHED: usize = 1_000;

/// Time for which a failed call is not repeated. Every reconcile of a worker whose AMI is unknown requests it again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Descriptions of AMIs by region and id. They do not change, so they are kept.
///
/// # Guarantees
/// The ids that are requested during a call share the next one. A failure is returned again for 30 s, then the call is
/// repeated. An absent AMI is cached: it does not come back under its id.
#[derive(Debug, Default)]
pub(crate) struct ImageDetailsCache {
    regions: Mutex<HashMap<String, Arc<Region>>>,
}

#[derive(Debug, Default)]
struct Region {
    known: Mutex<HashMap<String, Lookup<ImageDetails>>>,
    /// Ids whose description failed, and when.
    failed: Mutex<HashMap<String, (Instant, Lookup<ImageDetails>)>>,
    /// Ids that the next call requests.
    wanted: Mutex<BTreeSet<String>>,
    /// Held during a call.
    call: tokio::sync::Mutex<()>,
}

impl ImageDetailsCache {
    /// Returns one result per id, in the order of the ids.
    ///
    /// # Cancel safety
    /// If the calling future is dropped, the next one makes the call.
    pub(crate) async fn get(&self, compute: &dyn Compute, region: &str, ids: &[String]) -> Vec<Lookup<ImageDetails>> {
        let of_region = Arc::clone(self.regions.lock().entry(region.to_owned()).or_default());
        of_region.wanted.lock().extend(of_region.missing(ids));
        if !of_region.missing(ids).is_empty() {
            let _call = of_region.call.lock().await;
            // The call before may have brought them.
            if !of_region.missing(ids).is_empty() {
                of_region.wanted.lock().extend(of_region.missing(ids));
                of_region.describe(compute, region).await;
            }
        }
        let (known, failed) = (of_region.known.lock(), of_region.failed.lock());
        let failure = |id: &String| failed.get(id).map(|(_, failure)| failure);
        ids.iter().map(|id| known.get(id).or_else(|| failure(id)).cloned().unwrap_or_default()).collect()
    }
}

impl Region {
    fn missing(&self, ids: &[String]) -> Vec<String> {
        let (known, mut failed) = (self.known.lock(), self.failed.lock());
        failed.retain(|_, (at, _)| at.elapsed() < RETRY_AFTER);
        ids.iter().filter(|id| !known.contains_key(*id) && !failed.contains_key(*id)).cloned().collect()
    }

    /// Describes the wanted ids in one call.
    async fn describe(&self, compute: &dyn Compute, region: &str) {
        let wanted: Vec<String> = self.wanted.lock().iter().cloned().collect();
        let results = compute.image_details(region, &wanted).await;
        self.wanted.lock().retain(|id| !wanted.contains(id));
        let mut known = self.known.lock();
        if known.len() + wanted.len() > MAX_CACHED {
            known.clear();
        }
        let mut failed = self.failed.lock();
        for (id, result) in wanted.into_iter().zip(results) {
            match result {
                Lookup::Found(_) | Lookup::Absent => drop(known.insert(id, result)),
                Lookup::NotRequested | Lookup::Unknown(_) => drop(failed.insert(id, (Instant::now(), result))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;
    use crate::lifecycle::failure::{CallFailure, FailureKind};
    use crate::lifecycle::instance::Image;
    use crate::ports::SystemClock;
    use crate::providers::memory::{ComputeCall, ComputeOperation, MemoryCompute};

    fn compute() -> MemoryCompute {
        let compute = MemoryCompute::new(Arc::new(SystemClock));
        for number in 0..10 {
            let (id, name) = (format!("ami-{number}"), format!("cml-{number}"));
            compute.put_image("here", Image { id, name, creation_date: "2026".to_owned() });
        }
        compute
    }

    fn calls(compute: &MemoryCompute) -> Vec<usize> {
        let size = |call: &ComputeCall| match call {
            ComputeCall::ImageDetails { ids, .. } => Some(ids.len()),
            _ => None,
        };
        compute.calls().iter().filter_map(size).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn images_requested_during_a_call_share_the_next_one() {
        let (compute, cache) = (compute(), ImageDetailsCache::default());
        compute.set_delay("here", Duration::from_secs(1));
        let ids: Vec<[String; 1]> = (0..10).chain(0..10).map(|number| [format!("ami-{number}")]).collect();
        let results = join_all(ids.iter().map(|id| cache.get(&compute, "here", id))).await;
        for (id, result) in ids.iter().zip(results) {
            assert_eq!(result[0].found().map(|image| &image.id), Some(&id[0]));
        }
        assert!(calls(&compute).len() <= 2, "{:?}", calls(&compute));
        cache.get(&compute, "here", &ids[3]).await;
        assert!(calls(&compute).len() <= 2, "a known AMI is not described again");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_calls_are_repeated_after_a_while() {
        let (compute, cache, id) = (compute(), ImageDetailsCache::default(), ["ami-1".to_owned()]);
        compute.fail_next(ComputeOperation::ImageDetails, CallFailure::new(FailureKind::Throttled, "slower"));
        for _ in 0..10 {
            assert!(cache.get(&compute, "here", &id).await[0].failure().is_some());
        }
        assert_eq!(calls(&compute), [1]);
        tokio::time::advance(RETRY_AFTER).await;
        assert!(cache.get(&compute, "here", &id).await[0].found().is_some());
        assert_eq!(cache.get(&compute, "here", &["ami-gone".to_owned()]).await, [Lookup::Absent]);
        assert_eq!(cache.get(&compute, "here", &["ami-gone".to_owned()]).await, [Lookup::Absent]);
        assert_eq!(calls(&compute), [1, 1, 1]);
    }
}
