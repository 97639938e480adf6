//! Queries: the observations that the next decision needs.
//!
//! API calls are limited, so a reconcile observes in stages and only as much as its next decision needs: a stopping
//! worker costs no metrics call, and the sessions of a busy worker are not listed.

use std::fmt;

use super::context::{HandlerContext, Located};
use super::drain;
use super::handlers::decide;
use super::idle;
use super::instance::first_live;
use super::launch::{instance_type, unconfigured_region, wants_launch};
use super::lookup::Lookup;
use super::observation::Observation;
use super::open_sessions;
use super::policy::{Policy, ScaleDownPolicy};
use super::scale_down;
use super::session::count_active;
use super::status::{DesiredStatus, Ec2State, WorkerStatus};
use super::time::{self, Timestamp};
use super::wire_enum::vocabulary;
use super::worker::Worker;

vocabulary! {
    /// One part of an observation. Each fills the field of [`Observation`] with the same name.
    Query, "query" {
        /// The instance the record names, in the worker's own region.
        Instance = "instance",
        /// All instances whose tags name the worker, in its own region.
        Tagged = "tagged",
        /// Facts about the place in which the instance was looked up and not found.
        Place = "place",
        /// The worker's template.
        Template = "template",
        /// The AMIs that match the worker's pattern.
        Images = "images",
        /// The sessions assigned to the worker.
        Sessions = "sessions",
        /// Utilization from CloudWatch.
        CloudMetrics = "cloud_metrics",
        /// CML's system report, at the address EC2 showed.
        Cml = "cml",
        /// CML's registration status.
        Registration = "registration",
        /// CML's telemetry events, for an idle check that is due.
        Telemetry = "telemetry",
        /// The control plane's last verdict of idle detection, for a worker that a check must not pause.
        Idle = "idle",
        /// The fleet's running count and last scale-down.
        Fleet = "fleet",
    }
}

impl Query {
    /// Whether it sends a password or token to the worker's address.
    pub const fn sends_credentials(self) -> bool {
        match self {
            Self::Cml | Self::Registration | Self::Telemetry => true,
            Self::Instance
            | Self::Tagged
            | Self::Place
            | Self::Template
            | Self::Images
            | Self::Sessions
            | Self::CloudMetrics
            | Self::Idle
            | Self::Fleet => false,
        }
    }
}

/// A set of queries that can be sent concurrently.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Queries(u16);

impl Queries {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set with one more.
    #[must_use]
    pub const fn and(self, query: Query) -> Self {
        Self(self.0 | 1 << query as u16)
    }

    fn and_if(self, condition: bool, query: Query) -> Self {
        if condition { self.and(query) } else { self }
    }

    /// The union of two sets.
    const fn join(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a query is in the set.
    pub const fn contains(self, query: Query) -> bool {
        self.0 & (1 << query as u16) != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The queries in the set.
    pub fn iter(self) -> impl Iterator<Item = Query> {
        Query::ALL.iter().copied().filter(move |query| self.contains(*query))
    }
}

impl fmt::Debug for Queries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The queries to send before `decide` has all it needs. Send them, fill in the responses and call this again until the
/// set is empty, which takes four or five rounds at most.
///
/// ```
/// use lcm_sdk::{queries, Ec2State, Observation, Policy, Query, Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopping);
/// worker.ec2_instance_id = Some("i-1".into());
/// let (policy, now) = (Policy::default(), "2026-02-06T08:00:00Z".parse().unwrap());
///
/// let first = queries(&worker, &Observation::default(), &policy, now);
/// assert!(first.iter().eq([Query::Instance]));
/// let seen = Observation::with_instance_state("i-1", Ec2State::Stopping);
/// assert!(queries(&worker, &seen, &policy, now).is_empty());
/// ```
pub fn queries(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    let due = by_status(worker, seen, policy, now);
    // Its sessions end before the worker is terminated.
    let ends = || is_gone(worker, seen) && decide(worker, seen, policy, now).terminates();
    if due.is_empty() && seen.sessions.is_not_requested() && ends() { due.and(Query::Sessions) } else { due }
}

#[cfg(feature = "runtime")]
/// The AMI to describe before the decision, once no query is left: its details belong to the instance.
pub(crate) fn lacking_image<'a>(
    worker: &'a Worker,
    seen: &'a Observation,
    policy: &'a Policy,
    now: Timestamp,
) -> Option<&'a str> {
    HandlerContext { worker, observation: seen, policy, now }.lacking_image()
}

