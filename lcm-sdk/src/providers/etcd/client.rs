//! Connections to the members of an etcd cluster, and conversion of client errors.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use etcd_client::{Client, ConnectOptions, Error};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, ConnectError, Status};

use super::options::EtcdOptions;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::providers::reload::FromFiles;
use crate::providers::sanitize::one_line;
use crate::spans::{self, traced};

/// Maximum length of a quoted error message, in characters.
const MAX_MESSAGE: usize = 1_000;

/// Members of a cluster. Calls go to one member until it fails.
///
/// The client can balance calls over all members itself, but then a dead member, which fails fastest, gets most calls.
pub(super) struct Members {
    options: EtcdOptions,
    current: AtomicUsize,
    connections: FromFiles<Arc<Connections>>,
}

/// One connection per member, with the TLS files as they were when it was made.
struct Connections {
    options: ConnectOptions,
    clients: Vec<OnceCell<Client>>,
}

impl Connections {
    fn new(options: &EtcdOptions) -> Result<Arc<Self>, CallFailure> {
        let clients = options.endpoints.iter().map(|_| OnceCell::new()).collect();
        Ok(Arc::new(Self { options: options.connect_options()?, clients }))
    }
}

impl Members {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, CallFailure> {
        options.check()?;
        let connections = FromFiles::new(options.tls_files(), || Connections::new(options))?;
        Ok(Self { options: options.clone(), current: AtomicUsize::new(0), connections })
    }

    /// Makes a call to the current member. Tries the others if the call was certainly not sent.
    pub(super) async fn call<T, A, F>(&self, operation: &str, send: A) -> Result<T, CallFailure>
    where
        A: Fn(Client) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        traced(spans::call("etcd", operation, ""), self.attempts(operation, send)).await
    }

    async fn attempts<T, A, F>(&self, operation: &str, send: A) -> Result<T, CallFailure>
    where
        A: Fn(Client) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        let call_timeout = self.options.call_timeout;
        let deadline = Instant::now() + call_timeout;
        let count = self.options.endpoints.len();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let chosen = self.current.load(Ordering::Relaxed) % count;
            let result = timeout_at(deadline, async { send(self.client(chosen).await?).await }).await;
            let failure = match result {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => failure(&error),
                Err(_) => CallFailure::new(
                    FailureKind::Unclear,
                    format!("no response within {} s", call_timeout.as_secs_f64()),
                ),
            };
            if is_member_failure(&failure) {
                let next = (chosen + 1) % count;
                // A concurrent call may have switched already.
                let _ = self.current.compare_exchange(chosen, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            if failure.kind != FailureKind::Unreachable || attempts >= count || Instant::now() >= deadline {
                let endpoint = &self.options.endpoints[chosen];
                let message = format!("could not {operation} at {endpoint}: {}", failure.message);
                return Err(CallFailure { message, ..failure });
            }
        }
    }

    async fn client(&self, member: usize) -> Result<Client, Error> {
        let connections = self.connections.get(|| Connections::new(&self.options));
        let endpoint = self.options.endpoints[member].as_str();
        let connect = || Client::connect([endpoint], Some(connections.options.clone()));
        connections.clients[member].get_or_try_init(connect).await.cloned()
    }
}

impl Members {
    /// The endpoints, separated by commas. None of them has credentials: those are rejected.
    pub(super) fn endpoints(&self) -> String {
        self.options.endpoints.join(",")
    }
}

/// Shows the endpoints only: `ConnectOptions` prints the password.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.options.endpoints).finish()
    }
}

fn is_member_failure(failure: &CallFailure) -> bool {
    match failure.kind {
        FailureKind::Unreachable | FailureKind::Unclear => true,
        FailureKind::Throttled
        | FailureKind::NoCapacity
        | FailureKind::RefusedForNow
        | FailureKind::Unparsable
        | FailureKind::Conflict
        | FailureKind::Refused
        | FailureKind::NotSupported
        | FailureKind::LaunchDied => false,
    }
}

/// Converts an error of the etcd client.
pub(super) fn failure(error: &Error) -> CallFailure {
    match error {
        Error::GRpcStatus(status) => status_failure(status),
        Error::InvalidArgs(_)
        | Error::InvalidUri(_)
        | Error::InvalidMetadataValue(_)
        | Error::EndpointsNotManaged
        // Raised before sending, for an invalid endpoint or certificate.
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

fn status_failure(status: &Status) -> CallFailure {
    let kind = match status.code() {
        Code::ResourceExhausted => FailureKind::Throttled,
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists | Code::OutOfRange => FailureKind::Conflict,
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => FailureKind::Refused,
        _ if is_connect_error(status) => FailureKind::Unreachable,
        _ => FailureKind::Unclear,
    };
    CallFailure::with_code(kind, format!("{:?}", status.code()), one_line(status.message(), MAX_MESSAGE))
}

/// Whether there was no connection, so the call was not sent.
fn is_connect_error(status: &Status) -> bool {
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
    fn grpc_status_decides_the_failure_kind() {
        let kind = |code| failure(&Error::GRpcStatus(tonic::Status::new(code, "reason"))).kind;
        assert_eq!(kind(Code::Unavailable), FailureKind::Unclear);
        assert_eq!(kind(Code::OutOfRange), FailureKind::Conflict);
        assert_eq!(kind(Code::NotFound), FailureKind::Refused);
        assert_eq!(kind(Code::Unauthenticated), FailureKind::Refused);
    }

    #[test]
    fn messages_are_one_short_line() {
        let status = Status::unavailable("no\nleader ".repeat(1_000));
        let message = failure(&Error::GRpcStatus(status)).to_string();
        assert!(message.len() < 2_000 && !message.contains('\n'), "{message:?}");
    }

    #[test]
    fn refused_connection_is_unreachable() {
        let refused = ConnectError("connection refused".into());
        let status = Status::from_error(Box::new(refused));
        assert_eq!(failure(&Error::GRpcStatus(status)).kind, FailureKind::Unreachable);
    }
}
