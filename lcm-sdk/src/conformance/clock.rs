//! What every clock must do.

use crate::ports::Clock;

/// Asks a clock twice.
///
/// # Panics
/// With the promise that was broken.
pub fn suite(clock: &dyn Clock) {
    let first = clock.now();
    let second = clock.now();
    assert!(first <= second, "a clock that nobody turns back does not go back: {first}, then {second}");
    let epoch = crate::lifecycle::time::parse("2020-01-01T00:00:00Z").unwrap_or_default();
    assert!(first > epoch, "a clock shows the time of day, not the time since something else: {first}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::SystemClock;
    use crate::providers::memory::ManualClock;

    #[test]
    fn the_machines_clock_and_the_one_that_is_moved_by_hand_pass() {
        suite(&SystemClock);
        let moved = ManualClock::new(crate::lifecycle::time::parse("2026-02-06T08:00:00Z").expect("valid"));
        suite(&moved);
    }
}
