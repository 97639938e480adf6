//! The whole cloud in the hands of a test: one verb for each thing that can be done behind everybody's back or looked at
//! afterwards. Each is thin; what it does is documented where it is done.
//!
//! None of it is recorded: only what comes over a socket is.

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
use crate::world::{AwsError, Instance, LaunchRequest, Order, StateChange};

/// How long the CMLs may take to follow the clock, in real time, before nobody waits for them any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time.
impl FakeCloud {
    /// The time in this world.
    pub fn now(&self) -> DateTime<Utc> {
        self.world().clock().now()
    }

    /// Moves the clock forward, and waits until every CML has followed: those of instances that run by now can be
    /// reached, those of others refuse.
    ///
    /// # Guarantees
    /// Instances, leases, logins, licences, metrics and records follow the clock by themselves, without any wait.
    ///
    /// # Cancel safety
    /// The clock is moved at the first poll; dropped after that, only the wait ends early.
    pub async fn advance(&self, duration: Duration) {
        self.world().clock().advance(duration);
        self.settle().await;
    }

    /// Waits until every CML is where its instance is: listening while it runs and has booted that far, and else not.
    /// Ends after ten seconds in any case.
    pub async fn settle(&self) {
        let settled = async {
            while !self.has_settled() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        drop(tokio::time::timeout(PATIENCE, settled).await);
    }

    fn has_settled(&self) -> bool {
        let laboratories = &self.backstage.cml_servers;
        let addresses = laboratories.addresses();
        let running: BTreeMap<String, Ipv4Addr> = self.world().with_ec2(|ec2, now| {
            let all = ec2.regions().flat_map(crate::world::Region::instances);
            all.filter_map(|instance| Some((instance.id.clone(), instance.public_ip(now)?))).collect()
        });
        let is_up = |(id, address): (&String, &Ipv4Addr)| match laboratories.listen_state(id) {
            Some(ListenState::Prevented(_)) => true,
            Some(ListenState::Listening) => addresses.get(id) == Some(&Some(*address)),
            Some(ListenState::Off) => laboratories.find(id).is_some_and(|system| system.stage() == BootStage::Refused),
            None => false,
        };
        let mut stopped = addresses.keys().filter(|id| !running.contains_key(*id));
        stopped.all(|id| laboratories.listen_state(id) != Some(ListenState::Listening)) && running.iter().all(is_up)
    }

    /// Back to the scenario it was started with, or to an empty world. The clock goes on.
    ///
    /// # Errors
    /// What the scenario cannot do, which it could when it was started.
    pub fn reset(&self, to: ResetTo) -> Result<(), ScenarioError> {
        self.backstage.reset(self.world(), to)
    }
}

/// EC2 and CloudWatch, as if from the console.
impl FakeCloud {
    /// Launches one instance of the region's newest image, with these tags.
    ///
    /// # Errors
    /// As RunInstances.
    pub fn run_instance(&self, region: &str, tags: &[(&str, &str)]) -> Result<Arc<Instance>, AwsError> {
        let image = self.world().with_ec2(|ec2, now| {
            let images = &ec2.region(region, now)?.catalog.images;
            let newest = images.iter().max_by(|one, other| one.creation_date.cmp(&other.creation_date));
            Ok::<_, AwsError>(newest.map(|image| image.id.clone()).unwrap_or_default())
        })?;
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let launched = self.world().hand_launch(region, LaunchRequest { tags, ..LaunchRequest::new(image) })?;
        launched.into_iter().next().ok_or_else(|| AwsError::known("InternalError"))
    }

    /// Starts an instance.
    ///
    /// # Errors
    /// As StartInstances.
    pub fn start_instance(&self, region: &str, id: &str) -> Result<StateChange, AwsError> {
        self.world().hand_order(region, id, Order::Start)
    }

    /// Stops an instance.
    ///
    /// # Errors
    /// As StopInstances.
    pub fn stop_instance(&self, region: &str, id: &str) -> Result<StateChange, AwsError> {
        self.world().hand_order(region, id, Order::Stop)
    }

    /// Terminates an instance.
    ///
    /// # Errors
    /// As TerminateInstances.
    pub fn terminate_instance(&self, region: &str, id: &str) -> Result<StateChange, AwsError> {
        self.world().hand_order(region, id, Order::Terminate)
    }

    /// Tags an instance.
    ///
    /// # Errors
    /// As CreateTags.
    pub fn tag_instance(&self, region: &str, id: &str, key: &str, value: &str) -> Result<(), AwsError> {
        self.world().hand_tag(region, id, key, value)
    }

    /// All instances of a region that are still visible, in the order of their launches; none in a region that does
    /// not exist.
    pub fn instances(&self, region: &str) -> Vec<Arc<Instance>> {
        self.world().with_ec2(|ec2, now| match ec2.region(region, now) {
            Ok(region) => region.instances().cloned().collect(),
            Err(_) => Vec::new(),
        })
    }

