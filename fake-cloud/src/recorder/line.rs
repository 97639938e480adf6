//! A record as one line of a log that a person reads while it grows.

use std::fmt;

use super::{Notice, Outcome, Record};

/// Of what a caller sent, at most this many signs are shown.
const LONGEST: usize = 96;

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.at.format("%H:%M:%S%.3f");
        let about = match (&self.region, &self.subject) {
            (Some(region), Some(subject)) => format!("{} {}", plain(region), plain(subject)),
            (Some(one), None) | (None, Some(one)) => plain(one),
            (None, None) => "-".to_owned(),
        };
        write!(f, "{time}  {:<13}  {:<22}  {about}  {}", self.service.name(), plain(&self.operation), self.outcome)?;
        if let Some(attempt) = self.attempt {
            write!(f, "  attempt {attempt}")?;
        }
        for rule in &self.faults {
            write!(f, "  fault {rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.at.format("%H:%M:%S%.3f"), self.text)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served { status } => write!(f, "{status}"),
            Self::Refused { status, code } => write!(f, "{status} {code}"),
            Self::Reset => f.write_str("reset"),
            Self::ResponseDropped => f.write_str("done, answer dropped"),
            Self::Abandoned => f.write_str("abandoned by the caller"),
        }
    }
}

/// What a caller sent, fit for one line of a terminal: no control characters, and not too much of it.
fn plain(text: &str) -> String {
    let mut signs = text.chars().map(|sign| if sign.is_control() { '\u{fffd}' } else { sign });
    let mut plain: String = signs.by_ref().take(LONGEST).collect();
    if signs.next().is_some() {
        plain.push('…');
    }
    plain
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::service::Service;

    #[test]
    fn what_a_caller_sends_stays_on_its_line() {
        assert_eq!(plain("w\n\u{1b}[2J"), "w\u{fffd}\u{fffd}[2J");
        assert_eq!(plain(&"i".repeat(10_000)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn a_line_says_when_what_about_whom_and_how_it_ended() {
        let record = Record {
            number: 7,
            at: DateTime::<Utc>::UNIX_EPOCH,
            service: Service::Ec2,
            operation: "StartInstances".to_owned(),
            region: Some("us-east-1".to_owned()),
            subject: Some("i-0abc".to_owned()),
            parameters: vec![("UserData".to_owned(), "hush".to_owned())],
            call: None,
            attempt: Some(2),
            client: None,
            faults: vec![3],
            outcome: Outcome::Refused { status: 503, code: "RequestLimitExceeded".to_owned() },
        };
        assert_eq!(
            record.to_string(),
            "00:00:00.000  ec2            StartInstances          us-east-1 i-0abc  503 RequestLimitExceeded  attempt 2  \
             fault 3"
        );
    }
}
