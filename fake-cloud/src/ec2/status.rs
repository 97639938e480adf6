//! DescribeInstanceStatus.

use super::instance_xml::state;
use super::instances::ids_with_page;
use super::{Request, Xml};
use crate::answer::Answer;
use crate::world::{AwsError, Health, StatusQuery, StatusScope};

pub(super) fn describe_instance_status(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let query = StatusQuery {
        ids: form.list("InstanceId"),
        scope: if form.flag("IncludeAllInstances")? { StatusScope::All } else { StatusScope::Running },
        filters: form.filters()?,
        page: form.page()?,
    };
    if !query.ids.is_empty() && form.get("MaxResults").is_some() {
        return Err(ids_with_page());
    }
    let intent = form.intent()?;
    let checks = request.world.settings().delays.status_checks;
    let page = request.world.with_ec2(|ec2, now| {
        let page = ec2.region(request.region, now)?.select_status(&query, checks, request.view, now)?;
        intent.proceed()?;
        Ok::<_, AwsError>(page)
    })?;
    Ok(request.answer("DescribeInstanceStatus", page.items.len() * 640, |xml| {
        xml.element("instanceStatusSet", |xml| {
            for status in &page.items {
                xml.element("item", |xml| {
                    xml.text("instanceId", &status.instance.id);
                    xml.text("availabilityZone", &status.instance.availability_zone);
                    state(xml, "instanceState", status.state);
                    check(xml, "systemStatus", status.health);
                    check(xml, "instanceStatus", status.health);
                });
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn check(xml: &mut Xml, name: &str, health: Health) {
    xml.element(name, |xml| {
        xml.text("status", health.summary());
        if let Some(detail) = health.detail() {
            xml.raw("<details><item><name>reachability</name>");
            xml.text("status", detail);
            xml.raw("</item></details>");
        }
    });
}
