//! One suite per port: what the port promises, as code that every implementation must pass.
//!
//! An implementation brings a small world of its own (a fixture that sets the far side up) and calls `suite`. What is
//! not kept panics with the promise that was broken.

use std::cell::RefCell;

tokio::task_local! {
    /// The promise that is being checked, in words. Whoever runs a suite within its scope can tell which one was broken
    /// when the suite panics.
    pub static PROMISE: RefCell<String>;
}

/// Checks one promise, which the name of a function states.
macro_rules! promise {
    ($($check:tt)+) => {
        $crate::conformance::announce(stringify!($($check)+));
        $($check)+.await;
    };
}

pub mod clock;
pub mod cml;
pub mod compute;
pub mod control_plane;
pub mod coordination;
pub mod events;
pub mod metrics;

/// Says which promise is next: `suite.a_launch_happens_once()` is "a launch happens once".
fn announce(check: &str) {
    let name = check.split('(').next().unwrap_or_default();
    let name = name.rsplit('.').next().unwrap_or_default();
    // Nobody needs to listen.
    let _ = PROMISE.try_with(|promise| *promise.borrow_mut() = name.trim().replace('_', " "));
}
