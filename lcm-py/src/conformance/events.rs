//! World of the events suite, written in Python.

use async_trait::async_trait;
use lcm_sdk::conformance::events::EventsWorld;
use lcm_sdk::ports::Events;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::world::World;
use crate::bridge::Bridge;
use crate::events::PythonEvents;
use crate::observation::read_list;
use crate::port_results::plain;

pub(super) struct Listener {
    port: PythonEvents,
    world: World,
}

impl Listener {
    pub(super) fn new(port: Bridge, world: World) -> Self {
        Self { port: PythonEvents(port), world }
    }
}

#[async_trait]
impl EventsWorld for Listener {
    fn events(&self) -> &dyn Events {
        &self.port
    }

    async fn arrived(&self) -> Vec<(String, String)> {
        let read = |result: &Bound<'_, PyAny>| {
            read_list(result, "arrived", |pair, path| plain(pair, path, "the type and the subject of an event"))
        };
        self.world.get("arrived", |py| Ok(PyTuple::empty(py)), read).await
    }
}
