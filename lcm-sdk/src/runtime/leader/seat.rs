//! What a candidate competes for.

use std::time::Duration;

use crate::runtime::shards::{Layout, Shard};
use crate::runtime::telemetry::Telemetry;

/// What a candidate competes for.
#[derive(Debug, Clone)]
pub(in crate::runtime) enum Seat {
    /// The whole fleet.
    Fleet(Layout),
    /// A part of it.
    Shard(Layout, Shard),
    /// A place among those who share it. It gives no right to anything.
    Member,
}

impl Seat {
    pub(super) const fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Fleet(layout) | Self::Shard(layout, _) => Some(layout),
            Self::Member => None,
        }
    }

    /// Measures how old the lease is; `None` if it is not ours.
    pub(super) fn held(&self, telemetry: &Telemetry, age: Option<Duration>) {
        match self {
            Self::Fleet(_) => telemetry.lease(age),
            Self::Shard(_, shard) => telemetry.shard(*shard, age),
            Self::Member => {}
        }
    }
}
