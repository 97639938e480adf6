//! Conformance suites: one per port, which every implementation must pass.
//!
//! An implementation provides a fixture that sets up the service, and calls `suite`. A suite panics with the broken
//! promise; the promises are those in the documentation of the port.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt as _;

tokio::task_local! {
    /// The promise that is being checked. Within its scope a suite panics with the bare assertion, and the caller reads the
    /// promise here.
    pub static PROMISE: RefCell<String>;
}

/// Checks one promise, which is named like the function.
macro_rules! promise {
    ($($check:tt)+) => {
        $crate::conformance::check(module_path!(), stringify!($($check)+), $($check)+).await
    };
}

pub mod clock;
pub mod cml;
pub mod compute;
pub mod control_plane;
pub mod coordination;
pub mod events;
pub mod metrics;
pub mod notes;

/// Runs one check. The promise is its function name: `suite.launches_are_idempotent()` is "launches are idempotent".
///
/// # Panics
/// With port and promise, if the check panics.
async fn check(module: &str, call: &str, check: impl Future<Output = ()>) {
    let name = call.split('(').next().unwrap_or_default();
    let promise = name.rsplit('.').next().unwrap_or_default().trim().replace('_', " ");
    let is_observed = PROMISE.try_with(|current| current.borrow_mut().clone_from(&promise)).is_ok();
    let Err(payload) = AssertUnwindSafe(check).catch_unwind().await else { return };
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    match text {
        Some(text) if !is_observed => {
            let port = module.rsplit("::").next().unwrap_or_default();
            panic!("broken promise of port '{port}': {promise}: {text}")
        }
        _ => resume_unwind(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn values_are_equal() {
        assert_eq!(1, 2, "the values differ");
    }

    #[tokio::test]
    async fn panic_names_port_and_promise() {
        let broken = AssertUnwindSafe(async { promise!(values_are_equal()) }).catch_unwind().await;
        let text = broken.expect_err("a panic").downcast::<String>().expect("a text");
        assert!(text.starts_with("broken promise of port 'tests': values are equal: "), "{text}");
        assert!(text.contains("the values differ"), "{text}");
    }
}
