//! What AWS says no with: one type for all refusals, and the HTTP status and words of every code in one place.

use std::borrow::Cow;

/// A refusal in AWS's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct AwsError {
    /// The code clients match on.
    pub code: Cow<'static, str>,
    /// The HTTP status it travels with; SDKs decide by it whether to try again.
    pub status: u16,
    /// The words.
    pub message: String,
}

/// The codes a fault rule can ask for by name alone: HTTP status and words.
const KNOWN: &[(&str, u16, &str)] = &[
    ("AuthFailure", 401, "AWS was not able to validate the provided access credentials"),
    ("DryRunOperation", 412, "Request would have succeeded, but DryRun flag is set."),
    (
        "IdempotentInstanceTerminated",
        400,
        "The client token you have provided is associated with a terminated instance. Please use a different client token.",
    ),
    (
        "IdempotentParameterMismatch",
        400,
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
    ),
    ("IncorrectInstanceState", 400, "The instance is not in a state that allows the operation."),
    (
        "InsufficientInstanceCapacity",
        500,
        "We currently do not have sufficient capacity in the Availability Zone you requested. Our system will be working \
         on provisioning additional capacity.",
    ),
    ("InternalError", 500, "An internal error has occurred"),
    ("InternalFailure", 500, "The request processing has failed because of an unknown error, exception or failure."),
    ("InternalServiceError", 500, "An internal service error has occurred"),
    ("InternalServiceFault", 500, "An internal service error has occurred"),
    ("RequestEntityTooLarge", 413, "The request body is too large."),
    ("RequestExpired", 400, "Request has expired."),
    ("RequestLimitExceeded", 503, "Request limit exceeded."),
    ("ServiceUnavailable", 503, "The service is unavailable. Please try again shortly."),
    ("Throttling", 400, "Rate exceeded"),
    ("ThrottlingException", 400, "Rate exceeded"),
    ("Unavailable", 503, "The service is unavailable. Please try again shortly."),
    (
        "UnauthorizedOperation",
        403,
        "You are not authorized to perform this operation. Encoded authorization failure message: fake",
    ),
    ("VcpuLimitExceeded", 400, "You have requested more vCPU capacity than your current vCPU limit allows."),
];

impl AwsError {
    /// A refusal with words of its own and the status the code travels with.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let code = code.into();
        Self { status: status_of(&code), code, message: message.into() }
    }

    /// A refusal with the usual words for the code.
    pub fn known(code: impl Into<Cow<'static, str>>) -> Self {
        let code = code.into();
        let message = look_up(&code).map_or("The request was refused by a fault rule.", |known| known.2);
        Self { status: status_of(&code), message: message.to_owned(), code }
    }

    /// The same refusal with another HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn missing(parameter: &str) -> Self {
        Self::new("MissingParameter", format!("The request must contain the parameter {parameter}"))
    }

    pub(crate) fn invalid_value(value: &str, parameter: &str) -> Self {
        Self::new("InvalidParameterValue", format!("Value ({value}) for parameter {parameter} is invalid."))
    }

    pub(crate) fn malformed_instance(id: &str) -> Self {
        Self::new("InvalidInstanceID.Malformed", format!("Invalid id: \"{id}\""))
    }

    pub(crate) fn unknown_instances(ids: &[&str]) -> Self {
        let message = match ids {
            [id] => format!("The instance ID '{id}' does not exist"),
            ids => format!("The instance IDs '{}' do not exist", ids.join(", ")),
        };
        Self::new("InvalidInstanceID.NotFound", message)
    }

    pub(crate) fn wrong_state(id: &str, wish: &str) -> Self {
        Self::new(
            "IncorrectInstanceState",
            format!("The instance '{id}' is not in a state from which it can be {wish}"),
        )
    }
}

/// The HTTP status an error code travels with; 400 when nothing else is known of it.
pub fn status_of(code: &str) -> u16 {
    look_up(code).map_or(400, |known| known.1)
}

fn look_up(code: &str) -> Option<&'static (&'static str, u16, &'static str)> {
    KNOWN.iter().find(|known| known.0 == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_that_sdks_retry_by_status_carry_the_right_one() {
        let statuses = ["RequestLimitExceeded", "InsufficientInstanceCapacity", "InternalError", "AuthFailure"];
        assert_eq!(statuses.map(status_of), [503, 500, 500, 401]);
        assert_eq!(status_of("InvalidInstanceID.NotFound"), 400);
    }

    #[test]
    fn one_and_several_unknown_ids_read_as_ec2_says_it() {
        assert_eq!(AwsError::unknown_instances(&["i-1"]).message, "The instance ID 'i-1' does not exist");
        assert_eq!(AwsError::unknown_instances(&["i-1", "i-2"]).message, "The instance IDs 'i-1, i-2' do not exist");
    }
}
