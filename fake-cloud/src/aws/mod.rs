//! Serves EC2, CloudWatch and STS of all regions on one port, and the admin API under `/_fake/`.

mod admin_auth;
mod request;

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Redirect};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

pub use self::admin_auth::AdminApi;

use self::admin_auth::Access;
use crate::admin::ui::{self, Stopping};
use crate::http_server::CutConnection;
use crate::middleware::{ErrorCode, InjectedError, Middleware, Protocol, RequestInfo};
use crate::service::Service;
use crate::socket::{ResetSwitch, Socket};
use crate::world::{AwsError, View, World};
use crate::{admin, body, cloudwatch, ec2, sts};

/// Time that open requests have to complete once the server stops.
const GRACE: Duration = Duration::from_millis(500);

/// Maximum body size of a request to the admin API, in bytes.
const MAX_ADMIN_BODY: usize = 2 * 1024 * 1024;

/// Maximum size of a snapshot to restore, in bytes.
const MAX_SNAPSHOT: usize = 256 * 1024 * 1024;

/// Serves a world until `shutdown` completes, then gives open requests a short time to complete.
///
/// # Errors
/// Errors of a connection end that connection only. Fails if the listener cannot accept connections anymore.
///
/// # Cancel safety
/// Dropping the future closes the listener and all connections.
pub async fn serve(listener: TcpListener, world: Arc<World>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let admin = AdminApi { router: admin::router(Arc::clone(&world)), key: None };
    serve_with(listener, world, admin, shutdown).await
}

/// Serves a world like [`serve`], with an admin API that includes other services.
///
/// # Errors
/// The errors of [`serve`].
///
/// # Cancel safety
/// Dropping the future closes the listener and all connections.
pub async fn serve_with(
    listener: TcpListener,
    world: Arc<World>,
    admin: AdminApi,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let middleware = Middleware::for_world(&world);
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (world, admin, middleware) = (Arc::clone(&world), admin.clone(), middleware.clone());
                    let connection = Connection { world, admin, middleware, peer };
                    connections.spawn(connection.serve(stream, stopped.clone()));
                }
                // Usually out of file descriptors: wait until other connections close.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    drop(stop);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        connections.shutdown().await;
    }
    Ok(())
}

/// One client connection.
#[derive(Clone)]
struct Connection {
    world: Arc<World>,
    admin: AdminApi,
    middleware: Middleware,
    peer: SocketAddr,
}

/// Ends the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("a fault rule ended the connection without a response")]
struct NoResponse;

impl Connection {
    async fn serve(self, stream: TcpStream, mut stopped: watch::Receiver<()>) {
        // Otherwise a keep-alive request waits for the delayed acknowledgment of the client.
        let _ = stream.set_nodelay(true);
        let switch = ResetSwitch::default();
        let socket = TokioIo::new(Socket::new(stream, switch.clone()));
        let stopping = Stopping(stopped.clone());
        let service = service_fn(|request| self.respond(request, &switch, &stopping));
        let connection =
            hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(socket, service);
        let mut connection = pin!(connection);
        // The client sees connection errors; the server ignores them.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    async fn respond(
        &self,
        mut request: Request<Incoming>,
        switch: &ResetSwitch,
        stopping: &Stopping,
    ) -> Result<Response<Body>, NoResponse> {
        if request.uri().path().starts_with("/_fake") {
            request.extensions_mut().insert(stopping.clone());
            return Ok(self.respond_admin(request).await);
        }
        if request::is_browser(&request) {
            return Ok(Redirect::temporary(ui::PATH).into_response());
        }
        let (head, body) = request.into_parts();
        let request_id = self.world.request_id();
        let body = request::body(&head.headers, body).await;
        let cloudwatch = cloudwatch::Protocol::detect(head.uri.path(), &head.headers);
        let api = cloudwatch.map_or(Api::Ec2, Api::Cloudwatch);
        let exchange = Exchange { connection: self, head: &head, request_id: &request_id, api };
        exchange.run(body).await.map_err(|cut| {
            if cut == CutConnection::Reset {
                switch.reset();
            }
            NoResponse
        })
    }

