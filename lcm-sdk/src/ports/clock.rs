use crate::lifecycle::time::Timestamp;

/// The time of day, as records and EC2 tell it.
///
/// Waiting is not the clock's business: the runtime waits on tokio's timer, which tests can pause. A clock that jumps
/// changes how old things look, never how long a lease is valid.
pub trait Clock: Send + Sync {
    /// What time it is.
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        std::time::SystemTime::now().into()
    }
}
