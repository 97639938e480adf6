//! HTTP API of a CML server: decodes requests, calls the server and encodes responses.

mod endpoints;

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Query, RawPathParams, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use self::endpoints::ENDPOINTS;
use super::authority::Certificate;
use super::error::{CmlError, bad_gateway_page};
use super::options::BootStage;
use super::server::CmlServer;
use crate::body::{self, BodyProblem};
use crate::http_server::{self, Gate};
use crate::middleware::{ErrorCode, InjectedError, Protocol, RequestInfo};
use crate::service::Service;

/// Maximum size of a request body in bytes.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// One endpoint. `operation` is its name in fault rules; `path` is relative to `/api/v0`.
struct Endpoint {
    operation: &'static str,
    verb: MethodFilter,
    path: &'static str,
    access: Access,
    handler: fn(&CmlServer, &ApiRequest) -> EndpointResult,
}

type EndpointResult = Result<Response, CmlError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    Login,
}

/// Request with its path parameters, query and body decoded.
struct ApiRequest {
    params: Vec<String>,
    query: Vec<(String, String)>,
    body: Bytes,
    /// Id of the token in the request; empty for endpoints without a login.
    token: String,
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
}

/// Routes of the API, without a socket.
pub fn router(server: CmlServer) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let server = server.clone();
        let handler = move |request: Request| async move { handle(&server, Some(endpoint), request).await };
        router = router.route(&format!("/api/v0{}", endpoint.path), on(endpoint.verb, handler));
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
    let params = params.iter().map(|(_, value)| value.to_owned()).collect();
    let token = match (endpoint.access, bearer(&parts.headers)) {
        (Access::Open, _) => String::new(),
        (Access::Login, token) => match server.check_token(token) {
            Ok(id) => id,
            Err(error) => return error.into_response(),
        },
    };
    let body = match body::read(body, MAX_BODY).await {
        Ok(body) => body,
        Err(BodyProblem::TooLong) => {
            return CmlError::new(413, format!("The body is larger than {MAX_BODY} bytes.")).into_response();
        }
        Err(BodyProblem::Incomplete) => return CmlError::bad_request("The body is not complete.").into_response(),
    };
    let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map(|query| query.0).unwrap_or_default();
    (endpoint.handler)(server, &ApiRequest { params, query, body, token }).unwrap_or_else(CmlError::into_response)
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
    serve(listener, server, Some(TlsAcceptor::from(certificate.config)), shutdown).await;
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
    serve_at(address, server, Some(TlsAcceptor::from(certificate.config)), shutdown).await
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
