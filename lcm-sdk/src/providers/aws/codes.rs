//! Every AWS error code we tell apart, as named sets. A code that is in none of them is judged by its HTTP status.

use crate::lifecycle::failure::FailureKind;

/// The instance does not exist. From a describe this is an answer, not a failure.
pub const INSTANCE_NOT_FOUND: &[&str] = &["InvalidInstanceID.NotFound"];

/// What was asked for is no instance id.
pub const INSTANCE_MALFORMED: &[&str] = &["InvalidInstanceID.Malformed"];

/// The subnet does not exist. Asked whether it does, this is an answer.
pub const SUBNET_NOT_FOUND: &[&str] = &["InvalidSubnetID.NotFound"];

/// We ask too fast; nothing was done.
pub const THROTTLED: &[&str] = &[
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

/// AWS has no machine of this kind to give now; nothing was done.
pub const NO_CAPACITY: &[&str] = &[
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacity",
    "InsufficientReservedInstanceCapacity",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "InsufficientFreeAddressesInSubnet",
];

/// The launch token belongs to an instance that is terminated.
pub const LAUNCH_DIED: &[&str] = &["IdempotentInstanceTerminated"];

/// The instance is in a state that does not allow the call; looking again shows the state it is in.
pub const CONFLICT: &[&str] = &["IncorrectInstanceState", "IncorrectState"];

/// AWS had trouble of its own; the call may have been carried out.
pub const UNCLEAR: &[&str] = &[
    "InternalError",
    "InternalFailure",
    "InternalServiceError",
    "ServiceUnavailable",
    "Unavailable",
    "RequestTimeout",
    "RequestTimeoutException",
];

/// Refused, and the same call will be refused again until somebody changes something: permissions, credentials,
/// or what we ask for.
pub const REFUSED: &[&str] = &[
    "UnauthorizedOperation",
    "AuthFailure",
    "AccessDenied",
    "AccessDeniedException",
    "OptInRequired",
    "Blocked",
    "PendingVerification",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "IdempotentParameterMismatch",
    "InvalidAMIID.NotFound",
    "InvalidAMIID.Malformed",
    "InvalidAMIID.Unavailable",
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

/// What a code means, if we know it.
///
/// ```
/// use lcm_sdk::providers::aws::codes::kind;
/// use lcm_sdk::FailureKind;
///
/// assert_eq!(kind("RequestLimitExceeded"), Some(FailureKind::Throttled));
/// assert_eq!(kind("SomethingNew"), None);
/// ```
pub fn kind(code: &str) -> Option<FailureKind> {
    [
        (THROTTLED, FailureKind::Throttled),
        (NO_CAPACITY, FailureKind::NoCapacity),
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

/// What an HTTP status means when the code says nothing to us.
pub fn kind_of_status(status: u16) -> FailureKind {
    match status {
        429 => FailureKind::Throttled,
        400..500 => FailureKind::Refused,
        _ => FailureKind::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_stands_in_two_sets() {
        let sets = [
            THROTTLED,
            NO_CAPACITY,
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
