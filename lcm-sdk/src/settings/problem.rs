//! What can be wrong with the environment.

use std::fmt;

use thiserror::Error;

/// The settings cannot be used. Says everything that is wrong, not only the first thing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", told(.problems))]
#[non_exhaustive]
pub struct SettingsError {
    /// Everything that is wrong; at least one thing.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// A variable holds what cannot be its value.
    #[error("{variable}={value} is not accepted{}; accepted: {accepted}", reason(.because.as_deref()))]
    BadValue {
        /// The variable, as it was spelled.
        variable: String,
        /// What it holds, in quotes; `[redacted]` for a secret.
        value: String,
        /// What it may hold.
        accepted: String,
        /// More about what is wrong, where there is more to say.
        because: Option<String>,
    },
    /// Two variables contradict each other.
    #[error("{first} and {second}: {rule}")]
    Contradiction {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// What must hold.
        rule: &'static str,
    },
}

fn reason(because: Option<&str>) -> String {
    because.map(|text| format!(" ({text})")).unwrap_or_default()
}

fn told(problems: &[Problem]) -> String {
    let count = problems.len();
    let mut text = format!("{count} setting{} cannot be used", if count == 1 { "" } else { "s" });
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&problem.to_string());
    }
    text
}

/// Something about the environment that is probably not what was meant. The settings are usable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A variable that nobody reads looks like one of ours. Its value is not shown: it may be a password.
    Misspelled {
        /// The variable as it was spelled.
        variable: String,
        /// The one that was probably meant.
        meant: &'static str,
    },
    /// Two variables of one setting hold different values.
    Overruled {
        /// The one that counts.
        wins: String,
        /// The one that does not.
        loses: String,
    },
    /// The default region is not among the configured ones, so a worker that names none cannot be launched.
    DefaultRegionNotConfigured {
        /// The default region.
        region: String,
    },
    /// No endpoints of etcd are configured: this controller leads without asking anybody.
    MockMode,
    /// The certificates of CML are not verified.
    CmlNotVerified,
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
            Self::DefaultRegionNotConfigured { region } => write!(
                f,
                "the default region {region} is not in AWS_REGION_CONFIGS: workers that name no region cannot be launched"
            ),
            Self::MockMode => {
                f.write_str("ETCD_ENDPOINTS is empty: mock mode, this controller leads without an election")
            }
            Self::CmlNotVerified => f.write_str("CML_VERIFY_TLS is off: passwords and tokens go to whoever answers"),
        }
    }
}
