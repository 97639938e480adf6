//! Timestamps as arguments. The lifecycle has no clock: the caller passes the time.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};

/// A moment in UTC.
pub type Timestamp = DateTime<Utc>;

/// The time since `then`. A moment in the future counts as now, so a skewed clock makes things younger, never older.
pub fn age(then: Timestamp, now: Timestamp) -> Duration {
    now.signed_duration_since(then).to_std().unwrap_or(Duration::ZERO)
}

/// Whether `then` is less than `span` ago. A moment in the future is not recent: after the clock was set back, it would
/// stay recent until the clock caught up.
pub fn is_recent(then: Timestamp, now: Timestamp, span: Duration) -> bool {
    then <= now && age(then, now) < span
}

/// The time until `then`. A moment in the past counts as now.
pub fn until(then: Timestamp, now: Timestamp) -> Duration {
    age(now, then)
}

/// Parses a timestamp of the control plane: ISO 8601 with an offset, or without one, meaning UTC.
///
/// ```
/// use lcm_sdk::lifecycle::time::parse;
///
/// assert_eq!(parse("2026-02-06T10:00:00+02:00"), parse("2026-02-06T08:00:00Z"));
/// assert_eq!(parse("2026-02-06T08:00:00.250"), parse("2026-02-06 08:00:00.250Z"));
/// assert_eq!(parse("yesterday"), None);
/// ```
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Ok(with_offset) = DateTime::parse_from_rfc3339(text) {
        return Some(with_offset.with_timezone(&Utc));
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"]
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .map(|naive| naive.and_utc())
}

/// Formats a duration for people: `90 s`, `15 min`, `3 h 12 min`.
pub fn spoken(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds if seconds % 3600 < 60 => format!("{} h", seconds / 3600),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn future_moments_count_as_now() {
        let then = parse("2026-02-06T08:00:00Z").expect("valid");
        assert_eq!(age(then, then), Duration::ZERO);
        assert_eq!(age(Timestamp::MAX_UTC, Timestamp::MIN_UTC), Duration::ZERO);
        assert!(age(Timestamp::MIN_UTC, Timestamp::MAX_UTC) > Duration::from_secs(1 << 40));
    }

    #[test]
    fn durations_are_formatted_for_people() {
        let said: Vec<_> = [0, 119, 120, 5400, 7200, 11_520].map(|s| spoken(Duration::from_secs(s))).into();
        assert_eq!(said, ["0 s", "119 s", "2 min", "90 min", "2 h", "3 h 12 min"]);
    }
}
