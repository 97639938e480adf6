//! The web console: its files, and the endpoints that only the console needs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::IF_NONE_MATCH;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use lcm_console::{ASSETS, Asset};
use serde_json::json;

use super::handlers::{AdminState, SharedState, uncached};
use super::stream;

pub(crate) fn router(state: Arc<AdminState>) -> axum::Router {
    let mut router = axum::Router::new()
        .route("/admin/discovery", get(discovery))
        .with_state(Arc::clone(&state))
        .merge(stream::router(state))
        .route("/config.json", get(config));
    if let Some(page) = lcm_console::asset("") {
        router = router.route("/", get(move |headers: HeaderMap| async move { file(page, &headers) }));
    }
    for asset in ASSETS {
        let path = format!("/{}", asset.path);
        router = router.route(&path, get(move |headers: HeaderMap| async move { file(asset, &headers) }));
    }
    router
}

fn file(asset: &Asset, headers: &HeaderMap) -> Response {
    let file = asset.response(headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes));
    let status = StatusCode::from_u16(file.status).unwrap_or_default();
    (status, file.headers, file.body).into_response()
}

/// The settings of the page.
async fn config() -> Response {
    uncached(Json(json!({"server": "controller", "title": "controller", "api": "/admin/", "stream": "/admin/stream"})))
}

async fn discovery(State(state): SharedState) -> Response {
    uncached(Json(json!({"runs": state.source.discovery_runs()})))
}
