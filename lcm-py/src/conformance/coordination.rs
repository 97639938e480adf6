//! World of the coordination suite, written in Python.

use std::sync::Arc;

use async_trait::async_trait;
use lcm_sdk::conformance::coordination::CoordinationWorld;
use lcm_sdk::ports::Coordination;

use super::world::World;
use crate::bridge::Bridge;
use crate::coordination::PythonCoordination;
use crate::port_results::tuple;

pub(super) struct Keys {
    port: Arc<PythonCoordination>,
    world: World,
}

impl Keys {
    pub(super) fn new(port: Bridge, world: World) -> Self {
        Self { port: Arc::new(PythonCoordination(port)), world }
    }
}

#[async_trait]
impl CoordinationWorld for Keys {
    fn coordination(&self) -> Arc<dyn Coordination> {
        Arc::clone(&self.port) as Arc<dyn Coordination>
    }

    async fn put(&self, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.world.call("put", move |py| tuple(py, (key, value))).await;
    }

    async fn delete(&self, key: &str) {
        let key = key.to_owned();
        self.world.call("delete", move |py| tuple(py, (key,))).await;
    }

    async fn compact(&self) {
        self.world.command("compact").await;
    }
}
