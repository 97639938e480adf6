//! Operations on a running cloud for tests: change its state without a request, and inspect it.
//!
//! None of these operations is added to the request log, which contains requests over sockets only.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use super::FakeCloud;
use crate::admin::ResetTo;
use crate::cml::CmlServer;
use crate::control_plane::{ApiError, Input, Object, SessionFilter, Worker, WorkerFilter};
use crate::faults::{Rule, RuleError};
use crate::names;
use crate::request_log::{LoggedRequest, RequestFilter};
use crate::scenario::ScenarioError;
use crate::service::Service;
use crate::snapshot::{Restored, Secrets, Snapshot, SnapshotError};
use crate::world::metrics::{Datum, MetricKey, Summary};
use crate::world::{ACCOUNT, Account, AwsError, Instance, InstanceAction, LaunchRequest, StateChange};

/// Maximum number of items that a report lists.
const SHOWN: usize = 20;

/// Error of a condition that did not hold in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the condition did not hold within {timeout:?}; last seen:\n{last_seen}")]
#[non_exhaustive]
pub struct Unmet {
    /// Time for which the condition was checked.
    pub timeout: Duration,
    /// State of the cloud at the end.
    pub last_seen: String,
}

/// Adds a title and the first items of a list.
fn list<T>(text: &mut String, title: &str, items: &[T], line: impl Fn(&T) -> String) {
    // Writing to a String never fails.
    let _ = match items {
        [] => writeln!(text, "no {title}"),
        _ => writeln!(text, "{title}:"),
    };
    for item in items.iter().take(SHOWN) {
        let _ = writeln!(text, "  {}", line(item));
    }
    if let Some(more) = items.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more");
    }
}

/// Clock and state of the world.
impl FakeCloud {
    /// Returns the current time of the world.
    pub fn now(&self) -> DateTime<Utc> {
        self.world().clock().now()
    }

    /// Takes a snapshot of the whole cloud.
    ///
    /// # Errors
    /// The state cannot be written as JSON.
    pub fn snapshot(&self, secrets: Secrets) -> Result<Snapshot, SnapshotError> {
        self.services.snapshot(self.world(), secrets)
    }

    /// Replaces the state of all services by a snapshot, with its clock, and waits until every CML server listens or
    /// refuses connections as its instance requires. Watch streams of etcd are closed.
    ///
    /// # Errors
    /// The snapshot is invalid, or has another generation of the control plane. Then nothing changes.
    ///
    /// # Cancel safety
    /// The first poll restores. Dropping the future later ends the wait only.
    pub async fn restore(&self, snapshot: &Snapshot) -> Result<Restored, SnapshotError> {
        let restored = self.services.restore(self.world(), snapshot)?;
        self.settle().await;
        Ok(restored)
    }

    /// Starts another cloud, on free ports, that goes on from the state of this one. The two are independent.
    ///
    /// # Errors
    /// The state cannot be captured, or a socket cannot be opened.
    pub async fn branch(&self) -> io::Result<Self> {
        self.services.branch(self.world()).await
    }

    /// Resets the cloud to its scenario or its snapshot, or to an empty world. The clock continues, except from a snapshot.
    ///
    /// # Errors
    /// The scenario cannot be applied.
    pub fn reset(&self, to: ResetTo) -> Result<(), ScenarioError> {
        self.services.reset(self.world(), to)
    }
}

/// Actions in the AWS console, and the state of EC2 and CloudWatch.
impl FakeCloud {
    /// Adds an account beside the default account. Requests signed with its access key see its own resources only.
    pub fn add_account(&self, account: &Account) {
        self.world().add_account(account);
    }

    /// Launches one instance of the newest image of the region that is not public, with these tags.
    ///
    /// # Errors
    /// The errors of RunInstances.
    pub fn run_instance(&self, region: &str, tags: &[(&str, &str)]) -> Result<Arc<Instance>, AwsError> {
        self.run_instance_in(ACCOUNT, region, tags)
    }

    /// Launches one instance as [`run_instance`](Self::run_instance) does, in another account.
    ///
    /// # Errors
    /// The errors of RunInstances; an account that was not added has no subnet.
    pub fn run_instance_in(
        &self,
        account: &str,
        region: &str,
        tags: &[(&str, &str)],
    ) -> Result<Arc<Instance>, AwsError> {
        let image = self.world().with_ec2(|ec2, now| {
            let images = ec2.region(region, now)?.catalog.images_of(account).filter(|image| !image.is_public());
            let newest = images.max_by(|one, other| one.creation_date.cmp(&other.creation_date));
            Ok::<_, AwsError>(newest.map(|image| image.id.clone()).unwrap_or_default())
        })?;
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = LaunchRequest { account: account.into(), tags, ..LaunchRequest::new(image) };
        let launched = self.world().console_launch(region, request)?;
        launched.into_iter().next().ok_or_else(|| AwsError::from_code("InternalError"))
    }

