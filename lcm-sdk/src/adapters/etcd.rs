//! etcd: which worker a key speaks of, and what its client's errors mean.

use etcd_client::Error;
use tonic::Code;

use crate::core::failure::{CallFailure, FailureKind};

/// The worker a watched key speaks of: the first segment after the prefix. Both layouts are understood, one key for
/// a worker and a folder for a worker.
///
/// ```
/// use lcm_sdk::adapters::etcd::worker_of_key;
///
/// assert_eq!(worker_of_key("/workers/", b"/workers/w-1"), Some("w-1"));
/// assert_eq!(worker_of_key("/lcm/workers/", b"/lcm/workers/w-1/desired_state"), Some("w-1"));
/// assert_eq!(worker_of_key("/workers/", b"/sessions/s-1"), None);
/// ```
pub fn worker_of_key<'a>(prefix: &str, key: &'a [u8]) -> Option<&'a str> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let id = rest.trim_start_matches('/').split('/').next()?;
    Some(id).filter(|id| !id.is_empty())
}

/// Puts an etcd client error into the core's words.
pub fn failure(error: &Error) -> CallFailure {
    let kind = match error {
        Error::GRpcStatus(status) => match status.code() {
            Code::ResourceExhausted => FailureKind::Throttled,
            Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists | Code::OutOfRange => FailureKind::Conflict,
            Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented => FailureKind::Refused,
            _ => FailureKind::Unclear,
        },
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) | Error::EndpointsNotManaged => {
            FailureKind::Refused
        }
        Error::Utf8Error(_) => FailureKind::Unparsable,
        _ => FailureKind::Unclear,
    };
    let code = match error {
        Error::GRpcStatus(status) => Some(format!("{:?}", status.code())),
        _ => None,
    };
    CallFailure { kind, code, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_name_nobody() {
        for key in ["/workers/", "/workers//", "/workers", "", "workers/w-1"] {
            assert_eq!(worker_of_key("/workers/", key.as_bytes()), None, "{key}");
        }
        assert_eq!(worker_of_key("/workers/", b"/workers/\xff"), None);
    }

    #[test]
    fn a_grpc_status_says_whether_to_ask_again() {
        let kind = |code| failure(&Error::GRpcStatus(tonic::Status::new(code, "said etcd"))).kind;
        assert_eq!(kind(Code::Unavailable), FailureKind::Unclear);
        assert_eq!(kind(Code::OutOfRange), FailureKind::Conflict);
        assert_eq!(kind(Code::NotFound), FailureKind::Refused);
        assert_eq!(kind(Code::Unauthenticated), FailureKind::Refused);
    }
}
