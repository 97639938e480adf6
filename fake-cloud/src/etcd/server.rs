//! Serves a store on a port, with or without TLS: gRPC over HTTP/2, and JSON, metrics and health checks over HTTP.

use std::io;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::body::Body;

use super::services::{self, CallReset, Context};
use super::store::EtcdStore;
use super::tls::EtcdTls;
use super::{CLUSTER_VERSION, VERSION, gateway, metrics};
use crate::middleware::Middleware;

/// Time that running calls have to end when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the next accept when the system is out of sockets.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(10);
/// Connections that may wait to be accepted. With the default of 128, many clients that connect at once wait for
/// seconds or fail.
const LISTEN_BACKLOG: i32 = 4096;
/// HTTP/2 flow-control window in bytes, per stream and per connection. Larger than the largest message.
const WINDOW_SIZE: u32 = 4 * 1024 * 1024;
/// Streams of one connection that clients may reset before the connection is closed as abusive. A client with short
/// deadlines on a busy machine exceeds the default of 20.
const MAX_RESET_STREAMS: usize = 10_000;

/// Serves a store on a port until `shutdown` completes, then closes all streams and returns.
///
/// # Guarantees
/// No request stops the server. When this returns, all connections are closed.
///
/// ```
/// use fake_cloud::{Clock, Pace};
/// use fake_cloud::etcd::{EtcdStore, serve};
/// use tokio::net::TcpListener;
/// use tokio::sync::oneshot;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// println!("export ETCDCTL_ENDPOINTS={}", listener.local_addr()?);
/// let (stop, stopped) = oneshot::channel::<()>();
/// let store = EtcdStore::new(Clock::new(Pace::Real));
/// let server = tokio::spawn(serve(listener, store, async { drop(stopped.await) }));
/// drop(stop);
/// server.await.expect("no panic")
/// # }
/// ```
///
/// # Errors
/// Fails if the listener cannot listen or has no local address.
pub async fn serve(
    listener: TcpListener,
    store: EtcdStore,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_with(listener, store, Options::default(), shutdown).await
}

/// Configuration of a server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Injects faults into calls and observes them.
    pub middleware: Middleware,
    /// TLS. Without it, connections are not encrypted.
    pub tls: Option<EtcdTls>,
}

impl Options {
    /// Sets the middleware.
    #[must_use]
    pub fn with_middleware(self, middleware: Middleware) -> Self {
        Self { middleware, ..self }
    }

    /// Sets TLS.
    #[must_use]
    pub fn with_tls(self, tls: EtcdTls) -> Self {
        Self { tls: Some(tls), ..self }
    }
}

/// Like [`serve`], with a configuration.
///
/// # Errors
/// Fails if the listener cannot listen or has no local address.
pub async fn serve_with(
    listener: TcpListener,
    store: EtcdStore,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    SockRef::from(&listener).listen(LISTEN_BACKLOG)?;
    let (stop, stopping) = watch::channel(false);
    let Options { middleware, tls } = options;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let context = Context { store: store.clone(), address: listener.local_addr()?, scheme, stopping, middleware };
    let graceful = GracefulShutdown::new();
    // Aborts the remaining connections when this function returns or is dropped.
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    let mut expiry = std::pin::pin!(store.expire_leases());
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            never = &mut expiry => match never {},
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (context, tls, watcher) = (context.clone(), tls.clone(), graceful.watcher());
                    drop(connections.spawn(serve_connection(stream, context, tls, watcher)));
                }
                Err(_) => tokio::time::sleep(ACCEPT_BACKOFF).await,
            },
        }
    }
    drop(listener);
    stop.send_replace(true);
    // Calls that are still running after the timeout are aborted.
    drop(tokio::time::timeout(SHUTDOWN_TIMEOUT, graceful.shutdown()).await);
    connections.shutdown().await;
    Ok(())
}

async fn serve_connection(stream: TcpStream, context: Context, tls: Option<EtcdTls>, watcher: Watcher) {
    // Responses are small and must not wait for more data.
    drop(stream.set_nodelay(true));
    match tls {
        None => serve_http(stream, context, watcher).await,
        Some(tls) => {
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)).await;
            // Fails if the client does not trust the certificate, or has none where one is required.
            if let Ok(Ok(stream)) = handshake {
                serve_http(stream, context, watcher).await;
            }
        }
    }
}

async fn serve_http(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, context: Context, watcher: Watcher) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(u32::MAX)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        .initial_stream_window_size(WINDOW_SIZE)
        .initial_connection_window_size(WINDOW_SIZE);
    let service = service_fn(move |request| {
        let context = context.clone();
        async move { respond(&context, request).await }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    // Fails if the client disconnects or violates the protocol, which affects no other connection.
    drop(watcher.watch(connection).await);
}

async fn respond(context: &Context, request: Request<Incoming>) -> Result<Response<Body>, CallReset> {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if content_type.is_some_and(|content_type| content_type.starts_with(b"application/grpc")) {
        return services::respond(context, request).await;
    }
    if gateway::serves(request.uri().path()) {
        return gateway::respond(context, request).await;
    }
    let is_get = request.method() == Method::GET;
    Ok(match request.uri().path() {
        "/health" | "/metrics" | "/version" if !is_get => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
            response
        }
        "/health" => health(context, request.uri().query().unwrap_or_default()),
        "/metrics" => plain(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics::render(context)),
        "/version" => {
            let json = format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"{CLUSTER_VERSION}"}}"#);
            plain(StatusCode::OK, "application/json", json)
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    })
}

/// Reports alarms that the query does not exclude, and a lost leader.
fn health(context: &Context, query: &str) -> Response<Body> {
    let excluded: Vec<&str> = query.split('&').filter_map(|parameter| parameter.strip_prefix("exclude=")).collect();
    let alarms = context.store.with(|store, _| store.alarms(None));
    let alarm = alarms.into_iter().map(|alarm| alarm.kind.name()).find(|name| !excluded.contains(name));
    let reason = match alarm {
        Some(name) => format!("ALARM {name}"),
        None if context.store.is_unavailable() => "RAFT NO LEADER".to_owned(),
        None => return text(StatusCode::OK, r#"{"health":"true","reason":""}"#),
    };
    text(StatusCode::SERVICE_UNAVAILABLE, &format!("{{\"health\":\"false\",\"reason\":\"{reason}\"}}\n"))
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    plain(status, "text/plain; charset=utf-8", text.to_owned())
}

pub(super) fn plain(status: StatusCode, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
