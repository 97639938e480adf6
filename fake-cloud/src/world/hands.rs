//! External hands: what somebody does in the console, behind the back of whoever uses the API. Nothing of it is recorded.

use std::sync::Arc;

use super::World;
use super::catalog::{Image, SecurityGroup, Subnet};
use super::ec2::Intent;
use super::error::AwsError;
use super::instance::Instance;
use super::launch::LaunchRequest;
use super::lifecycle::{Order, StateChange};
use super::metrics::{Datum, MetricKey};
use super::view::View;

impl World {
    /// Starts, stops, reboots or terminates an instance.
    ///
    /// # Errors
    /// As the API: an unknown id, a state that does not allow it.
    pub fn hand_order(&self, region: &str, instance: &str, order: Order) -> Result<StateChange, AwsError> {
        let ids = [instance.to_owned()];
        let changes =
            self.with_ec2(|ec2, now| ec2.order(region, &ids, order, Intent::Execute, &View::default(), now))?;
        changes.into_iter().next().ok_or_else(|| AwsError::unknown_instances(&[instance]))
    }

    /// Launches instances.
    ///
    /// # Errors
    /// As the API.
    pub fn hand_launch(&self, region: &str, request: LaunchRequest) -> Result<Vec<Arc<Instance>>, AwsError> {
        let launch = self.with_ec2(|ec2, now| ec2.launch(region, request, Intent::Execute, now))?;
        Ok(launch.instances)
    }

    /// Tags an instance.
    ///
    /// # Errors
    /// As the API: an unknown id, a tag that is not allowed.
    pub fn hand_tag(&self, region: &str, instance: &str, key: &str, value: &str) -> Result<(), AwsError> {
        let (ids, tags) = ([instance.to_owned()], [(key.to_owned(), value.to_owned())]);
        self.with_ec2(|ec2, now| {
            ec2.region(region, now)?.create_tags(&ids, &tags, Intent::Execute, &View::default(), now)
        })
    }

    /// Puts an image into a region.
    ///
    /// # Errors
    /// An unknown region.
    pub fn hand_image(&self, region: &str, image: Image) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let images = &mut ec2.region(region, now)?.catalog.images;
            images.retain(|known| known.id != image.id);
            images.push(image);
            Ok(())
        })
    }

    /// Puts a subnet into a region.
    ///
    /// # Errors
    /// An unknown region.
    pub fn hand_subnet(&self, region: &str, subnet: Subnet) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let subnets = &mut ec2.region(region, now)?.catalog.subnets;
            subnets.retain(|known| known.id != subnet.id);
            subnets.push(subnet);
            Ok(())
        })
    }

    /// Puts a security group into a region.
    ///
    /// # Errors
    /// An unknown region.
    pub fn hand_group(&self, region: &str, group: SecurityGroup) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| {
            let groups = &mut ec2.region(region, now)?.catalog.groups;
            groups.retain(|known| known.id != group.id);
            groups.push(group);
            Ok(())
        })
    }

    /// Sets a point of any metric, also of AWS's own, which PutMetricData refuses.
    ///
    /// # Errors
    /// An unknown region.
    pub fn hand_metric(&self, region: &str, key: MetricKey, datum: Datum) -> Result<(), AwsError> {
        self.with_ec2(|ec2, now| ec2.region(region, now).map(|_| ()))?;
        self.set_metric(region, key, datum);
        Ok(())
    }
}
