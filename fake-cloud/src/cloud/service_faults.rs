//! Translates the `error` and `custom` actions of fault rules for the control plane, CML and etcd.

use std::sync::Arc;

use axum::Json;
use axum::response::IntoResponse;
use http::StatusCode;
use serde_json::json;

use crate::cml::{CmlError, bad_gateway_page};
use crate::control_plane::{ApiError, WRITE_CONFLICT};
use crate::etcd::{self, EtcdStore};
use crate::faults::Action;
use crate::middleware::{Fault, InjectedError, Middleware, RequestInfo};
use crate::world::World;

/// Middleware of the control plane.
pub(super) fn control_plane_middleware(world: &Arc<World>) -> Middleware {
    Middleware::for_world_with(world, |action, _| match action {
        Action::Custom { name, .. } => match name.as_str() {
            "bad-gateway" => Some(Fault::Respond(bad_gateway_page())),
            "write-conflict" => Some(Fault::Error(InjectedError {
                code: "write-conflict".to_owned(),
                status: Some(StatusCode::INTERNAL_SERVER_ERROR.as_u16()),
                message: Some(WRITE_CONFLICT.to_owned()),
            })),
            "split-write" => Some(Fault::SplitWrite),
            _ => None,
        },
        other => http_error(other),
    })
}

/// Middleware of every CML server; `version` is the version they report.
pub(super) fn cml_middleware(world: &Arc<World>, version: String) -> Middleware {
    Middleware::for_world_with(world, move |action, request| match action {
        Action::Custom { name, .. } => cml_fault(&version, name, request),
        other => http_error(other),
    })
}

fn cml_fault(version: &str, name: &str, request: &RequestInfo<'_>) -> Option<Fault> {
    match name {
        "bad-gateway" => Some(Fault::Respond(bad_gateway_page())),
        "unauthorized" => Some(Fault::Respond(CmlError::unauthorized().into_response())),
        // A CML server that is not ready reports it here only, and serves all other requests.
        "not-ready" if request.operation == "system_information" => {
            let body = json!({
                "version": version, "ready": false, "allow_ssh_pubkey_auth": false, "oui": "52:54:00:00:00:00",
            });
            Some(Fault::Respond(Json(body).into_response()))
        }
        _ => None,
    }
}

/// Middleware of etcd. A custom action changes the store as a whole; the request then meets the changed store.
pub(super) fn etcd_middleware(world: &Arc<World>, store: &EtcdStore) -> Middleware {
    let store = store.clone();
    Middleware::for_world_with(world, move |action, _| match action {
        Action::Custom { name, parameters } => {
            if let Ok(fault) = etcd::Fault::from_name(name, parameters.get("lease")) {
                store.inject(fault);
            }
            None
        }
        other => injected_error(other, None),
    })
}

fn http_error(action: &Action) -> Option<Fault> {
    let Action::Error { code, status, .. } = action else { return None };
    injected_error(action, Some(error_status(code, *status).as_u16()))
}

fn injected_error(action: &Action, status: Option<u16>) -> Option<Fault> {
    let Action::Error { code, message, .. } = action else { return None };
    Some(Fault::Error(InjectedError { code: code.clone(), status, message: message.clone() }))
}

/// Returns the HTTP status of an error code: the given status, the status of the control plane's code, a numeric code,
/// the status with this reason phrase, or 500.
fn error_status(code: &str, given: Option<u16>) -> StatusCode {
    let normalized = |text: &str| text.replace(['-', '_', ' '], "").to_ascii_lowercase();
    let by_reason = || {
        let wanted = normalized(code);
        let mut all = (400..600).filter_map(|number| StatusCode::from_u16(number).ok());
        all.find(|status| status.canonical_reason().is_some_and(|reason| normalized(reason) == wanted))
    };
    let usual =
        || ApiError::status_from_code(code).or_else(|| code.parse().ok().filter(|status| (400..600).contains(status)));
    let by_number = given.or_else(usual).and_then(|status| StatusCode::from_u16(status).ok());
    by_number.or_else(by_reason).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_code_has_its_status_from_code_by_default() {
        for (code, given, status) in [
            ("version_conflict", None, 409),
            ("unauthorized", None, 401),
            ("503", None, 503),
            ("service-unavailable", None, 503),
            ("on fire", None, 500),
            ("200", None, 500),
            ("version_conflict", Some(503), 503),
        ] {
            assert_eq!(error_status(code, given).as_u16(), status, "{code}");
        }
    }
}
