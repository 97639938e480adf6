//! Rate limits, circuit breaking and batching of calls. Depends on the ports alone.

pub mod batch;
pub mod circuit_breaker;
pub mod rate_limit;
