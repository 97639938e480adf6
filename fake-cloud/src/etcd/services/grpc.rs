//! gRPC calls over HTTP/2: decoding, encoding, and the error texts of a server written in Go.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::stream::Stream;
use http::{HeaderValue, Request, Response};
use http_body::Body as HttpBody;
use prost::Message;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::super::error::EtcdError;

/// The largest message in bytes that a server with default settings receives.
pub(super) const MAX_MESSAGE: usize = 2 * 1024 * 1024;

/// The services that are implemented, in whole or in part.
const SERVICES: [&str; 8] = [
    "etcdserverpb.KV",
    "etcdserverpb.Watch",
    "etcdserverpb.Lease",
    "etcdserverpb.Cluster",
    "etcdserverpb.Maintenance",
    "etcdserverpb.Auth",
    "v3electionpb.Election",
    "v3lockpb.Lock",
];

impl From<EtcdError> for Status {
    fn from(error: EtcdError) -> Self {
        let code = match error {
            EtcdError::EmptyKey
            | EtcdError::KeyNotFound
            | EtcdError::ValueProvided
            | EtcdError::LeaseProvided
            | EtcdError::TooManyOperations
            | EtcdError::DuplicateKey
            | EtcdError::RequestTooLarge
            | EtcdError::UserEmpty
            | EtcdError::RoleEmpty
            | EtcdError::AuthFailed
            | EtcdError::PermissionNotGiven
            | EtcdError::InvalidAuthManagement
            | EtcdError::BadMemberUrls => Code::InvalidArgument,
            EtcdError::Compacted | EtcdError::FutureRevision | EtcdError::LeaseTooLong => Code::OutOfRange,
            EtcdError::LeaseNotFound | EtcdError::MemberNotFound => Code::NotFound,
            EtcdError::NoSpace => Code::ResourceExhausted,
            EtcdError::Corrupt => Code::DataLoss,
            EtcdError::PermissionDenied => Code::PermissionDenied,
            EtcdError::InvalidToken => Code::Unauthenticated,
            EtcdError::LeaseExists
            | EtcdError::AuthNotEnabled
            | EtcdError::RootUserMissing
            | EtcdError::RootRoleMissing
            | EtcdError::UserExists
            | EtcdError::UserNotFound
            | EtcdError::RoleExists
            | EtcdError::RoleNotFound
            | EtcdError::RoleNotGranted
            | EtcdError::PermissionNotGranted
            | EtcdError::PeerUrlExists
            | EtcdError::MemberNotLearner
            | EtcdError::LearnerNotReady
            | EtcdError::TooManyLearners
            | EtcdError::BadTransferee => Code::FailedPrecondition,
            EtcdError::NoLeader
            | EtcdError::NotLeader
            | EtcdError::SessionExpired
            | EtcdError::NotEnoughStartedMembers
            | EtcdError::TransferTimeout
            | EtcdError::PasswordForPasswordless => Code::Unknown,
            EtcdError::Unavailable | EtcdError::Stopped => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

/// The body of a request: from a connection, or from the JSON gateway.
pub(in super::super) trait RequestBody:
    HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static
{
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static> RequestBody for B {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A running call. Boxed for each kind of call, because one future for all of them would be as large as the largest.
pub(super) type Call<'a> = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

/// Runs a call with one request and one response.
pub(super) fn unary<'a, Req, Resp, F>(
    request: Request<impl RequestBody>,
    mut handler: impl FnMut(Req) -> F + Send + 'a,
) -> Call<'a>
where
    Req: Message + Default + 'static,
    Resp: Message + Default + 'static,
    F: Future<Output = Result<Resp, Status>> + Send + 'a,
{
    let service = service_fn(move |request: tonic::Request<Req>| {
        let response = handler(request.into_inner());
        async move { response.await.map(tonic::Response::new) }
    });
    Box::pin(async move {
        let mut response = grpc().unary(service, request).await;
        replace_size_error(&mut response);
        response
    })
}

/// Runs a call with one request and a stream of responses.
pub(super) fn server_streaming<'a, Req, Resp, S>(
    request: Request<impl RequestBody>,
    mut handler: impl FnMut(Req) -> S + Send + 'a,
) -> Call<'a>
where
    Req: Message + Default + 'static,
    Resp: Message + Default + 'static,
    S: Stream<Item = Result<Resp, Status>> + Send + 'static,
{
    let service = service_fn(move |request: tonic::Request<Req>| {
        let responses = handler(request.into_inner());
        async move { Ok(tonic::Response::new(responses)) }
    });
    Box::pin(async move {
        let mut response = grpc().server_streaming(service, request).await;
        replace_size_error(&mut response);
        response
    })
}

/// Runs a call with a stream of requests and a stream of responses.
pub(super) fn streaming<'a, Req, Resp, S>(
    request: Request<impl RequestBody>,
    mut handler: impl FnMut(Streaming<Req>) -> S + Send + 'a,
) -> Call<'a>
where
    Req: Message + Default + 'static,
    Resp: Message + Default + 'static,
    S: Stream<Item = Result<Resp, Status>> + Send + 'static,
{
    let service = service_fn(move |requests: tonic::Request<Streaming<Req>>| {
        let responses = handler(requests.into_inner());
        async move { Ok(tonic::Response::new(responses)) }
    });
    Box::pin(async move { grpc().streaming(service, request).await })
}

fn grpc<Req, Resp>() -> Grpc<ProstCodec<Resp, Req>>
where
    Req: Message + Default + 'static,
    Resp: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(usize::MAX)
}

/// The response to a call that does not exist.
pub(super) fn unimplemented(path: &str) -> Response<Body> {
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or((path, ""));
    let text = if SERVICES.contains(&service) {
        format!("unknown method {method} for service {service}")
    } else {
        format!("unknown service {service}")
    };
    Status::unimplemented(text).into_http()
}

/// Converts tonic's error for a message that is too large into etcd's. Returns other errors unchanged.
pub(super) fn convert_size_error(status: Status) -> Status {
    match size_from_error(&status) {
        Some(size) => Status::resource_exhausted(size_error_text(size)),
        None => status,
    }
}

fn replace_size_error(response: &mut Response<Body>) {
    let Some(status) = Status::from_header_map(response.headers()) else { return };
    if let Some(size) = size_from_error(&status)
        && let Ok(text) = HeaderValue::from_str(&size_error_text(size))
    {
        response.headers_mut().insert("grpc-status", HeaderValue::from(Code::ResourceExhausted as i32));
        response.headers_mut().insert("grpc-message", text);
    }
}

fn size_error_text(size: usize) -> String {
    format!("grpc: received message larger than max ({size} vs. {MAX_MESSAGE})")
}

/// The message size that tonic's decoder rejected, if that is the error.
fn size_from_error(status: &Status) -> Option<usize> {
    let rest = status.message().strip_prefix("Error, decoded message length too large: found ")?;
    (status.code() == Code::OutOfRange).then_some(rest)?.split(' ').next()?.parse().ok()
}
