//! The services of the world, as faults and records name them.

use serde::{Deserialize, Serialize};

/// A service of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// EC2.
    Ec2,
    /// CloudWatch.
    Cloudwatch,
    /// The CML server of an instance.
    Cml,
    /// etcd.
    Etcd,
    /// The control plane.
    ControlPlane,
}
