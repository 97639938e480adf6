//! Conformance suite of [`Clock`].

use crate::ports::Clock;

/// Checks all promises of the port.
///
/// # Panics
/// With the broken promise.
pub fn suite(clock: &dyn Clock) {
    let first = clock.now();
    let second = clock.now();
    assert!(first <= second, "broken promise of port 'clock': time does not go back: {first}, then {second}");
    let epoch = crate::lifecycle::time::parse("2020-01-01T00:00:00Z").unwrap_or_default();
    assert!(first > epoch, "broken promise of port 'clock': the value is the current time of day: {first}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::SystemClock;
    use crate::providers::memory::ManualClock;

    #[test]
    fn clocks_conform() {
        suite(&SystemClock);
        let moved = ManualClock::new(crate::lifecycle::time::parse("2026-02-06T08:00:00Z").expect("valid"));
        suite(&moved);
    }
}
