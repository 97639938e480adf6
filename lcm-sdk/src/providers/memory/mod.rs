//! The ports in memory: small, honest models that fail on demand and remember what they were asked.

mod clock;
mod cml;
mod compute;
mod control_plane;
mod coordination;
mod events;
mod fault_injection;
mod metrics;

pub use clock::ManualClock;
pub use cml::{CmlPower, MemoryCml, MemoryCmlSystem, RegistrationEnd};
pub use compute::{ComputeCall, ComputeOperation, MemoryCompute};
pub use control_plane::{Fencing, MemoryControlPlane, MetricsReport, Versions};
pub use coordination::MemoryCoordination;
pub use events::MemoryEvents;
pub use fault_injection::Fault;
pub use metrics::MemoryMetrics;
