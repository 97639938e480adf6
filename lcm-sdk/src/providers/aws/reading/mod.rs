//! Reads the instances out of an answer to `DescribeInstances` before the client parses it.
//!
//! EC2 tells some hundred things about an instance, of which a dozen matter here. The client compares the name of each
//! with all it knows: most of what a sweep of a large fleet cost. Reading the dozen straight from the text costs a tenth.
//! It is done while the answer comes, so that EC2 goes on writing meanwhile.
//!
//! # Guarantees
//! An instance is read here and taken out of the answer, or left in it for the client: the two together are all that
//! EC2 told. Left is whatever is not plain in any way. A refusal, or an answer that is not as expected, is left to the
//! client as it came; one that is not [whole] is no answer.

mod instances;
mod tags;

use std::sync::Arc;

use aws_sdk_ec2::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use parking_lot::Mutex;

use self::instances::Incoming;
use super::received::{Look, look_at};
use super::whole;
use crate::lifecycle::instance::Instance;

/// Reads the answer of the call it is given to. Clones share what was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading(Arc<Mutex<Vec<Instance>>>);

impl Reading {
    /// What was read of the answer.
    pub(super) fn take(&self) -> Vec<Instance> {
        std::mem::take(&mut self.0.lock())
    }
}

/// The reading of one answer.
struct Page {
    incoming: Incoming,
    reading: Reading,
}

impl Look for Page {
    fn look_on(&mut self, so_far: &[u8]) {
        self.incoming.read_on(so_far);
    }

    fn look_at_all(self: Box<Self>, answer: Vec<u8>) -> Result<Vec<u8>, BoxError> {
        let rest = match self.incoming.read_all(&answer) {
            Some(read) => {
                *self.reading.0.lock() = read.instances;
                read.rest
            }
            None => answer,
        };
        whole::check(&rest)?;
        Ok(rest)
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
        look_at(context.response_mut(), Page { incoming: Incoming::default(), reading: self.clone() });
        Ok(())
    }
}
