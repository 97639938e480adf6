//! Status checks of instances (DescribeInstanceStatus).

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::disruption::CheckResult;
use super::ec2::{Region, later};
use super::error::AwsError;
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
    /// The checks fail.
    Impaired,
    /// The checks have no data.
    InsufficientData,
    /// The instance is not running.
    NotApplicable,
}

impl Health {
    /// Returns the value of `InstanceStatus.Status`.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Initializing => "initializing",
            Self::Impaired => "impaired",
            Self::InsufficientData => "insufficient-data",
            Self::NotApplicable => "not-applicable",
        }
    }

    /// Returns the value of the `reachability` detail; `None` if EC2 omits the details.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Self::Ok => Some("passed"),
            Self::Initializing => Some("initializing"),
            Self::Impaired => Some("failed"),
            Self::InsufficientData => Some("insufficient-data"),
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
    /// Result of the check of the host.
    pub system: Health,
    /// Result of the check of the instance.
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
    /// Page size and start.
    pub page: PageRequest,
}

impl Region {
    /// Returns the selected statuses that pass a test, subject to the faults in `view`. Checks pass `checks` after the
    /// start.
    ///
    /// # Errors
    /// The errors of [`Region::select`].
    pub fn select_status(
        &self,
        query: &StatusQuery,
        checks: Duration,
        view: &View,
        now: DateTime<Utc>,
        test: impl Fn(&InstanceStatus) -> bool,
    ) -> Result<Page<InstanceStatus>, AwsError> {
        let page = query.page.cut(view.page);
        let wanted = |instance: &Arc<Instance>| {
            let status = status(instance, checks, now);
            let in_scope = match query.scope {
                StatusScope::Running => status.state == InstanceState::Running,
                StatusScope::All => true,
            };
            (in_scope && test(&status)).then_some((instance.sequence, status))
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
    let since = instance.running_since(now);
    let health = |imposed: Option<CheckResult>| match (since, imposed) {
        (None, _) => Health::NotApplicable,
        (Some(_), Some(CheckResult::Impaired)) => Health::Impaired,
        (Some(_), Some(CheckResult::InsufficientData)) => Health::InsufficientData,
        (Some(since), None) if later(since, checks) <= now => Health::Ok,
        (Some(_), None) => Health::Initializing,
    };
    InstanceStatus {
        instance: Arc::clone(instance),
        state: instance.state(now),
        system: health(instance.extra.checks.system),
        health: health(instance.extra.checks.instance),
    }
}
