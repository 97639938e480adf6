//! A system over HTTP: decode, ask, encode.

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
use super::boot::BootStage;
use super::error::{CmlError, bad_gateway_page};
use super::server::CmlServer;
use crate::body::{self, BodyProblem};
use crate::http_server::{self, Gate};
use crate::middleware::{ErrorCode, InjectedError, Protocol, RequestInfo};
use crate::service::Service;

/// The largest body that is read.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// One endpoint: its name for faults, its method, its path under `/api/v0`, whether it needs a login, what it does.
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

/// A request, decoded as far as every endpoint needs it.
struct ApiRequest {
    params: Vec<String>,
    query: Vec<(String, String)>,
    body: Bytes,
    /// The id of the token it came with.
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

/// The service without a socket.
pub fn router(system: CmlServer) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let system = system.clone();
        let handler = move |request: Request| async move { answer(&system, Some(endpoint), request).await };
        router = router.route(&format!("/api/v0{}", endpoint.path), on(endpoint.verb, handler));
    }
    let (elsewhere, otherwise) = (system.clone(), system);
    router
        .method_not_allowed_fallback(move |request: Request| async move { answer(&otherwise, None, request).await })
        .fallback(move |request: Request| async move { answer(&elsewhere, None, request).await })
}

async fn answer(system: &CmlServer, endpoint: Option<&'static Endpoint>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let operation = endpoint.map_or("unknown", |endpoint| endpoint.operation);
    let mut info = RequestInfo::new(Service::Cml, operation).with_http(parts.method.as_str(), parts.uri.path());
    info.subjects.extend(system.options().instance_id.clone());
    let work = carry_out(system, endpoint, parts, body);
    system.options().middleware.handle(system.clock(), info, &CmlProtocol, work).await
}

/// Encodes injected errors as CML's own.
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

async fn carry_out(system: &CmlServer, endpoint: Option<&'static Endpoint>, mut parts: Parts, body: Body) -> Response {
    let nowhere = |parts: &Parts| CmlError::not_found("Path", parts.uri.path()).into_response();
    match system.stage() {
        // It was switched off while the connection stood.
        BootStage::Refused => return http_server::cut_connection(http_server::CutConnection::Reset),
        BootStage::BadGateway => return bad_gateway_page(),
        BootStage::NotReady | BootStage::Ready => {}
    }
    let Some(endpoint) = endpoint else { return nowhere(&parts) };
    let Ok(params) = RawPathParams::from_request_parts(&mut parts, &()).await else {
        return nowhere(&parts);
    };
    let params = params.iter().map(|(_, value)| value.to_owned()).collect();
    let token = match (endpoint.access, bearer(&parts.headers)) {
        (Access::Open, _) => String::new(),
        (Access::Login, token) => match system.check_token(token) {
            Ok(id) => id,
            Err(refusal) => return refusal.into_response(),
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
    (endpoint.handler)(system, &ApiRequest { params, query, body, token }).unwrap_or_else(CmlError::into_response)
}

fn bearer(headers: &HeaderMap) -> &str {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    header.strip_prefix("Bearer ").unwrap_or_default()
}

/// Serves a system over TLS until `shutdown` resolves; then the listener is dropped, and connections are refused.
///
/// A listener that exists cannot refuse: while the system is at [`BootStage::Refused`], connections are reset. Where the
/// difference matters, [`serve_tls_at`] listens only once something would.
pub async fn serve_tls(
    listener: TcpListener,
    system: CmlServer,
    certificate: Certificate,
    shutdown: impl Future<Output = ()>,
) {
    serve(listener, system, Some(TlsAcceptor::from(certificate.config)), shutdown).await;
}

/// Serves a system over plain HTTP until `shutdown` resolves. See [`serve_tls`].
pub async fn serve_http(listener: TcpListener, system: CmlServer, shutdown: impl Future<Output = ()>) {
    serve(listener, system, None, shutdown).await;
}

/// Listens at an address once the system answers at all, and serves it over TLS until `shutdown` resolves.
///
/// # Errors
/// When the address cannot be listened at.
pub async fn serve_tls_at(
    address: SocketAddr,
    system: CmlServer,
    certificate: Certificate,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_at(address, system, Some(TlsAcceptor::from(certificate.config)), shutdown).await
}

/// Listens at an address once the system answers at all, and serves it over plain HTTP until `shutdown` resolves.
///
/// # Errors
/// When the address cannot be listened at.
pub async fn serve_http_at(
    address: SocketAddr,
    system: CmlServer,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_at(address, system, None, shutdown).await
}

async fn serve_at(
    address: SocketAddr,
    system: CmlServer,
    tls: Option<TlsAcceptor>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => return Ok(()),
        () = system.wait_until_listening() => {}
    }
    let listener = TcpListener::bind(address).await?;
    serve(listener, system, tls, shutdown).await;
    Ok(())
}

async fn serve(listener: TcpListener, system: CmlServer, tls: Option<TlsAcceptor>, shutdown: impl Future<Output = ()>) {
    let looked_at = system.clone();
    let gate = move || if looked_at.stage() == BootStage::Refused { Gate::Shut } else { Gate::Open };
    http_server::serve(listener, router(system), tls, gate, shutdown).await;
}
