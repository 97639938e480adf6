//! Sessions: reads the list page by page, moves and terminates.

use std::collections::HashSet;

use serde_json::json;

use super::capabilities::Feature;
use super::client::{Call, ControlPlaneClient, Repeat};
use super::responses;
use crate::lifecycle::capabilities::Support;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::json::{FieldError, Raw};
use crate::lifecycle::session::{Session, SessionPhase};
use crate::ports::{Fence, SessionMove};
use crate::providers::http::Reply;

/// Number of sessions requested per page, the largest that known servers accept.
const PAGE: usize = 1000;

/// Maximum number of pages of one list.
const MAX_PAGES: usize = 1000;

/// Number of times that a list is read again because it changed while it was read.
const MAX_RESTARTS: usize = 3;

/// One page of a list.
#[derive(Default)]
pub(super) struct Page {
    /// Ids of all records, also of sessions of other workers; `None` if unreadable.
    ids: Vec<Option<String>>,
    sessions: Vec<Result<Session, FieldError>>,
}

impl Page {
    fn add(&mut self, record: Raw<'_>, worker: &WorkerId) {
        self.ids.push(match record.get("id") {
            Some(Raw::Text(id)) => Some(id.to_string()),
            Some(Raw::Object(_) | Raw::Plain(_)) | None => None,
        });
        self.sessions.extend(responses::session(record, worker));
    }
}

/// End of the previous page.
struct Previous {
    /// The record that comes first on the next page, if pages overlap.
    last: Option<Option<String>>,
    rest: responses::Rest,
}

/// A list that was read as far as some page.
enum Progress {
    Complete(Vec<Result<Session, FieldError>>),
    /// The list changed while it was read: a session that ended moved the others forward.
    Changed,
}

