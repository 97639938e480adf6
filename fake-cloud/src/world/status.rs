//! Status checks: how the two checks of an instance stand.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::ec2::{Region, later};
use super::error::AwsError;
use super::filter::{Field, Filters};
use super::instance::{Instance, InstanceState};
use super::page::{Page, PageRequest};
use super::view::View;

/// How a check stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It passes.
    Ok,
    /// It has not come to a result yet.
    Initializing,
    /// There is nothing to check.
    NotApplicable,
}

impl Health {
    /// EC2's word for the summary.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Initializing => "initializing",
            Self::NotApplicable => "not-applicable",
        }
    }

    /// EC2's word for the detail, where there is one.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Self::Ok => Some("passed"),
            Self::Initializing => Some("initializing"),
            Self::NotApplicable => None,
        }
    }
}

/// An instance and how its checks stand.
#[derive(Debug, Clone)]
pub struct InstanceStatus {
    /// The instance.
    pub instance: Arc<Instance>,
    /// Its state.
    pub state: InstanceState,
    /// Its checks.
    pub health: Health,
}

/// Which instances to describe the status of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusScope {
    /// Those that run.
    Running,
    /// All of them.
    All,
}

/// What DescribeInstanceStatus is asked for.
#[derive(Debug, Clone)]
pub struct StatusQuery {
    /// These; all when empty.
    pub ids: Vec<String>,
    /// Of them, those in scope.
    pub scope: StatusScope,
    /// Of them, those that pass.
    pub filters: Filters<StatusField>,
    /// Of them, this part.
    pub page: PageRequest,
}

/// What one can filter statuses by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusField {
    /// `availability-zone`
    AvailabilityZone,
    /// `instance-state-code`
    StateCode,
    /// `instance-state-name`
    StateName,
    /// `instance-status.status`, `system-status.status`
    Summary,
    /// `instance-status.reachability`, `system-status.reachability`
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
    /// The statuses a caller asks for, as it sees them.
    ///
    /// # Errors
    /// As [`Region::select`].
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
            (in_scope && query.filters.pass(&status, now)).then_some((instance.sequence, status))
        };
        let mut selected = if query.ids.is_empty() {
            let listed = self.instances.range(page.from..).map(|(_, instance)| instance);
            Page::collect(page, listed.filter(|instance| view.lists(instance, now)).filter_map(wanted))
        } else {
            let found = self.find_all(&query.ids, view, now)?;
            Page { next_token: None, ..Page::collect(page, found.iter().filter_map(wanted)) }
        };
        view.arrange(&mut selected.items);
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
