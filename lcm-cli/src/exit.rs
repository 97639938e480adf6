//! Exit codes, and the failures that lead to them.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use lcm_sdk::CallFailure;
use lcm_sdk::from_settings::FromSettingsError;
use lcm_sdk::logging::LoggingError;
use lcm_sdk::otel::TracesError;
use lcm_sdk::reconciler::OperationError;
use lcm_sdk::settings::SettingsError;
use lcm_sdk::workers::OneSweepError;

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum ExitStatus {
    /// The command did what was requested.
    Success,
    /// A service could not be reached or refused a call, or a check of `doctor` failed.
    Failure,
    /// The command line or a setting is invalid. Nothing was called.
    Usage,
    /// Another controller leads and could not be requested to act.
    NotLeading,
    /// A worker has to be retried, or was not reconciled in time.
    Retry,
    /// `plan --exit-code`: something would change. `replay`: a decision differs.
    Changes,
    /// The worker does not exist.
    NoSuchWorker,
    /// The status of the worker does not allow the operation, or the control plane lacks it.
    NotPossible,
}

impl ExitStatus {
    /// Process exit code, from 0 to 7.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotLeading => 3,
            Self::Retry => 4,
            Self::Changes => 5,
            Self::NoSuchWorker => 6,
            Self::NotPossible => 7,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

impl From<fake_cloud::command::ExitStatus> for ExitStatus {
    fn from(status: fake_cloud::command::ExitStatus) -> Self {
        match status {
            fake_cloud::command::ExitStatus::Success => Self::Success,
            fake_cloud::command::ExitStatus::StartFailed => Self::Failure,
            fake_cloud::command::ExitStatus::UsageError => Self::Usage,
        }
    }
}

/// Why a command ended early.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: ExitStatus,
    /// The sentence to print; `None` if there is no reader.
    pub(crate) message: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: ExitStatus, message: &dyn Display) -> Self {
        Self { status, message: Some(message.to_string()) }
    }

    /// A failed call, with the words that name it.
    pub(crate) fn call(attempt: &str, failure: &CallFailure) -> Self {
        Self::new(ExitStatus::Failure, &format!("{attempt}: {failure}"))
    }

    pub(crate) fn no_such_worker(id: &str) -> Self {
        Self::new(ExitStatus::NoSuchWorker, &OperationError::NoSuchWorker(id.into()))
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::new(ExitStatus::Usage, &error)
    }
}

impl From<FromSettingsError> for Failure {
    fn from(error: FromSettingsError) -> Self {
        Self::new(ExitStatus::Usage, &error)
    }
}

impl From<LoggingError> for Failure {
    fn from(error: LoggingError) -> Self {
        Self::new(ExitStatus::Usage, &error)
    }
}

impl From<TracesError> for Failure {
    fn from(error: TracesError) -> Self {
        Self::new(ExitStatus::Usage, &error)
    }
}

impl From<OneSweepError> for Failure {
    fn from(error: OneSweepError) -> Self {
        let status =
            if matches!(error, OneSweepError::NotLeader(_)) { ExitStatus::NotLeading } else { ExitStatus::Failure };
        Self::new(status, &error)
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        let status = match &error {
            OperationError::NoSuchWorker(_) => ExitStatus::NoSuchWorker,
            OperationError::Drain(_) | OperationError::NotSupported(_) => ExitStatus::NotPossible,
            OperationError::NotLeading(_) => ExitStatus::NotLeading,
            _ => ExitStatus::Failure,
        };
        Self::new(status, &error)
    }
}

/// An error of standard output. A closed pipe, as left by `head`, ends the command without a message.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { status: ExitStatus::Success, message: None },
            _ => Self::new(ExitStatus::Failure, &format!("the output could not be written: {error}")),
        }
    }
}
