//! HTTP API of the records: decodes requests, calls the records and encodes responses.

mod codec;
mod endpoints;

use std::future::Future;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use tokio::net::TcpListener;

pub(in crate::control_plane) use self::codec::WriteSteps;
pub use self::codec::{ApiRequest, ApiResponse};
pub use self::endpoints::{ENDPOINTS, Endpoint, Verb};

pub(in crate::control_plane) use self::endpoints::Handler;

use super::error::ApiError;
use super::original::{self, Rejection};
use super::records::Records;
use super::settings::Generation;
use crate::body::{self, BodyProblem};
use crate::http_server::{self, Gate, cut_connection};
use crate::middleware::{ErrorCode, InjectedError, Middleware, Protocol, RequestInfo};
use crate::service::Service;

/// Options of the HTTP server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Expected value of the header `X-API-Key`.
    pub api_key: String,
    /// Maximum size of a request body in bytes.
    pub max_body_bytes: usize,
    /// Injects faults into requests and observes them.
    pub middleware: Middleware,
}

impl Default for Options {
    fn default() -> Self {
        Self { api_key: "lcm-dev-key".to_owned(), max_body_bytes: 16 * 1024 * 1024, middleware: Middleware::default() }
    }
}

/// Serves the records until `shutdown` resolves.
///
/// # Cancel safety
/// Dropping the future stops the server. Requests in flight get no response, but no change is applied partially.
pub async fn serve(listener: TcpListener, records: Records, options: Options, shutdown: impl Future<Output = ()>) {
    http_server::serve(listener, router(records, options), None, || Gate::Open, shutdown).await;
}

/// Routes of the API, without a socket.
pub fn router(records: Records, options: Options) -> Router {
    let server = Server { records, options };
    let mut router = Router::new();
    let generation = server.generation();
    for endpoint in generation.endpoints() {
        let (redirecting, server) = (server.clone(), server.clone());
        let filter = match endpoint.verb {
            Verb::Get => MethodFilter::GET,
            Verb::Post => MethodFilter::POST,
            Verb::Put => MethodFilter::PUT,
            Verb::Delete => MethodFilter::DELETE,
        };
        let handler = move |request: Request| async move { server.handle(Some(endpoint), request).await };
        router = match generation {
            Generation::Original => {
                let redirect = move |request: Request| async move { redirecting.redirect(endpoint, request).await };
                router.route(&toggle_slash(endpoint.path), axum::routing::any(redirect))
            }
            Generation::Extended => router.route(&toggle_slash(endpoint.path), on(filter, handler.clone())),
        };
        router = router.route(endpoint.path, on(filter, handler));
    }
    let (not_found, wrong_method) = (server.clone(), server);
    router
        .method_not_allowed_fallback(
            move |request: Request| async move { wrong_method.method_not_allowed(request).await },
        )
        .fallback(move |request: Request| async move { not_found.handle(None, request).await })
}

impl Generation {
    /// Endpoints of a server of this generation.
    pub fn endpoints(self) -> &'static [Endpoint] {
        match self {
            Self::Original => original::ENDPOINTS,
            Self::Extended => ENDPOINTS,
        }
    }
}

/// Adds a slash to the end of a path, or removes it.
fn toggle_slash(path: &str) -> String {
    path.strip_suffix('/').map_or_else(|| format!("{path}/"), str::to_owned)
}

#[derive(Clone)]
struct Server {
    records: Records,
    options: Options,
}

