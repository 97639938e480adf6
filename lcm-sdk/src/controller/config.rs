//! How a controller works.

use std::sync::Arc;
use std::time::Duration;

use crate::lifecycle::backoff::Backoff;

/// Settings of a controller, with the defaults of the documents.
#[derive(Clone)]
pub struct ControllerConfig {
    /// Time between two polling cycles.
    pub interval: Duration,
    /// Whether there are polling cycles at all.
    pub polling: Polling,
    /// Time before the first one.
    pub initial_delay: Duration,
    /// Passes at the same time.
    pub max_concurrent: usize,
    /// The longest a pass may take.
    pub timeout: Duration,
    /// Waiting between retries.
    pub backoff: Backoff,
    /// How long a resource may be overtaken by more urgent ones.
    pub patience: Duration,
    /// How long a stop waits for passes under way.
    pub grace: Duration,
    /// Draws a number from 0 to 1 that spreads retries.
    pub jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
}

/// Whether a controller polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Polling {
    /// It does.
    Enabled,
    /// It relies on being told.
    Disabled,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            polling: Polling::Enabled,
            initial_delay: Duration::from_secs(5),
            max_concurrent: 10,
            timeout: Duration::from_secs(300),
            backoff: Backoff::default(),
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            jitter: Arc::new(rand::random),
        }
    }
}

impl std::fmt::Debug for ControllerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerConfig")
            .field("interval", &self.interval)
            .field("polling", &self.polling)
            .field("max_concurrent", &self.max_concurrent)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
