//! Ports in memory, for tests and examples. They record their calls and fail on demand.

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