/// Whether EC2 may have shown that there is no instance. A quick check: only a decision is conclusive.
fn is_gone(worker: &Worker, seen: &Observation) -> bool {
    let found = if worker.ec2_instance_id.is_some() {
        !seen.instance.is_not_requested()
    } else {
        !seen.tagged.is_not_requested()
    };
    found && seen.instance_of(worker).is_none_or(|instance| instance.state == Ec2State::Terminated)
}

fn by_status(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    match worker.status {
        WorkerStatus::Pending => for_pending(worker, seen, policy, now),
        WorkerStatus::Running => for_running(worker, seen, policy, now),
        WorkerStatus::Draining => for_draining(worker, seen, policy, now),
        WorkerStatus::Stopping => for_stopping(worker, seen, policy, now),
        WorkerStatus::Provisioning
        | WorkerStatus::Starting
        | WorkerStatus::Stopped
        | WorkerStatus::Terminating
        | WorkerStatus::Unknown => locate(worker, seen, policy, now),
        WorkerStatus::Failed if worker.desired_status == Some(DesiredStatus::Terminated) => {
            match worker.ec2_instance_id {
                Some(_) => Queries::NONE,
                None => locate(worker, seen, policy, now),
            }
        }
        // An instance of a launch that failed the worker has no owner until the record names it.
        WorkerStatus::Failed => Queries::NONE.and_if(
            worker.ec2_instance_id.is_none()
                && seen.tagged.is_not_requested()
                && policy.regions.resolve(worker).is_ok(),
            Query::Tagged,
        ),
        WorkerStatus::Terminated => Queries::NONE
            .and_if(open_sessions::may_be_left_open(worker, now) && seen.sessions.is_not_requested(), Query::Sessions),
    }
}

/// Looks the instance up by id, or by tag if the record names none; then asks for proof if there is none.
fn locate(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    let ctx = HandlerContext { worker, observation: seen, policy, now };
    let lookup = if worker.ec2_instance_id.is_some() {
        Queries::NONE.and_if(seen.instance.is_not_requested(), Query::Instance)
    } else {
        Queries::NONE.and_if(seen.tagged.is_not_requested(), Query::Tagged)
    };
    lookup.and_if(ctx.absence_awaits_proof(), Query::Place)
}

fn for_pending(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    let ctx = HandlerContext { worker, observation: seen, policy, now };
    if worker.ec2_instance_id.is_some() {
        let first = locate(worker, seen, policy, now);
        if !first.is_empty() {
            return first;
        }
        // Only an instance that ended is followed by a launch.
        match ctx.locate() {
            Ok(Located::Gone(_) | Located::Nowhere) => {}
            Ok(Located::Here(_)) | Err(_) => return Queries::NONE,
        }
    }
    if seen.tagged.is_not_requested() {
        return Queries::NONE.and_if(unconfigured_region(worker, policy).is_none(), Query::Tagged);
    }
    if ctx.absence_awaits_proof() {
        return Queries::NONE.and(Query::Place);
    }
    let place_unknown = seen.place.is_not_requested();
    let none_launched = match &seen.tagged {
        Lookup::Found(instances) => first_live(instances).is_none(),
        Lookup::Absent => true,
        Lookup::NotRequested | Lookup::Unknown(_) => false,
    };
    if !wants_launch(worker) || !none_launched {
        return Queries::NONE;
    }
    if worker.notes.launch_plan.is_some() {
        // Only the expected account may repeat a launch.
        return Queries::NONE.and_if(place_unknown && policy.aws_account_id.is_some(), Query::Place);
    }
    if worker.template_name.is_none() {
        return Queries::NONE;
    }
    let template = Queries::NONE.and_if(seen.template.is_not_requested(), Query::Template);
    let is_complete = policy.regions.resolve(worker).is_ok()
        && seen.template.found().is_some_and(|template| instance_type(worker, template).is_some());
    // The place of the AMIs last: if there are none, they are listed again by the same caller.
    let are_listed = matches!(seen.images, Lookup::Found(_) | Lookup::Absent);
    template
        .and_if(is_complete && seen.images.is_not_requested(), Query::Images)
        .and_if(is_complete && are_listed && place_unknown, Query::Place)
}

