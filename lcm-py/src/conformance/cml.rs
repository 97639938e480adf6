//! World of the CML suite, written in Python.

use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::Secret;
use lcm_sdk::conformance::cml::{Booting, CmlWorld, Registration};
use lcm_sdk::ports::{Cml, CmlTarget};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::world::World;
use crate::bridge::Bridge;
use crate::cml::PythonCml;
use crate::convert::to_timedelta;
use crate::port_results::{plain, refused, tuple};
use crate::python::{cml_target_class, is_a};

pub(super) struct Laboratory {
    port: PythonCml,
    world: World,
    target: CmlTarget,
    nowhere: CmlTarget,
}

impl Laboratory {
    pub(super) async fn new(port: Bridge, world: World) -> Self {
        let target = world.get("target", |py| Ok(PyTuple::empty(py)), |result| read_target(result, "target")).await;
        let nowhere = world.get("nowhere", |py| Ok(PyTuple::empty(py)), |result| read_target(result, "nowhere")).await;
        Self { port: PythonCml(port), world, target, nowhere }
    }
}

fn read_target(result: &Bound<'_, PyAny>, method: &str) -> PyResult<CmlTarget> {
    if !is_a(result, cml_target_class(result.py())?) {
        return Err(refused(method, result, "an lcm.ports.CmlTarget"));
    }
    let password: String = result.getattr("password")?.call_method0("expose")?.extract()?;
    Ok(CmlTarget {
        address: plain(&result.getattr("address")?, "address", "text")?,
        username: plain(&result.getattr("username")?, "username", "text")?,
        password: Secret::from(password),
    })
}

#[async_trait]
impl CmlWorld for Laboratory {
    fn cml(&self) -> &dyn Cml {
        &self.port
    }

    fn target(&self) -> CmlTarget {
        self.target.clone()
    }

    fn nowhere(&self) -> CmlTarget {
        self.nowhere.clone()
    }

    async fn set_booting(&self, booting: Booting) {
        let booting = match booting {
            Booting::Yes => true,
            Booting::No => false,
        };
        self.world.call("set_booting", move |py| PyTuple::new(py, [booting])).await;
    }

    async fn pass(&self, time: Duration) {
        self.world.call("pass_time", move |py| tuple(py, (to_timedelta(py, time)?,))).await;
    }

    async fn start_lab(&self) {
        self.world.command("start_lab").await;
    }

    async fn end_logins(&self) {
        self.world.command("end_logins").await;
    }

    async fn next_registration(&self, end: Registration) {
        let end = match end {
            Registration::Completes => "completes",
            Registration::Fails => "fails",
        };
        self.world.call("next_registration", move |py| tuple(py, (end,))).await;
    }
}
