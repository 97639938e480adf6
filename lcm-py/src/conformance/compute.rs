//! World of the compute suite, written in Python.

use async_trait::async_trait;
use lcm_sdk::CallFailure;
use lcm_sdk::conformance::compute::ComputeWorld;
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::ports::Compute;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::{Value, json};

use super::world::World;
use crate::bridge::Bridge;
use crate::compute::PythonCompute;
use crate::convert::to_value;
use crate::port_results::refused;
use crate::python::invalid_argument;

pub(super) struct Cloud {
    port: PythonCompute,
    world: World,
    region: String,
    other_region: String,
    image_pattern: String,
    plan: LaunchPlan,
}

impl Cloud {
    pub(super) async fn new(port: Bridge, world: World) -> Self {
        let region = world.text("region").await;
        let here = region.clone();
        let plan = world.get("plan", |py| Ok(PyTuple::empty(py)), move |result| read_plan(result, &here)).await;
        let (other_region, image_pattern) = (world.text("other_region").await, world.text("image_pattern").await);
        Self { port: PythonCompute(port), world, region, other_region, image_pattern, plan }
    }
}

/// Parses launch parameters. The suite adds tags and token.
fn read_plan(result: &Bound<'_, PyAny>, region: &str) -> PyResult<LaunchPlan> {
    let Value::Object(given) = to_value(result, "plan")? else { return Err(refused("plan", result, "a dict")) };
    let mut plan = json!({"region": region, "security_group_ids": [], "tags": {}, "generation": 0, "client_token": ""});
    if let Some(plan) = plan.as_object_mut() {
        plan.extend(given);
    }
    serde_json::from_value(plan).map_err(|error| invalid_argument("plan", &error))
}

#[async_trait]
impl ComputeWorld for Cloud {
    fn compute(&self) -> &dyn Compute {
        &self.port
    }

    fn region(&self) -> &str {
        &self.region
    }

    fn other_region(&self) -> &str {
        &self.other_region
    }

    fn plan(&self) -> LaunchPlan {
        self.plan.clone()
    }

    fn image_pattern(&self) -> String {
        self.image_pattern.clone()
    }

    async fn settle(&self) {
        self.world.command("settle").await;
    }

    async fn forget_terminated(&self) {
        self.world.command("forget_terminated").await;
    }

    async fn fail(&self, failure: &CallFailure) {
        self.world.fail(failure).await;
    }

    async fn recover(&self) {
        self.world.command("recover").await;
    }
}