impl ControlPlaneClient {
    /// Reads the sessions of a worker in every state, page by page, until a page is shorter than requested.
    ///
    /// Pages overlap by one session: without the last session of the previous page in front, sessions moved between the
    /// pages and the list is read again. A server that ignores paging repeats the same sessions, which ends the list.
    pub(super) async fn read_sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        for _ in 0..=MAX_RESTARTS {
            if let Progress::Complete(sessions) = self.read_pages(worker).await? {
                // An unreadable session fails the list, because it may hold a user's work.
                let sessions: Result<Vec<_>, _> = sessions.into_iter().collect();
                return sessions.map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()));
            }
        }
        Err(CallFailure::new(FailureKind::Unclear, "the list of sessions changed whenever it was read"))
    }

    async fn read_pages(&self, worker: &WorkerId) -> Result<Progress, CallFailure> {
        let mut seen: HashSet<String> = HashSet::new();
        let mut sessions = Vec::new();
        let mut skip = 0;
        let mut previous: Option<Previous> = None;
        for _ in 0..MAX_PAGES {
            let (page, rest) = self.read_page(worker, skip).await?;
            let is_new = |id: &Option<String>| id.as_ref().is_none_or(|id| !seen.contains(id));
            if let Some(previous) = &previous {
                let is_joined = previous.last.as_ref().map(|last| page.ids.first() == Some(last));
                match (page.ids.iter().any(is_new), is_joined, previous.rest) {
                    (true, None | Some(true), _) => {}
                    (true, Some(false), _) => return Ok(Progress::Changed),
                    // Sessions ended, and the others moved in front of this page.
                    (false, _, _) if page.ids.is_empty() => return Ok(Progress::Changed),
                    // The end of the list, or a server that ignores `skip` and has sent all of it before.
                    (false, _, responses::Rest::None | responses::Rest::Unknown) => {
                        return Ok(Progress::Complete(sessions));
                    }
                    (false, Some(true), responses::Rest::More) => return Ok(Progress::Changed),
                    (false, None | Some(false), responses::Rest::More) => return Err(responses::partial()),
                }
            }
            let is_repeated = |session: &Session| seen.contains(session.id.as_str());
            sessions.extend(page.sessions.into_iter().filter(|read| !read.as_ref().is_ok_and(is_repeated)));
            let is_last = match rest {
                responses::Rest::More if page.ids.is_empty() => return Err(responses::partial()),
                responses::Rest::More => false,
                responses::Rest::None => true,
                // With more than requested, the server does not page.
                responses::Rest::Unknown => page.ids.len() != PAGE,
            };
            if is_last {
                return Ok(Progress::Complete(sessions));
            }
            if page.ids.contains(&None) {
                let message = "the list of sessions cannot be paged: a session has no readable id";
                return Err(CallFailure::new(FailureKind::Unparsable, message));
            }
            let overlap = usize::from(page.ids.len() > 1);
            skip += page.ids.len() - overlap;
            previous = Some(Previous { last: page.ids.last().filter(|_| overlap > 0).cloned(), rest });
            seen.extend(page.ids.into_iter().flatten());
        }
        Err(CallFailure::new(FailureKind::Unparsable, format!("the list of sessions has more than {MAX_PAGES} pages")))
    }

    async fn read_page(&self, worker: &WorkerId, skip: usize) -> Result<(Page, responses::Rest), CallFailure> {
        let call = || {
            let call = Call::get(&["lablet-sessions"])
                .query("worker_id", worker.as_str())
                .query("limit", &PAGE.to_string())
                .query("skip", &skip.to_string());
            if self.sessions_path.has_slash() { call.slash() } else { call }
        };
        let mut reply = self.call(call()).await?;
        if self.sessions_path.has_slash() && responses::is_route_missing(&reply) {
            self.sessions_path.drop_slash();
            reply = self.call(call()).await?;
        }
        responses::page(&reply.success()?, skip, |page: &mut Page, record| page.add(record, worker))
    }

    /// Moves a session.
    ///
    /// # Errors
    /// [`FailureKind::NotSupported`] if the server cannot move sessions.
    pub(super) async fn transition(
        &self,
        session: &SessionId,
        to: SessionMove,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        if self.known_capabilities().session_moves == Support::No {
            return Err(moves_unsupported());
        }
        let body = match to {
            SessionMove::BackToScheduler => {
                json!({"status": "pending", "worker_id": null, "reason": "worker_draining"})
            }
            SessionMove::Retry { attempt } => {
                json!({"status": "instantiating", "retry_count": attempt, "reason": "retry_while_draining"})
            }
        };
        let call = Call::post(&["lablet-sessions", session.as_str(), "transition"], body).fenced(fence);
        let reply = self.call(call).await?;
        if responses::is_route_missing(&reply) || responses::is_bad_request(&reply) {
            self.known.learn(Feature::SessionMoves, Support::No);
        }
        if self.known_capabilities().session_moves == Support::No {
            return Err(moves_unsupported());
        }
        reply.success()?;
        self.known.learn(Feature::SessionMoves, Support::Yes);
        Ok(())
    }

    /// Terminates a session. Succeeds if it has ended or does not exist.
    pub(super) async fn end_session(
        &self,
        session: &SessionId,
        reason: &str,
        by: &str,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        let body = json!({"reason": reason, "terminated_by": by});
        let call = Call::post(&["lablet-sessions", session.as_str(), "terminate"], body).fenced(fence);
        let reply = self.call(call.repeat(Repeat::Always)).await?;
        if responses::is_absence(&reply, session.as_str()) {
            return Ok(());
        }
        match reply.success() {
            Ok(_) => Ok(()),
            // Some servers refuse to terminate a session that has ended.
            Err(failure) if failure.kind == FailureKind::Conflict && self.has_ended(session).await => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    async fn has_ended(&self, session: &SessionId) -> bool {
        let read = async || -> Result<Option<Session>, CallFailure> {
            let reply: Reply = self.call(Call::get(&["lablet-sessions", session.as_str()])).await?;
            Ok(responses::found(reply, session.as_str())?.and_then(|record| Session::try_from(record).ok()))
        };
        matches!(read().await, Ok(Some(session)) if session.state.phase() == SessionPhase::Over)
    }
}

fn moves_unsupported() -> CallFailure {
    CallFailure::not_supported("moving a session", "let it end, or end it and start another one")
}
