//! Rate limits, circuit breaking, retries and batching of calls.

pub mod batch;
pub mod circuit_breaker;
pub mod rate_limit;
pub mod retry;
