//! Caches AMI lists by region and name pattern.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::instance::Image;

/// Number of cached patterns above which unused entries are evicted.
const MAX_ENTRIES: usize = 256;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Vec<Image>)>>>;

/// AMI lists by region and pattern.
#[derive(Debug)]
pub(super) struct ImageCache {
    ttl: Duration,
    slots: Mutex<HashMap<(String, String), Slot>>,
}

impl ImageCache {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, slots: Mutex::default() }
    }

    /// Returns the cached list, or loads it with `load`.
    ///
    /// # Guarantees
    /// Concurrent callers share one load. Failures and empty lists are not cached, so that a newly shared AMI is found at
    /// once.
    ///
    /// # Cancel safety
    /// If the loading caller is dropped, the next one loads.
    pub(super) async fn get(
        &self,
        region: &str,
        pattern: &str,
        load: impl Future<Output = Result<Vec<Image>, CallFailure>>,
    ) -> Result<Vec<Image>, CallFailure> {
        let slot = self.slot(region, pattern);
        let mut cached = slot.lock().await;
        if let Some((at, images)) = &*cached
            && at.elapsed() < self.ttl
        {
            return Ok(images.clone());
        }
        *cached = None;
        let images = load.await?;
        if !images.is_empty() {
            *cached = Some((Instant::now(), images.clone()));
        }
        Ok(images)
    }

    /// Drops the lists of a region that contain an AMI, because EC2 refuses to launch it.
    pub(super) async fn forget(&self, region: &str, image_id: &str) {
        let of_region = |((place, _), slot): (&(String, String), &Slot)| (place == region).then(|| Arc::clone(slot));
        let slots: Vec<Slot> = self.slots.lock().iter().filter_map(of_region).collect();
        for slot in slots {
            let mut cached = slot.lock().await;
            if cached.as_ref().is_some_and(|(_, images)| images.iter().any(|image| image.id == image_id)) {
                *cached = None;
            }
        }
    }

    fn slot(&self, region: &str, pattern: &str) -> Slot {
        let mut slots = self.slots.lock();
        let key = (region.to_owned(), pattern.to_owned());
        if slots.len() >= MAX_ENTRIES && !slots.contains_key(&key) {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(slots.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;
    use crate::lifecycle::failure::FailureKind;

    const TTL: Duration = Duration::from_secs(300);

    fn images() -> Vec<Image> {
        vec![Image { id: "ami-1".into(), name: "cml".into(), creation_date: "2026".into() }]
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_load() {
        let (cache, loads) = (ImageCache::new(TTL), AtomicUsize::new(0));
        let load = || async {
            loads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(images())
        };
        let results = join_all((0..100).map(|_| cache.get("here", "cml*", load()))).await;
        assert!(results.iter().all(|result| *result == Ok(images())));
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        cache.get("there", "cml*", load()).await.expect("another region is loaded");
        assert_eq!(loads.load(Ordering::Relaxed), 2);
        tokio::time::sleep(TTL).await;
        cache.get("here", "cml*", load()).await.expect("a list");
        assert_eq!(loads.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_and_empty_lists_are_not_cached() {
        let cache = ImageCache::new(TTL);
        let failed = Err(CallFailure::new(FailureKind::Throttled, "slower"));
        for result in [failed, Ok(Vec::new()), Ok(images())] {
            assert_eq!(cache.get("here", "cml*", std::future::ready(result.clone())).await, result);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_image_is_loaded_again() {
        let cache = ImageCache::new(TTL);
        let newer = vec![Image { id: "ami-2".into(), ..images().remove(0) }];
        for region in ["here", "there"] {
            cache.get(region, "cml*", std::future::ready(Ok(images()))).await.expect("a list");
        }
        cache.forget("here", "ami-9").await;
        let load = || std::future::ready(Ok(newer.clone()));
        assert_eq!(cache.get("here", "cml*", load()).await, Ok(images()), "another AMI was refused");
        cache.forget("here", "ami-1").await;
        assert_eq!(cache.get("here", "cml*", load()).await, Ok(newer.clone()));
        assert_eq!(cache.get("there", "cml*", load()).await, Ok(images()), "another region keeps its list");
    }

    #[tokio::test(start_paused = true)]
    async fn canceled_caller_does_not_block_others() {
        let cache = ImageCache::new(TTL);
        let stuck = cache.get("here", "other*", std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(1), stuck).await.is_err());
        assert_eq!(cache.get("here", "other*", std::future::ready(Ok(images()))).await, Ok(images()));
    }
}
