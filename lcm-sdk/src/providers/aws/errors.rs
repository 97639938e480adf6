//! AWS error codes and their failure kinds.

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::providers::sanitize::one_line;

/// Maximum length of an error message, in characters. Encoded authorization messages fit, which operators decode.
const MAX_MESSAGE: usize = 2_000;

/// Maximum number of instance IDs per call.
pub(super) const MAX_IDS: usize = 1000;

/// Maximum length of a message that names unknown instances, which fits a full batch.
const MAX_MESSAGE_WITH_IDS: usize = MAX_IDS * 24 + 200;

/// Maximum length of an error code, in characters.
const MAX_CODE: usize = 100;

/// The instance does not exist. For a describe call this is a result, not a failure.
pub(super) const INSTANCE_NOT_FOUND: &[&str] = &["InvalidInstanceID.NotFound"];

/// The instance ID is malformed.
pub(super) const INSTANCE_MALFORMED: &[&str] = &["InvalidInstanceID.Malformed"];

/// The subnet does not exist.
pub(super) const SUBNET_NOT_FOUND: &[&str] = &["InvalidSubnetID.NotFound"];

/// The request rate is too high; the call had no effect.
pub(super) const THROTTLED: &[&str] = &[
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "BandwidthLimitExceeded",
    "SlowDown",
];

/// AWS has no capacity for the instance type, or a quota is used up; the call had no effect.
pub(super) const NO_CAPACITY: &[&str] = &[
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacity",
    "InsufficientReservedInstanceCapacity",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientAddressCapacity",
    "InsufficientVolumeCapacity",
    "InsufficientCapacityOnOutpost",
    "VolumeLimitExceeded",
    "MaxIOPSLimitExceeded",
    "AddressLimitExceeded",
    "NetworkInterfaceLimitExceeded",
    "PrivateIpAddressLimitExceeded",
    "ReservationCapacityExceeded",
    "ResourceLimitExceeded",
];

