//! The control plane's vocabularies, and how words of a request are read against them.

use super::problem::Problem;

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
pub const DESIRED: [&str; 3] = ["running", "stopped", "terminated"];

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
pub const SESSION_OVER: [&str; 4] = ["stopped", "archived", "terminated", "expired"];

/// Reads a worker status in any case; the legacy `shutting-down` is stored as `terminating`.
pub(super) fn status(field: &str, word: &str) -> Result<&'static str, Problem> {
    let lower = word.trim().to_ascii_lowercase();
    let lower = if lower == "shutting-down" { "terminating" } else { &lower };
    one_of(field, lower, word, &STATUSES)
}

/// Reads a desired status in any case.
pub(super) fn desired(field: &str, word: &str) -> Result<&'static str, Problem> {
    one_of(field, &word.trim().to_ascii_lowercase(), word, &DESIRED)
}

/// Reads a session state in any case.
pub(super) fn session_state(field: &str, word: &str) -> Result<&'static str, Problem> {
    one_of(field, &word.trim().to_ascii_lowercase(), word, &SESSION_STATES)
}

/// What a worker is when EC2 says this about its instance.
pub(super) fn status_of_instance(state: &str) -> &'static str {
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

fn one_of(field: &str, lower: &str, word: &str, accepted: &[&'static str]) -> Result<&'static str, Problem> {
    accepted
        .iter()
        .copied()
        .find(|candidate| *candidate == lower)
        .ok_or_else(|| Problem::invalid(field, &word.into(), &accepted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_any_case_and_stored_in_one() {
        assert_eq!(status("status", "Shutting-Down").expect("known"), "terminating");
        assert_eq!(status("status", " RUNNING ").expect("known"), "running");
        assert_eq!(desired("desired_status", "Stopped").expect("known"), "stopped");
        assert!(desired("desired_status", "draining").is_err());
        assert!(session_state("status", "asleep").is_err());
    }

    #[test]
    fn an_instance_state_nobody_knows_is_unknown() {
        assert_eq!(status_of_instance("hibernating"), "unknown");
        assert_eq!(status_of_instance("shutting-down"), "terminating");
    }
}
