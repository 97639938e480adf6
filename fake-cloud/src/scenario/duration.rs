//! Time spans such as `90s`, `45m`, `2h` and `3d`; a minus sign means the future.

use chrono::{DateTime, TimeDelta, Utc};
use serde::de::{Deserialize, Deserializer, Error};

/// Time span, at most ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(TimeDelta);

impl Default for Span {
    /// One hour: longer than every default delay.
    fn default() -> Self {
        Self(TimeDelta::hours(1))
    }
}

impl Span {
    pub(super) const fn span(self) -> TimeDelta {
        self.0
    }

    pub(super) fn after(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now.checked_add_signed(self.0).unwrap_or(now)
    }

    pub(super) fn before(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now.checked_sub_signed(self.0).unwrap_or(now)
    }

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = text.trim().split_at_checked(text.trim().len().checked_sub(1)?)?;
        let seconds: i64 = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        };
        let seconds = number.parse::<i64>().ok()?.checked_mul(seconds)?;
        // Ten years, so that sums of dates stay in range.
        (seconds.abs() <= 315_360_000).then(|| Self(TimeDelta::seconds(seconds)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("invalid time span {text:?}; accepted: 90s, 45m, 2h, 3d")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_parse_with_a_unit_and_sign() {
        for (text, seconds) in [("90s", 90), ("45m", 2700), ("2h", 7200), ("3d", 259_200), ("-5m", -300)] {
            assert_eq!(Span::parse(text).map(|age| age.span().num_seconds()), Some(seconds), "{text}");
        }
        for text in ["", "h", "2", "2 weeks", "2.5h", "é", "99999999999999d"] {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }
}