    /// Returns the region and the id of the instance with this id or `Name` tag, or of this worker. Without a region, all
    /// regions are searched.
    ///
    /// # Errors
    /// `InvalidInstanceID.NotFound` with the name that was probably meant, and `InvalidParameterValue` for a name of
    /// several instances.
    pub fn find_instance(&self, region: Option<&str>, instance: &str) -> Result<(String, String), AwsError> {
        names::find_instance(self.world(), Some(self.records()), region, instance).map(|place| (place.region, place.id))
    }

    fn instance_id(&self, region: &str, instance: &str) -> Result<String, AwsError> {
        Ok(self.find_instance(Some(region), instance)?.1)
    }

    /// Starts a stopped instance, by its id or name, or by its worker.
    ///
    /// # Errors
    /// The errors of StartInstances.
    pub fn start_instance(&self, region: &str, instance: &str) -> Result<StateChange, AwsError> {
        self.world().console_action(region, &self.instance_id(region, instance)?, InstanceAction::Start)
    }

    /// Stops an instance, by its id or name, or by its worker.
    ///
    /// # Errors
    /// The errors of StopInstances.
    pub fn stop_instance(&self, region: &str, instance: &str) -> Result<StateChange, AwsError> {
        self.world().console_action(region, &self.instance_id(region, instance)?, InstanceAction::Stop)
    }

    /// Terminates an instance, by its id or name, or by its worker.
    ///
    /// # Errors
    /// The errors of TerminateInstances.
    pub fn terminate_instance(&self, region: &str, instance: &str) -> Result<StateChange, AwsError> {
        self.world().console_action(region, &self.instance_id(region, instance)?, InstanceAction::Terminate)
    }

    /// Adds a tag to an instance, or replaces its value.
    ///
    /// # Errors
    /// The errors of CreateTags.
    pub fn tag_instance(&self, region: &str, instance: &str, key: &str, value: &str) -> Result<(), AwsError> {
        self.world().console_tag(region, &self.instance_id(region, instance)?, key, value)
    }

    /// Returns all instances of a region that EC2 describes, in launch order; empty for an unknown region.
    pub fn instances(&self, region: &str) -> Vec<Arc<Instance>> {
        self.world().with_ec2(|ec2, now| match ec2.region(region, now) {
            Ok(region) => region.instances().cloned().collect(),
            Err(_) => Vec::new(),
        })
    }

    /// Returns an instance, or `None` if EC2 does not describe it (anymore).
    pub fn instance(&self, region: &str, instance: &str) -> Option<Arc<Instance>> {
        let id = self.instance_id(region, instance).ok()?;
        self.world().with_ec2(|ec2, now| ec2.region(region, now).ok()?.find(&id).cloned())
    }

    /// Sets the current value of an instance metric, in percent.
    ///
    /// # Errors
    /// An unknown region or instance.
    pub fn set_metric(
        &self,
        region: &str,
        namespace: &str,
        name: &str,
        instance: &str,
        value: f64,
    ) -> Result<(), AwsError> {
        let instance = self.instance_id(region, instance)?;
        let key = MetricKey::new(namespace, name, [("InstanceId", instance.as_str())]);
        let datum = Datum { at: self.now(), summary: Summary::from_value(value), unit: "Percent".to_owned() };
        self.world().console_set_metric(region, key, datum)
    }
}

/// Fault rules and the request log.
impl FakeCloud {
    /// Adds a fault rule and returns its id. Its instance may be given by its `Name` tag or by its worker.
    ///
    /// # Errors
    /// The rule is invalid, or names an instance that does not exist.
    pub fn inject(&self, rule: Rule) -> Result<u64, RuleError> {
        self.world().faults().add(rule.resolve(self.world(), Some(self.records()))?)
    }

    /// Removes all fault rules.
    pub fn clear_faults(&self) {
        self.world().faults().clear();
    }

    /// Returns the logged requests that match the filter, oldest first. An instance may be given by its `Name` tag.
    pub fn requests(&self, filter: &RequestFilter) -> Vec<LoggedRequest> {
        self.world().request_log().find(&self.resolved(filter))
    }

    /// Validates a filter, and replaces the name of its subject by the id that requests carry.
    ///
    /// # Errors
    /// A message with the operation, the region, the instance or the worker that was probably meant.
    pub fn checked_filter(&self, filter: RequestFilter) -> Result<RequestFilter, String> {
        filter.resolve(self.world(), Some(self.records()))
    }

    /// A subject that does not exist matches no request.
    fn resolved(&self, filter: &RequestFilter) -> RequestFilter {
        self.checked_filter(filter.clone()).unwrap_or_else(|_| filter.clone())
    }

    /// Returns the number of requests that match the filter. An instance may be given by its `Name` tag.
    pub fn count_matching(&self, filter: &RequestFilter) -> usize {
        self.world().request_log().count(&self.resolved(filter))
    }