    async fn respond_admin(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        match self.admin.authorize(self.peer.ip(), &head.method, &head.headers) {
            Access::Granted => {}
            Access::NotLocal => return admin::forbidden(),
            Access::KeyRequired => {
                return ui::without_key(&head.method, head.uri.path(), &head.headers).unwrap_or_else(admin::needs_key);
            }
        }
        let limit = if head.uri.path() == admin::RESTORE { MAX_SNAPSHOT } else { MAX_ADMIN_BODY };
        let body = match body::read(body, limit).await {
            Ok(body) => Body::from(body),
            Err(problem) => return admin::no_body(problem, limit),
        };
        match self.admin.router.clone().oneshot(Request::from_parts(head, body)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// One AWS request, and the encoding of its response.
struct Exchange<'a> {
    connection: &'a Connection,
    head: &'a hyper::http::request::Parts,
    request_id: &'a str,
    api: Api,
}

/// API of a request, which determines the encoding of its response.
#[derive(Debug, Clone, Copy)]
enum Api {
    Ec2,
    Cloudwatch(cloudwatch::Protocol),
    Sts,
}

/// A decoded request.
enum ParsedRequest<'a> {
    Ec2(ec2::Form<'a>),
    Cloudwatch(cloudwatch::Call),
    Sts(ec2::Form<'a>),
}

impl Protocol for Exchange<'_> {
    type Body = Body;

    fn encode_error(&self, injected: InjectedError) -> Response<Body> {
        let mut error = AwsError::from_code(injected.code);
        error.status = injected.status.unwrap_or(error.status);
        error.message = injected.message.unwrap_or(error.message);
        self.error_response(&error)
    }

    fn encode_response(&self, response: Response<Body>) -> Response<Body> {
        response
    }
}

impl Exchange<'_> {
    async fn run(mut self, body: Result<Bytes, AwsError>) -> Result<Response<Body>, CutConnection> {
        let headers = &self.head.headers;
        let clock = self.connection.world.clock();
        let query = self.head.uri.query().unwrap_or_default();
        let credential = request::credential(headers, query);
        let scope = match request::scope(credential.as_deref()) {
            Ok(scope) => scope,
            Err(error) => {
                let response = self.error_response(&error);
                // The signature names the service; without one, the protocol is the best guess.
                let service = match self.api {
                    Api::Ec2 | Api::Sts => Service::Ec2,
                    Api::Cloudwatch(_) => Service::Cloudwatch,
                };
                self.connection.middleware.report(&self.request_info(service), clock.now(), self.outcome(&response));
                return Ok(response);
            }
        };
        self.api = match (scope.service, self.api) {
            (Service::Ec2, _) => Api::Ec2,
            (Service::Sts, _) => Api::Sts,
            (Service::Cloudwatch | Service::Cml | Service::Etcd | Service::ControlPlane, Api::Cloudwatch(protocol)) => {
                Api::Cloudwatch(protocol)
            }
            (Service::Cloudwatch | Service::Cml | Service::Etcd | Service::ControlPlane, Api::Ec2 | Api::Sts) => {
                Api::Cloudwatch(cloudwatch::Protocol::Query)
            }
        };
        let account = self.connection.world.account_of(scope.access_key);
        let body = body.map(|body| if query.is_empty() { body } else { self.with_query(query, body) });
        let parsed = match &body {
            Ok(body) => self.parse(body),
            Err(error) => Err(error.clone()),
        };
        let RequestSummary { operation, parameters, instances } =
            parsed.as_ref().map(ParsedRequest::summary).unwrap_or_default();
        let info = RequestInfo {
            operation,
            region: Some(scope.region),
            subjects: instances,
            parameters,
            ..self.request_info(scope.service)
        };
        let active = self.connection.middleware.begin(info, clock.now());
        let work = async {
            let executed = parsed.as_ref().map_err(Clone::clone);
            let executed = executed.and_then(|parsed| {
                let view = View { account: Some(Arc::clone(&account)), ..active.view() };
                self.execute(parsed, scope.region, &account, &view)
            });
            executed.unwrap_or_else(|error| self.error_response(&error))
        };
        active.respond(clock, &self, work).await
    }

    /// Joins the parameters of the query string with those of the body, which win. Only forms have parameters in the URL.
    fn with_query(&self, query: &str, body: Bytes) -> Bytes {
        match self.api {
            Api::Ec2 | Api::Sts | Api::Cloudwatch(cloudwatch::Protocol::Query) => {
                [query.as_bytes(), b"&", &body].concat().into()
            }
            Api::Cloudwatch(cloudwatch::Protocol::Cbor | cloudwatch::Protocol::Json) => body,
        }
    }

    /// Metadata that is known before the request is decoded.
    fn request_info(&self, service: Service) -> RequestInfo<'_> {
        let headers = &self.head.headers;
        RequestInfo {
            call: request::header(headers, "amz-sdk-invocation-id"),
            attempt: request::attempt(headers),
            client: request::header(headers, "user-agent"),
            ..RequestInfo::new(service, UNREADABLE)
        }
    }

