//! EC2 port written in Python. `lcm.ports` documents each method.

use async_trait::async_trait;
use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::trust::Caller;
use lcm_sdk::ports::{Compute, DiscoveryFilter};
use lcm_sdk::{CallFailure, FailureKind, Image, Instance, InstanceId, Lookup, WorkerId};
use pyo3::prelude::*;

use crate::bridge::Bridge;
use crate::convert::to_frozen;
use crate::observation::{read_image, read_instance, read_list, read_named_instance};
use crate::port_results::{by_id, json, nothing, plain, tuple};

/// EC2 port written in Python.
pub(crate) struct PythonCompute(pub(crate) Bridge);

#[async_trait]
impl Compute for PythonCompute {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        let (region, names) = (region.to_owned(), ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        let wanted = names.clone();
        let one = |given: &Bound<'_, PyAny>, id: &str| Ok(Instance { id: id.into(), ..read_instance(given, id)? });
        let read = move |result: &Bound<'_, PyAny>| by_id(result, &wanted, "instances", one);
        let lookups = self.0.call("instances", move |py| tuple(py, (region, names)), read).await;
        lookups.unwrap_or_else(|failure| vec![Lookup::Unknown(failure); ids.len()])
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        let (region, worker) = (region.to_owned(), worker.to_string());
        let read = |result: &Bound<'_, PyAny>| read_list(result, "tagged", read_named_instance);
        self.0.call("tagged", move |py| tuple(py, (region, worker)), read).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        let (region, pattern) = (region.to_owned(), pattern.to_owned());
        let read = |result: &Bound<'_, PyAny>| read_list(result, "images", read_image);
        self.0.call("images", move |py| tuple(py, (region, pattern)), read).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        if filter.is_empty() {
            let message = "a scan needs an AMI name pattern or a tag to look for";
            let completeness = Completeness::Partial(CallFailure::new(FailureKind::Refused, message));
            return Scan { region: region.to_owned(), instances: Vec::new(), completeness };
        }
        let (here, filter) = (region.to_owned(), filter.clone());
        let read = |result: &Bound<'_, PyAny>| read_list(result, "scan", read_named_instance);
        let arguments = (here, filter.ami_name_pattern, filter.tags);
        let (instances, completeness) = match self.0.call("scan", move |py| tuple(py, arguments), read).await {
            Ok(instances) => (instances, Completeness::Complete),
            Err(failure) => (Vec::new(), Completeness::Partial(failure)),
        };
        Scan { region: region.to_owned(), instances, completeness }
    }

    async fn subnet_owner(&self, region: &str, subnet_id: &str) -> Result<Option<String>, CallFailure> {
        let (region, subnet) = (region.to_owned(), subnet_id.to_owned());
        let read = |result: &Bound<'_, PyAny>| plain(result, "subnet_owner", "the id of an account or None");
        self.0.call("subnet_owner", move |py| tuple(py, (region, subnet)), read).await
    }

    async fn caller(&self, region: &str) -> Result<Caller, CallFailure> {
        let region = region.to_owned();
        let read = |result: &Bound<'_, PyAny>| plain(result, "account_id", "the id of an account or None");
        let account_id: Option<String> = self.0.call("account_id", move |py| tuple(py, (region,)), read).await?;
        Ok(account_id.map_or_else(Caller::default, Caller::new))
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        let plan = json(plan);
        let read = |result: &Bound<'_, PyAny>| plain::<String>(result, "launch", "the id of the instance");
        let id = self.0.call("launch", move |py| tuple(py, (to_frozen(py, &plan)?,)), read).await?;
        Ok(id.into())
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let (region, id) = (region.to_owned(), id.to_string());
        self.0.call("start", move |py| tuple(py, (region, id)), nothing).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let (region, id) = (region.to_owned(), id.to_string());
        self.0.call("stop", move |py| tuple(py, (region, id)), nothing).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let (region, id) = (region.to_owned(), id.to_string());
        self.0.call("terminate", move |py| tuple(py, (region, id)), nothing).await
    }
}
