//! Reads the instances out of an answer to `DescribeInstances` before the client parses it.
//!
//! EC2 tells some hundred things about an instance, of which a dozen matter here. The client compares the name of each
//! with all it knows: most of what a sweep of a large fleet cost. Reading the dozen straight from the text costs a tenth.
//!
//! # Guarantees
//! An instance is read here and taken out of the answer, or left in it for the client: the two together are all that
//! EC2 told. Left is whatever is not plain in any way. An answer that is not as expected, an error or one that was cut
//! off included, is left to the client as it came.

mod instances;
mod tags;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use aws_sdk_ec2::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;

use crate::core::instance::Instance;

/// Reads the answer of the call it is given to. Clones share what was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading(Arc<Mutex<Vec<Instance>>>);

impl Reading {
    /// What was read of the answer.
    pub(super) fn take(&self) -> Vec<Instance> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Intercept for Reading {
    fn name(&self) -> &'static str {
        "Reading"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // Of an answer that came before, if the call is made again.
        drop(self.take());
        let body = context.response_mut().body_mut();
        let answer = std::mem::replace(body, SdkBody::taken());
        *body = SdkBody::from_body_1_x(Rest {
            answer,
            received: Vec::new(),
            reading: self.clone(),
            stage: Stage::Receiving,
        });
        Ok(())
    }
}

/// What is left of a body when the instances have been read, at once when all of it has come.
struct Rest {
    answer: SdkBody,
    received: Vec<u8>,
    reading: Reading,
    stage: Stage,
}

enum Stage {
    Receiving,
    HandedOn,
}

impl Body for Rest {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Stage::HandedOn = self.stage {
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
        self.stage = Stage::HandedOn;
        let received = std::mem::take(&mut self.received);
        let rest = match instances::read(&received) {
            Some(read) => {
                *self.reading.0.lock() = read.instances;
                read.rest
            }
            None => received,
        };
        Poll::Ready(Some(Ok(Frame::data(rest.into()))))
    }
}
