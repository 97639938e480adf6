//! What the errors of etcd's client mean.

use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::providers::sanitize::one_line;

/// Longest part of etcd's words that is kept.
const QUOTED: usize = 1_000;

/// Puts an etcd client error into the core's words.
pub fn failure(error: &Error) -> CallFailure {
    match error {
        Error::GRpcStatus(status) => failure_of_status(status),
        Error::InvalidArgs(_)
        | Error::InvalidUri(_)
        | Error::InvalidMetadataValue(_)
        | Error::EndpointsNotManaged
        // Before anything was sent: an endpoint or a certificate that cannot be used.
        | Error::TransportError(_) => CallFailure::new(FailureKind::Refused, with_causes(error)),
        Error::Utf8Error(_) => CallFailure::new(FailureKind::Unparsable, error.to_string()),
        Error::IoError(_)
        | Error::WatchError(_)
        | Error::LeaseKeepAliveError(_)
        | Error::ElectError(_)
        | Error::EndpointError(_)
        | Error::Internal(_) => CallFailure::new(FailureKind::Unclear, error.to_string()),
    }
}

fn failure_of_status(status: &Status) -> CallFailure {
    let kind = match status.code() {
        Code::ResourceExhausted => FailureKind::Throttled,
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists | Code::OutOfRange => FailureKind::Conflict,
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => FailureKind::Refused,
        _ if is_about_connecting(status) => FailureKind::Unreachable,
        _ => FailureKind::Unclear,
    };
    CallFailure::coded(kind, format!("{:?}", status.code()), one_line(status.message(), QUOTED))
}

/// Whether there was no connection to send it over: then nobody did anything.
fn is_about_connecting(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<ConnectError>())
}

fn with_causes(error: &Error) -> String {
    let deeper: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::TransportError(error) => Some(error),
        _ => None,
    };
    let deeper = deeper.into_iter().flat_map(causes);
    deeper.fold(error.to_string(), |message, cause| format!("{message}: {cause}"))
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_status_says_whether_to_ask_again() {
        let kind = |code| failure(&Error::GRpcStatus(tonic::Status::new(code, "said etcd"))).kind;
        assert_eq!(kind(Code::Unavailable), FailureKind::Unclear);
        assert_eq!(kind(Code::OutOfRange), FailureKind::Conflict);
        assert_eq!(kind(Code::NotFound), FailureKind::Refused);
        assert_eq!(kind(Code::Unauthenticated), FailureKind::Refused);
    }

    #[test]
    fn what_etcd_says_stays_on_its_line_and_is_cut() {
        let status = Status::unavailable("no\nleader ".repeat(1_000));
        let told = failure(&Error::GRpcStatus(status)).to_string();
        assert!(told.len() < 2_000 && !told.contains('\n'), "{told:?}");
    }

    #[test]
    fn a_connection_that_never_was_carried_nothing() {
        let refused = ConnectError("connection refused".into());
        let status = Status::from_error(Box::new(refused));
        assert_eq!(failure(&Error::GRpcStatus(status)).kind, FailureKind::Unreachable);
    }
}