/// The credentials are expired, rotated or not valid yet, or the clock is skewed, for which EC2 has several codes. They
/// are the controller's and not the worker's; the call had no effect.
pub(super) const CREDENTIALS: &[&str] = &[
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "RequestExpired",
    "RequestInTheFuture",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// The call is refused at the moment: the account is being verified, another request changes the tags.
pub(super) const NOT_NOW: &[&str] = &["PendingVerification", "ConcurrentTagAccess"];

/// Start of the codes for an AMI that was withdrawn or is not available. The next launch uses another one.
const INVALID_IMAGE: &str = "InvalidAMIID.";

/// The client token belongs to a terminated instance.
pub(super) const LAUNCH_DIED: &[&str] = &["IdempotentInstanceTerminated"];

/// The state of the instance does not allow the call.
pub(super) const CONFLICT: &[&str] = &["IncorrectInstanceState", "IncorrectState"];

/// Internal error of AWS; the call may have been executed.
pub(super) const UNCLEAR: &[&str] = &[
    "InternalError",
    "InternalFailure",
    "InternalServiceError",
    "ServiceUnavailable",
    "Unavailable",
    "RequestTimeout",
    "RequestTimeoutException",
];

/// The call is refused until permissions or arguments change. Only these codes fail a worker.
pub(super) const REFUSED: &[&str] = &[
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "OptInRequired",
    "Blocked",
    "IdempotentParameterMismatch",
    "InvalidSubnet",
    "InvalidGroup.NotFound",
    "InvalidSecurityGroupID.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidParameter",
    "InvalidParameterValue",
    "InvalidParameterCombination",
    "MissingParameter",
    "UnknownParameter",
    "Unsupported",
    "UnsupportedOperation",
];

/// Failure kind of a known error code.
fn code_kind(code: &str) -> Option<FailureKind> {
    if code.starts_with(INVALID_IMAGE) {
        return Some(FailureKind::RefusedForNow);
    }
    [
        (THROTTLED, FailureKind::Throttled),
        (NO_CAPACITY, FailureKind::NoCapacity),
        (CREDENTIALS, FailureKind::RefusedForNow),
        (NOT_NOW, FailureKind::RefusedForNow),
        (LAUNCH_DIED, FailureKind::LaunchDied),
        (CONFLICT, FailureKind::Conflict),
        (UNCLEAR, FailureKind::Unclear),
        (INSTANCE_NOT_FOUND, FailureKind::Refused),
        (INSTANCE_MALFORMED, FailureKind::Refused),
        (SUBNET_NOT_FOUND, FailureKind::Refused),
        (REFUSED, FailureKind::Refused),
    ]
    .into_iter()
    .find_map(|(codes, kind)| codes.contains(&code).then_some(kind))
}

/// Failure kind of a response with an unknown error code. It is not known to be permanent.
fn status_kind(status: u16) -> FailureKind {
    match status {
        429 => FailureKind::Throttled,
        400..500 => FailureKind::RefusedForNow,
        _ => FailureKind::Unclear,
    }
}

/// Whether a launch that fails with this code may succeed with another AMI: it does not exist, or is not shared any more.
pub(super) fn refuses_image(code: &str) -> bool {
    code.starts_with(INVALID_IMAGE) || code == "AuthFailure"
}

/// Whether the message of an error with this code names instances.
fn names_instances(code: &str) -> bool {
    INSTANCE_NOT_FOUND.contains(&code) || INSTANCE_MALFORMED.contains(&code)
}

/// Converts an error of the AWS SDK. "No such instance" is [`FailureKind::Refused`]; describe calls check
/// `INSTANCE_NOT_FOUND` first.
pub fn failure<E>(error: &SdkError<E, HttpResponse>) -> CallFailure
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    if let Some(failure) = credentials_failure(error) {
        return failure;
    }
    let message = || one_line(&with_sources(error), MAX_MESSAGE);
    match error {
        SdkError::ServiceError(service) => {
            let (code, status) = (service.err().code(), service.raw().status().as_u16());
            let kind = code.and_then(code_kind).unwrap_or_else(|| status_kind(status));
            let max_length = if code.is_some_and(names_instances) { MAX_MESSAGE_WITH_IDS } else { MAX_MESSAGE };
            let message = service.err().message().map_or_else(message, |text| one_line(text, max_length));
            CallFailure { code: code.map(|code| one_line(code, MAX_CODE)), ..CallFailure::new(kind, message) }
        }
        SdkError::DispatchFailure(_) if is_refused_connection(error) => {
            CallFailure::new(FailureKind::Unreachable, message())
        }
        SdkError::ResponseError(_) => CallFailure::new(FailureKind::Unparsable, message()),
        SdkError::ConstructionFailure(_) => CallFailure::new(FailureKind::RefusedForNow, message()),
        // Timeouts and broken connections: the call may have been executed.
        _ => CallFailure::new(FailureKind::Unclear, message()),
    }
}

