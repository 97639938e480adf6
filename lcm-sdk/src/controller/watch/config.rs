//! What is watched, and with how much patience.

use std::time::Duration;

/// What is watched, and with how much patience.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchConfig {
    /// The prefixes. Each has a watch of its own.
    pub prefixes: Vec<String>,
    /// How long changes are collected, from the first one on, before they are told together.
    pub debounce: Duration,
    /// After how long without a word the server is asked for a sign of life.
    pub silence: Duration,
    /// How long that sign may take.
    pub probe_timeout: Duration,
    /// How long to wait before connecting again: this for the first attempt, twice this for the second, and so on.
    pub reconnect_delay: Duration,
    /// After how many attempts in a row it gives up until it is revived.
    pub max_reconnect_attempts: u32,
    /// How many changed resources are collected while nobody takes them. More are told as "anything may have changed".
    pub most_pending: usize,
}

impl WatchConfig {
    /// The usual patience for these prefixes.
    pub fn new<P: Into<String>>(prefixes: impl IntoIterator<Item = P>) -> Self {
        Self { prefixes: prefixes.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            prefixes: vec!["/workers/".to_owned(), "/lcm/workers/".to_owned()],
            debounce: Duration::from_millis(500),
            silence: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(1),
            max_reconnect_attempts: 10,
            most_pending: 10_000,
        }
    }
}
