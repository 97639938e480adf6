//! Remembering which AMIs a pattern matches: a hundred workers of one template ask once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::instance::Image;

/// More patterns than this and those that nobody waits for are forgotten.
const MOST_KEPT: usize = 256;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Vec<Image>)>>>;

/// Answers by region and pattern.
#[derive(Debug)]
pub(super) struct ImageCache {
    kept: Duration,
    slots: Mutex<HashMap<(String, String), Slot>>,
}

impl ImageCache {
    pub(super) fn new(kept: Duration) -> Self {
        Self { kept, slots: Mutex::default() }
    }

    /// What is remembered, else what `ask` says.
    ///
    /// # Guarantees
    /// Who asks for the same at the same time waits for one answer. Failures are never remembered, nor is "none":
    /// an AMI that was shared a moment ago must be seen at once.
    ///
    /// # Cancel safety
    /// If the one who asks goes away, the next in line asks.
    pub(super) async fn get(
        &self,
        region: &str,
        pattern: &str,
        ask: impl Future<Output = Result<Vec<Image>, CallFailure>>,
    ) -> Result<Vec<Image>, CallFailure> {
        let slot = self.slot(region, pattern);
        let mut remembered = slot.lock().await;
        if let Some((at, images)) = &*remembered
            && at.elapsed() < self.kept
        {
            return Ok(images.clone());
        }
        *remembered = None;
        let images = ask.await?;
        if !images.is_empty() {
            *remembered = Some((Instant::now(), images.clone()));
        }
        Ok(images)
    }

    fn slot(&self, region: &str, pattern: &str) -> Slot {
        let mut slots = self.slots.lock();
        let key = (region.to_owned(), pattern.to_owned());
        if slots.len() >= MOST_KEPT && !slots.contains_key(&key) {
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

    const KEPT: Duration = Duration::from_secs(300);

    fn images() -> Vec<Image> {
        vec![Image { id: "ami-1".into(), name: "cml".into(), creation_date: "2026".into() }]
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_together_ask_once_and_again_when_it_is_old() {
        let (cache, asked) = (ImageCache::new(KEPT), AtomicUsize::new(0));
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(images())
        };
        let answers = join_all((0..100).map(|_| cache.get("here", "cml*", ask()))).await;
        assert!(answers.iter().all(|answer| *answer == Ok(images())));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        cache.get("there", "cml*", ask()).await.expect("another region is another question");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        tokio::time::sleep(KEPT).await;
        cache.get("here", "cml*", ask()).await.expect("an answer");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn neither_failures_nor_none_are_remembered_and_nobody_is_stuck_behind_who_went_away() {
        let cache = ImageCache::new(KEPT);
        let failed = Err(CallFailure::new(FailureKind::Throttled, "slower"));
        for answer in [failed, Ok(Vec::new()), Ok(images())] {
            assert_eq!(cache.get("here", "cml*", std::future::ready(answer.clone())).await, answer);
        }
        let stuck = cache.get("here", "other*", std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(1), stuck).await.is_err());
        assert_eq!(cache.get("here", "other*", std::future::ready(Ok(images()))).await, Ok(images()));
    }
}
