//! Operations on a running cloud for tests: change its state without a request, and inspect it.
//!
//! None of these operations is added to the request log, which contains requests over sockets only.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::FakeCloud;
use crate::admin::ResetTo;
use crate::cml::{BootStage, CmlServer, ListenState};
use crate::control_plane::{ApiError, Input, Object, SessionFilter, Worker, WorkerFilter};
use crate::faults::{Rule, RuleError};
use crate::request_log::{LoggedRequest, RequestFilter};
use crate::scenario::ScenarioError;
use crate::service::Service;
use crate::world::metrics::{Datum, MetricKey, Summary};
use crate::world::{AwsError, Instance, InstanceAction, LaunchRequest, StateChange};

/// Maximum real time for which [`FakeCloud::settle`] waits.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Clock and state of the world.
impl FakeCloud {
    /// Returns the current time of the world.
    pub fn now(&self) -> DateTime<Utc> {
        self.world().clock().now()
    }

    /// Advances the clock and waits until every CML server listens or refuses connections as its instance requires.
    ///
    /// # Guarantees
    /// Instances, leases, logins, licenses, metrics and records follow the clock immediately.
    ///
    /// # Cancel safety
    /// The first poll advances the clock. Dropping the future later ends the wait only.
    pub async fn advance(&self, duration: Duration) {
        self.world().clock().advance(duration);
        self.settle().await;
    }

    /// Waits until every CML server matches the state of its instance: it listens if the instance is running and has
    /// booted far enough, and otherwise refuses connections. Returns after ten seconds at the latest.
    pub async fn settle(&self) {
        let settled = async {
            while !self.has_settled() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        drop(tokio::time::timeout(SETTLE_TIMEOUT, settled).await);
    }

    fn has_settled(&self) -> bool {
        let servers = &self.services.cml_servers;
        let addresses = servers.addresses();
        let running: BTreeMap<String, Ipv4Addr> = self.world().with_ec2(|ec2, now| {
            let all = ec2.regions().flat_map(crate::world::Region::instances);
            all.filter_map(|instance| Some((instance.id.clone(), instance.public_ip(now)?))).collect()
        });
        let is_reachable = |(id, address): (&String, &Ipv4Addr)| match servers.listen_state(id) {
            Some(ListenState::Prevented(_)) => true,
            Some(ListenState::Listening) => addresses.get(id) == Some(&Some(*address)),
            Some(ListenState::Off) => servers.find(id).is_some_and(|server| server.stage() == BootStage::Refused),
            None => false,
        };
        let mut stopped = addresses.keys().filter(|id| !running.contains_key(*id));
        stopped.all(|id| servers.listen_state(id) != Some(ListenState::Listening)) && running.iter().all(is_reachable)
    }

    /// Resets the cloud to its scenario or to an empty world. The clock continues.
    ///
    /// # Errors
    /// The scenario cannot be applied.
    pub fn reset(&self, to: ResetTo) -> Result<(), ScenarioError> {
        self.services.reset(self.world(), to)
    }
}

/// Actions in the AWS console, and the state of EC2 and CloudWatch.
impl FakeCloud {
    /// Launches one instance of the newest image of the region, with these tags.
    ///
    /// # Errors
    /// The errors of RunInstances.
    pub fn run_instance(&self, region: &str, tags: &[(&str, &str)]) -> Result<Arc<Instance>, AwsError> {
        let image = self.world().with_ec2(|ec2, now| {
            let images = &ec2.region(region, now)?.catalog.images;
            let newest = images.iter().max_by(|one, other| one.creation_date.cmp(&other.creation_date));
            Ok::<_, AwsError>(newest.map(|image| image.id.clone()).unwrap_or_default())
        })?;
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let launched = self.world().console_launch(region, LaunchRequest { tags, ..LaunchRequest::new(image) })?;
        launched.into_iter().next().ok_or_else(|| AwsError::from_code("InternalError"))
    }

    /// Starts a stopped instance.
    ///
    /// # Errors
    /// The errors of StartInstances.
    pub fn start_instance(&self, region: &str, id: &str) -> Result<StateChange, AwsError> {
        self.world().console_action(region, id, InstanceAction::Start)
    }

    /// Stops an instance.
    ///
    /// # Errors
    /// The errors of StopInstances.
    pub fn stop_instance(&self, region: &str, id: &str) -> Result<StateChange, AwsError> {
        self.world().console_action(region, id, InstanceAction::Stop)
    }

    /// Terminates an instance.
    ///
    /// # Errors
    /// The errors of TerminateInstances.
    pub fn terminate_instance(&self, region: &str, id: &str) -> Result<StateChange, AwsError> {
        self.world().console_action(region, id, InstanceAction::Terminate)
    }

    /// Adds a tag to an instance, or replaces its value.
    ///
    /// # Errors
    /// The errors of CreateTags.
    pub fn tag_instance(&self, region: &str, id: &str, key: &str, value: &str) -> Result<(), AwsError> {
        self.world().console_tag(region, id, key, value)
    }

    /// Returns all instances of a region that EC2 describes, in launch order; empty for an unknown region.
    pub fn instances(&self, region: &str) -> Vec<Arc<Instance>> {
        self.world().with_ec2(|ec2, now| match ec2.region(region, now) {
            Ok(region) => region.instances().cloned().collect(),
            Err(_) => Vec::new(),
        })
    }

