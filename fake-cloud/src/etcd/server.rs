//! The store on a port: gRPC over HTTP/2 without TLS, and a little HTTP/1.1 for health checks.

use std::future::poll_fn;
use std::io;
use std::task::{self, Poll};
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::body::Body;

use super::calls::Calls;
use super::handle::EtcdStore;
use super::outbox;
use super::services::{self, Context, NoAnswer};
use super::{CLUSTER_VERSION, VERSION};
use crate::middleware::Middleware;

/// How long calls in progress may take to end when the server stops.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait before accepting again when the system has no more sockets to give.
const BREATHER: Duration = Duration::from_millis(10);
/// How many clients may wait to be let in. The default of 128 makes the rest of a crowd wait for seconds, or gives up
/// on them.
const WAITING_CLIENTS: i32 = 4096;
/// How much a client may send ahead, per call and in all: enough for the largest message.
const WINDOW: u32 = 4 * 1024 * 1024;

/// How many calls on one connection may be given up by the client at once, before they count as an attack and the
/// connection ends. The default of 20 is soon reached by an honest client with deadlines on a busy machine.
const GIVEN_UP_CALLS: usize = 10_000;

/// Serves a store on a port until `shutdown`, then ends all streams and returns.
///
/// # Guarantees
/// Nothing a client sends stops the server. When this returns, no connection is left.
///
/// ```
/// use fake_cloud::clock::{Clock, Pace};
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
/// When the listener is not one that can listen and has an address.
pub async fn serve(
    listener: TcpListener,
    store: EtcdStore,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_with(listener, store, Middleware::default(), shutdown).await
}

/// As [`serve`], with a middleware that injects faults into calls and observes them.
///
/// # Guarantees
/// As [`serve`].
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    listener: TcpListener,
    store: EtcdStore,
    middleware: Middleware,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    SockRef::from(&listener).listen(WAITING_CLIENTS)?;
    let (stop, stopping) = watch::channel(false);
    let context = Context { store: store.clone(), address: listener.local_addr()?, stopping, middleware };
    let graceful = GracefulShutdown::new();
    // Dropped, and with it every connection that is left, when this function ends or is dropped itself.
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    let mut expiry = std::pin::pin!(store.keep_expiring());
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            never = &mut expiry => match never {},
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, context.clone(), graceful.watcher()))),
                Err(_) => tokio::time::sleep(BREATHER).await,
            },
        }
    }
    drop(listener);
    stop.send_replace(true);
    // What is not over by then is cut off.
    drop(tokio::time::timeout(GRACE, graceful.shutdown()).await);
    connections.shutdown().await;
    Ok(())
}

async fn connection(stream: TcpStream, context: Context, watcher: hyper_util::server::graceful::Watcher) {
    // Small answers must not wait for company.
    drop(stream.set_nodelay(true));
    let mut calls = Calls::default();
    let begun = calls.begun();
    let mut builder = Builder::new(begun.clone());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(u32::MAX)
        .max_pending_accept_reset_streams(GIVEN_UP_CALLS)
        .max_local_error_reset_streams(GIVEN_UP_CALLS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let service = service_fn(|request| {
        let context = context.clone();
        async move { respond(&context, request).await }
    });
    let (letters, outbox) = outbox::open(stream);
    let served = builder.serve_connection(TokioIo::new(letters), service);
    let mut served = std::pin::pin!(watcher.watch(served.into_owned()));
    // A client that breaks off or speaks nonsense concerns nobody else.
    let turn = |context: &mut task::Context<'_>| {
        let is_over = loop {
            // First the calls, so that what they have to say leaves with what the connection says next.
            calls.poll(context);
            let is_over = served.as_mut().poll(context).is_ready();
            if is_over || begun.is_empty() {
                break is_over;
            }
        };
        match outbox.poll_send(context) {
            Poll::Ready(Ok(())) | Poll::Pending if !is_over => Poll::Pending,
            Poll::Ready(_) | Poll::Pending => Poll::Ready(()),
        }
    };
    poll_fn(turn).await;
}

async fn respond(context: &Context, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if content_type.is_some_and(|content_type| content_type.starts_with(b"application/grpc")) {
        return services::answer(context, request).await;
    }
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") if context.store.is_unavailable() => {
            let text = r#"{"health":"false","reason":"RAFT NO LEADER"}"#.to_owned();
            plain(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", text)
        }
        (&Method::GET, "/health") => {
            let text = r#"{"health":"true","reason":""}"#.to_owned();
            plain(StatusCode::OK, "text/plain; charset=utf-8", text)
        }
        (&Method::GET, "/version") => {
            let text = format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"{CLUSTER_VERSION}"}}"#);
            plain(StatusCode::OK, "application/json", text)
        }
        (&Method::GET, _) => {
            plain(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned())
        }
        (_, _) => plain(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "Method Not Allowed\n".to_owned()),
    })
}

fn plain(status: StatusCode, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