    fn parse<'a>(&self, body: &'a [u8]) -> Result<ParsedRequest<'a>, AwsError> {
        let form = || {
            let form = ec2::Form::decode(body)?;
            if form.get("Action").is_none() { Err(AwsError::missing("Action")) } else { Ok(form) }
        };
        match self.api {
            Api::Ec2 => form().map(ParsedRequest::Ec2),
            Api::Sts => form().map(ParsedRequest::Sts),
            Api::Cloudwatch(protocol) => {
                cloudwatch::Call::decode(protocol, self.head.uri.path(), &self.head.headers, body)
                    .map(ParsedRequest::Cloudwatch)
            }
        }
    }

    fn execute(
        &self,
        parsed: &ParsedRequest<'_>,
        region: &str,
        account: &Arc<str>,
        view: &View,
    ) -> Result<Response<Body>, AwsError> {
        let world = &*self.connection.world;
        match parsed {
            ParsedRequest::Ec2(form) => {
                let request = ec2::Request { world, region, account, form, view, request_id: self.request_id };
                let body = ec2::handle(&request)?;
                Ok(self.response(StatusCode::OK, XML, body))
            }
            ParsedRequest::Cloudwatch(call) => {
                let body = call.handle(world, region, view, self.request_id)?;
                Ok(self.cloudwatch_response(call.protocol(), StatusCode::OK, body))
            }
            ParsedRequest::Sts(form) => {
                let body = sts::handle(form, account, self.request_id)?;
                Ok(self.response(StatusCode::OK, XML, body))
            }
        }
    }

    fn error_response(&self, error: &AwsError) -> Response<Body> {
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = match self.api {
            Api::Ec2 => self.response(status, XML, ec2::encode_error(error, self.request_id)),
            Api::Sts => self.response(status, XML, sts::encode_error(error, self.request_id)),
            Api::Cloudwatch(protocol) => {
                let body = protocol.encode_error(error, self.request_id);
                let mut response = self.cloudwatch_response(protocol, status, body);
                let fault = if status.is_server_error() { "Receiver" } else { "Sender" };
                if let Ok(value) = HeaderValue::from_str(&format!("{};{fault}", error.code)) {
                    response.headers_mut().insert("x-amzn-query-error", value);
                }
                response
            }
        };
        response.extensions_mut().insert(ErrorCode(error.code.clone()));
        response
    }

    fn cloudwatch_response(&self, protocol: cloudwatch::Protocol, status: StatusCode, body: Vec<u8>) -> Response<Body> {
        let mut response = self.response(status, protocol.content_type(), body);
        if protocol == cloudwatch::Protocol::Cbor {
            response.headers_mut().insert("smithy-protocol", HeaderValue::from_static("rpc-v2-cbor"));
        }
        response
    }

    fn response(&self, status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
        let mut response = Response::new(body.into());
        *response.status_mut() = status;
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Ok(id) = HeaderValue::from_str(self.request_id) {
            headers.insert(HeaderName::from_static("x-amzn-requestid"), id);
        }
        response
    }
}

/// Operation of a request that cannot be decoded.
const UNREADABLE: &str = "unreadable";
const XML: &str = "text/xml;charset=UTF-8";

/// The parts of a request that fault rules and the request log read.
struct RequestSummary<'a> {
    operation: &'a str,
    parameters: Vec<(&'a str, Cow<'a, str>)>,
    instances: Vec<String>,
}

impl Default for RequestSummary<'_> {
    fn default() -> Self {
        Self { operation: UNREADABLE, parameters: Vec::new(), instances: Vec::new() }
    }
}

impl ParsedRequest<'_> {
    fn summary(&self) -> RequestSummary<'_> {
        match self {
            Self::Ec2(form) | Self::Sts(form) => {
                let parameters = form.iter().filter(|(name, _)| !ec2::is_common_parameter(name));
                RequestSummary {
                    operation: form.get("Action").unwrap_or(UNREADABLE),
                    parameters: parameters.map(|(name, value)| (name, Cow::Borrowed(value))).collect(),
                    instances: ec2::named_instances(form),
                }
            }
            Self::Cloudwatch(call) => RequestSummary {
                operation: call.operation(),
                parameters: call.parameters().collect(),
                instances: call.named_instances(),
            },
        }
    }
}
