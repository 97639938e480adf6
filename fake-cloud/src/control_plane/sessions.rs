//! Lab sessions of users on workers.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use super::enums;
use super::error::ApiError;
use super::input::{Input, format_time, parse_time};
use super::records::{Object, Records, State, unknown_worker};

/// Filter of a session listing.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Sessions on this worker.
    pub worker_id: Option<String>,
    /// Included states; all if empty. Unknown states are allowed.
    pub statuses: Vec<String>,
}

impl Records {
    /// Sessions that match a filter, ordered by id.
    pub fn sessions(&self, filter: &SessionFilter) -> Vec<Object> {
        let passes = |session: &Map<String, Value>| {
            let text = |field: &str| session.get(field).and_then(Value::as_str);
            let worker = filter.worker_id.as_deref().is_none_or(|worker| text("worker_id") == Some(worker));
            let status = text("status").unwrap_or_default();
            worker
                && (filter.statuses.is_empty()
                    || filter.statuses.iter().any(|wanted| wanted.eq_ignore_ascii_case(status)))
        };
        self.read(|state| state.sessions.values().filter(|session| passes(session)).cloned().collect())
    }

    /// The session with this id.
    ///
    /// # Errors
    /// 404 for an unknown session.
    pub fn session(&self, id: &str) -> Result<Object, ApiError> {
        self.read(|state| state.sessions.get(id).cloned()).ok_or_else(|| unknown_session(id))
    }

    /// Sessions that start within the window and whose worker still has to boot.
    pub fn imminent_sessions(&self, window: TimeDelta) -> Vec<Object> {
        let until = self.clock().now().checked_add_signed(window).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let imminent = |session: &Map<String, Value>| {
            let text = |field: &str| session.get(field).and_then(Value::as_str);
            let waits = matches!(text("status"), Some("pending" | "scheduled"));
            waits && text("timeslot_start").and_then(parse_time).is_some_and(|start| start <= until)
        };
        self.read(|state| state.sessions.values().filter(|session| imminent(session)).cloned().collect())
    }

    /// Creates a session from the fields of a request. The state defaults to `pending`; any state is accepted.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 if the id is in use, 422 for an invalid field.
    pub fn create_session(&self, input: Input) -> Result<Object, ApiError> {
        input.time("timeslot_start")?;
        input.time("timeslot_end")?;
        input.unsigned("retry_count")?;
        let given = match input.text("id")? {
            // The id becomes part of a URL path and an etcd key.
            Some(id) if id.is_empty() || id.contains('/') => {
                return Err(input.invalid("id", &id.into(), "non-empty text without a slash"));
            }
            given => given.map(str::to_owned),
        };
        let status = input.text("status")?.unwrap_or("pending").to_owned();
        let worker = input.text("worker_id")?.map(str::to_owned);
        self.write(|state, now| {
            if let Some(worker) = worker.filter(|worker| !state.workers.contains_key(worker)) {
                return Err(unknown_worker(&worker));
            }
            let id = given.unwrap_or_else(|| state.ids.new_id());
            if state.sessions.contains_key(&id) {
                return Err(ApiError::Exists { kind: "session", id });
            }
            let mut session = Map::from_iter([
                ("worker_id".to_owned(), Value::Null),
                ("timeslot_start".to_owned(), Value::Null),
                ("timeslot_end".to_owned(), Value::Null),
                ("retry_count".to_owned(), 0.into()),
                ("desired_status".to_owned(), Value::Null),
                ("created_at".to_owned(), format_time(now)),
            ]);
            session.extend(input.into_fields());
            session.insert("id".into(), id.into());
            session.insert("status".into(), status.into());
            Ok(self.put_session(state, session, now))
        })
    }

