use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use crate::lifecycle::failure::CallFailure;
use crate::ports::{CloudEvent, Events};

/// Sends events to several places at the same time.
///
/// # Guarantees
/// One that fails, or is slow, keeps no other from getting the event.
///
/// # Errors
/// The first failure, once all have been tried; the message says how many others there were.
#[derive(Clone, Default)]
pub struct Fanout {
    places: Vec<Arc<dyn Events>>,
}

impl Fanout {
    /// Sends to all of these.
    pub fn new(places: impl IntoIterator<Item = Arc<dyn Events>>) -> Self {
        Self { places: places.into_iter().collect() }
    }
}

#[async_trait]
impl Events for Fanout {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        let told = join_all(self.places.iter().map(|place| place.publish(event))).await;
        let mut failures = told.into_iter().filter_map(Result::err);
        let Some(first) = failures.next() else { return Ok(()) };
        let others = failures.count();
        let message = if others > 0 { format!("{} (and {others} more)", first.message) } else { first.message };
        Err(CallFailure { message, ..first })
    }
}

impl fmt::Debug for Fanout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fanout").field("places", &self.places.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::event::Event;
    use crate::lifecycle::failure::FailureKind;
    use crate::providers::memory::MemoryEvents;

    #[tokio::test]
    async fn one_place_that_fails_stops_none_of_the_others() {
        let (broken, good) = (Arc::new(MemoryEvents::default()), Arc::new(MemoryEvents::default()));
        broken.fail_next(CallFailure::new(FailureKind::Unreachable, "nobody home"));
        let fanout = Fanout::new([Arc::clone(&broken) as Arc<dyn Events>, Arc::clone(&good) as Arc<dyn Events>]);
        let at = "2026-02-06T08:00:00Z".parse().expect("valid");
        let event = CloudEvent::about("w-1", &Event::DrainCompleted, at);
        let failure = fanout.publish(&event).await.expect_err("one of two");
        assert_eq!(failure.kind, FailureKind::Unreachable);
        assert_eq!((broken.published().len(), good.published().len()), (0, 1));
        fanout.publish(&event).await.expect("both");
        assert_eq!((broken.published().len(), good.published().len()), (1, 2));
    }
}
