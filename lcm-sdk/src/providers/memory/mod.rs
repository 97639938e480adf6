//! Ports in memory, for tests and examples. They record their calls and fail on demand.

mod clock;
mod cml;
mod compute;
mod control_plane;
mod coordination;
mod events;
mod fault_injection;
mod metrics;
mod notes;

pub use clock::ManualClock;
pub use cml::{CmlPower, MemoryCml, MemoryCmlSystem, RegistrationEnd};
pub use compute::{ComputeCall, ComputeOperation, MemoryCompute};
pub use control_plane::{Fencing, MemoryControlPlane, NotesKeeping, ReportedMetrics, Versions};
pub use coordination::MemoryCoordination;
pub use events::MemoryEvents;
pub use fault_injection::Fault;
pub use metrics::MemoryMetrics;
pub use notes::MemoryNotes;

use std::sync::Arc;

use crate::ports::{Clock, Ports};

impl Ports {
    /// Creates a set of empty memory ports. To inject faults or add content, create the ports of this module one by one.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        Self {
            compute: Arc::new(MemoryCompute::new(Arc::clone(&clock))),
            metrics: Arc::new(MemoryMetrics::default()),
            cml: Arc::new(MemoryCml::new(Arc::clone(&clock))),
            control_plane: Arc::new(MemoryControlPlane::new(Arc::clone(&clock))),
            events: Arc::new(MemoryEvents::default()),
            clock,
        }
    }
}
