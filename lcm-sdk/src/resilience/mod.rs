//! Rate limits, circuit breaking, retries, batching and monitoring of calls.

pub(crate) mod batch;
pub(crate) mod circuit_breaker;
mod image_details;
pub(crate) mod rate_limit;
pub(crate) mod reachability;
pub(crate) mod retry;

pub use batch::{BatchSettings, BatchingCompute};
pub use circuit_breaker::{BreakerSettings, CircuitBreaker, CircuitBreakers, Permit};
pub use rate_limit::{RateLimit, RateLimiter, TokenBucket};
pub use reachability::ServiceStatus;
pub use retry::{Access, CallKind, CallPolicy, CallPolicySettings};
