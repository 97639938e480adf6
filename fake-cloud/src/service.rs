//! Services of a cloud.

use serde::{Deserialize, Serialize};

/// A service of a cloud, by its name in fault rules and the request log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Service {
    /// The EC2 query API, named `ec2`.
    Ec2,
    /// The CloudWatch API, named `cloudwatch`.
    Cloudwatch,
    /// The STS query API, named `sts`.
    Sts,
    /// The CML servers of all instances, named `cml`.
    Cml,
    /// The etcd gRPC API, named `etcd`.
    Etcd,
    /// The control plane API, named `control-plane`.
    ControlPlane,
}

impl Service {
    /// Returns the name in fault rules and the request log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Cloudwatch => "cloudwatch",
            Self::Sts => "sts",
            Self::Cml => "cml",
            Self::Etcd => "etcd",
            Self::ControlPlane => "control-plane",
        }
    }
}
