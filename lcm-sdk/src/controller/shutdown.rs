//! Asking everything to stop, once, from anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A request to stop that any number of tasks can wait for. Clones are the same request.
///
/// ```
/// use lcm_sdk::controller::shutdown::Shutdown;
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

/// A `Notify` wakes those who wait in the order they came, so that a simulated history can be repeated.
#[derive(Debug, Default)]
struct Inner {
    is_requested: AtomicBool,
    requested: Notify,
}

impl Shutdown {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self { inner: Arc::default() }
    }

    /// Asks everyone to stop. Asking again changes nothing.
    pub fn request(&self) {
        self.inner.is_requested.store(true, Ordering::Release);
        self.inner.requested.notify_waiters();
    }

    /// Whether somebody has asked.
    pub fn is_requested(&self) -> bool {
        self.inner.is_requested.load(Ordering::Acquire)
    }

    /// Waits until somebody asks.
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

    /// From now on asks when the process is told to end: SIGTERM, or Ctrl-C. A signal that comes after this returns is
    /// heard, whatever the tasks of the runtime are busy with.
    ///
    /// # Errors
    /// If the operating system does not let us listen for the signals.
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
    async fn everyone_who_waits_is_woken_and_who_comes_late_does_not_wait() {
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
            task.await.expect("it wakes");
        }
        shutdown.requested().await;
    }
}
