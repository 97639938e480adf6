//! Rate limits, circuit breaking, retries and batching of calls.

pub(crate) mod batch;
pub(crate) mod circuit_breaker;
pub(crate) mod rate_limit;
pub(crate) mod retry;

pub use batch::{BatchSettings, BatchingCompute};
pub use circuit_breaker::{BreakerSettings, CircuitBreaker, CircuitBreakers, Permit};
pub use rate_limit::{RateLimit, RateLimiter, TokenBucket};
pub use retry::{CallKind, CallPolicy, CallPolicySettings};
