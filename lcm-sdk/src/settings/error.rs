//! Errors and warnings about the environment.

use std::fmt;

use thiserror::Error;

/// The settings cannot be used. Lists every problem, not only the first.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", list_problems(.problems))]
#[non_exhaustive]
pub struct SettingsError {
    /// All problems; at least one.
    pub problems: Vec<Problem>,
}

/// One problem with the settings.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// The value of a variable is invalid.
    #[error("{variable}={value} is not accepted{}; accepted: {accepted}", parenthesized(.because.as_deref()))]
    #[non_exhaustive]
    BadValue {
        /// The variable as it was spelled.
        variable: String,
        /// Its value in quotes; `[redacted]` for a secret.
        value: String,
        /// The accepted values.
        accepted: String,
        /// A more specific reason, if there is one.
        because: Option<String>,
    },
    /// Two variables contradict each other.
    #[error("{first} and {second}: {rule}")]
    #[non_exhaustive]
    Contradiction {
        /// One of the two variables.
        first: &'static str,
        /// The other variable.
        second: &'static str,
        /// The rule that they break.
        rule: &'static str,
    },
}

fn parenthesized(because: Option<&str>) -> String {
    because.map(|text| format!(" ({text})")).unwrap_or_default()
}

fn list_problems(problems: &[Problem]) -> String {
    let count = problems.len();
    let mut text = format!("{count} setting{} cannot be used", if count == 1 { "" } else { "s" });
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&problem.to_string());
    }
    text
}

/// A probable mistake in the environment. The settings are usable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// An unknown variable resembles a setting. Its value is not shown, because it may be a password.
    Misspelled {
        /// The variable as it was spelled.
        variable: String,
        /// The variable that was probably meant.
        meant: &'static str,
    },
    /// Two variables of one setting have different values.
    Overruled {
        /// The variable that counts.
        wins: String,
        /// The variable that is ignored.
        loses: String,
    },
    /// A port holds the address of a service, as Kubernetes injects it, and is ignored.
    ServiceLink {
        /// The variable as it was spelled.
        variable: String,
    },
    /// The control plane owns the setting; it has no effect here.
    OwnedByControlPlane {
        /// The variable as it was spelled.
        variable: String,
    },
    /// A variable of the original controller that no setting reads.
    NoEffect {
        /// The variable as it was spelled.
        variable: String,
    },
    /// The default region has no configuration, so a worker without a region cannot be launched.
    DefaultRegionNotConfigured {
        /// The default region.
        region: String,
    },
    /// No etcd endpoints are configured: this controller leads without an election.
    MockMode,
    /// TLS certificates of CML are not verified.
    CmlNotVerified,
    /// Discovery has no filter: it imports no instance.
    NothingImported,
    /// AMIs of any account are launched.
    AnyImageOwner,
    /// Notes that the control plane does not keep are lost at a restart.
    NotesInMemory,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misspelled { variable, meant } => {
                write!(f, "{} is not a setting; did you mean {meant}?", variable.escape_debug())
            }
            Self::Overruled { wins, loses } => {
                write!(f, "{} and {} differ; {} counts", wins.escape_debug(), loses.escape_debug(), wins.escape_debug())
            }
            Self::ServiceLink { variable } => write!(
                f,
                "{} is ignored: it holds the address of a service, as Kubernetes injects it, not a port",
                variable.escape_debug()
            ),
            Self::OwnedByControlPlane { variable } => write!(
                f,
                "{} is owned by the control plane and has no effect here; set it there",
                variable.escape_debug()
            ),
            Self::NoEffect { variable } => {
                write!(f, "{} has no effect: no setting reads it", variable.escape_debug())
            }
            Self::DefaultRegionNotConfigured { region } => write!(
                f,
                "the default region {region} is not in AWS_REGION_CONFIGS: workers that name no region cannot be launched"
            ),
            Self::MockMode => {
                f.write_str("ETCD_ENDPOINTS is empty: mock mode, this controller leads without an election")
            }
            Self::NothingImported => f.write_str(
                "WORKER_DISCOVERY_AMI_FILTER and WORKER_DISCOVERY_TAG_FILTER are empty: unless the control plane names an \
                 AMI, discovery imports no instance and only verifies the instances of records",
            ),
            Self::CmlNotVerified => {
                f.write_str("CML_VERIFY_TLS is off: passwords and tokens go to servers that are not verified")
            }
            Self::NotesInMemory => f.write_str(
                "notes that the control plane does not keep are held in memory: a restart loses deadlines of drains, the \
                 cooldown of scale-down and launches in progress",
            ),
            Self::AnyImageOwner => {
                f.write_str("AMI_OWNERS is any: new workers boot a newer AMI with a matching name of any account")
            }
        }
    }
}
