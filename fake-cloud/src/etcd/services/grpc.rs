//! One gRPC call: decode, ask, encode.

use std::future::{Future, Ready, ready};
use std::pin::Pin;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use prost::Message;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use super::super::error::EtcdError;

/// The largest message a server with default settings receives.
pub(in super::super) const MAX_MESSAGE: usize = 2 * 1024 * 1024;

impl From<EtcdError> for Status {
    fn from(error: EtcdError) -> Self {
        let code = match error {
            EtcdError::EmptyKey
            | EtcdError::KeyNotFound
            | EtcdError::ValueProvided
            | EtcdError::LeaseProvided
            | EtcdError::TooManyOperations
            | EtcdError::DuplicateKey
            | EtcdError::RequestTooLarge => Code::InvalidArgument,
            EtcdError::Compacted | EtcdError::FutureRevision | EtcdError::LeaseTooLong => Code::OutOfRange,
            EtcdError::LeaseNotFound => Code::NotFound,
            EtcdError::NoSpace => Code::ResourceExhausted,
            EtcdError::LeaseExists | EtcdError::AuthNotEnabled => Code::FailedPrecondition,
            EtcdError::NoLeader | EtcdError::NotLeader | EtcdError::SessionExpired => Code::Unknown,
            EtcdError::Unavailable | EtcdError::Stopped => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

/// A call being carried out. Each kind has a box of its own: in one future together they would be as large as the
/// largest of them, and that much would be copied with every call.
pub(super) type Work<'a> = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

/// One message in, one message out.
pub(super) fn unary<'a, Asked, Answered, Answering>(
    request: Request<Incoming>,
    work: impl FnMut(Asked) -> Answering + Send + 'a,
) -> Work<'a>
where
    Asked: Message + Default + 'static,
    Answered: Message + Default + 'static,
    Answering: Future<Output = Answer<Answered>> + Send + 'a,
{
    Box::pin(async move {
        let mut response = grpc::<Asked, Answered>().unary(Handler(work), request).await;
        rephrase(&mut response);
        response
    })
}

/// One message in, many out.
pub(super) fn server_streaming<'a, Asked, Answered, Answers>(
    request: Request<Incoming>,
    work: impl FnMut(Asked) -> Answers + Send + 'a,
) -> Work<'a>
where
    Asked: Message + Default + 'static,
    Answered: Message + Default + 'static,
    Answers: Stream<Item = Result<Answered, Status>> + Send + 'static,
{
    Box::pin(async move {
        let mut response = grpc::<Asked, Answered>().server_streaming(Handler(work), request).await;
        rephrase(&mut response);
        response
    })
}

/// Many messages in, many out.
pub(super) fn streaming<'a, Asked, Answered, Answers>(
    request: Request<Incoming>,
    work: impl FnMut(Streaming<Asked>) -> Answers + Send + 'a,
) -> Work<'a>
where
    Asked: Message + Default + 'static,
    Answered: Message + Default + 'static,
    Answers: Stream<Item = Result<Answered, Status>> + Send + 'static,
{
    Box::pin(async move { grpc::<Asked, Answered>().streaming(Handler(work), request).await })
}

/// What a unary call comes to.
pub(super) type Answer<T> = Result<tonic::Response<T>, Status>;

/// An answer that is known at once.
pub(super) fn now<T>(answer: Result<T, EtcdError>) -> Ready<Answer<T>> {
    ready(answer.map(tonic::Response::new).map_err(Status::from))
}

/// The refusal of a call nobody knows, in the words of a server written in Go.
pub(super) fn unknown(path: &str) -> Response<Body> {
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or((path, ""));
    let text = if super::SERVICES.contains(&service) {
        format!("unknown method {method} for service {service}")
    } else {
        format!("unknown service {service}")
    };
    Status::unimplemented(text).into_http()
}

/// etcd's words for a message that was too large for the decoder.
pub(super) fn too_large(status: Status) -> Status {
    match size_of_too_large(status.code(), status.message()) {
        Some(size) => Status::resource_exhausted(too_large_text(size)),
        None => status,
    }
}

fn rephrase(response: &mut Response<Body>) {
    let Some(status) = Status::from_header_map(response.headers()) else { return };
    if let Some(size) = size_of_too_large(status.code(), status.message())
        && let Ok(text) = HeaderValue::from_str(&too_large_text(size))
    {
        response.headers_mut().insert("grpc-status", HeaderValue::from(Code::ResourceExhausted as i32));
        response.headers_mut().insert("grpc-message", text);
    }
}

fn too_large_text(size: usize) -> String {
    format!("grpc: received message larger than max ({size} vs. {MAX_MESSAGE})")
}

/// The size the decoder complains about, if that is what it complains about.
fn size_of_too_large(code: Code, message: &str) -> Option<usize> {
    let rest = message.strip_prefix("Error, decoded message length too large: found ")?;
    (code == Code::OutOfRange).then_some(rest)?.split(' ').next()?.parse().ok()
}

fn grpc<Asked, Answered>() -> Grpc<ProstCodec<Answered, Asked>>
where
    Asked: Message + Default + 'static,
    Answered: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(usize::MAX)
}

/// A function that answers a call.
struct Handler<F>(F);

impl<F, Asked, Answered, Work> UnaryService<Asked> for Handler<F>
where
    F: FnMut(Asked) -> Work,
    Work: Future<Output = Answer<Answered>>,
{
    type Response = Answered;
    type Future = Work;

    fn call(&mut self, request: tonic::Request<Asked>) -> Self::Future {
        self.0(request.into_inner())
    }
}

impl<F, Asked, Answered, Answers> ServerStreamingService<Asked> for Handler<F>
where
    F: FnMut(Asked) -> Answers,
    Answers: Stream<Item = Result<Answered, Status>>,
{
    type Response = Answered;
    type ResponseStream = Answers;
    type Future = Ready<Answer<Answers>>;

    fn call(&mut self, request: tonic::Request<Asked>) -> Self::Future {
        ready(Ok(tonic::Response::new(self.0(request.into_inner()))))
    }
}

impl<F, Asked, Answered, Answers> StreamingService<Asked> for Handler<F>
where
    F: FnMut(Streaming<Asked>) -> Answers,
    Answers: Stream<Item = Result<Answered, Status>>,
{
    type Response = Answered;
    type ResponseStream = Answers;
    type Future = Ready<Answer<Answers>>;

    fn call(&mut self, request: tonic::Request<Streaming<Asked>>) -> Self::Future {
        ready(Ok(tonic::Response::new(self.0(request.into_inner()))))
    }
}
