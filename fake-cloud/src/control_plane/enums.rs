//! Enumerations of the control plane and their parsing.

use super::error::ApiError;
use crate::suggest::did_you_mean;

/// Worker statuses, as stored.
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

/// Desired statuses of a worker.
pub const DESIRED_STATUSES: [&str; 3] = ["running", "stopped", "terminated"];

/// Session states that the server sets.
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

/// Final session states.
pub const FINAL_SESSION_STATES: [&str; 4] = ["stopped", "archived", "terminated", "expired"];

/// Parses a worker status in any case. The legacy `shutting-down` is stored as `terminating`.
pub(super) fn parse_status(field: &str, text: &str) -> Result<&'static str, ApiError> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = if lower == "shutting-down" { "terminating" } else { &lower };
    parse_enum(field, lower, text, &STATUSES)
}

/// Parses a desired status in any case.
pub(super) fn parse_desired_status(field: &str, text: &str) -> Result<&'static str, ApiError> {
    parse_enum(field, &text.trim().to_ascii_lowercase(), text, &DESIRED_STATUSES)
}

/// Parses a session state in any case.
pub(super) fn parse_session_state(field: &str, text: &str) -> Result<&'static str, ApiError> {
    parse_enum(field, &text.trim().to_ascii_lowercase(), text, &SESSION_STATES)
}

/// Worker status for an EC2 instance state.
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

fn parse_enum(field: &str, lower: &str, text: &str, accepted: &[&'static str]) -> Result<&'static str, ApiError> {
    accepted.iter().copied().find(|candidate| *candidate == lower).ok_or_else(|| {
        let hint = did_you_mean(lower, accepted.iter().copied());
        ApiError::invalid(field, &text.into(), &format!("{}{hint}", accepted.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_in_any_case() {
        assert_eq!(parse_status("status", "Shutting-Down").expect("known"), "terminating");
        assert_eq!(parse_status("status", " RUNNING ").expect("known"), "running");
        assert_eq!(parse_desired_status("desired_status", "Stopped").expect("known"), "stopped");
        assert!(parse_desired_status("desired_status", "draining").is_err());
        assert!(parse_session_state("status", "asleep").is_err());
    }

    #[test]
    fn unknown_instance_state_maps_to_unknown() {
        assert_eq!(status_from_instance_state("hibernating"), "unknown");
        assert_eq!(status_from_instance_state("shutting-down"), "terminating");
    }
}
