//! Status checks of instances (DescribeInstanceStatus).

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::ec2::{Region, later};
use super::error::AwsError;
use super::filter::{Field, Filters};
use super::instance::{Instance, InstanceState};
use super::page::{Page, PageRequest};
use super::view::View;

/// Result of the status checks of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The checks pass.
    Ok,
    /// The checks have no result yet.
    Initializing,
    /// The instance is not running.
    NotApplicable,
}

impl Health {
    /// Returns the value of `InstanceStatus.Status`.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Initializing => "initializing",
            Self::NotApplicable => "not-applicable",
        }
    }

    /// Returns the value of the `reachability` detail; `None` if EC2 omits the details.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Self::Ok => Some("passed"),
            Self::Initializing => Some("initializing"),
            Self::NotApplicable => None,
        }
    }
}

/// An instance and the result of its status checks.
#[derive(Debug, Clone)]
pub struct InstanceStatus {
    /// The checked instance.
    pub instance: Arc<Instance>,
    /// State at the time of the request.
    pub state: InstanceState,
    /// Result of the checks.
    pub health: Health,
}

/// Instance states included in DescribeInstanceStatus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusScope {
    /// Running instances only, the default of EC2.
    Running,
    /// All instances (`IncludeAllInstances`).
    All,
}

/// Parameters of DescribeInstanceStatus.
#[derive(Debug, Clone)]
pub struct StatusQuery {
    /// Instance ids; empty selects all instances.
    pub ids: Vec<String>,
    /// Included instance states.
    pub scope: StatusScope,
    /// Filters that the selected instances must match.
    pub filters: Filters<StatusField>,
    /// Page size and start.
    pub page: PageRequest,
}

/// Filter fields of DescribeInstanceStatus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusField {
    /// Filter name `availability-zone`.
    AvailabilityZone,
    /// Filter name `instance-state-code`.
    StateCode,
    /// Filter name `instance-state-name`.
    StateName,
    /// Filter names `instance-status.status` and `system-status.status`.
    Summary,
    /// Filter names `instance-status.reachability` and `system-status.reachability`.
    Reachability,
}

impl Field for StatusField {
    type Resource = InstanceStatus;

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "availability-zone" => Self::AvailabilityZone,
            "instance-state-code" => Self::StateCode,
            "instance-state-name" => Self::StateName,
            "instance-status.status" | "system-status.status" => Self::Summary,
            "instance-status.reachability" | "system-status.reachability" => Self::Reachability,
            _ => return None,
        })
    }

    fn any(&self, status: &InstanceStatus, _now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::AvailabilityZone => test(&status.instance.availability_zone),
            Self::StateCode => test(&status.state.code().to_string()),
            Self::StateName => test(status.state.name()),
            Self::Summary => test(status.health.summary()),
            Self::Reachability => status.health.detail().is_some_and(test),
        }
    }
}

impl Region {
    /// Returns the selected statuses, subject to the faults in `view`. Checks pass `checks` after the start.
    ///
    /// # Errors
    /// The errors of [`Region::select`].
    pub fn select_status(
        &self,
        query: &StatusQuery,
        checks: Duration,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<Page<InstanceStatus>, AwsError> {
        let page = query.page.cut(view.page);
        let wanted = |instance: &Arc<Instance>| {
            let status = status(instance, checks, now);
            let in_scope = match query.scope {
                StatusScope::Running => status.state == InstanceState::Running,
                StatusScope::All => true,
            };
            (in_scope && query.filters.match_all(&status, now)).then_some((instance.sequence, status))
        };
        let mut selected = if query.ids.is_empty() {
            let listed = self.instances.range(page.from..).map(|(_, instance)| instance);
            Page::collect(page, listed.filter(|instance| view.lists(instance, now)).filter_map(wanted))
        } else {
            let found = self.find_all(&query.ids, view, now)?;
            Page { next_token: None, ..Page::collect(page, found.iter().filter_map(wanted)) }
        };
        view.shuffle_items(&mut selected.items);
        Ok(selected)
    }
}

fn status(instance: &Arc<Instance>, checks: Duration, now: DateTime<Utc>) -> InstanceStatus {
    let health = match instance.running_since(now) {
        Some(since) if later(since, checks) <= now => Health::Ok,
        Some(_) => Health::Initializing,
        None => Health::NotApplicable,
    };
    InstanceStatus { instance: Arc::clone(instance), state: instance.state(now), health }
}