    /// Moves a session to another state. `pending` removes it from its worker; leaving `failed` counts a retry;
    /// `worker_id` and `retry_count` are copied if given.
    ///
    /// # Errors
    /// 404 for an unknown session, 409 once it has ended, 422 for an invalid field.
    pub fn transition_session(&self, id: &str, input: &Input) -> Result<Object, ApiError> {
        let word = input.required_text("status", &enums::SESSION_STATES.join(", "))?;
        let to = enums::parse_session_state("status", word)?;
        let worker = input.text("worker_id")?.map(str::to_owned);
        let retries = input.unsigned("retry_count")?;
        let reason = input.text("reason")?.map(str::to_owned);
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            let from = session_status(&before);
            // A stopped session may still be archived; every other end state is final.
            if !(from == "stopped" && to == "archived") {
                check_not_ended("move the session", &before)?;
            }
            if let Some(worker) = worker.as_ref().filter(|worker| !state.workers.contains_key(*worker)) {
                return Err(unknown_worker(worker));
            }
            let mut session = (*before).clone();
            session.insert("status".into(), to.into());
            if input.has("worker_id") || to == "pending" {
                session.insert("worker_id".into(), worker.into());
            }
            let counted = session.get("retry_count").and_then(Value::as_u64).unwrap_or(0);
            let counted = if from == "failed" && to != "failed" { counted + 1 } else { counted };
            session.insert("retry_count".into(), retries.unwrap_or(counted).into());
            session.insert("status_reason".into(), reason.into());
            Ok(self.put_session(state, session, now))
        })
    }

    /// Sets the desired state of a session; null clears it.
    ///
    /// # Errors
    /// 404 for an unknown session, 409 once it has ended, 422 for an unknown state.
    pub fn set_session_desired(&self, id: &str, input: &Input) -> Result<Object, ApiError> {
        if !input.has("desired_status") {
            return Err(ApiError::missing("desired_status", &format!("{} or null", enums::SESSION_STATES.join(", "))));
        }
        let desired = input.text("desired_status")?;
        let desired = desired.map(|word| enums::parse_session_state("desired_status", word)).transpose()?;
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            check_not_ended("set a desired status", &before)?;
            let mut session = (*before).clone();
            session.insert("desired_status".into(), desired.into());
            Ok(self.put_session(state, session, now))
        })
    }

    /// Assigns a worker and a time slot to a session.
    ///
    /// # Errors
    /// 404 for an unknown session or worker, 409 unless the session is pending and the worker is running, 422.
    pub fn schedule_session(&self, id: &str, input: &Input) -> Result<Object, ApiError> {
        let worker_id = input.required_text("worker_id", "the id of a running worker")?;
        let start = input.time("timeslot_start")?.map(format_time);
        let end = input.time("timeslot_end")?.map(format_time);
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            let worker = state.workers.get(worker_id).ok_or_else(|| unknown_worker(worker_id))?;
            if worker.status() != "running" {
                return Err(super::lifecycle::wrong_state("place a session", worker, "running"));
            }
            let from = before.get("status").and_then(Value::as_str).unwrap_or_default();
            if !matches!(from, "pending" | "scheduled") {
                let accepted = "pending, scheduled".to_owned();
                return Err(ApiError::WrongState { action: "schedule the session", current: from.into(), accepted });
            }
            let mut session = (*before).clone();
            session.insert("status".into(), "scheduled".into());
            session.insert("worker_id".into(), worker_id.into());
            for (field, time) in [("timeslot_start", start), ("timeslot_end", end)] {
                if let Some(time) = time {
                    session.insert(field.into(), time);
                }
            }
            Ok(self.put_session(state, session, now))
        })
    }
}

impl Records {
    /// Ends a session. Idempotent; the flag reports whether it had already ended.
    ///
    /// # Errors
    /// 404 for an unknown session.
    pub fn terminate_session(
        &self,
        id: &str,
        reason: Option<&str>,
        terminated_by: Option<&str>,
    ) -> Result<(Object, bool), ApiError> {
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            if session_status(&before) == "terminated" {
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
        session.insert("terminated_at".into(), format_time(now));
        let worker = session.get("worker_id").and_then(Value::as_str).map(str::to_owned);
        state.add_event(
            "lablet_session.terminated.v1",
            worker.as_deref(),
            json!({"session_id": id, "reason": reason}),
            now,
        );
        Some(self.put_session(state, session, now))
    }

    /// Expires a session. Idempotent; the flag reports whether it had already expired.
    ///
    /// # Errors
    /// 404 for an unknown session, 409 if it ended in another way.
    pub fn expire_session(&self, id: &str, reason: Option<&str>) -> Result<(Object, bool), ApiError> {
        self.write(|state, now| {
            let before = state.sessions.get(id).cloned().ok_or_else(|| unknown_session(id))?;
            if session_status(&before) == "expired" {
                return Ok((before, true));
            }
            check_not_ended("expire the session", &before)?;
            let mut session = (*before).clone();
            session.insert("status".into(), "expired".into());
            session.insert("status_reason".into(), reason.unwrap_or("timeslot_over").into());
            session.insert("expired_at".into(), format_time(now));
            let worker = session.get("worker_id").and_then(Value::as_str).map(str::to_owned);
            let data = json!({"session_id": id, "reason": reason});
            state.add_event("lablet_session.expired.v1", worker.as_deref(), data, now);
            Ok((self.put_session(state, session, now), false))
        })
    }
}

pub(super) fn check_not_ended(action: &'static str, session: &Map<String, Value>) -> Result<(), ApiError> {
    let current = session_status(session);
    if !enums::FINAL_SESSION_STATES.contains(&current) {
        return Ok(());
    }
    let accepted = "a session that is not over".to_owned();
    Err(ApiError::WrongState { action, current: current.to_owned(), accepted })
}

pub(super) fn session_status(session: &Map<String, Value>) -> &str {
    session.get("status").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn unknown_session(id: &str) -> ApiError {
    ApiError::NotFound { kind: "session", id: id.to_owned() }
}
