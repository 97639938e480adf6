//! How sessions end: told to, or because their time is over.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::input::written;
use super::problem::Problem;
use super::records::{Object, Records, State};
use super::sessions::{check_is_not_over, status_of, unknown_session};

impl Records {
    /// Ends a session. Ending it again does nothing. The flag says whether it had ended before.
    ///
    /// # Errors
    /// 404.
    pub fn terminate_session(
        &self,
        id: &str,
        reason: Option<&str>,
        terminated_by: Option<&str>,
    ) -> Result<(Object, bool), Problem> {
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            if status_of(&before) == "terminated" {
                return Ok((before, true));
            }
            let ended = self.end_session(state, id, reason, terminated_by, now).ok_or_else(|| unknown_session(id))?;
            Ok((ended, false))
        })
    }

    pub(super) fn end_session(
        &self,
        state: &mut State,
        id: &str,
        reason: Option<&str>,
        terminated_by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Option<Object> {
        let mut session = Map::clone(state.sessions.get(id)?);
        session.insert("status".into(), "terminated".into());
        session.insert("status_reason".into(), reason.into());
        session.insert("terminated_by".into(), terminated_by.into());
        session.insert("terminated_at".into(), written(now));
        let worker = session.get("worker_id").and_then(Value::as_str).map(str::to_owned);
        state.announce(
            "lablet_session.terminated.v1",
            worker.as_deref(),
            json!({"session_id": id, "reason": reason}),
            now,
        );
        Some(self.put_session(state, session, now))
    }

    /// Ends a session because its time is over. Doing it again does nothing. The flag says whether it had expired
    /// before.
    ///
    /// # Errors
    /// 404, 409 when it ended in another way.
    pub fn expire_session(&self, id: &str, reason: Option<&str>) -> Result<(Object, bool), Problem> {
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            if status_of(&before) == "expired" {
                return Ok((before, true));
            }
            check_is_not_over("expire the session", &before)?;
            let mut session = (*before).clone();
            session.insert("status".into(), "expired".into());
            session.insert("status_reason".into(), reason.unwrap_or("timeslot_over").into());
            session.insert("expired_at".into(), written(now));
            let worker = session.get("worker_id").and_then(Value::as_str).map(str::to_owned);
            let data = json!({"session_id": id, "reason": reason});
            state.announce("lablet_session.expired.v1", worker.as_deref(), data, now);
            Ok((self.put_session(state, session, now), false))
        })
    }
}
