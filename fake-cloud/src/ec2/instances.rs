//! RunInstances, DescribeInstances, DescribeInstanceStatus, and the actions that change the state of instances.

use chrono::{DateTime, Utc};

use super::described::Described;
use super::instance_xml::{InstanceList, has_network, instance_fields, reservation_head, state, tag_set};
use super::parse_launch::launch_request;
use super::{Request, Xml, templates};
use crate::response::ResponseBody;
use crate::world::{
    AwsError, Field, Filters, Health, Instance, InstanceAction, InstanceField, InstanceQuery, InstanceState,
    InstanceStatus, Region, StateChange, StatusQuery, StatusScope,
};

pub(super) fn run_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let merged = templates::with_template(request)?;
    let form = merged.as_ref().map_or(request.form, |merged| &merged.form);
    let mut parameters = launch_request(request, form)?;
    parameters.system_tags = merged.as_ref().map(|merged| merged.tags.clone()).unwrap_or_default();
    let intent = request.form.intent()?;
    let (launch, now) = request
        .world
        .with_ec2(|ec2, now| ec2.launch(request.region, parameters, intent, now).map(|launch| (launch, now)))?;
    let before = |xml: &mut Xml| {
        reservation_head(xml, &launch.reservation_id, request.account);
        xml.open("instancesSet");
    };
    let instances = InstanceList::from_launch(launch.instances, launch.kind, now);
    Ok(request.respond_with_instances("RunInstances", before, instances, |xml| xml.close("instancesSet")))
}

pub(super) fn describe_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    form.flag("IncludeManagedResources")?;
    // Frequent filters read the instance; all others read its encoding.
    let (fast, slow): (Vec<_>, Vec<_>) =
        form.sent_filters()?.into_iter().partition(|(name, _)| InstanceField::parse(name).is_some());
    let described = Described::parse("DescribeInstances", &slow)?;
    let fast = fast.iter().map(|(name, values)| (*name, values.iter().map(String::as_str).collect()));
    let query = InstanceQuery { ids: form.list("InstanceId"), filters: Filters::parse(fast)?, page: form.page()? };
    if !query.ids.is_empty() && form.get("MaxResults").is_some() {
        return Err(ids_with_page());
    }
    let intent = form.intent()?;
    let (page, now) = request.world.with_ec2(|ec2, now| {
        let region = &*ec2.region(request.region, now)?;
        let passes = |instance: &Instance| {
            described.is_empty() || described.match_all(&encoded_for_filters(instance, region, now))
        };
        let page = region.select_if(&query, request.view, now, passes)?;
        intent.proceed()?;
        Ok::<_, AwsError>((page, now))
    })?;
    let after = |xml: &mut Xml| {
        xml.close("reservationSet");
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    };
    let before = |xml: &mut Xml| xml.open("reservationSet");
    Ok(request.respond_with_instances(
        "DescribeInstances",
        before,
        InstanceList::from_selection(page.items, now),
        after,
    ))
}

/// Encodes an instance, and what EC2 filters on without showing it.
fn encoded_for_filters(instance: &Instance, region: &Region, now: DateTime<Utc>) -> Vec<u8> {
    let mut xml = Xml::fragment();
    instance_fields(&mut xml, instance, instance.state(now), now);
    if has_network(instance.state(now)) {
        xml.element("unlisted", |xml| {
            for id in instance.interface_ids() {
                tag_set(xml, region.tags_of(id));
            }
            xml.element("attached", |xml| {
                xml.text("instanceId", &instance.id);
                xml.text("availabilityZone", &instance.availability_zone);
                xml.raw("<requesterManaged>false</requesterManaged><managed>false</managed>");
                xml.raw("<denyAllIgwTraffic>false</denyAllIgwTraffic><ipv6Native>false</ipv6Native>");
            });
        });
    }
    xml.finish()
}

fn ids_with_page() -> AwsError {
    let message = "The parameter instancesSet cannot be used with the parameter maxResults";
    AwsError::new("InvalidParameterCombination", message)
}

