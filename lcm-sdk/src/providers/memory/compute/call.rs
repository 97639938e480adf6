//! What EC2 in memory was asked.

use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::launch::LaunchPlan;
use crate::ports::DiscoveryFilter;

/// What [`MemoryCompute`](super::MemoryCompute) can be asked, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComputeOperation {
    /// Describe by id.
    Instances,
    /// Describe by worker.
    Tagged,
    /// Look for images.
    Images,
    /// Look for everything.
    Scan,
    /// Look for a subnet.
    SeesSubnet,
    /// Launch.
    Launch,
    /// Start.
    Start,
    /// Stop.
    Stop,
    /// Terminate.
    Terminate,
}

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComputeCall {
    /// Describe by id.
    Instances {
        /// Where.
        region: String,
        /// Which.
        ids: Vec<InstanceId>,
    },
    /// Describe by worker.
    Tagged {
        /// Where.
        region: String,
        /// Whose.
        worker: WorkerId,
    },
    /// Look for images.
    Images {
        /// Where.
        region: String,
        /// By what name.
        pattern: String,
    },
    /// Look for everything.
    Scan {
        /// Where.
        region: String,
        /// That matches this.
        filter: DiscoveryFilter,
    },
    /// Look for a subnet.
    SeesSubnet {
        /// Where.
        region: String,
        /// Which.
        subnet_id: String,
    },
    /// Launch.
    Launch(Box<LaunchPlan>),
    /// Start.
    Start {
        /// Where.
        region: String,
        /// Which.
        id: InstanceId,
    },
    /// Stop.
    Stop {
        /// Where.
        region: String,
        /// Which.
        id: InstanceId,
    },
    /// Terminate.
    Terminate {
        /// Where.
        region: String,
        /// Which.
        id: InstanceId,
    },
}

impl ComputeCall {
    /// What was asked.
    pub const fn operation(&self) -> ComputeOperation {
        match self {
            Self::Instances { .. } => ComputeOperation::Instances,
            Self::Tagged { .. } => ComputeOperation::Tagged,
            Self::Images { .. } => ComputeOperation::Images,
            Self::Scan { .. } => ComputeOperation::Scan,
            Self::SeesSubnet { .. } => ComputeOperation::SeesSubnet,
            Self::Launch(_) => ComputeOperation::Launch,
            Self::Start { .. } => ComputeOperation::Start,
            Self::Stop { .. } => ComputeOperation::Stop,
            Self::Terminate { .. } => ComputeOperation::Terminate,
        }
    }

    pub(super) fn region(&self) -> &str {
        match self {
            Self::Instances { region, .. }
            | Self::Tagged { region, .. }
            | Self::Images { region, .. }
            | Self::Scan { region, .. }
            | Self::SeesSubnet { region, .. }
            | Self::Start { region, .. }
            | Self::Stop { region, .. }
            | Self::Terminate { region, .. } => region,
            Self::Launch(plan) => &plan.region,
        }
    }
}
