use crate::lifecycle::time::Timestamp;

/// Time of day, as in records and EC2.
///
/// Timers do not use it: they run on tokio's clock, which tests can pause. A clock that jumps changes the age of records,
/// but not the validity of a lease.
///
/// # Promises
/// - Time does not go back, unless the clock is set.
/// - The value is the current time of day.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        std::time::SystemTime::now().into()
    }
}
