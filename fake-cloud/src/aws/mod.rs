//! Serves EC2 and CloudWatch of all regions on one port, and the admin API under `/_fake/`.

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
use crate::http_server::CutConnection;
use crate::middleware::{ErrorCode, InjectedError, Middleware, Protocol, RequestInfo};
use crate::service::Service;
use crate::socket::{ResetSwitch, Socket};
use crate::world::{AwsError, View, World};
use crate::{admin, body, cloudwatch, ec2};

/// Time that open requests have to complete once the server stops.
const GRACE: Duration = Duration::from_millis(500);

/// Maximum body size of a request to the admin API, in bytes.
const MAX_ADMIN_BODY: usize = 2 * 1024 * 1024;

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
        let service = service_fn(|request| self.respond(request, &switch));
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

    async fn respond(&self, request: Request<Incoming>, switch: &ResetSwitch) -> Result<Response<Body>, NoResponse> {
        if request.uri().path().starts_with("/_fake") {
            return Ok(self.respond_admin(request).await);
        }
        let (head, body) = request.into_parts();
        let request_id = self.world.request_id();
        let body = request::body(&head.headers, body).await;
        let protocol = cloudwatch::Protocol::detect(head.uri.path(), &head.headers);
        let exchange = Exchange { connection: self, head: &head, request_id: &request_id, protocol };
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
            Access::KeyRequired => return admin::needs_key(),
        }
        let body = match body::read(body, MAX_ADMIN_BODY).await {
            Ok(body) => Body::from(body),
            Err(problem) => return admin::no_body(problem, MAX_ADMIN_BODY),
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
    /// Protocol of CloudWatch; `None` for EC2.
    protocol: Option<cloudwatch::Protocol>,
}

/// A decoded request.
enum ParsedRequest<'a> {
    Ec2(ec2::Form<'a>),
    Cloudwatch(cloudwatch::Call),
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
        let scope = match request::scope(headers) {
            Ok(scope) => scope,
            Err(error) => {
                let response = self.error_response(&error);
                // The signature names the service; without one, the protocol is the best guess.
                let service = if self.protocol.is_some() { Service::Cloudwatch } else { Service::Ec2 };
                self.connection.middleware.report(&self.request_info(service), clock.now(), self.outcome(&response));
                return Ok(response);
            }
        };
        self.protocol = match scope.service {
            Service::Ec2 => None,
            Service::Cloudwatch | Service::Cml | Service::Etcd | Service::ControlPlane => {
                Some(self.protocol.unwrap_or(cloudwatch::Protocol::Query))
            }
        };
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
            let executed = executed.and_then(|parsed| self.execute(parsed, scope.region, &active.view()));
            executed.unwrap_or_else(|error| self.error_response(&error))
        };
        active.respond(clock, &self, work).await
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
        match self.protocol {
            None => {
                let form = ec2::Form::decode(body)?;
                if form.get("Action").is_none() {
                    return Err(AwsError::missing("Action"));
                }
                Ok(ParsedRequest::Ec2(form))
            }
            Some(protocol) => cloudwatch::Call::decode(protocol, self.head.uri.path(), &self.head.headers, body)
                .map(ParsedRequest::Cloudwatch),
        }
    }

    fn execute(&self, parsed: &ParsedRequest<'_>, region: &str, view: &View) -> Result<Response<Body>, AwsError> {
        let world = &*self.connection.world;
        match parsed {
            ParsedRequest::Ec2(form) => {
                let request = ec2::Request { world, region, form, view, request_id: self.request_id };
                let body = ec2::handle(&request)?;
                Ok(self.response(StatusCode::OK, XML, body))
            }
            ParsedRequest::Cloudwatch(call) => {
                let body = call.handle(world, region, view, self.request_id)?;
                Ok(self.cloudwatch_response(call.protocol(), StatusCode::OK, body))
            }
        }
    }

    fn error_response(&self, error: &AwsError) -> Response<Body> {
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = match self.protocol {
            None => self.response(status, XML, ec2::encode_error(error, self.request_id)),
            Some(protocol) => {
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
            Self::Ec2(form) => {
                let parameters = form.iter().filter(|(name, _)| !matches!(*name, "Action" | "Version"));
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
