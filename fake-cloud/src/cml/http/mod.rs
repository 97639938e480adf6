//! HTTP API of a CML server: decodes requests, calls the server and encodes responses.

mod definitions;
mod lab_elements;
mod labs;
mod system;
mod users;

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Query, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::authority::Certificate;
use super::error::{CmlError, bad_gateway_page};
use super::options::BootStage;
use super::release::Release;
use super::server::CmlServer;
use super::users::{Caller, Permission, Role};
use crate::body::{self, BodyProblem};
use crate::http_server::{self, Gate};
use crate::middleware::{ErrorCode, InjectedError, Protocol, RequestInfo};
use crate::service::Service;
use crate::yaml;

/// Returns the names of all operations.
pub(crate) fn operations() -> impl Iterator<Item = &'static str> {
    ENDPOINTS.into_iter().flatten().map(|endpoint| endpoint.operation)
}

/// Maximum size of a request body in bytes.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// One endpoint. `operation` is its name in fault rules; `path` is relative to `/api/v0`.
struct Endpoint {
    operation: &'static str,
    verb: MethodFilter,
    path: &'static str,
    access: Access,
    since: Release,
    before: Option<Release>,
    handler: Handler,
}

type EndpointResult = Result<Response, CmlError>;

type Handler = fn(&CmlServer, &ApiRequest) -> EndpointResult;

/// All endpoints.
const ENDPOINTS: [&[Endpoint]; 5] =
    [system::ENDPOINTS, users::ENDPOINTS, definitions::ENDPOINTS, labs::ENDPOINTS, lab_elements::ENDPOINTS];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    Login,
    /// A login of a user with admin rights.
    Admin,
    /// A login of a user with this permission on the lab of the first parameter.
    Lab(Permission),
}

impl Endpoint {
    const fn new(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Self {
        Self { operation, verb, path, access: Access::Login, since: Release::FIRST, before: None, handler }
    }

    /// Needs no login.
    const fn open(self) -> Self {
        Self { access: Access::Open, ..self }
    }

    /// Needs admin rights.
    const fn admin(self) -> Self {
        Self { access: Access::Admin, ..self }
    }

    /// Needs a permission on a lab.
    const fn on_lab(self, permission: Permission) -> Self {
        Self { access: Access::Lab(permission), ..self }
    }

    /// Exists from this release on.
    const fn since(self, since: Release) -> Self {
        Self { since, ..self }
    }

    /// Exists before this release.
    const fn before(self, before: Release) -> Self {
        Self { before: Some(before), ..self }
    }

    fn is_in(&self, release: Release) -> bool {
        release >= self.since && self.before.is_none_or(|before| release < before)
    }
}

const GET: MethodFilter = MethodFilter::GET;
const PUT: MethodFilter = MethodFilter::PUT;
const POST: MethodFilter = MethodFilter::POST;
const PATCH: MethodFilter = MethodFilter::PATCH;
const DELETE: MethodFilter = MethodFilter::DELETE;

/// Request with its path parameters, query and body decoded.
struct ApiRequest {
    params: Vec<String>,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
    /// Id of the token in the request; empty for endpoints without a login.
    token: String,
    /// Sender of the request; the default for endpoints without a login.
    caller: Caller,
}

impl ApiRequest {
    fn param(&self, index: usize) -> &str {
        self.params.get(index).map(String::as_str).unwrap_or_default()
    }

    fn query_flag(&self, name: &str) -> bool {
        self.query.iter().any(|(key, value)| key == name && matches!(value.as_str(), "true" | "True" | "1"))
    }

    fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Result<Value, CmlError> {
        serde_json::from_slice(&self.body).map_err(|error| CmlError::bad_request(format!("Invalid JSON: {error}")))
    }

    fn object(&self) -> Result<Map<String, Value>, CmlError> {
        match self.json()? {
            Value::Object(fields) => Ok(fields),
            _ => Err(CmlError::bad_request("A JSON object is needed.")),
        }
    }

    /// Object in JSON or YAML.
    fn document(&self) -> Result<Map<String, Value>, CmlError> {
        yaml::check_depth(&self.body).map_err(|why| CmlError::bad_request(format!("Invalid document: {why}")))?;
        serde_yaml_ng::from_slice(&self.body)
            .map_err(|error| CmlError::bad_request(format!("The document cannot be read: {error}")))
    }
}

fn json(value: Value) -> EndpointResult {
    Ok(axum::Json(value).into_response())
}

fn no_content(result: Result<(), CmlError>) -> EndpointResult {
    result.map(|()| StatusCode::NO_CONTENT.into_response())
}

fn yaml_text(value: &Value) -> EndpointResult {
    let text = serde_yaml_ng::to_string(value).map_err(|error| CmlError::new(500, error.to_string()))?;
    Ok(text.into_response())
}

/// Routes of the API, without a socket.
pub fn router(server: CmlServer) -> Router {
    let mut router = Router::new();
    let release = server.options().release();
    for endpoint in ENDPOINTS.into_iter().flatten().filter(|endpoint| endpoint.is_in(release)) {
        let server = server.clone();
        let handler = move |request: Request| async move { handle(&server, Some(endpoint), request).await };
        let path = format!("/api/v0{}", endpoint.path);
        // Clients before release 2.9 end some paths with a slash.
        if release < Release::V2_9 {
            router = router.route(&format!("{path}/"), on(endpoint.verb, handler.clone()));
        }
        router = router.route(&path, on(endpoint.verb, handler));
    }
    let (not_found, wrong_method) = (server.clone(), server);
    router
        .method_not_allowed_fallback(move |request: Request| async move { handle(&wrong_method, None, request).await })
        .fallback(move |request: Request| async move { handle(&not_found, None, request).await })
}

async fn handle(server: &CmlServer, endpoint: Option<&'static Endpoint>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let operation = endpoint.map_or("unknown", |endpoint| endpoint.operation);
    let mut info = RequestInfo::new(Service::Cml, operation).with_http(parts.method.as_str(), parts.uri.path());
    info.subjects.extend(server.options().instance_id.clone());
    let work = dispatch(server, endpoint, parts, body);
    server.options().middleware.handle(server.clock(), info, &CmlProtocol, work).await
}

/// Encodes injected errors as errors of CML.
struct CmlProtocol;

impl Protocol for CmlProtocol {
    type Body = Body;

