//! Signs of life of the run loop.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two signs of life.
const INTERVAL: Duration = Duration::from_secs(1);

/// Last sign of life of a run loop. Clones share one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heartbeat {
    last: Arc<Mutex<Option<Instant>>>,
}

impl Heartbeat {
    /// Runs a future and gives a sign of life every second. Both share a task: if that is blocked, the signs stop.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let beating = async {
            loop {
                *self.last.lock() = Some(Instant::now());
                tokio::time::sleep(INTERVAL).await;
            }
        };
        let output = tokio::select! {
            output = work => output,
            never = beating => never,
        };
        *self.last.lock() = None;
        output
    }

    /// Time since the last sign of life; `None` while the loop does not run.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.last.lock().map(|last| last.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn blocked_loop_gives_no_sign_of_life() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.age(), None, "it does not run");
        {
            let mut running = std::pin::pin!(heartbeat.during(std::future::pending::<()>()));
            let observed = tokio::time::timeout(Duration::from_secs(100), &mut running).await;
            assert!(observed.is_err(), "it runs");
            assert!(heartbeat.age().is_some_and(|age| age <= INTERVAL), "{:?}", heartbeat.age());
            // The task is not polled.
            tokio::time::advance(Duration::from_secs(60)).await;
            assert!(heartbeat.age().is_some_and(|age| age >= Duration::from_secs(59)), "{:?}", heartbeat.age());
        }
        heartbeat.during(async {}).await;
        assert_eq!(heartbeat.age(), None);
    }
}
