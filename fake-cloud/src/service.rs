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

impl Service {
    /// Its name in rules, records and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Cloudwatch => "cloudwatch",
            Self::Cml => "cml",
            Self::Etcd => "etcd",
            Self::ControlPlane => "control-plane",
        }
    }
}