    fn encode_error(&self, error: InjectedError) -> Response {
        let status = error.status.and_then(|status| http::StatusCode::from_u16(status).ok());
        let status = status.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let description = error.message.as_ref().unwrap_or(&error.code);
        let body = axum::Json(serde_json::json!({"code": status.as_u16(), "description": description}));
        let mut response = (status, body).into_response();
        response.extensions_mut().insert(ErrorCode(error.code.into()));
        response
    }

    fn encode_response(&self, response: Response) -> Response {
        response
    }
}

async fn dispatch(server: &CmlServer, endpoint: Option<&'static Endpoint>, mut parts: Parts, body: Body) -> Response {
    let not_found = |parts: &Parts| CmlError::not_found("Path", parts.uri.path()).into_response();
    match server.stage() {
        // The server was powered off while the connection was open.
        BootStage::Refused => return http_server::cut_connection(http_server::CutConnection::Reset),
        BootStage::BadGateway => return bad_gateway_page(),
        BootStage::NotReady | BootStage::Ready => {}
    }
    let Some(endpoint) = endpoint else { return not_found(&parts) };
    let Ok(params) = RawPathParams::from_request_parts(&mut parts, &()).await else {
        return not_found(&parts);
    };
    let params: Vec<String> = params.iter().map(|(_, value)| value.to_owned()).collect();
    let (token, caller) = match authorize(server, endpoint.access, bearer(&parts.headers), &params) {
        Ok(login) => login,
        Err(error) => return error.into_response(),
    };
    let body = match body::read(body, MAX_BODY).await {
        Ok(body) => body,
        Err(BodyProblem::TooLong) => {
            return CmlError::new(413, format!("The body is larger than {MAX_BODY} bytes.")).into_response();
        }
        Err(BodyProblem::Incomplete) => return CmlError::bad_request("The body is not complete.").into_response(),
    };
    let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map(|query| query.0).unwrap_or_default();
    let request = ApiRequest { params, query, headers: parts.headers, body, token, caller };
    (endpoint.handler)(server, &request).unwrap_or_else(CmlError::into_response)
}

/// Returns the token and the sender of a request that is permitted.
fn authorize(server: &CmlServer, access: Access, token: &str, params: &[String]) -> Result<(String, Caller), CmlError> {
    if access == Access::Open {
        return Ok(Default::default());
    }
    let (token, caller) = server.check_login(token)?;
    match access {
        Access::Admin if caller.role != Role::Admin => Err(CmlError::new(403, "User does not have admin rights.")),
        Access::Lab(permission) => {
            let lab = params.first().map(String::as_str).unwrap_or_default();
            server.check_permission(&caller, lab, permission)?;
            Ok((token, caller))
        }
        Access::Open | Access::Login | Access::Admin => Ok((token, caller)),
    }
}

fn bearer(headers: &HeaderMap) -> &str {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    header.strip_prefix("Bearer ").unwrap_or_default()
}

/// Serves the API over TLS until `shutdown` resolves, then drops the listener, so that connections are refused.
///
/// An open listener cannot refuse connections: at [`BootStage::Refused`] they are reset instead. Use [`serve_tls_at`]
/// where the difference matters; it binds the address only after that stage.
pub async fn serve_tls(
    listener: TcpListener,
    server: CmlServer,
    certificate: Certificate,
    shutdown: impl Future<Output = ()>,
) {
    serve(listener, server, Some(certificate.acceptor()), shutdown).await;
}

/// Serves the API over plain HTTP until `shutdown` resolves. See [`serve_tls`].
pub async fn serve_http(listener: TcpListener, server: CmlServer, shutdown: impl Future<Output = ()>) {
    serve(listener, server, None, shutdown).await;
}

/// Binds an address once the server has left [`BootStage::Refused`] and serves TLS until `shutdown` resolves.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve_tls_at(
    address: SocketAddr,
    server: CmlServer,
    certificate: Certificate,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_at(address, server, Some(certificate.acceptor()), shutdown).await
}

/// Binds an address once the server has left [`BootStage::Refused`] and serves plain HTTP until `shutdown` resolves.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve_http_at(
    address: SocketAddr,
    server: CmlServer,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_at(address, server, None, shutdown).await
}

async fn serve_at(
    address: SocketAddr,
    server: CmlServer,
    tls: Option<TlsAcceptor>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => return Ok(()),
        () = server.wait_until_listening() => {}
    }
    let listener = TcpListener::bind(address).await?;
    serve(listener, server, tls, shutdown).await;
    Ok(())
}

async fn serve(listener: TcpListener, server: CmlServer, tls: Option<TlsAcceptor>, shutdown: impl Future<Output = ()>) {
    let server_for_gate = server.clone();
    let gate = move || if server_for_gate.stage() == BootStage::Refused { Gate::Shut } else { Gate::Open };
    http_server::serve(listener, router(server), tls, gate, shutdown).await;
}
