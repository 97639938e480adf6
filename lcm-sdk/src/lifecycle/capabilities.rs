use serde::{Deserialize, Serialize};

use super::failure::{CallFailure, FailureKind};
use super::wire_enum::vocabulary;

/// Optional features of a control plane, as far as they are known.
///
/// A provider that cannot tell reports [`Support::Unknown`]. The caller then tries the feature, and believes only what the
/// next read shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Records carry a version, and writes are conditional on it.
    pub versions: Support,
    /// Records keep the notes of LCM, in fields of their own or in `metadata`.
    pub notes: Support,
    /// The desired status of a worker can be written.
    pub desired_status: Support,
    /// A drain can be canceled.
    pub cancel_drain: Support,
    /// Sessions can be handed back to the scheduler and retried.
    pub session_moves: Support,
    /// Idle detection can be requested without an automatic pause.
    pub pause_suppression: Support,
    /// Audit entries and events are stored.
    pub audits: Support,
}

impl Capabilities {
    /// The same knowledge about all features.
    pub const fn all(support: Support) -> Self {
        Self {
            versions: support,
            notes: support,
            desired_status: support,
            cancel_drain: support,
            session_moves: support,
            pause_suppression: support,
            audits: support,
        }
    }
}

vocabulary! {
    /// The API of a control plane.
    ControlPlaneGeneration, "control plane generation", non_exhaustive {
        /// The features are read off responses.
        Auto = "auto",
        /// None of the optional features.
        Original = "original",
        /// All optional features.
        Extended = "extended",
    }
}

impl ControlPlaneGeneration {
    /// The features of this generation; `None` if they are read off responses.
    pub const fn capabilities(self) -> Option<Capabilities> {
        match self {
            Self::Auto => None,
            Self::Original => Some(Capabilities::all(Support::No)),
            Self::Extended => Some(Capabilities::all(Support::Yes)),
        }
    }
}

/// Whether a service has a feature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// No response has shown it yet.
    #[default]
    Unknown,
    /// A response has shown the feature.
    Yes,
    /// A response has shown that the service lacks the feature.
    No,
}

impl CallFailure {
    /// A feature that the control plane lacks, and the alternative to it as a sentence without its full stop.
    pub fn not_supported(feature: &str, alternative: &str) -> Self {
        let message = format!("{feature} is not supported by this control plane; {alternative}");
        Self::with_code(FailureKind::NotSupported, FailureKind::NotSupported.as_str(), message)
    }
}