/// The failure to find or load credentials, which the SDK shows only in the chain of sources. No request was sent.
fn credentials_failure(error: &(dyn std::error::Error + 'static)) -> Option<CallFailure> {
    let cause = sources(error).find_map(|error| error.downcast_ref::<CredentialsError>())?;
    let message = match cause {
        CredentialsError::CredentialsNotLoaded(_) => {
            "no AWS credentials: neither AWS_ACCESS_KEY_ID, nor the profile of \
             AWS_PROFILE, nor AWS_WEB_IDENTITY_TOKEN_FILE, nor the metadata service of ECS or EC2 has any"
                .to_owned()
        }
        cause => one_line(&format!("AWS credentials could not be loaded: {}", with_sources(cause)), MAX_MESSAGE),
    };
    Some(CallFailure::new(FailureKind::RefusedForNow, message))
}

fn sources<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// An error with its sources on one line, without their `Debug` output, which is long and may hold a secret.
fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Whether the connection was refused, which the SDK shows only in the chain of sources.
fn is_refused_connection(error: &(dyn std::error::Error + 'static)) -> bool {
    sources(error)
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::error::ErrorMetadata;
    use aws_sdk_ec2::operation::run_instances::RunInstancesError;

    use super::*;

    fn service_failure(code: Option<&str>, status: u16) -> CallFailure {
        let mut metadata = ErrorMetadata::builder().message("message of EC2");
        if let Some(code) = code {
            metadata = metadata.code(code);
        }
        let response = HttpResponse::new(status.try_into().expect("a status"), "".into());
        failure(&SdkError::service_error(RunInstancesError::generic(metadata.build()), response))
    }

    #[test]
    fn code_or_else_status_decides_the_kind() {
        assert_eq!(service_failure(Some("UnauthorizedOperation"), 403).kind, FailureKind::Refused);
        assert_eq!(service_failure(Some("RequestLimitExceeded"), 503).kind, FailureKind::Throttled);
        assert_eq!(service_failure(Some("InsufficientInstanceCapacity"), 500).kind, FailureKind::NoCapacity);
        assert_eq!(service_failure(Some("IdempotentInstanceTerminated"), 400).kind, FailureKind::LaunchDied);
        assert_eq!(service_failure(Some("SomethingNew"), 500).kind, FailureKind::Unclear);
        assert_eq!(service_failure(Some("SomethingNew"), 400).kind, FailureKind::RefusedForNow);
        assert_eq!(service_failure(None, 503).kind, FailureKind::Unclear);
        assert_eq!(service_failure(Some("AuthFailure"), 401).to_string(), "AuthFailure: message of EC2");
    }

    #[test]
    fn credentials_quotas_and_withdrawn_images_are_transient() {
        for code in [
            "RequestExpired",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "AuthFailure",
            "PendingVerification",
            "VolumeLimitExceeded",
            "MaxIOPSLimitExceeded",
            "VcpuLimitExceeded",
            "ConcurrentTagAccess",
            "InsufficientAddressCapacity",
            "InvalidAMIID.NotFound",
            "InvalidAMIID.Unavailable",
            "InvalidAMIID.NewlyInvented",
        ] {
            let failure = service_failure(Some(code), 400);
            assert!(failure.kind.is_retryable() && failure.kind.did_nothing(), "{failure:?}");
        }
        assert!(refuses_image("InvalidAMIID.NotFound") && !refuses_image("InvalidSubnetID.NotFound"));
    }

    #[tokio::test]
    async fn missing_credentials_are_reported_in_one_sentence() {
        let none = || async { Err(CredentialsError::not_loaded("the debug output of a provider")) };
        let config = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .endpoint_url("http://127.0.0.1:9")
            .credentials_provider(aws_sdk_ec2::config::SharedCredentialsProvider::new(
                aws_credential_types::credential_fn::provide_credentials_fn(none),
            ))
            .build();
        let account = super::super::Account::new(config, super::super::Tuning::default(), &Default::default());
        let ec2 = super::super::Ec2::new(account);
        let failure =
            crate::ports::Compute::tagged(&ec2, "us-east-1", &"w-1".into()).await.expect_err("no credentials");
        assert_eq!(failure.kind, FailureKind::RefusedForNow);
        assert!(failure.message.starts_with("no AWS credentials: neither AWS_ACCESS_KEY_ID"), "{failure}");
        assert!(!failure.message.contains("debug output") && failure.message.len() < 200, "{failure}");
    }

    #[test]
    fn messages_are_one_short_line() {
        let metadata = ErrorMetadata::builder().code("C\n".repeat(999)).message("m\r\n".repeat(9_999));
        let response = HttpResponse::new(400.try_into().expect("a status"), "".into());
        let message =
            failure(&SdkError::service_error(RunInstancesError::generic(metadata.build()), response)).to_string();
        assert!(message.len() < 3_000 && !message.contains(['\n', '\r']), "{message:?}");
    }

    #[test]
    fn messages_with_ids_are_not_truncated() {
        let ids: Vec<String> = (0..MAX_IDS).map(|number| format!("i-{number:017x}")).collect();
        let message = format!("The instance IDs '{}' do not exist", ids.join(", "));
        let metadata = ErrorMetadata::builder().code("InvalidInstanceID.NotFound").message(&message).build();
        let response = HttpResponse::new(400.try_into().expect("a status"), "".into());
        let converted = failure(&SdkError::service_error(RunInstancesError::generic(metadata), response));
        assert_eq!(converted.message, message);
    }

    #[test]
    fn timeout_is_unclear() {
        let error: SdkError<RunInstancesError, HttpResponse> = SdkError::timeout_error("10 s");
        assert_eq!(failure(&error).kind, FailureKind::Unclear);
        assert!(!failure(&error).kind.did_nothing());
    }

    #[test]
    fn codes_are_in_one_set_each() {
        let sets = [
            THROTTLED,
            NO_CAPACITY,
            CREDENTIALS,
            NOT_NOW,
            LAUNCH_DIED,
            CONFLICT,
            UNCLEAR,
            INSTANCE_NOT_FOUND,
            INSTANCE_MALFORMED,
            SUBNET_NOT_FOUND,
            REFUSED,
        ];
        let mut all: Vec<_> = sets.concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
