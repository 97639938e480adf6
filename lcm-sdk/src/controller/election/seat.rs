//! What a candidate competes for.

use std::time::Duration;

use super::keys::ElectionKeys;
use crate::controller::hash::Shard;
use crate::telemetry::Telemetry;

/// What a candidate competes for.
#[derive(Debug, Clone)]
pub(crate) enum Seat {
    /// The whole fleet.
    Fleet(ElectionKeys),
    /// A part of it.
    Shard(ElectionKeys, Shard),
    /// A place among those who share it. It gives no right to anything.
    Member,
}

impl Seat {
    pub(crate) const fn layout(&self) -> Option<&ElectionKeys> {
        match self {
            Self::Fleet(layout) | Self::Shard(layout, _) => Some(layout),
            Self::Member => None,
        }
    }

    /// Measures how old the lease is; `None` if it is not ours.
    pub(crate) fn held(&self, telemetry: &Telemetry, age: Option<Duration>) {
        match self {
            Self::Fleet(_) => telemetry.set_lease_age(age),
            Self::Shard(_, shard) => telemetry.set_shard_lease_age(shard.0, age),
            Self::Member => {}
        }
    }
}
