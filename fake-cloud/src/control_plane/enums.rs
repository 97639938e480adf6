//! The control plane's vocabularies, and how words of a request are read against them.

use super::error::ApiError;

/// Every worker status, as it is stored.
pub const STATUSES: [&str; 11] = [
    "pending",
    "provisioning",
    "starting",
    "running",
    "draining",
    "stopping",
    "stopped",
    "terminating",
    "terminated",
    "failed",
    "unknown",
];

/// Every desired status.
pub const DESIRED_STATUSES: [&str; 3] = ["running", "stopped", "terminated"];

/// Every session state the server moves a session to.
pub const SESSION_STATES: [&str; 13] = [
    "pending",
    "scheduled",
    "instantiating",
    "ready",
    "running",
    "collecting",
    "grading",
    "stopping",
    "stopped",
    "archived",
    "terminated",
    "expired",
    "failed",
];

/// Session states that need nothing any more, and are never left again.
pub const FINAL_SESSION_STATES: [&str; 4] = ["stopped", "archived", "terminated", "expired"];

/// Reads a worker status in any case; the legacy `shutting-down` is stored as `terminating`.
pub(super) fn parse_status(field: &str, word: &str) -> Result<&'static str, ApiError> {
    let lower = word.trim().to_ascii_lowercase();
    let lower = if lower == "shutting-down" { "terminating" } else { &lower };
    one_of(field, lower, word, &STATUSES)
}

/// Reads a desired status in any case.
pub(super) fn parse_desired_status(field: &str, word: &str) -> Result<&'static str, ApiError> {
    one_of(field, &word.trim().to_ascii_lowercase(), word, &DESIRED_STATUSES)
}

/// Reads a session state in any case.
pub(super) fn parse_session_state(field: &str, word: &str) -> Result<&'static str, ApiError> {
    one_of(field, &word.trim().to_ascii_lowercase(), word, &SESSION_STATES)
}

/// What a worker is when EC2 says this about its instance.
pub(super) fn status_from_instance_state(state: &str) -> &'static str {
    match state.trim().to_ascii_lowercase().as_str() {
        "pending" => "provisioning",
        "running" => "running",
        "stopping" => "stopping",
        "stopped" => "stopped",
        "shutting-down" => "terminating",
        "terminated" => "terminated",
        _ => "unknown",
    }
}

fn one_of(field: &str, lower: &str, word: &str, accepted: &[&'static str]) -> Result<&'static str, ApiError> {
    accepted
        .iter()
        .copied()
        .find(|candidate| *candidate == lower)
        .ok_or_else(|| ApiError::invalid(field, &word.into(), &accepted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_any_case_and_stored_in_one() {
        assert_eq!(parse_status("status", "Shutting-Down").expect("known"), "terminating");
        assert_eq!(parse_status("status", " RUNNING ").expect("known"), "running");
        assert_eq!(parse_desired_status("desired_status", "Stopped").expect("known"), "stopped");
        assert!(parse_desired_status("desired_status", "draining").is_err());
        assert!(parse_session_state("status", "asleep").is_err());
    }

    #[test]
    fn an_instance_state_nobody_knows_is_unknown() {
        assert_eq!(status_from_instance_state("hibernating"), "unknown");
        assert_eq!(status_from_instance_state("shutting-down"), "terminating");
    }
}
