//! Lab sessions on a worker, which a drain must not lose.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::ids::{SessionId, WorkerId};
use super::json::{FieldError, Fields, Raw};
use super::time::Timestamp;
use super::wire_enum::vocabulary;

vocabulary! {
    /// The session states that this version knows.
    KnownSessionState, "session state" {
        /// Waiting for a worker.
        Pending = "pending",
        /// Assigned to a worker, with a timeslot.
        Scheduled = "scheduled",
        /// Its lab is being built.
        Instantiating = "instantiating",
        /// Its lab is built and not entered yet.
        Ready = "ready",
        /// In use by its owner.
        Running = "running",
        /// Results are being collected.
        Collecting = "collecting",
        /// Results are being graded.
        Grading = "grading",
        /// Its lab is being taken down.
        Stopping = "stopping",
        /// Its lab was taken down.
        Stopped = "stopped",
        /// Kept for the record.
        Archived = "archived",
        /// Ended by a request or by its worker.
        Terminated = "terminated",
        /// Never entered in time.
        Expired = "expired",
        /// Its lab could not be built or has crashed.
        Failed = "failed",
    }
}

/// The state of a session. An unknown state is kept as it is and counts as active, because it may be in use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// A state that this version knows.
    Known(KnownSessionState),
    /// Any other state, as the server wrote it.
    Other(String),
}

impl SessionState {
    /// Parses the server's spelling.
    pub fn from_wire(word: &str) -> Self {
        word.parse().map_or_else(|_| Self::Other(word.to_owned()), Self::Known)
    }

    /// The meaning of the state for the session's worker.
    pub fn phase(&self) -> SessionPhase {
        use KnownSessionState as State;
        match self {
            Self::Other(_) => SessionPhase::Active,
            Self::Known(state) => match state {
                State::Pending | State::Scheduled => SessionPhase::Waiting,
                State::Instantiating
                | State::Ready
                | State::Running
                | State::Collecting
                | State::Grading
                | State::Stopping => SessionPhase::Active,
                State::Failed => SessionPhase::Failed,
                State::Stopped | State::Archived | State::Terminated | State::Expired => SessionPhase::Over,
            },
        }
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(state) => state.fmt(f),
            Self::Other(word) => f.pad(word),
        }
    }
}

impl Serialize for SessionState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The meaning of a session's state for its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionPhase {
    /// Assigned, not begun: can be handed back to the scheduler.
    Waiting,
    /// In use: stopping the worker would end it.
    Active,
    /// Failed: retried or ended.
    Failed,
    /// Ended: needs nothing from the worker.
    Over,
}

/// The number of active sessions.
pub(crate) fn count_active(sessions: &[Session]) -> usize {
    sessions.iter().filter(|session| session.state.phase() == SessionPhase::Active).count()
}

/// The part of a session that matters to its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Session {
    /// Id of the session.
    pub id: SessionId,
    /// State of the session.
    #[serde(rename = "status")]
    pub state: SessionState,
    /// The worker it is assigned to.
    pub worker_id: Option<WorkerId>,
    /// When its timeslot begins.
    pub timeslot_start: Option<Timestamp>,
    /// How often it was retried after a failure.
    pub retry_count: u32,
}

impl Session {
    /// A session in a state, with every other field empty.
    pub fn new(id: impl Into<SessionId>, state: &str) -> Self {
        Self {
            id: id.into(),
            state: SessionState::from_wire(state),
            worker_id: None,
            timeslot_start: None,
            retry_count: 0,
        }
    }
}

impl TryFrom<Value> for Session {
    type Error = FieldError;

    fn try_from(value: Value) -> Result<Self, FieldError> {
        Self::try_from(Raw::from(value))
    }
}

impl TryFrom<Raw<'_>> for Session {
    type Error = FieldError;

    fn try_from(record: Raw<'_>) -> Result<Self, FieldError> {
        let mut fields = Fields::open("session", record)?;
        let status = fields.text("status")?;
        let state = match status {
            Some(word) => word,
            None => fields.required_text("state")?,
        };
        Ok(Self {
            id: fields.required_text("id")?.into(),
            state: SessionState::from_wire(&state),
            worker_id: fields.text("worker_id")?.map(WorkerId::from),
            timeslot_start: fields.timestamp("timeslot_start")?,
            retry_count: fields.integer("retry_count")?.unwrap_or(0).try_into().unwrap_or(u32::MAX),
        })
    }
}

impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Raw::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_states_are_active() {
        assert_eq!(Session::new("s-1", "hibernating").state.phase(), SessionPhase::Active);
        assert_eq!(Session::new("s-1", "").state.phase(), SessionPhase::Active);
    }

    #[test]
    fn standings_match_the_drain_document() {
        let standing = |phase| -> Vec<&str> {
            KnownSessionState::ALL
                .iter()
                .filter(|state| SessionState::Known(**state).phase() == phase)
                .map(|state| state.as_str())
                .collect()
        };
        assert_eq!(
            standing(SessionPhase::Active),
            ["instantiating", "ready", "running", "collecting", "grading", "stopping"]
        );
        assert_eq!(standing(SessionPhase::Waiting), ["pending", "scheduled"]);
        assert_eq!(standing(SessionPhase::Failed), ["failed"]);
        assert_eq!(standing(SessionPhase::Over), ["stopped", "archived", "terminated", "expired"]);
    }

    #[test]
    fn sessions_parse_status_and_state() {
        let read = |json: &str| serde_json::from_str::<Session>(json);
        assert_eq!(read(r#"{"id": "s", "status": "RUNNING"}"#).expect("valid"), Session::new("s", "running"));
        assert_eq!(read(r#"{"id": "s", "state": "ready"}"#).expect("valid"), Session::new("s", "ready"));
        let error = read(r#"{"id": "s", "status": 7}"#).expect_err("a number").to_string();
        assert_eq!(error, "session \"s\": field `status` is 7; accepted: text or null");
    }
}
