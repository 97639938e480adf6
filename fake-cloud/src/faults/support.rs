//! Which actions mean something to which service. A rule that would strike for nothing is a mistake somebody should hear
//! of when it is made, not when a test passes for the wrong reason.

use super::rule::{Action, RuleError};
use crate::service::Service;

/// The faults only CML knows, by name.
pub(crate) const OF_CML: [&str; 3] = ["bad-gateway", "not-ready", "unauthorized"];
/// The faults only the control plane knows, by name.
pub(crate) const OF_CONTROL_PLANE: [&str; 1] = ["bad-gateway"];

pub(super) fn check(action: &Action, service: Service) -> Result<(), RuleError> {
    let accepted = match service {
        Service::Ec2 => "error, latency, reset, drop-response, visibility-lag, omit, empty-page, partial-page, shuffle",
        Service::Cloudwatch => "error, latency, reset, drop-response, empty-page, partial-page",
        Service::Cml => "error, latency, reset, drop-response, custom with bad-gateway, not-ready or unauthorized",
        Service::Etcd => "error, latency, reset, drop-response, custom with the name of a fault of etcd",
        Service::ControlPlane => "error, latency, reset, drop-response, custom with bad-gateway",
    };
    let means_something = match action {
        Action::Error { .. } | Action::Latency { .. } | Action::Reset | Action::DropResponse => true,
        Action::EmptyPage | Action::PartialPage { .. } => matches!(service, Service::Ec2 | Service::Cloudwatch),
        Action::VisibilityLag { .. } | Action::Omit { .. } | Action::Shuffle => service == Service::Ec2,
        Action::Custom { name, .. } => match service {
            Service::Ec2 | Service::Cloudwatch => false,
            Service::Cml => OF_CML.contains(&name.as_str()),
            Service::ControlPlane => OF_CONTROL_PLANE.contains(&name.as_str()),
            // etcd names its own, and says so in its own words.
            Service::Etcd => true,
        },
    };
    if means_something {
        return Ok(());
    }
    Err(RuleError::Meaningless { action: name(action), service: service.name(), accepted })
}

fn name(action: &Action) -> String {
    match action {
        Action::Error { .. } => "error",
        Action::Latency { .. } => "latency",
        Action::Reset => "reset",
        Action::DropResponse => "drop-response",
        Action::VisibilityLag { .. } => "visibility-lag",
        Action::Omit { .. } => "omit",
        Action::EmptyPage => "empty-page",
        Action::PartialPage { .. } => "partial-page",
        Action::Shuffle => "shuffle",
        Action::Custom { name, .. } => name,
    }
    .to_owned()
}
