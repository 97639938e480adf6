//! Timestamps as arguments. The lifecycle has no clock: the caller passes the time.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};

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
    if let Some(plain) = parse_plain(text) {
        return Some(plain);
    }
    let text = text.trim();
    if let Ok(with_offset) = DateTime::parse_from_rfc3339(text) {
        return Some(with_offset.with_timezone(&Utc));
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"]
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .map(|naive| naive.and_utc())
}

/// Parses `2026-02-06T08:00:00Z`, with or without a fraction: the form in which LCM and most servers write times. Other
/// forms, and times that do not exist, are `None`.
pub(crate) fn parse_plain(text: &str) -> Option<Timestamp> {
    let (head, tail) = text.as_bytes().split_at_checked(19)?;
    let number = |digits: &[u8]| {
        let digit = |number: u32, byte: &u8| byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0'));
        digits.iter().try_fold(0, digit)
    };
    let is_separated = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !is_separated.iter().all(|(place, separator)| head[*place] == *separator) {
        return None;
    }
    let nanos = match tail {
        b"Z" => 0,
        [b'.', digits @ .., b'Z'] if (1..=9).contains(&digits.len()) => {
            number(digits)? * 10_u32.pow(9 - u32::try_from(digits.len()).ok()?)
        }
        _ => return None,
    };
    let year = i32::try_from(number(&head[..4])?).ok()?;
    let date = NaiveDate::from_ymd_opt(year, number(&head[5..7])?, number(&head[8..10])?)?;
    let (hour, minute, second) = (number(&head[11..13])?, number(&head[14..16])?, number(&head[17..19])?);
    Some(date.and_hms_nano_opt(hour, minute, second, nanos)?.and_utc())
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
    fn plain_times_parse_as_all_others_do() {
        let texts = [
            "2026-02-06T08:00:00Z",
            "2026-02-06T08:00:00.25Z",
            "2024-02-29T23:59:59.123456789Z",
            "0000-01-01T00:00:00.000000001Z",
        ];
        for text in texts {
            let expected = DateTime::parse_from_rfc3339(text).expect("valid").to_utc();
            assert_eq!(parse_plain(text), Some(expected), "{text}");
        }
        let others = [
            "2026-02-06T08:00:00+02:00",
            "2026-02-06 08:00:00Z",
            "2026-02-06T08:00:60Z",
            "2026-02-06T08:00:00.Z",
            "2026-02-06T08:00:00.0123456789Z",
            "2023-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-02-06T24:00:00Z",
            "2026-02-0xT08:00:00Z",
            "+026-02-06T08:00:00Z",
            "",
            "2026-02-06T08:00:0é",
        ];
        for text in others {
            assert_eq!(parse_plain(text), None, "{text}");
        }
        assert!(parse("2026-02-06T08:00:60Z").is_some(), "a leap second");
    }

    #[test]
    fn durations_are_formatted_for_people() {
        let said: Vec<_> = [0, 119, 120, 5400, 7200, 11_520].map(|s| spoken(Duration::from_secs(s))).into();
        assert_eq!(said, ["0 s", "119 s", "2 min", "90 min", "2 h", "3 h 12 min"]);
    }
}
