//! World of the control-plane suite, written in Python.

use async_trait::async_trait;
use lcm_sdk::conformance::control_plane::ControlPlaneWorld;
use lcm_sdk::ports::ControlPlane;
use pyo3::prelude::*;
use serde_json::Value;

use super::world::World;
use crate::control_plane::PythonControlPlane;
use crate::observation::read_list;
use crate::port_results::{plain, tuple};

pub(super) struct Records {
    port: PythonControlPlane,
    world: World,
}

impl Records {
    pub(super) fn new(port: &Bound<'_, PyAny>, world: World) -> PyResult<Self> {
        Ok(Self { port: PythonControlPlane::new(port)?, world })
    }
}

#[async_trait]
impl ControlPlaneWorld for Records {
    fn control_plane(&self) -> &dyn ControlPlane {
        &self.port
    }

    async fn put_worker(&self, record: Value) {
        self.world.put("put_worker", record).await;
    }

    async fn put_unreadable(&self, record: Value) {
        self.world.put("put_unreadable", record).await;
    }

    async fn put_session(&self, session: Value) {
        self.world.put("put_session", session).await;
    }

    async fn put_template(&self, template: Value) {
        self.world.put("put_template", template).await;
    }

    async fn audit(&self, worker: &str) -> Vec<String> {
        let worker = worker.to_owned();
        let read = |result: &Bound<'_, PyAny>| read_list(result, "audit", |label, path| plain(label, path, "text"));
        self.world.get("audit", move |py| tuple(py, (worker,)), read).await
    }
}
