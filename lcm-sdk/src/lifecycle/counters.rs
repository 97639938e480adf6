//! Counters of the controller. They count recorded changes, never attempts.

use super::wire_enum::vocabulary;
use serde::{Serialize, Serializer};
use std::fmt;

vocabulary! {
    /// A counter. The number of running workers is a gauge, derived from the fleet and not listed here.
    Counter, "counter" {
        /// Instances launched for workers.
        Provisioned = "provisioned_count",
        /// Instances confirmed running.
        Started = "started_count",
        /// Instances confirmed stopped.
        Stopped = "stopped_count",
        /// Instances confirmed terminated.
        Terminated = "terminated_count",
        /// Metrics reports accepted by the control plane.
        MetricsCollected = "metrics_collected_count",
        /// Idle checks made by the control plane.
        IdleDetection = "idle_detection_count",
        /// Workers that the control plane paused by itself.
        AutoPause = "auto_pause_count",
        /// License registrations completed by CML.
        LicenseRegistered = "license_registered_count",
        /// License deregistrations completed by CML.
        LicenseDeregistered = "license_deregistered_count",
        /// Drains begun by scale-down.
        ScaleDownDrain = "scale_down_drain_count",
        /// Records marked terminated by garbage collection.
        OrphansTerminated = "orphans_terminated_count",
    }
}

impl Counter {
    /// Whether it counts a transition, and therefore only if that was recorded.
    pub(crate) const fn follows_transition(self) -> bool {
        match self {
            Self::Started | Self::Stopped | Self::Terminated | Self::ScaleDownDrain | Self::OrphansTerminated => true,
            Self::Provisioned
            | Self::MetricsCollected
            | Self::IdleDetection
            | Self::AutoPause
            | Self::LicenseRegistered
            | Self::LicenseDeregistered => false,
        }
    }
}

/// A set of counters to raise by one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts(u16);

impl Counts {
    /// The set with one more.
    #[must_use]
    pub const fn and(self, counter: Counter) -> Self {
        Self(self.0 | 1 << counter as u16)
    }

    /// Whether a counter is in the set.
    pub const fn contains(self, counter: Counter) -> bool {
        self.0 & (1 << counter as u16) != 0
    }

    /// The counters in the set.
    pub fn iter(self) -> impl Iterator<Item = Counter> {
        Counter::ALL.iter().copied().filter(move |counter| self.contains(*counter))
    }
}

impl FromIterator<Counter> for Counts {
    fn from_iter<I: IntoIterator<Item = Counter>>(counters: I) -> Self {
        counters.into_iter().fold(Self::default(), Self::and)
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}
