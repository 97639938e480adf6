//! What the world's fault rules mean to the control plane and to CML.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use crate::cml::{CmlError, bad_gateway_page};
use crate::control_plane::ApiError;
use crate::faults::Action;
use crate::http_server::{CutConnection, cut_connection};
use crate::interruption::{Interruption, RefusalCode, RequestInfo};

/// What an action means to the control plane.
pub(super) fn of_control_plane(action: &Action, _request: &RequestInfo) -> Option<Interruption> {
    match action {
        Action::Error { code, status, message } => {
            let words = message.as_deref().unwrap_or("a fault rule said no");
            let body = json!({"error": code, "detail": words});
            Some(refusal(status_of(code, *status), code, body))
        }
        Action::Custom { name, .. } if name == "bad-gateway" => Some(Interruption::Instead(bad_gateway_page())),
        other => of_any(other),
    }
}

/// What an action means to a CML of this version.
pub(super) fn of_cml(version: &str, action: &Action, request: &RequestInfo) -> Option<Interruption> {
    match action {
        Action::Error { code, status, message } => {
            let status = status_of(code, *status);
            let words = message.as_deref().unwrap_or(code);
            Some(refusal(status, code, json!({"code": status.as_u16(), "description": words})))
        }
        Action::Custom { name, .. } => match name.as_str() {
            "bad-gateway" => Some(Interruption::Instead(bad_gateway_page())),
            "unauthorized" => Some(Interruption::Instead(CmlError::unauthorized().into_response())),
            // Only the one answer that says so; a CML that is not ready answers everything else.
            "not-ready" if request.operation == "system_information" => {
                let body = json!({
                    "version": version, "ready": false, "allow_ssh_pubkey_auth": false, "oui": "52:54:00:00:00:00",
                });
                Some(Interruption::Instead(Json(body).into_response()))
            }
            _ => None,
        },
        other => of_any(other),
    }
}

/// What an action means to every HTTP service; those about lists of instances mean nothing to it.
fn of_any(action: &Action) -> Option<Interruption> {
    match action {
        Action::Latency { seconds, on } => {
            Duration::try_from_secs_f64(*seconds).ok().map(|delay| Interruption::Late(delay, *on))
        }
        Action::Reset => Some(Interruption::Cut),
        Action::DropResponse => Some(Interruption::Afterwards(cut_connection(CutConnection::Closed))),
        Action::Error { .. }
        | Action::VisibilityLag { .. }
        | Action::Omit { .. }
        | Action::EmptyPage
        | Action::PartialPage { .. }
        | Action::Shuffle
        | Action::Custom { .. } => None,
    }
}

fn refusal(status: StatusCode, code: &str, body: Value) -> Interruption {
    let mut response: Response = (status, Json(body)).into_response();
    response.extensions_mut().insert(RefusalCode(Cow::Owned(code.to_owned())));
    Interruption::Instead(response)
}

/// The status of a code: the one that is given; or else the usual one of the control plane's word, of a number, of
/// HTTP's own words; or else 500.
fn status_of(code: &str, given: Option<u16>) -> StatusCode {
    let plain = |words: &str| words.replace(['-', '_', ' '], "").to_ascii_lowercase();
    let in_words = || {
        let all = (400..600).filter_map(|number| StatusCode::from_u16(number).ok());
        let wanted = plain(code);
        all.into_iter().find(|status| status.canonical_reason().is_some_and(|reason| plain(reason) == wanted))
    };
    let usual =
        || ApiError::usual_status(code).or_else(|| code.parse().ok().filter(|status| (400..600).contains(status)));
    let by_number = given.or_else(usual).and_then(|status| StatusCode::from_u16(status).ok());
    by_number.or_else(in_words).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_usual_status_unless_one_is_given() {
        for (code, given, status) in [
            ("version_conflict", None, 409),
            ("unauthorized", None, 401),
            ("503", None, 503),
            ("service-unavailable", None, 503),
            ("on fire", None, 500),
            ("200", None, 500),
            ("version_conflict", Some(503), 503),
        ] {
            assert_eq!(status_of(code, given).as_u16(), status, "{code}");
        }
    }
}
