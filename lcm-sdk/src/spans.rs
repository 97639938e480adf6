//! Spans of calls, and the trace that the current code belongs to.
//!
//! Spans cost a check each while no subscriber wants them.

use std::fmt;

use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::lifecycle::failure::CallFailure;

/// Target of the spans around reconciles of any resource and around calls to services. Their level is trace, so that
/// log lines name them only on request.
pub const CALLS: &str = "lcm::call";

/// The trace and the span that code runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    sampling: Sampling,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "without traces there is no context"))]
enum Sampling {
    Exported,
    Dropped,
}

impl TraceContext {
    /// Returns the context that the current code runs in; `None` outside of a trace, and without the feature `otel`.
    pub fn current() -> Option<Self> {
        #[cfg(feature = "otel")]
        {
            use opentelemetry::Context;
            use opentelemetry::trace::TraceContextExt as _;

            Context::map_current(|context| {
                let span = context.span();
                let span = span.span_context();
                let sampling = if span.is_sampled() { Sampling::Exported } else { Sampling::Dropped };
                span.is_valid().then(|| Self {
                    trace_id: u128::from_be_bytes(span.trace_id().to_bytes()),
                    span_id: u64::from_be_bytes(span.span_id().to_bytes()),
                    sampling,
                })
            })
        }
        #[cfg(not(feature = "otel"))]
        None
    }

    /// Returns the id of the trace, as 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// Returns the id of the span, as 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// Whether the trace is exported.
    pub fn is_sampled(&self) -> bool {
        self.sampling == Sampling::Exported
    }
}

/// Opens the span of a call: service, name of the call, and the place that it concerns, such as a region.
pub(crate) fn call(service: &str, call: impl fmt::Display, place: impl fmt::Display) -> Span {
    tracing::trace_span!(
        target: CALLS, "call", otel.name = %format_args!("{service} {call}"), otel.kind = "client",
        otel.status_code = Empty, service, %call, %place, failure = Empty,
    )
}

/// Opens the span of periodic work, which is a trace of its own.
pub(crate) fn round(name: &'static str) -> Span {
    tracing::trace_span!(target: CALLS, parent: None, "round", otel.name = name)
}

/// Opens the span of the same work on request, which is part of the trace of its caller.
pub(crate) fn requested(name: &'static str) -> Span {
    tracing::trace_span!(target: CALLS, "round", otel.name = name)
}

/// Runs a call in its span, and notes a failure there.
pub(crate) async fn traced<T>(
    span: Span,
    call: impl Future<Output = Result<T, CallFailure>>,
) -> Result<T, CallFailure> {
    let result = call.instrument(span.clone()).await;
    if let Err(failure) = &result {
        note_failure(&span, failure);
    }
    result
}

/// Marks a span as failed.
pub(crate) fn note_failure(span: &Span, failure: &CallFailure) {
    span.record("otel.status_code", "error");
    span.record("failure", tracing::field::display(failure));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_spans_allocate_nothing() {
        let measured = allocation_counter::measure(|| {
            for _ in 0..100 {
                assert!(call("ec2", "DescribeInstances", "us-east-1").is_disabled());
            }
        });
        assert_eq!(measured.count_total, 0);
        assert_eq!(TraceContext::current(), None);
    }
}
