//! Cooperative shutdown of any number of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A request to stop that any number of tasks can wait for. Clones share one request.
///
/// ```
/// use lcm_sdk::controller::Shutdown;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let shutdown = Shutdown::new();
/// let worker = shutdown.clone();
/// shutdown.request();
/// worker.requested().await;
/// assert!(worker.is_requested());
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

/// `Notify` wakes waiting tasks in the order they came, so that a simulated history can be repeated.
#[derive(Debug, Default)]
struct Inner {
    is_requested: AtomicBool,
    requested: Notify,
}

impl Shutdown {
    /// Creates a shutdown that is not requested yet.
    pub fn new() -> Self {
        Self { inner: Arc::default() }
    }

    /// Requests the stop. Repeated requests have no effect.
    pub fn request(&self) {
        self.inner.is_requested.store(true, Ordering::Release);
        self.inner.requested.notify_waiters();
    }

    /// Whether the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.inner.is_requested.load(Ordering::Acquire)
    }

    /// Waits until the stop is requested.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time; a request is never missed.
    pub async fn requested(&self) {
        let requested = self.inner.requested.notified();
        tokio::pin!(requested);
        // From here on no request is missed.
        requested.as_mut().enable();
        if !self.is_requested() {
            requested.await;
        }
    }

    /// Creates a shutdown that is requested when the process receives SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If the operating system refuses the signal handlers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn from_signals() -> std::io::Result<Self> {
        let shutdown = Self::new();
        shutdown.on_signals()?;
        Ok(shutdown)
    }

    /// Requests the stop when the process receives SIGTERM or SIGINT. A signal that arrives after this returns is
    /// handled, however busy the runtime is.
    ///
    /// # Errors
    /// If the operating system refuses the signal handlers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let shutdown = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            shutdown.request();
        });
        Ok(())
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_wakes_all_waiting_tasks() {
        let shutdown = Shutdown::new();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let shutdown = shutdown.clone();
                tokio::spawn(async move { shutdown.requested().await })
            })
            .collect();
        tokio::task::yield_now().await;
        shutdown.request();
        for task in waiting {
            task.await.expect("woken");
        }
        // A task that comes later does not wait at all.
        shutdown.requested().await;
    }
}