impl Server {
    async fn handle(&self, endpoint: Option<&'static Endpoint>, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        let subject = match RawPathParams::from_request_parts(&mut parts, &()).await {
            Ok(params) => params.iter().next().map(|(_, value)| value.to_owned()),
            // A path that is not UTF-8 matches no endpoint, but it is recorded like every other request.
            Err(_) => None,
        };
        let endpoint = endpoint.filter(|endpoint| subject.is_some() || !endpoint.path.contains('{'));
        let operation = endpoint.map_or("unknown", |endpoint| endpoint.operation);
        let mut info = request_info(operation, &parts);
        info.subjects.extend(subject.clone());
        let active = self.options.middleware.begin(info, self.records.clock().now());
        let steps = if active.splits_write() { WriteSteps::FirstOnly } else { WriteSteps::All };
        let work = self.dispatch(endpoint, subject, parts, body, steps);
        let responded = active.respond(self.records.clock(), &self.protocol(), work).await;
        responded.unwrap_or_else(cut_connection)
    }

    async fn dispatch(
        &self,
        endpoint: Option<&'static Endpoint>,
        subject: Option<String>,
        parts: Parts,
        body: Body,
        steps: WriteSteps,
    ) -> Response {
        let Some(endpoint) = endpoint else {
            return self.error_response(&ApiError::NoSuchPath(parts.uri.path().to_owned()));
        };
        let key = parts.headers.get("x-api-key").map(|key| key.as_bytes());
        if endpoint.access == Access::Key && key != Some(self.options.api_key.as_bytes()) {
            return self.unauthorized(key);
        }
        let limit = self.options.max_body_bytes;
        let body = match body::read(body, limit).await {
            Ok(body) => body,
            Err(BodyProblem::TooLong) => return self.error_response(&ApiError::TooLarge { limit }),
            Err(BodyProblem::Incomplete) => {
                return self.error_response(&ApiError::invalid("(body)", &"incomplete".into(), "a complete body"));
            }
        };
        let call = match ApiRequest::new(subject, &parts, body) {
            Ok(call) => call.with_steps(steps),
            Err(error) => return self.error_response(&error),
        };
        match endpoint.handler {
            Handler::Extended(handle) => {
                handle(&self.records, &call).map_or_else(|error| error_response(&error), IntoResponse::into_response)
            }
            Handler::Original(handle) => handle(&self.records, &call).into_response(),
        }
    }

    /// Sends a client to the path with or without a slash at its end.
    async fn redirect(&self, endpoint: &'static Endpoint, request: Request) -> Response {
        let (parts, _) = request.into_parts();
        let info = request_info(endpoint.operation, &parts);
        let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let location = format!("http://{host}{}{query}", toggle_slash(parts.uri.path()));
        let work = async { (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, location)]).into_response() };
        self.respond(info, work).await
    }

    async fn respond(&self, info: RequestInfo<'static>, work: impl Future<Output = Response>) -> Response {
        self.options.middleware.handle(self.records.clock(), info, &self.protocol(), work).await
    }

    fn protocol(&self) -> ControlPlaneProtocol {
        ControlPlaneProtocol { generation: self.generation() }
    }

    fn generation(&self) -> Generation {
        self.records.settings().generation
    }

    /// Encodes an error that occurs before a handler runs.
    fn error_response(&self, error: &ApiError) -> Response {
        match self.generation() {
            Generation::Original => Rejection::from(error).into_response(),
            Generation::Extended => error_response(error),
        }
    }

    fn unauthorized(&self, key: Option<&[u8]>) -> Response {
        match (self.generation(), key) {
            (Generation::Original, None) => {
                Rejection::Framework { status: 401, detail: "Missing X-API-Key header".to_owned() }.into_response()
            }
            (Generation::Original | Generation::Extended, _) => self.error_response(&ApiError::Unauthorized),
        }
    }

    async fn method_not_allowed(&self, request: Request) -> Response {
        let (parts, _) = request.into_parts();
        let info = request_info("unknown", &parts);
        let work = async { self.error_response(&ApiError::MethodNotAllowed(parts.method.to_string())) };
        self.respond(info, work).await
    }
}

/// Access control of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Requires the API key.
    Key,
    /// Accepts every caller.
    Open,
}

fn request_info(operation: &'static str, parts: &Parts) -> RequestInfo<'static> {
    RequestInfo::new(Service::ControlPlane, operation)
        .with_http(parts.method.as_str(), parts.uri.path())
        .with_fencing_token(fencing_token(&parts.headers))
}

/// Encodes injected errors as errors of the control plane.
struct ControlPlaneProtocol {
    generation: Generation,
}

impl Protocol for ControlPlaneProtocol {
    type Body = Body;

    fn encode_error(&self, error: InjectedError) -> Response {
        let status = error.status.and_then(|status| StatusCode::from_u16(status).ok());
        let detail = error.message.as_deref().unwrap_or("error injected by a fault rule");
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = match self.generation {
            Generation::Original => original::problem(status, detail),
            Generation::Extended => serde_json::json!({"error": error.code, "detail": detail}),
        };
        let mut response = (status, axum::Json(body)).into_response();
        response.extensions_mut().insert(ErrorCode(error.code.into()));
        response
    }

    fn encode_response(&self, response: Response) -> Response {
        response
    }
}

fn fencing_token(headers: &HeaderMap) -> Option<i64> {
    headers.get("x-fencing-token")?.to_str().ok()?.parse().ok()
}

fn error_response(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = (status, axum::Json(error.to_json())).into_response();
    response.extensions_mut().insert(ErrorCode(error.code().into()));
    response
}
