//! The front door of AWS: one port for all regions, EC2 and CloudWatch, and the admin API under `/_fake/`.

mod entrance;
mod incoming;
mod plan;

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

pub use self::entrance::Entrance;

use self::entrance::Admission;
use self::plan::{AnswerFate, Instead, Plan};
use crate::faults::Occasion;
use crate::recorder::{OpenRecord, Outcome, Sketch};
use crate::service::Service;
use crate::socket::{ResetSwitch, Socket};
use crate::world::{AwsError, World};
use crate::{admin, body, cloudwatch, ec2};

/// How long requests under way may take to end once the server is asked to stop.
const GRACE: Duration = Duration::from_millis(500);

/// The longest body of a request to the admin API.
const LONGEST_ORDER: usize = 2 * 1024 * 1024;

/// Serves a world until `shutdown` completes, then lets what is under way end, briefly, and leaves nothing behind.
///
/// # Errors
/// None of a single connection's: those end that connection. Only a listener that cannot be listened on any more.
///
/// # Cancel safety
/// Dropping it closes the listener and all connections at once.
pub async fn serve(listener: TcpListener, world: Arc<World>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let admin = Entrance { router: admin::router(Arc::clone(&world)), key: None };
    serve_with(listener, world, admin, shutdown).await
}

/// The same, with an admin API that knows more than the world of AWS.
///
/// # Errors
/// As [`serve`].
///
/// # Cancel safety
/// As [`serve`].
pub async fn serve_with(
    listener: TcpListener,
    world: Arc<World>,
    admin: Entrance,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let door = Door { world: Arc::clone(&world), admin: admin.clone(), peer };
                    connections.spawn(door.attend(stream, stopped.clone()));
                }
                // Out of file handles, mostly: others will be closed, so it is worth waiting for.
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

/// What a connection needs to be served.
#[derive(Clone)]
struct Door {
    world: Arc<World>,
    admin: Entrance,
    peer: SocketAddr,
}

/// The connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection ends without an answer, as a fault rule asked")]
struct NoAnswer;

impl Door {
    async fn attend(self, stream: TcpStream, mut stopped: watch::Receiver<()>) {
        // A keep-alive request would otherwise wait for the caller's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        let switch = ResetSwitch::default();
        let socket = TokioIo::new(Socket::new(stream, switch.clone()));
        let service = service_fn(|request| self.answer(request, &switch));
        let connection =
            hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(socket, service);
        let mut connection = pin!(connection);
        // What goes wrong on a connection is the caller's to see; the server has nothing to add.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    async fn answer(&self, request: Request<Incoming>, switch: &ResetSwitch) -> Result<Response<Body>, NoAnswer> {
        if request.uri().path().starts_with("/_fake") {
            return Ok(self.administer(request).await);
        }
        let (head, body) = request.into_parts();
        let request_id = self.world.request_id();
        let body = incoming::body(&head.headers, body).await;
        let exchange = Exchange { world: &self.world, head: &head, request_id: &request_id };
        exchange.run(body, switch).await
    }

    async fn administer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        match self.admin.admit(self.peer.ip(), &head.method, &head.headers) {
            Admission::Granted => {}
            Admission::NotFromHere => return admin::forbidden(),
            Admission::NeedsKey => return admin::needs_key(),
        }
        let body = match body::read(body, LONGEST_ORDER).await {
            Ok(body) => Body::from(body),
            Err(problem) => return admin::no_body(problem, LONGEST_ORDER),
        };
        match self.admin.router.clone().oneshot(Request::from_parts(head, body)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// One request and the way to its answer.
struct Exchange<'a> {
    world: &'a World,
    head: &'a hyper::http::request::Parts,
    request_id: &'a str,
}

/// A request that was understood.
enum Asked<'a> {
    Ec2(ec2::Form<'a>),
    Cloudwatch(cloudwatch::Call),
}

impl Exchange<'_> {
    async fn run(&self, body: Result<Bytes, AwsError>, switch: &ResetSwitch) -> Result<Response<Body>, NoAnswer> {
        let headers = &self.head.headers;
        let protocol = cloudwatch::Protocol::of(self.head.uri.path(), headers);
        let scope = match incoming::scope(headers) {
            Ok(scope) => scope,
            Err(error) => {
                self.record_unsigned(protocol, &error);
                return Ok(self.refuse(protocol, &error));
            }
        };
        let protocol = match scope.service {
            Service::Ec2 => None,
            Service::Cloudwatch | Service::Cml | Service::Etcd | Service::ControlPlane => {
                Some(protocol.unwrap_or(cloudwatch::Protocol::Query))
            }
        };
        let asked = match &body {
            Ok(body) => self.understand(protocol, body),
            Err(error) => Err(error.clone()),
        };
        let told = asked.as_ref().map(Asked::describe).unwrap_or_default();
        let occasion = Occasion {
            service: scope.service,
            operation: told.operation,
            region: Some(scope.region),
            instances: &told.instances,
            keys: &[],
            call: incoming::header(headers, "amz-sdk-invocation-id"),
        };
        let plan = Plan::of(self.world.faults().consult(&occasion));
        let sketch = Sketch {
            operation: told.operation,
            region: Some(scope.region),
            subject: (!told.instances.is_empty()).then(|| told.instances.join(",").into()),
            parameters: told.parameters,
            faults: Cow::Borrowed(&plan.rules),
            ..self.blank_sketch(scope.service)
        };
        let record = OpenRecord::new(self.world.recorder(), sketch);
        plan.wait(self.world.clock()).await;
        let result = match &plan.instead {
            Some(Instead::Reset) => {
                record.close(&Outcome::Reset);
                switch.reset();
                return Err(NoAnswer);
            }
            Some(Instead::Refuse(error)) => Err(error.clone()),
            None => match &asked {
                Ok(asked) => self.execute(asked, scope.region, &plan.view),
                Err(error) => Err(error.clone()),
            },
        };
        // Written down before the answer leaves: whoever has the answer finds the record.
        record.close(&match (&result, plan.answer) {
            (_, AnswerFate::Dropped) => Outcome::ResponseDropped,
            (Ok(_), AnswerFate::Sent) => Outcome::Served { status: 200 },
            (Err(error), AnswerFate::Sent) => Outcome::Refused { status: error.status, code: error.code.to_string() },
        });
        match plan.answer {
            AnswerFate::Dropped => Err(NoAnswer),
            AnswerFate::Sent => Ok(result.unwrap_or_else(|error| self.refuse(protocol, &error))),
        }
    }