fn for_running(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    match worker.desired_status {
        Some(DesiredStatus::Stopped | DesiredStatus::Terminated) => return Queries::NONE,
        None | Some(DesiredStatus::Running) => {}
    }
    let first = locate(worker, seen, policy, now);
    if !first.is_empty() {
        return first;
    }
    let Some(instance) = seen.instance_of(worker).filter(|instance| instance.state == Ec2State::Running) else {
        return Queries::NONE;
    };
    let has_address = instance.address().is_some();
    let fresh = seen.metrics_reported_at.is_some_and(|at| time::is_recent(at, now, policy.metrics_interval));
    let license_is_due = has_address && worker.license.needs_cml();
    let together = Queries::NONE
        .and_if(!fresh && seen.cloud_metrics.is_not_requested(), Query::CloudMetrics)
        .and_if(!fresh && has_address && seen.cml.is_not_requested(), Query::Cml)
        .and_if(license_is_due && seen.registration.is_not_requested(), Query::Registration)
        .join(for_idle_check(worker, seen, policy, now));
    if together.is_empty() { for_scale_down(seen, &policy.scale_down, now) } else { together }
}

/// The sessions before the telemetry: a check could pause a worker under its active sessions. For such a worker the last
/// verdict is read instead, and for every worker if scale-down is on, which could not act on a paused one.
fn for_idle_check(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    let is_due = seen.idle.is_not_requested()
        && idle::check_is_due(worker, seen.idle_checked_at, policy.idle_detection_interval, now);
    match &seen.sessions {
        Lookup::NotRequested => Queries::NONE.and_if(is_due, Query::Sessions),
        Lookup::Found(sessions) => Queries::NONE
            .and_if(is_due && seen.telemetry.is_not_requested(), Query::Telemetry)
            .and_if(is_due && (policy.scale_down.enabled || count_active(sessions) > 0), Query::Idle),
        Lookup::Absent | Lookup::Unknown(_) => Queries::NONE,
    }
}

/// The fleet before the sessions, and neither for a worker in use.
fn for_scale_down(seen: &Observation, policy: &ScaleDownPolicy, now: Timestamp) -> Queries {
    let candidate =
        seen.idle.found().map(|report| idle::corrected(report, &seen.sessions, &seen.telemetry, now)).is_some_and(
            |report| policy.enabled && report.is_conclusive() && scale_down::worker_guards(&report).is_none(),
        );
    match &seen.fleet {
        Lookup::NotRequested if candidate => Queries::NONE.and(Query::Fleet),
        Lookup::Found(fleet)
            if candidate
                && seen.sessions.is_not_requested()
                && scale_down::fleet_guards(fleet, policy, now).is_none() =>
        {
            Queries::NONE.and(Query::Sessions)
        }
        Lookup::NotRequested | Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_) => Queries::NONE,
    }
}

fn for_draining(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    let first = locate(worker, seen, policy, now);
    let Some(instance) = seen.instance_of(worker).filter(|_| first.is_empty()) else { return first };
    let sessions = Queries::NONE.and_if(seen.sessions.is_not_requested(), Query::Sessions);
    match instance.state {
        Ec2State::Running if drain::is_wanted_again(worker) => Queries::NONE,
        Ec2State::Running => {
            sessions.and_if(worker.template_name.is_some() && seen.template.is_not_requested(), Query::Template)
        }
        // Stopped under its sessions: failed ones cannot be retried any more, and waiting ones are handed back.
        Ec2State::Stopping | Ec2State::Stopped => sessions,
        Ec2State::Pending | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => Queries::NONE,
    }
}

fn for_stopping(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Queries {
    let first = locate(worker, seen, policy, now);
    let settles = drain::until_settled(worker, policy, now).is_some();
    if !first.is_empty() || !scale_down::stop_spares_sessions(worker) || settles {
        return first;
    }
    let is_up = seen.instance_of(worker).is_some_and(|instance| instance.state == Ec2State::Running);
    Queries::NONE.and_if(is_up && seen.sessions.is_not_requested(), Query::Sessions)
}