pub(super) fn describe_instance_status(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    form.flag("IncludeManagedResources")?;
    let filters = Described::parse("DescribeInstanceStatus", &form.sent_filters()?)?;
    let query = StatusQuery {
        ids: form.list("InstanceId"),
        scope: if form.flag("IncludeAllInstances")? { StatusScope::All } else { StatusScope::Running },
        page: form.page()?,
    };
    if !query.ids.is_empty() && form.get("MaxResults").is_some() {
        return Err(ids_with_page());
    }
    let intent = form.intent()?;
    let checks = request.world.settings().delays.status_checks;
    let (page, now) = request.world.with_ec2(|ec2, now| {
        let region = &*ec2.region(request.region, now)?;
        let passes = |status: &InstanceStatus| {
            filters.is_empty() || {
                let mut xml = Xml::fragment();
                status_fields(&mut xml, status, now);
                filters.match_all(&xml.finish())
            }
        };
        let page = region.select_status(&query, checks, request.view, now, passes)?;
        intent.proceed()?;
        Ok::<_, AwsError>((page, now))
    })?;
    Ok(request.respond("DescribeInstanceStatus", page.items.len() * 900, |xml| {
        xml.element("instanceStatusSet", |xml| {
            for status in &page.items {
                xml.element("item", |xml| status_fields(xml, status, now));
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn status_fields(xml: &mut Xml, status: &InstanceStatus, now: DateTime<Utc>) {
    let instance = &status.instance;
    xml.text("instanceId", &instance.id);
    xml.text("availabilityZone", &instance.availability_zone);
    if let Some(id) = instance.zone_id {
        xml.text("availabilityZoneId", id);
    }
    if !instance.extra.events.is_empty() {
        xml.element("eventsSet", |xml| {
            for event in &instance.extra.events {
                xml.element("item", |xml| {
                    xml.text("instanceEventId", &event.id);
                    xml.text("code", event.code.name());
                    xml.text("description", &event.description(now));
                    xml.timestamp("notBefore", event.not_before);
                    xml.timestamp("notAfter", event.not_after);
                });
            }
        });
    }
    state(xml, "instanceState", status.state);
    let since = instance.extra.checks.since;
    status_check(xml, "systemStatus", status.system, since);
    status_check(xml, "instanceStatus", status.health, since);
    if status.state == InstanceState::Running {
        xml.raw(
            "<attachedEbsStatus><status>ok</status><details><item><name>reachability</name><status>passed</status>",
        );
        xml.raw("</item></details></attachedEbsStatus>");
    }
    xml.raw("<operator><managed>false</managed></operator>");
}

fn status_check(xml: &mut Xml, name: &str, health: Health, since: Option<DateTime<Utc>>) {
    xml.element(name, |xml| {
        xml.text("status", health.summary());
        if let Some(detail) = health.detail() {
            xml.raw("<details><item><name>reachability</name>");
            xml.text("status", detail);
            if let (Health::Impaired, Some(since)) = (health, since) {
                xml.timestamp("impairedSince", since);
            }
            xml.raw("</item></details>");
        }
    });
}

pub(super) fn start_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let changes = change_state(request, InstanceAction::Start)?;
    Ok(state_changes(request, "StartInstances", &changes))
}

pub(super) fn stop_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    // Forced or not, a stop takes the same time here.
    for flag in ["Force", "SkipOsShutdown"] {
        request.form.flag(flag)?;
    }
    let hibernates = request.form.flag("Hibernate")?;
    let changes = change_state(request, if hibernates { InstanceAction::Hibernate } else { InstanceAction::Stop })?;
    Ok(state_changes(request, "StopInstances", &changes))
}

pub(super) fn reboot_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    change_state(request, InstanceAction::Reboot)?;
    Ok(request.respond_true("RebootInstances"))
}

pub(super) fn terminate_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    for flag in ["Force", "SkipOsShutdown"] {
        request.form.flag(flag)?;
    }
    let changes = change_state(request, InstanceAction::Terminate)?;
    Ok(state_changes(request, "TerminateInstances", &changes))
}

fn change_state(request: &Request<'_>, action: InstanceAction) -> Result<Vec<StateChange>, AwsError> {
    let ids = request.form.list("InstanceId");
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| ec2.change_state(request.region, &ids, action, intent, request.view, now))
}

fn state_changes(request: &Request<'_>, action: &str, changes: &[StateChange]) -> ResponseBody {
    request.respond(action, changes.len() * 256, |xml| {
        xml.element("instancesSet", |xml| {
            for change in changes {
                xml.element("item", |xml| {
                    xml.text("instanceId", &change.instance_id);
                    state(xml, "currentState", change.current);
                    state(xml, "previousState", change.previous);
                });
            }
        });
    })
}
