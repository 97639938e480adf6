//! DescribeInstances.

use std::collections::HashMap;
use std::sync::Arc;

use super::instance_xml::{INSTANCE_SIZE, instance};
use super::{Request, Xml};
use crate::world::{ACCOUNT, AwsError, Instance, InstanceQuery};

pub(super) fn describe_instances(request: &Request<'_>) -> Result<String, AwsError> {
    let form = request.form;
    let query = InstanceQuery { ids: form.list("InstanceId"), filters: form.filters()?, page: form.page()? };
    if !query.ids.is_empty() && form.get("MaxResults").is_some() {
        return Err(ids_with_page());
    }
    let intent = form.intent()?;
    let (page, now) = request.world.with_ec2(|ec2, now| {
        let page = ec2.region(request.region, now)?.select(&query, request.view, now)?;
        intent.proceed()?;
        Ok::<_, AwsError>((page, now))
    })?;
    Ok(request.answer("DescribeInstances", page.items.len() * INSTANCE_SIZE, |xml| {
        xml.element("reservationSet", |xml| {
            for members in by_reservation(&page.items) {
                xml.open("item");
                reservation_head(xml, &members[0].reservation_id);
                xml.open("instancesSet");
                for member in members {
                    instance(xml, member, member.state(now), now);
                }
                xml.close("instancesSet");
                xml.close("item");
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

pub(super) fn ids_with_page() -> AwsError {
    let message = "The parameter instancesSet cannot be used with the parameter maxResults";
    AwsError::new("InvalidParameterCombination", message)
}

pub(super) fn reservation_head(xml: &mut Xml, reservation_id: &str) {
    xml.text("reservationId", reservation_id);
    xml.text("ownerId", ACCOUNT);
    xml.raw("<groupSet/>");
}

/// Instances of one launch stay together, in the order in which each launch first appears.
fn by_reservation(instances: &[Arc<Instance>]) -> Vec<Vec<&Arc<Instance>>> {
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(instances.len());
    let mut reservations: Vec<Vec<&Arc<Instance>>> = Vec::new();
    for instance in instances {
        let place = *places.entry(&instance.reservation_id).or_insert_with(|| {
            reservations.push(Vec::new());
            reservations.len() - 1
        });
        reservations[place].push(instance);
    }
    reservations
}
