//! Formats logged requests and notices as one line of a terminal log.

use std::fmt;

use super::{LoggedRequest, Notice, RequestOutcome};

/// Maximum number of characters of a text that a client sent.
const MAX_CHARS: usize = 96;

impl fmt::Display for LoggedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.at.format("%H:%M:%S%.3f");
        let target = match (&self.region, &self.subject) {
            (Some(region), Some(subject)) => format!("{} {}", sanitized(region), sanitized(subject)),
            (Some(one), None) | (None, Some(one)) => sanitized(one),
            (None, None) => "-".to_owned(),
        };
        let operation = sanitized(&self.operation);
        write!(f, "{time}  {:<13}  {operation:<22}  {target}  {}", self.service.name(), self.outcome)?;
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

impl fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served { status } => write!(f, "{status}"),
            Self::Refused { status, code } => write!(f, "{status} {code}"),
            Self::Reset => f.write_str("reset"),
            Self::ResponseDropped => f.write_str("handled, response dropped"),
            Self::Abandoned => f.write_str("abandoned by the client"),
        }
    }
}

/// Makes a text from a client fit for one terminal line: replaces control characters and truncates it.
fn sanitized(text: &str) -> String {
    let mut chars = text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    let mut line: String = chars.by_ref().take(MAX_CHARS).collect();
    if chars.next().is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::service::Service;

    #[test]
    fn client_text_stays_on_one_line() {
        assert_eq!(sanitized("w\n\u{1b}[2J"), "w\u{fffd}\u{fffd}[2J");
        assert_eq!(sanitized(&"i".repeat(10_000)).chars().count(), MAX_CHARS + 1);
    }

    #[test]
    fn line_shows_time_operation_target_and_outcome() {
        let request = LoggedRequest {
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
            outcome: RequestOutcome::Refused { status: 503, code: "RequestLimitExceeded".to_owned() },
        };
        assert_eq!(
            request.to_string(),
            "00:00:00.000  ec2            StartInstances          us-east-1 i-0abc  503 RequestLimitExceeded  attempt 2  \
             fault 3"
        );
    }
}
