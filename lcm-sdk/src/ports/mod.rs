//! The ports: everything the runtime asks of the world, as small traits.
//!
//! | port | who answers | in memory | for real |
//! |---|---|---|---|
//! | [`Compute`] | EC2 | `adapters::memory` | `adapters::aws` |
//! | [`Metrics`] | CloudWatch | `adapters::memory` | `adapters::aws` |
//! | [`Cml`] | the CML on a worker | `adapters::memory` | `adapters::cml` |
//! | [`ControlPlane`] | the owner of the records | `adapters::memory` | `adapters::control_plane` |
//! | [`Coordination`] | etcd | `adapters::memory` | `adapters::etcd` |
//! | [`Events`] | whoever listens | `adapters::memory` | `adapters::events` |
//! | [`Clock`] | the time of day | `adapters::memory` | [`SystemClock`] |
//!
//! # Guarantees every implementation gives
//! - An answer stays an answer: `Ok(None)` and [`Lookup::Absent`](crate::Lookup) mean that the one who knows said
//!   "there is none". Everything else that is no answer is an `Err` or [`Lookup::Unknown`](crate::Lookup) with a
//!   [`CallFailure`](crate::CallFailure), whose kind says whether the far side definitely did nothing.
//! - Every call that changes something can be repeated without harm.
//! - Every call ends: implementations carry their own time limits.
//! - Dropping a call's future abandons the answer, never the other callers. What was sent may still be carried out.
//! - No message of a failure holds a secret.
//!
//! One conformance suite per port states this in code; every implementation runs it.

mod clock;
mod cml;
mod compute;
mod control_plane;
mod coordination;
mod events;
mod metrics;

pub use clock::{Clock, SystemClock};
pub use cml::{Cml, CmlTarget};
pub use compute::{Compute, DiscoveryFilter};
pub use control_plane::{
    ControlPlane, DiscoverySettings, Fence, IdleCheck, ImportSummary, Scope, SessionMove, Version, WorkerListing,
};
pub use coordination::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream, WatchUpdate};
pub use events::{CloudEvent, Events};
pub use metrics::Metrics;

use std::sync::Arc;

/// All ports a reconciler needs, by name. Clones share them.
#[derive(Clone)]
pub struct Ports {
    /// EC2.
    pub compute: Arc<dyn Compute>,
    /// CloudWatch.
    pub metrics: Arc<dyn Metrics>,
    /// The CML on a worker.
    pub cml: Arc<dyn Cml>,
    /// The owner of the records.
    pub control_plane: Arc<dyn ControlPlane>,
    /// Whoever listens.
    pub events: Arc<dyn Events>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ports").finish_non_exhaustive()
    }
}
