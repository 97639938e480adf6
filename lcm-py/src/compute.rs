//! EC2, written in Python. What each method means is documented on `lcm.ports`.

use async_trait::async_trait;
use lcm_sdk::core::discovery::{Completeness, Scan};
use lcm_sdk::core::launch::LaunchPlan;
use lcm_sdk::ports::{Compute, DiscoveryFilter};
use lcm_sdk::{Answer, CallFailure, FailureKind, Image, Instance, InstanceId, WorkerId};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::bridge::Bridge;
use crate::convert::to_frozen;
use crate::observation::{answer, read_image, read_instance, read_list, read_named_instance};
use crate::ports::{json, nothing, tuple};

/// EC2, written in Python.
pub(crate) struct PythonCompute(pub(crate) Bridge);

#[async_trait]
impl Compute for PythonCompute {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Answer<Instance>> {
        let (region, names) = (region.to_owned(), ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        let wanted = names.clone();
        let read = move |told: &Bound<'_, PyAny>| read_answers(told, &wanted);
        let answers = self.0.call("instances", move |py| tuple(py, (region, names)), read).await;
        answers.unwrap_or_else(|failure| vec![Answer::Unknown(failure); ids.len()])
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        let (region, worker) = (region.to_owned(), worker.to_string());
        let read = |told: &Bound<'_, PyAny>| read_list(told, "tagged", read_named_instance);
        self.0.call("tagged", move |py| tuple(py, (region, worker)), read).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        let (region, pattern) = (region.to_owned(), pattern.to_owned());
        let read = |told: &Bound<'_, PyAny>| read_list(told, "images", read_image);
        self.0.call("images", move |py| tuple(py, (region, pattern)), read).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        let (here, filter) = (region.to_owned(), filter.clone());
        let read = |told: &Bound<'_, PyAny>| read_list(told, "scan", read_named_instance);
        let arguments = (here, filter.ami_name_pattern, filter.tags);
        let (instances, completeness) = match self.0.call("scan", move |py| tuple(py, arguments), read).await {
            Ok(instances) => (instances, Completeness::Complete),
            Err(failure) => (Vec::new(), Completeness::Partial(failure)),
        };
        Scan { region: region.to_owned(), instances, completeness }
    }

    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Result<bool, CallFailure> {
        let (region, subnet) = (region.to_owned(), subnet_id.to_owned());
        self.0.call("sees_subnet", move |py| tuple(py, (region, subnet)), |told| told.extract()).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        let plan = json(plan);
        let id: String =
            self.0.call("launch", move |py| tuple(py, (to_frozen(py, &plan)?,)), |told| told.extract()).await?;
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

/// One answer for each id. What was left out was not answered: only `lcm.ABSENT` says that there is none.
fn read_answers(told: &Bound<'_, PyAny>, ids: &[String]) -> PyResult<Vec<Answer<Instance>>> {
    let told = told.cast::<PyMapping>()?;
    let one = |id: &String| {
        if !told.contains(id)? {
            return Ok(Answer::Unknown(CallFailure::new(FailureKind::Unclear, format!("nothing was said about {id}"))));
        }
        let given = answer(&told.get_item(id)?, id, |given, path| {
            Ok(Instance { id: id.as_str().into(), ..read_instance(given, path)? })
        })?;
        Ok(match given {
            Answer::NotAsked => {
                Answer::Unknown(CallFailure::new(FailureKind::Unclear, format!("None was said of {id}")))
            }
            said @ (Answer::Found(_) | Answer::Absent | Answer::Unknown(_)) => said,
        })
    };
    ids.iter().map(one).collect()
}
