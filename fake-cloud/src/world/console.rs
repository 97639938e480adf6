//! Changes made in the AWS console, outside the API. They are not added to the request log.

use std::sync::Arc;

use serde::Deserialize;

use super::World;
use super::catalog::{Image, SecurityGroup, Subnet};
use super::ec2::{Intent, OptIn};
use super::error::AwsError;
use super::instance::Instance;
use super::launch::LaunchRequest;
use super::lifecycle::{InstanceAction, StateChange};
use super::metrics::{Datum, MetricKey};
use super::resources::KeyPair;
use super::view::View;

/// Whether the account uses a region that is not on by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptInStatus {
    /// Requests in the region are accepted.
    OptedIn,
    /// Requests in the region fail with `AuthFailure`.
    NotOptedIn,
}

/// Whether an instance profile exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Launches can use it.
    Exists,
    /// Launches with it fail.
    Missing,
}

impl World {
    /// Starts, stops, reboots or terminates an instance.
    ///
    /// # Errors
    /// The errors of the API call: an unknown id, or a state that does not allow the action.
    pub fn console_action(
        &self,
        region: &str,
        instance: &str,
        action: InstanceAction,
    ) -> Result<StateChange, AwsError> {
        let ids = [instance.to_owned()];
        let changes =
            self.with_ec2(|ec2, now| ec2.change_state(region, &ids, action, Intent::Execute, &View::default(), now))?;
        changes.into_iter().next().ok_or_else(|| AwsError::unknown_instances(&[instance]))
    }

    /// Launches instances.
    ///
    /// # Errors
    /// The errors of RunInstances.
    pub fn console_launch(&self, region: &str, request: LaunchRequest) -> Result<Vec<Arc<Instance>>, AwsError> {
        let launch = self.with_ec2(|ec2, now| ec2.launch(region, request, Intent::Execute, now))?;
        Ok(launch.instances)
    }

    /// Adds a tag to an instance, or replaces its value.
    ///
    /// # Errors
    /// The errors of CreateTags: an unknown id, or a tag that is not allowed.
    pub fn console_tag(&self, region: &str, instance: &str, key: &str, value: &str) -> Result<(), AwsError> {
        let (ids, tags) = ([instance.to_owned()], [(key.to_owned(), value.to_owned())]);
        self.with_ec2(|ec2, now| {
            ec2.region(region, now)?.create_tags(&ids, &tags, Intent::Execute, &View::default(), now)
        })
    }

    /// Opts in to a region that is not on by default, or out of it.
    ///
    /// # Errors
    /// A region that is unknown or always on.
    pub fn console_opt_in(&self, region: &str, is_opted_in: OptInStatus) -> Result<(), AwsError> {
        let opt = match is_opted_in {
            OptInStatus::OptedIn => OptIn::In,
            OptInStatus::NotOptedIn => OptIn::Out,
        };
        self.with_ec2(|ec2, _| ec2.opt(region, opt))
    }

    /// Adds a key pair to a region, unless the account has one of this name. Its keys are unknown.
    ///
    /// # Errors
    /// An unknown region.
    pub fn console_add_key_pair(&self, region: &str, name: &str, account: &str) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let id = ec2.new_id("key");
            let region = ec2.region(region, now)?;
            if region.key_pair(account, name).is_none() {
                region.resources.key_pairs.push(KeyPair {
                    id,
                    name: name.to_owned(),
                    kind: "ed25519".to_owned(),
                    fingerprint: String::new(),
                    public_key: String::new(),
                    created_at: now,
                    owner: account.into(),
                });
            }
            Ok(())
        })
    }

    /// Removes an instance profile, or brings it back. IAM is not modeled: all other profiles exist.
    pub fn console_set_profile(&self, name: &str, presence: Presence) {
        self.with_ec2(|ec2, _| match presence {
            Presence::Missing => drop(ec2.missing_profiles.insert(name.to_owned())),
            Presence::Exists => drop(ec2.missing_profiles.remove(name)),
        });
    }

    /// Adds an image to a region, or replaces the image with the same id.
    ///
    /// # Errors
    /// An unknown region.
    pub fn console_put_image(&self, region: &str, image: Image) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let images = &mut ec2.region(region, now)?.catalog.images;
            images.retain(|known| known.id != image.id);
            images.push(image);
            Ok(())
        })
    }

    /// Adds a subnet to a region, or replaces the subnet with the same id.
    ///
    /// # Errors
    /// An unknown region.
    pub fn console_put_subnet(&self, region: &str, subnet: Subnet) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let subnets = &mut ec2.region(region, now)?.catalog.subnets;
            subnets.retain(|known| known.id != subnet.id);
            subnets.push(subnet);
            Ok(())
        })
    }

    /// Adds a security group to a region, or replaces the group with the same id.
    ///
    /// # Errors
    /// An unknown region.
    pub fn console_put_security_group(&self, region: &str, group: SecurityGroup) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let groups = &mut ec2.region(region, now)?.catalog.groups;
            groups.retain(|known| known.id != group.id);
            groups.push(group);
            Ok(())
        })
    }

    /// Sets a data point of any metric, including the `AWS/` namespaces that PutMetricData rejects.
    ///
    /// # Errors
    /// An unknown region.
    pub fn console_set_metric(&self, region: &str, key: MetricKey, datum: Datum) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| ec2.region(region, now).map(|_| ()))?;
        self.set_metric(region, key, datum);
        Ok(())
    }
}
