//! Statuses: of the record, desired by the owner, and reported by EC2.
//!
//! All three are parsed in any case and written in lower case, as the control plane and EC2 do.

use super::wire_enum::vocabulary;

vocabulary! {
    /// The status of a worker, as on its record.
    ///
    /// ```
    /// use lcm_sdk::WorkerStatus;
    ///
    /// assert_eq!("RUNNING".parse(), Ok(WorkerStatus::Running));
    /// assert_eq!("shutting-down".parse(), Ok(WorkerStatus::Terminating));
    /// let error = "asleep".parse::<WorkerStatus>().unwrap_err();
    /// assert!(error.to_string().starts_with(r#""asleep" is not a worker status; accepted: pending, "#));
    /// ```
    WorkerStatus, "worker status" {
        /// A record without an instance: the request to launch one.
        Pending = "pending",
        /// An instance was launched and is not up yet.
        Provisioning = "provisioning",
        /// The instance is coming up: waiting for an address, or on the way back from stopped.
        Starting = "starting",
        /// In service. The only status in which new sessions are placed.
        Running = "running",
        /// Serving its last sessions; takes no new ones.
        Draining = "draining",
        /// On the way to stopped.
        Stopping = "stopping",
        /// The instance is stopped and keeps its disks.
        Stopped = "stopped",
        /// On the way to terminated.
        Terminating = "terminating" | "shutting-down",
        /// The instance is gone for good.
        Terminated = "terminated",
        /// An operator is needed: to reset it to pending, or to request termination.
        Failed = "failed",
        /// EC2 reported an unknown state; verified again every cycle.
        Unknown = "unknown",
    }
}

impl WorkerStatus {
    /// Whether a worker stays in the status until something happens: in service, or at rest.
    pub const fn is_settled(self) -> bool {
        match self {
            Self::Running | Self::Stopped | Self::Terminated | Self::Failed => true,
            Self::Pending
            | Self::Provisioning
            | Self::Starting
            | Self::Draining
            | Self::Stopping
            | Self::Terminating
            | Self::Unknown => false,
        }
    }

    /// Whether the scheduler may place a new session on a worker in this status.
    pub const fn accepts_sessions(self) -> bool {
        match self {
            Self::Running => true,
            Self::Pending
            | Self::Provisioning
            | Self::Starting
            | Self::Draining
            | Self::Stopping
            | Self::Stopped
            | Self::Terminating
            | Self::Terminated
            | Self::Failed
            | Self::Unknown => false,
        }
    }
}

vocabulary! {
    /// The status that the owner of a worker wants; `None` means no opinion.
    DesiredStatus, "desired status" {
        /// In service, with an instance running.
        Running = "running",
        /// Stopped, disks kept.
        Stopped = "stopped",
        /// Gone for good.
        Terminated = "terminated",
    }
}

vocabulary! {
    /// The state EC2 reports for an instance.
    ///
    /// EC2 may return a state that is not listed here; [`Ec2State::from_wire`] keeps it as [`Ec2State::Other`] instead
    /// of failing.
    Ec2State, "state of an EC2 instance" {
        /// Being prepared, after a launch or a start.
        Pending = "pending",
        /// Up, and billed.
        Running = "running",
        /// On the way to stopped.
        Stopping = "stopping",
        /// Stopped, disks kept.
        Stopped = "stopped",
        /// On the way to terminated.
        ShuttingDown = "shutting-down",
        /// Gone; EC2 still shows it for about an hour.
        Terminated = "terminated",
        /// A state that this version does not know.
        Other = "other",
    }
}

impl Ec2State {
    /// Parses EC2's spelling; an unknown state becomes [`Ec2State::Other`].
    pub fn from_wire(word: &str) -> Self {
        word.parse().unwrap_or(Self::Other)
    }

    /// The worker status that corresponds to this EC2 state.
    ///
    /// ```
    /// use lcm_sdk::{Ec2State, WorkerStatus};
    ///
    /// assert_eq!(Ec2State::Pending.worker_status(), WorkerStatus::Provisioning);
    /// assert_eq!(Ec2State::from_wire("hibernating").worker_status(), WorkerStatus::Unknown);
    /// ```
    pub const fn worker_status(self) -> WorkerStatus {
        match self {
            Self::Pending => WorkerStatus::Provisioning,
            Self::Running => WorkerStatus::Running,
            Self::Stopping => WorkerStatus::Stopping,
            Self::Stopped => WorkerStatus::Stopped,
            Self::ShuttingDown => WorkerStatus::Terminating,
            Self::Terminated => WorkerStatus::Terminated,
            Self::Other => WorkerStatus::Unknown,
        }
    }

    /// Whether the instance exists and can still run, and therefore must have an owner.
    ///
    /// An unknown state counts as live, because treating it as dead could leak the instance.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Stopping | Self::Stopped | Self::Other => true,
            Self::ShuttingDown | Self::Terminated => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ec2_states_map_to_the_statuses_of_the_lifecycle_document() {
        let mapped: Vec<_> =
            Ec2State::ALL.iter().map(|state| (state.as_str(), state.worker_status().as_str())).collect();
        assert_eq!(
            mapped,
            [
                ("pending", "provisioning"),
                ("running", "running"),
                ("stopping", "stopping"),
                ("stopped", "stopped"),
                ("shutting-down", "terminating"),
                ("terminated", "terminated"),
                ("other", "unknown"),
            ]
        );
    }

    #[test]
    fn words_parse_in_any_case() {
        for status in WorkerStatus::ALL {
            assert_eq!(status.as_str().to_uppercase().parse(), Ok(*status));
            assert_eq!(status.as_str(), status.as_str().to_lowercase());
        }
        assert_eq!(" Running ".parse(), Ok(DesiredStatus::Running));
    }

    #[test]
    fn only_running_workers_take_sessions() {
        let accepting: Vec<_> = WorkerStatus::ALL.iter().filter(|status| status.accepts_sessions()).collect();
        assert_eq!(accepting, [&WorkerStatus::Running]);
    }
}