    /// Returns an instance, or `None` if EC2 does not describe it (anymore).
    pub fn instance(&self, region: &str, id: &str) -> Option<Arc<Instance>> {
        self.world().with_ec2(|ec2, now| ec2.region(region, now).ok()?.find(id).cloned())
    }

    /// Sets the current value of an instance metric, in percent.
    ///
    /// # Errors
    /// An unknown region.
    pub fn set_metric(
        &self,
        region: &str,
        namespace: &str,
        name: &str,
        instance: &str,
        value: f64,
    ) -> Result<(), AwsError> {
        let key = MetricKey::new(namespace, name, [("InstanceId", instance)]);
        let datum = Datum { at: self.now(), summary: Summary::from_value(value), unit: "Percent".to_owned() };
        self.world().console_set_metric(region, key, datum)
    }
}

/// Fault rules and the request log.
impl FakeCloud {
    /// Adds a fault rule and returns its id.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn inject(&self, rule: Rule) -> Result<u64, RuleError> {
        self.world().faults().add(rule)
    }

    /// Removes all fault rules.
    pub fn clear_faults(&self) {
        self.world().faults().clear();
    }

    /// Returns the logged requests that match the filter, oldest first.
    pub fn requests(&self, filter: &RequestFilter) -> Vec<LoggedRequest> {
        self.world().request_log().find(filter)
    }

    /// Returns the number of requests to an operation of a service.
    pub fn count(&self, service: Service, operation: &str) -> usize {
        let operation = Some(operation.to_owned());
        self.world().request_log().count(&RequestFilter {
            service: Some(service),
            operation,
            ..RequestFilter::default()
        })
    }
}

/// Records of the control plane.
impl FakeCloud {
    /// Adds a worker record.
    ///
    /// # Errors
    /// 409 if the id is in use, 422 if a field is invalid.
    pub fn add_worker(&self, fields: Value) -> Result<Arc<Worker>, ApiError> {
        self.records().create_worker(Input::from_value(fields)?)
    }

    /// Changes fields of a worker record without validating the transition, as an operator would. The version is
    /// incremented and watchers are notified.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 if a field is invalid.
    pub fn update_worker(&self, id: &str, fields: Value) -> Result<Arc<Worker>, ApiError> {
        self.records().edit_worker(id, Input::from_value(fields)?)
    }

    /// Returns a worker record.
    ///
    /// # Errors
    /// 404 for an unknown worker.
    pub fn worker(&self, id: &str) -> Result<Arc<Worker>, ApiError> {
        self.records().worker(id)
    }

    /// Returns all worker records including terminated workers, ordered by id.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.records().workers(&WorkerFilter { include_terminated: true, ..WorkerFilter::default() })
    }

    /// Adds a session record.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 if the id is in use, 422 if a field is invalid.
    pub fn add_session(&self, fields: Value) -> Result<Object, ApiError> {
        self.records().create_session(Input::from_value(fields)?)
    }

    /// Returns a session record.
    ///
    /// # Errors
    /// 404 for an unknown session.
    pub fn session(&self, id: &str) -> Result<Object, ApiError> {
        self.records().session(id)
    }

    /// Returns all session records, ordered by id.
    pub fn sessions(&self) -> Vec<Object> {
        self.records().sessions(&SessionFilter::default())
    }

    /// Adds a template, or replaces the template with the same name.
    ///
    /// # Errors
    /// 422 if a field is invalid.
    pub fn add_template(&self, fields: Value) -> Result<Object, ApiError> {
        self.records().put_template(Input::from_value(fields)?)
    }

    /// Returns all templates, ordered by name.
    pub fn templates(&self) -> Vec<Object> {
        self.records().templates()
    }

    /// Returns the discovery settings.
    pub fn discovery(&self) -> Object {
        self.records().discovery()
    }

    /// Changes the given discovery settings.
    ///
    /// # Errors
    /// 422 if a field is invalid.
    pub fn set_discovery(&self, fields: Value) -> Result<Object, ApiError> {
        self.records().set_discovery(Input::from_value(fields)?)
    }

    /// Returns the scaling audit, oldest entry first.
    pub fn audit(&self) -> Vec<Object> {
        self.records().audit(None, None)
    }

    /// Returns the events of controllers and of the control plane, oldest first.
    pub fn events(&self) -> Vec<Object> {
        self.records().events(None, None)
    }
}

/// CML servers of instances.
impl FakeCloud {
    /// Returns the CML server of an instance, or `None` if the instance has never run.
    pub fn cml(&self, instance: &str) -> Option<CmlServer> {
        self.services.cml_servers.find(instance)
    }

    /// Deletes all labs and registrations from the CML server of an instance. Returns `false` if it has no server.
    pub fn wipe_cml(&self, instance: &str) -> bool {
        self.cml(instance).map(|server| server.wipe()).is_some()
    }

    /// Returns the registration status of the CML server of an instance, such as `COMPLETED`, or `None` if it has no
    /// server.
    pub fn cml_registration(&self, instance: &str) -> Option<String> {
        let status = self.cml(instance)?.licensing_status();
        status["registration"]["status"].as_str().map(str::to_owned)
    }
}
