//! RunInstances, DescribeInstances, DescribeInstanceStatus, and the actions that change the state of instances.

use super::form::Form;
use super::instance_xml::{InstanceList, reservation_head, state};
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{
    AwsError, Health, InstanceAction, InstanceQuery, LaunchRequest, Monitoring, StateChange, StatusQuery, StatusScope,
    hash_text,
};

/// Maximum length of user data in base64, which is 16 KB decoded.
const MAX_USER_DATA: usize = 16 * 1024 * 4 / 3 + 4;

pub(super) fn run_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let parameters = launch_request(request.form)?;
    let intent = request.form.intent()?;
    let (launch, now) = request
        .world
        .with_ec2(|ec2, now| ec2.launch(request.region, parameters, intent, now).map(|launch| (launch, now)))?;
    let before = |xml: &mut Xml| {
        reservation_head(xml, &launch.reservation_id);
        xml.open("instancesSet");
    };
    let instances = InstanceList::from_launch(launch.instances, launch.kind, now);
    Ok(request.respond_with_instances("RunInstances", before, instances, |xml| xml.close("instancesSet")))
}

fn launch_request(form: &Form<'_>) -> Result<LaunchRequest, AwsError> {
    let user_data = form.get("UserData").filter(|data| !data.is_empty());
    if user_data.is_some_and(|data| data.len() > MAX_USER_DATA) {
        return Err(AwsError::new("InvalidParameterValue", "User data is limited to 16384 bytes"));
    }
    let mut groups = form.list("SecurityGroupId");
    groups.extend(form.list("SecurityGroup"));
    groups.extend(form.list("NetworkInterface.1.SecurityGroupId"));
    let optional = |name: &str| form.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(LaunchRequest {
        image_id: form.need("ImageId")?.to_owned(),
        instance_type: form.get("InstanceType").unwrap_or("m1.small").to_owned(),
        min_count: form.need_count("MinCount")?,
        max_count: form.need_count("MaxCount")?,
        subnet_id: optional("SubnetId").or_else(|| optional("NetworkInterface.1.SubnetId")),
        groups,
        key_name: optional("KeyName"),
        profile: optional("IamInstanceProfile.Arn").or_else(|| optional("IamInstanceProfile.Name")),
        monitoring: if form.flag("Monitoring.Enabled")? { Monitoring::Detailed } else { Monitoring::Basic },
        client_token: optional("ClientToken"),
        tags: instance_tags(form)?,
        user_data_digest: user_data.map(hash_text),
    })
}

fn instance_tags(form: &Form<'_>) -> Result<Vec<(String, String)>, AwsError> {
    let mut tags: Vec<(String, String)> = Vec::new();
    for specification in form.members("TagSpecification") {
        let kind = form.need(&format!("{specification}.ResourceType"))?;
        let mut own = Vec::new();
        for tag in form.members(&format!("{specification}.Tag")) {
            let key = form.need(&format!("{tag}.Key"))?;
            own.push((key.to_owned(), form.get(&format!("{tag}.Value")).unwrap_or_default().to_owned()));
        }
        match kind {
            "instance" => tags.extend(own),
            // Volumes and network interfaces are not modeled and have no tags.
            "volume" | "network-interface" | "spot-instances-request" | "elastic-gpu" => {}
            other => {
                let message = format!("'{other}' is not a valid taggable resource type for this operation.");
                return Err(AwsError::new("InvalidParameterValue", message));
            }
        }
    }
    for (index, (key, _)) in tags.iter().enumerate() {
        if tags[..index].iter().any(|(earlier, _)| earlier == key) {
            return Err(AwsError::new("InvalidParameterValue", format!("Duplicate tag key '{key}' specified.")));
        }
    }
    Ok(tags)
}

pub(super) fn describe_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
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

fn ids_with_page() -> AwsError {
    let message = "The parameter instancesSet cannot be used with the parameter maxResults";
    AwsError::new("InvalidParameterCombination", message)
}

pub(super) fn describe_instance_status(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
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
    Ok(request.respond("DescribeInstanceStatus", page.items.len() * 640, |xml| {
        xml.element("instanceStatusSet", |xml| {
            for status in &page.items {
                xml.element("item", |xml| {
                    xml.text("instanceId", &status.instance.id);
                    xml.text("availabilityZone", &status.instance.availability_zone);
                    state(xml, "instanceState", status.state);
                    status_check(xml, "systemStatus", status.health);
                    status_check(xml, "instanceStatus", status.health);
                });
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn status_check(xml: &mut Xml, name: &str, health: Health) {
    xml.element(name, |xml| {
        xml.text("status", health.summary());
        if let Some(detail) = health.detail() {
            xml.raw("<details><item><name>reachability</name>");
            xml.text("status", detail);
            xml.raw("</item></details>");
        }
    });
}

pub(super) fn start_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let changes = change_state(request, InstanceAction::Start)?;
    Ok(state_changes(request, "StartInstances", &changes))
}

pub(super) fn stop_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    for flag in ["Force", "Hibernate", "SkipOsShutdown"] {
        request.form.flag(flag)?;
    }
    let changes = change_state(request, InstanceAction::Stop)?;
    Ok(state_changes(request, "StopInstances", &changes))
}

pub(super) fn reboot_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    change_state(request, InstanceAction::Reboot)?;
    Ok(request.respond_true("RebootInstances"))
}

pub(super) fn terminate_instances(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let changes = change_state(request, InstanceAction::Terminate)?;
    Ok(state_changes(request, "TerminateInstances", &changes))
}

fn change_state(request: &Request<'_>, action: InstanceAction) -> Result<Vec<StateChange>, AwsError> {
    let ids = request.form.need_list("InstanceId")?;
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
