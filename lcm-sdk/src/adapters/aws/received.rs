//! Answers that are looked at before the client reads them, once all of each has come.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::BoxError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body::{Body, Frame};

/// Has `look` look at a successful answer: what it gives, the client reads instead. A refusal is left as it came.
pub(super) fn look_at(
    response: &mut HttpResponse,
    look: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, BoxError> + Send + Sync + 'static,
) {
    if response.status().is_success() {
        let answer = std::mem::replace(response.body_mut(), SdkBody::taken());
        let received = Received { answer, received: Vec::new(), look: Some(Box::new(look)) };
        *response.body_mut() = SdkBody::from_body_1_x(received);
    }
}

/// A body that is there at once when all of it has come.
struct Received {
    answer: SdkBody,
    received: Vec<u8>,
    /// Until it has looked.
    look: Option<Box<Look>>,
}

type Look = dyn FnOnce(Vec<u8>) -> Result<Vec<u8>, BoxError> + Send + Sync;

impl Body for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.look.is_none() {
            return Poll::Ready(None);
        }
        while let Some(frame) = ready!(Pin::new(&mut self.answer).poll_frame(context)) {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.received.extend_from_slice(&data),
                // Trailers say nothing about instances.
                Ok(Err(_)) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let received = std::mem::take(&mut self.received);
        let looked = self.look.take().map(|look| look(received).map(|answer| Frame::data(answer.into())));
        Poll::Ready(looked)
    }
}