    /// What can be said of a request before it is understood.
    fn blank_sketch(&self, service: Service) -> Sketch<'_> {
        let headers = &self.head.headers;
        Sketch {
            at: self.world.clock().now(),
            service,
            operation: UNREADABLE,
            region: None,
            subject: None,
            parameters: Vec::new(),
            call: incoming::header(headers, "amz-sdk-invocation-id"),
            attempt: incoming::attempt(headers),
            client: incoming::header(headers, "user-agent"),
            faults: Cow::Borrowed(&[]),
        }
    }

    /// Nobody knows what an unsigned request was for; it is put down to the service whose protocol it speaks.
    fn record_unsigned(&self, protocol: Option<cloudwatch::Protocol>, error: &AwsError) {
        let service = if protocol.is_some() { Service::Cloudwatch } else { Service::Ec2 };
        let outcome = Outcome::Refused { status: error.status, code: error.code.to_string() };
        self.world.recorder().write(&self.blank_sketch(service), &outcome);
    }

    fn understand<'a>(&self, protocol: Option<cloudwatch::Protocol>, body: &'a [u8]) -> Result<Asked<'a>, AwsError> {
        match protocol {
            None => {
                let form = ec2::Form::decode(body)?;
                if form.get("Action").is_none() {
                    return Err(AwsError::missing("Action"));
                }
                Ok(Asked::Ec2(form))
            }
            Some(protocol) => cloudwatch::Call::decode(protocol, self.head.uri.path(), &self.head.headers, body)
                .map(Asked::Cloudwatch),
        }
    }

    fn execute(&self, asked: &Asked<'_>, region: &str, view: &crate::world::View) -> Result<Response<Body>, AwsError> {
        match asked {
            Asked::Ec2(form) => {
                let request = ec2::Request { world: self.world, region, form, view, request_id: self.request_id };
                let body = ec2::handle(&request)?;
                Ok(self.respond(StatusCode::OK, XML, body))
            }
            Asked::Cloudwatch(call) => {
                let body = call.handle(self.world, region, view, self.request_id)?;
                Ok(self.respond_as(call.protocol(), StatusCode::OK, body))
            }
        }
    }

    fn refuse(&self, protocol: Option<cloudwatch::Protocol>, error: &AwsError) -> Response<Body> {
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
        let Some(protocol) = protocol else {
            return self.respond(status, XML, ec2::encode_error(error, self.request_id));
        };
        let mut response = self.respond_as(protocol, status, protocol.encode_error(error, self.request_id));
        let fault = if status.is_server_error() { "Receiver" } else { "Sender" };
        if let Ok(value) = HeaderValue::from_str(&format!("{};{fault}", error.code)) {
            response.headers_mut().insert("x-amzn-query-error", value);
        }
        response
    }

    fn respond_as(&self, protocol: cloudwatch::Protocol, status: StatusCode, body: Vec<u8>) -> Response<Body> {
        let mut response = self.respond(status, protocol.content_type(), body);
        if protocol == cloudwatch::Protocol::Cbor {
            response.headers_mut().insert("smithy-protocol", HeaderValue::from_static("rpc-v2-cbor"));
        }
        response
    }

    fn respond(&self, status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
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

/// What the operation of a request is called that could not be read.
const UNREADABLE: &str = "unreadable";
const XML: &str = "text/xml;charset=UTF-8";

/// What faults and records want to know of a request.
struct Told<'a> {
    operation: &'a str,
    parameters: Vec<(&'a str, Cow<'a, str>)>,
    instances: Vec<String>,
}

impl Default for Told<'_> {
    fn default() -> Self {
        Self { operation: UNREADABLE, parameters: Vec::new(), instances: Vec::new() }
    }
}

impl Asked<'_> {
    fn describe(&self) -> Told<'_> {
        match self {
            Self::Ec2(form) => {
                let is_told = |name: &str| !matches!(name, "Action" | "Version");
                let told = form.iter().filter(|(name, _)| is_told(name));
                Told {
                    operation: form.get("Action").unwrap_or(UNREADABLE),
                    parameters: told.map(|(name, value)| (name, Cow::Borrowed(value))).collect(),
                    instances: ec2::named_instances(form),
                }
            }
            Self::Cloudwatch(call) => Told {
                operation: call.operation(),
                parameters: call.parameters().collect(),
                instances: call.named_instances(),
            },
        }
    }
}