    /// One instance, if it is still visible.
    pub fn instance(&self, region: &str, id: &str) -> Option<Arc<Instance>> {
        self.world().with_ec2(|ec2, now| ec2.region(region, now).ok()?.find(id).cloned())
    }

    /// Sets what CloudWatch knows about a metric of an instance now, in percent.
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
        let datum = Datum { at: self.now(), summary: Summary::of(value), unit: "Percent".to_owned() };
        self.world().hand_metric(region, key, datum)
    }
}

/// Faults and records.
impl FakeCloud {
    /// Makes something go wrong; the answer is the rule's number.
    ///
    /// # Errors
    /// A rule that cannot be meant.
    pub fn inject(&self, rule: Rule) -> Result<u64, RuleError> {
        self.world().faults().add(rule)
    }

    /// Takes all rules away.
    pub fn clear_faults(&self) {
        self.world().faults().clear();
    }

    /// The requests that match, oldest first.
    pub fn requests(&self, filter: &RequestFilter) -> Vec<LoggedRequest> {
        self.world().request_log().find(filter)
    }

    /// How many requests a service got for an operation.
    pub fn count(&self, service: Service, operation: &str) -> usize {
        let operation = Some(operation.to_owned());
        self.world().request_log().count(&RequestFilter {
            service: Some(service),
            operation,
            ..RequestFilter::default()
        })
    }
}

/// The control plane.
impl FakeCloud {
    /// Adds a worker.
    ///
    /// # Errors
    /// 409 if the id is taken, 422.
    pub fn add_worker(&self, fields: Value) -> Result<Arc<Worker>, ApiError> {
        self.records().create_worker(Input::from_value(fields)?)
    }

    /// Writes fields of a worker as they are, as somebody else's hands would: the version goes up, watchers hear of it.
    ///
    /// # Errors
    /// 404, 422.
    pub fn update_worker(&self, id: &str, fields: Value) -> Result<Arc<Worker>, ApiError> {
        self.records().edit_worker(id, Input::from_value(fields)?)
    }

    /// One worker.
    ///
    /// # Errors
    /// 404.
    pub fn worker(&self, id: &str) -> Result<Arc<Worker>, ApiError> {
        self.records().worker(id)
    }

    /// All workers, terminated ones too, by id.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.records().workers(&WorkerFilter { include_terminated: true, ..WorkerFilter::default() })
    }

    /// Adds a session.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 if the id is taken, 422.
    pub fn add_session(&self, fields: Value) -> Result<Object, ApiError> {
        self.records().create_session(Input::from_value(fields)?)
    }

    /// One session.
    ///
    /// # Errors
    /// 404.
    pub fn session(&self, id: &str) -> Result<Object, ApiError> {
        self.records().session(id)
    }

    /// All sessions, by id.
    pub fn sessions(&self) -> Vec<Object> {
        self.records().sessions(&SessionFilter::default())
    }

    /// Adds a template, or replaces the one of the same name.
    ///
    /// # Errors
    /// 422.
    pub fn add_template(&self, fields: Value) -> Result<Object, ApiError> {
        self.records().put_template(Input::from_value(fields)?)
    }

    /// All templates, by name.
    pub fn templates(&self) -> Vec<Object> {
        self.records().templates()
    }

    /// How discovery is set.
    pub fn discovery(&self) -> Object {
        self.records().discovery()
    }

    /// Changes discovery settings; what is left out stays.
    ///
    /// # Errors
    /// 422.
    pub fn set_discovery(&self, fields: Value) -> Result<Object, ApiError> {
        self.records().set_discovery(Input::from_value(fields)?)
    }

    /// The scaling audit, oldest first.
    pub fn audit(&self) -> Vec<Object> {
        self.records().audit(None, None)
    }

    /// The events, oldest first: those a controller published and those the control plane made itself.
    pub fn events(&self) -> Vec<Object> {
        self.records().events(None, None)
    }
}

/// CML.
impl FakeCloud {
    /// The CML of an instance, if the instance has ever run.
    pub fn cml(&self, instance: &str) -> Option<CmlServer> {
        self.backstage.cml_servers.find(instance)
    }

    /// Takes everything away that people made on the CML of an instance. False when it has none.
    pub fn wipe_cml(&self, instance: &str) -> bool {
        self.cml(instance).map(|system| system.wipe()).is_some()
    }

    /// What the CML of an instance says its registration is, such as `COMPLETED`. None when it has none.
    pub fn cml_registration(&self, instance: &str) -> Option<String> {
        let status = self.cml(instance)?.licensing_status();
        status["registration"]["status"].as_str().map(str::to_owned)
    }
}
