//! StartInstances, StopInstances, RebootInstances, TerminateInstances.

use super::Request;
use super::instance_xml::state;
use crate::answer::Answer;
use crate::world::{AwsError, Order, StateChange};

pub(super) fn start_instances(request: &Request<'_>) -> Result<Answer, AwsError> {
    let changes = give(request, Order::Start)?;
    Ok(answer(request, "StartInstances", &changes))
}

pub(super) fn stop_instances(request: &Request<'_>) -> Result<Answer, AwsError> {
    for flag in ["Force", "Hibernate", "SkipOsShutdown"] {
        request.form.flag(flag)?;
    }
    let changes = give(request, Order::Stop)?;
    Ok(answer(request, "StopInstances", &changes))
}

pub(super) fn reboot_instances(request: &Request<'_>) -> Result<Answer, AwsError> {
    give(request, Order::Reboot)?;
    Ok(request.done("RebootInstances"))
}

pub(super) fn terminate_instances(request: &Request<'_>) -> Result<Answer, AwsError> {
    let changes = give(request, Order::Terminate)?;
    Ok(answer(request, "TerminateInstances", &changes))
}

fn give(request: &Request<'_>, order: Order) -> Result<Vec<StateChange>, AwsError> {
    let ids = request.form.need_list("InstanceId")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| ec2.order(request.region, &ids, order, intent, request.view, now))
}

fn answer(request: &Request<'_>, action: &str, changes: &[StateChange]) -> Answer {
    request.answer(action, changes.len() * 256, |xml| {
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
