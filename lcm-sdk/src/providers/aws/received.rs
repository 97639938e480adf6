//! Answers that are looked at before the client reads them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::BoxError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body::{Body, Frame};

/// Looks at an answer: while it comes, and when all of it has come.
pub(super) trait Look: Send + Sync {
    /// So much has come until now, and there may be more.
    fn look_on(&mut self, so_far: &[u8]);

    /// All of it has come. What is given here, the client reads instead.
    ///
    /// # Errors
    /// An answer that the client must not read.
    fn look_at_all(self: Box<Self>, answer: Vec<u8>) -> Result<Vec<u8>, BoxError>;
}

/// Has somebody look at a successful answer. A refusal is left as it came.
pub(super) fn look_at(response: &mut HttpResponse, look: impl Look + 'static) {
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
    /// Until it has seen all.
    look: Option<Box<dyn Look>>,
}

impl Body for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let Some(look) = &mut this.look else { return Poll::Ready(None) };
        while let Some(frame) = ready!(Pin::new(&mut this.answer).poll_frame(context)) {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => {
                    this.received.extend_from_slice(&data);
                    look.look_on(&this.received);
                }
                // Trailers say nothing about instances.
                Ok(Err(_)) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let received = std::mem::take(&mut this.received);
        let looked = this.look.take().map(|look| look.look_at_all(received).map(|answer| Frame::data(answer.into())));
        Poll::Ready(looked)
    }
}
