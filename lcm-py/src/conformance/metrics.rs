//! World of the metrics suite, written in Python.

use async_trait::async_trait;
use lcm_sdk::conformance::metrics::MetricsWorld;
use lcm_sdk::lifecycle::CloudMetrics;
use lcm_sdk::ports::Metrics;
use lcm_sdk::{CallFailure, InstanceId, Timestamp};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::world::World;
use crate::bridge::Bridge;
use crate::input::to_moment;
use crate::metrics::PythonMetrics;
use crate::observation::read_list;
use crate::port_results::{plain, refused, tuple};
use crate::python::cloud_metrics_class;

pub(super) struct Gauges {
    port: PythonMetrics,
    world: World,
    region: String,
    now: Timestamp,
}

impl Gauges {
    pub(super) async fn new(port: Bridge, world: World) -> Self {
        let region = world.text("region").await;
        let now = world.get("now", |py| Ok(PyTuple::empty(py)), |result| to_moment(result, "now")).await;
        Self { port: PythonMetrics(port), world, region, now }
    }
}

#[async_trait]
impl MetricsWorld for Gauges {
    fn metrics(&self) -> &dyn Metrics {
        &self.port
    }

    fn region(&self) -> &str {
        &self.region
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    async fn silent_instances(&self, count: usize) -> Vec<InstanceId> {
        let read = move |result: &Bound<'_, PyAny>| {
            let ids = read_list(result, "silent_instances", |id, path| plain::<String>(id, path, "text"))?;
            let enough = ids.len() == count;
            let accepted = format!("{count} ids");
            if enough { Ok(ids) } else { Err(refused("silent_instances", result, &accepted)) }
        };
        let ids = self.world.get("silent_instances", move |py| tuple(py, (count,)), read).await;
        ids.into_iter().map(InstanceId::from).collect()
    }

    async fn report(&self, id: &InstanceId, minutes_ago: i64, metrics: CloudMetrics) {
        let (id, at) = (id.to_string(), self.now - chrono::TimeDelta::minutes(minutes_ago));
        let CloudMetrics { cpu_utilization, memory_utilization, disk_utilization, network_in_bytes, network_out_bytes } =
            metrics;
        let measured = (cpu_utilization, memory_utilization, disk_utilization, network_in_bytes, network_out_bytes);
        let measured = move |py: Python<'_>| cloud_metrics_class(py)?.call1(measured).map(Bound::unbind);
        self.world.call("report", move |py| tuple(py, (id, at, measured(py)?))).await;
    }

    async fn fail(&self, failure: &CallFailure) {
        self.world.fail(failure).await;
    }

    async fn recover(&self) {
        self.world.command("recover").await;
    }
}
