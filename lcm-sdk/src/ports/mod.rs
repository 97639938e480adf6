//! Ports: the services that the controller depends on, as small traits.
//!
//! | port | service | in memory | implementation |
//! |---|---|---|---|
//! | [`Compute`] | EC2 | `providers::memory` | `providers::aws` |
//! | [`Metrics`] | CloudWatch | `providers::memory` | `providers::aws` |
//! | [`Cml`] | CML on a worker | `providers::memory` | `providers::cml` |
//! | [`ControlPlane`] | owner of the records | `providers::memory` | `providers::control_plane` |
//! | [`Coordination`] | etcd | `providers::memory` | `providers::etcd` |
//! | [`NotesStore`] | notes that the records do not keep | `providers::memory` | `providers::etcd` |
//! | [`Events`] | event sinks | `providers::memory` | `providers::events` |
//! | [`Clock`] | time of day | `providers::memory` | [`SystemClock`] |
//!
//! # Guarantees
//! Every implementation of a port guarantees that:
//! - `Ok(None)` and [`Lookup::Absent`](crate::Lookup) mean that the service itself reported that the resource does not
//!   exist. Every other failure is an `Err` or [`Lookup::Unknown`](crate::Lookup) with a
//!   [`CallFailure`](crate::CallFailure), whose kind states whether the service certainly did nothing.
//! - Calls that change something are idempotent.
//! - Every call ends within a time limit of the implementation.
//! - Dropping the future of a call does not affect other callers. The service may still execute the call.
//! - No failure contains a secret.
//!
//! The traits state further promises. The `conformance` module checks them with one suite per port.

mod clock;
mod cml;
mod compute;
mod control_plane;
mod coordination;
mod events;
mod metrics;
mod notes;

pub use clock::{Clock, SystemClock};
pub use cml::{Cml, CmlTarget};
pub use compute::{Compute, DiscoveryFilter};
pub use control_plane::{
    ControlPlane, Fence, IdleCheck, ImportSummary, NotesStatus, ScanSettings, Scope, SessionMove, Version,
    WorkerListing,
};
pub use coordination::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream, WatchUpdate};
pub use events::{CloudEvent, Events};
pub use metrics::Metrics;
pub use notes::{NotesListing, NotesPlacement, NotesStore, StoredNotes};

pub use crate::lifecycle::{Capabilities, ControlPlaneGeneration, Support};

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The ports of a reconciler. Clones share them.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::ports::{Ports, SystemClock};
/// use lcm_sdk::providers::events::LogEvents;
///
/// let memory = Ports::in_memory(Arc::new(SystemClock));
/// let ports = Ports::builder()
///     .compute(memory.compute)
///     .metrics(memory.metrics)
///     .cml(memory.cml)
///     .control_plane(memory.control_plane)
///     .events(Arc::new(LogEvents))
///     .build()?;
/// # Ok::<(), lcm_sdk::ports::MissingPort>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Ports {
    /// EC2 in all regions.
    pub compute: Arc<dyn Compute>,
    /// CloudWatch in all regions.
    pub metrics: Arc<dyn Metrics>,
    /// CML on all workers.
    pub cml: Arc<dyn Cml>,
    /// Owner of the records.
    pub control_plane: Arc<dyn ControlPlane>,
    /// Sink of lifecycle events.
    pub events: Arc<dyn Events>,
    /// Time of day.
    pub clock: Arc<dyn Clock>,
}

impl Ports {
    /// Starts building a set of ports.
    pub fn builder() -> PortsBuilder {
        PortsBuilder::default()
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ports").finish_non_exhaustive()
    }
}

/// Builds [`Ports`]. All ports but the clock are required.
#[derive(Clone, Default)]
pub struct PortsBuilder {
    compute: Option<Arc<dyn Compute>>,
    metrics: Option<Arc<dyn Metrics>>,
    cml: Option<Arc<dyn Cml>>,
    control_plane: Option<Arc<dyn ControlPlane>>,
    events: Option<Arc<dyn Events>>,
    clock: Option<Arc<dyn Clock>>,
}

/// A required port that was not given to a [`PortsBuilder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("missing port '{0}'")]
pub struct MissingPort(&'static str);

impl PortsBuilder {
    /// Sets the port to EC2.
    #[must_use]
    pub fn compute(mut self, compute: Arc<dyn Compute>) -> Self {
        self.compute = Some(compute);
        self
    }

    /// Sets the port to CloudWatch.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Sets the port to CML.
    #[must_use]
    pub fn cml(mut self, cml: Arc<dyn Cml>) -> Self {
        self.cml = Some(cml);
        self
    }

    /// Sets the port to the control plane.
    #[must_use]
    pub fn control_plane(mut self, control_plane: Arc<dyn ControlPlane>) -> Self {
        self.control_plane = Some(control_plane);
        self
    }

    /// Sets the sink of lifecycle events.
    #[must_use]
    pub fn events(mut self, events: Arc<dyn Events>) -> Self {
        self.events = Some(events);
        self
    }

    /// Sets the clock. Default: [`SystemClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the ports.
    ///
    /// # Errors
    /// [`MissingPort`] names the first required port that was not set.
    pub fn build(self) -> Result<Ports, MissingPort> {
        Ok(Ports {
            compute: self.compute.ok_or(MissingPort("compute"))?,
            metrics: self.metrics.ok_or(MissingPort("metrics"))?,
            cml: self.cml.ok_or(MissingPort("cml"))?,
            control_plane: self.control_plane.ok_or(MissingPort("control_plane"))?,
            events: self.events.ok_or(MissingPort("events"))?,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
        })
    }
}

impl fmt::Debug for PortsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortsBuilder").finish_non_exhaustive()
    }
}
