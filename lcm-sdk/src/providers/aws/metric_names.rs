//! The three things that are measured, and where CloudWatch keeps them.

use aws_sdk_cloudwatch::types::{Dimension, Metric};

use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::observation::CloudMetrics;

/// The dimension that names an instance.
pub(super) const INSTANCE_ID: &str = "InstanceId";
/// The namespace of the CloudWatch agent.
pub(super) const AGENT: &str = "CWAgent";

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Measure {
    Processor,
    Memory,
    Disk,
}

impl Measure {
    pub(super) const ALL: [Self; 3] = [Self::Processor, Self::Memory, Self::Disk];
    /// What the agent on the instance reports, if there is one.
    pub(super) const OF_AGENT: [Self; 2] = [Self::Memory, Self::Disk];

    pub(super) const fn metric_name(self) -> &'static str {
        match self {
            Self::Processor => "CPUUtilization",
            Self::Memory => "mem_used_percent",
            Self::Disk => "disk_used_percent",
        }
    }

    pub(super) const fn short_name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    const fn namespace(self) -> &'static str {
        match self {
            Self::Processor => "AWS/EC2",
            Self::Memory | Self::Disk => AGENT,
        }
    }

    /// Seconds per value: the hypervisor reports every five minutes, the agent every minute.
    pub(super) const fn period(self) -> i32 {
        match self {
            Self::Processor => 300,
            Self::Memory | Self::Disk => 60,
        }
    }

    /// The metric of an instance that carries no other dimension.
    pub(super) fn of_instance(self, id: &InstanceId) -> Metric {
        let dimension = Dimension::builder().name(INSTANCE_ID).value(id.as_str()).build();
        Metric::builder().namespace(self.namespace()).metric_name(self.metric_name()).dimensions(dimension).build()
    }

    pub(super) const fn get(self, metrics: &CloudMetrics) -> Option<f64> {
        match self {
            Self::Processor => metrics.cpu_utilization,
            Self::Memory => metrics.memory_utilization,
            Self::Disk => metrics.disk_utilization,
        }
    }

    /// Notes a value where there is none yet.
    pub(super) fn fill(self, metrics: &mut CloudMetrics, value: Option<f64>) {
        let place = match self {
            Self::Processor => &mut metrics.cpu_utilization,
            Self::Memory => &mut metrics.memory_utilization,
            Self::Disk => &mut metrics.disk_utilization,
        };
        *place = place.or(value);
    }
}