    /// Checks how often a request was made: `times`, or at least once.
    ///
    /// # Errors
    /// A message with the requests that were made instead, or with the operation or subject that was probably meant.
    pub fn check_called(&self, filter: &RequestFilter, times: Option<usize>) -> Result<(), String> {
        let filter = &self.checked_filter(filter.clone())?;
        let count = self.count_matching(filter);
        if times.map_or(count > 0, |times| count == times) {
            return Ok(());
        }
        let expected = times.map_or_else(|| "at least 1".to_owned(), |times| times.to_string());
        let operation = filter.operation.as_deref().unwrap_or("requests");
        let mut report = format!("{operation}: expected {expected}, made {count}\n");
        let made = self.requests(&RequestFilter { limit: Some(SHOWN), ..RequestFilter::default() });
        let total = self.world().request_log().total();
        // Writing to a String never fails.
        let _ = writeln!(report, "latest {} of {total} requests:", made.len());
        for request in &made {
            let _ = writeln!(report, "  {request}");
        }
        Err(report)
    }

    /// Panics unless an operation of a service was requested this many times.
    ///
    /// # Panics
    /// The message lists the latest requests. An unknown operation is refused with the one that was probably meant.
    #[track_caller]
    pub fn assert_called(&self, service: Service, operation: &str, times: usize) {
        let (service, operation) = (Some(service), Some(operation.to_owned()));
        let filter = RequestFilter { service, operation, ..RequestFilter::default() };
        if let Err(report) = self.check_called(&filter, Some(times)) {
            panic!("{report}");
        }
    }

    /// Waits, in real time, until a condition holds. It is checked every few milliseconds.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// let cloud = fake_cloud::FakeCloud::start().await?;
    /// let never = cloud.until(Duration::from_millis(20), |cloud| cloud.worker("w-1").is_ok()).await;
    /// assert!(never.unwrap_err().to_string().contains("no workers"));
    /// # Ok::<(), std::io::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The state of the cloud, if the condition does not hold within `timeout`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn until(&self, timeout: Duration, mut condition: impl FnMut(&Self) -> bool) -> Result<(), Unmet> {
        let end = tokio::time::Instant::now() + timeout;
        loop {
            if condition(self) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= end {
                return Err(Unmet { timeout, last_seen: self.summary() });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Describes the cloud in a few lines: the time, the workers, the instances and the latest requests.
    pub fn summary(&self) -> String {
        let mut text = format!("time: {}\n", self.now().to_rfc3339_opts(SecondsFormat::Millis, true));
        let workers = self.workers();
        list(&mut text, "workers", &workers, |worker| {
            let desired = worker.desired().map(|desired| format!(", desired {desired}")).unwrap_or_default();
            format!("{} {}{desired}", worker.id(), worker.status())
        });
        let now = self.now();
        let instances: Vec<Arc<Instance>> =
            self.world().with_ec2(|ec2, _| ec2.regions().flat_map(crate::world::Region::instances).cloned().collect());
        list(&mut text, "instances", &instances, |instance| {
            let name = instance.tags.get("Name").map(|name| format!(" '{name}'")).unwrap_or_default();
            format!("{}{name} {}", instance.id, instance.state(now).name())
        });
        let requests = self.requests(&RequestFilter { limit: Some(SHOWN), ..RequestFilter::default() });
        list(&mut text, "latest requests", &requests, ToString::to_string);
        text
    }

    /// Returns the number of requests to an operation of a service.
    pub fn count(&self, service: Service, operation: &str) -> usize {
        let operation = Some(operation.to_owned());
        self.count_matching(&RequestFilter { service: Some(service), operation, ..RequestFilter::default() })
    }
}

/// Records of the control plane.
impl FakeCloud {
    /// Adds a worker record.
    ///
    /// # Errors
    /// 409 if the id is in use, 422 if a field is invalid.
    pub fn add_worker(&self, fields: Value) -> Result<Arc<Worker>, ApiError> {
        self.records().add_worker(Input::from_value(fields)?)
    }

    /// Changes fields of a worker record without validating the transition, as an operator would. The version is
    /// incremented and watchers are notified.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 if a field is invalid.
    pub fn update_worker(&self, id: &str, fields: Value) -> Result<Arc<Worker>, ApiError> {
        self.records().change_worker(id, Input::from_value(fields)?)
    }

    /// Returns a worker record.
    ///
    /// # Errors
    /// 404 for an unknown worker.
    pub fn worker(&self, id: &str) -> Result<Arc<Worker>, ApiError> {
        self.records().worker(&self.records().worker_id(id)?)
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
        self.records().add_session(Input::from_value(fields)?)
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
        self.records().add_template(Input::from_value(fields)?)
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
        // The server of an instance that EC2 does not describe anymore is found by its id.
        let id = self.find_instance(None, instance).map_or_else(|_| instance.to_owned(), |(_, id)| id);
        self.services.cml_servers.find(&id)
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
