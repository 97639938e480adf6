//! AWS errors: their codes, HTTP statuses and messages.

use std::borrow::Cow;

/// An error response of AWS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
#[non_exhaustive]
pub struct AwsError {
    /// Error code, such as `InvalidInstanceID.NotFound`.
    pub code: Cow<'static, str>,
    /// HTTP status; SDKs use it to decide whether to retry.
    pub status: u16,
    /// Message in the wording of AWS.
    pub message: String,
}

/// Error codes with a default HTTP status and message, which fault rules can name without either.
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
    ("ExpiredToken", 403, "The security token included in the request is expired"),
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
    ("InvalidClientTokenId", 403, "The security token included in the request is invalid."),
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
    /// Creates an error with this message and the default status of the code.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let code = code.into();
        Self { status: default_status(&code), code, message: message.into() }
    }

    /// Creates an error with the default message and status of the code.
    pub fn from_code(code: impl Into<Cow<'static, str>>) -> Self {
        let code = code.into();
        let message = find_known(&code).map_or("The request was refused by a fault rule.", |known| known.2);
        Self { status: default_status(&code), message: message.to_owned(), code }
    }

    /// Replaces the HTTP status.
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

    pub(crate) fn wrong_state(id: &str, action: &str) -> Self {
        Self::new(
            "IncorrectInstanceState",
            format!("The instance '{id}' is not in a state from which it can be {action}"),
        )
    }
}

/// Returns the default HTTP status of an error code; 400 for unknown codes.
pub fn default_status(code: &str) -> u16 {
    find_known(code).map_or(400, |known| known.1)
}

fn find_known(code: &str) -> Option<&'static (&'static str, u16, &'static str)> {
    KNOWN.iter().find(|known| known.0 == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retryable_codes_have_the_status_sdks_expect() {
        let statuses = ["RequestLimitExceeded", "InsufficientInstanceCapacity", "InternalError", "AuthFailure"];
        assert_eq!(statuses.map(default_status), [503, 500, 500, 401]);
        assert_eq!(default_status("InvalidInstanceID.NotFound"), 400);
    }

    #[test]
    fn unknown_id_message_follows_ec2() {
        assert_eq!(AwsError::unknown_instances(&["i-1"]).message, "The instance ID 'i-1' does not exist");
        assert_eq!(AwsError::unknown_instances(&["i-1", "i-2"]).message, "The instance IDs 'i-1, i-2' do not exist");
    }
}
