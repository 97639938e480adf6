//! HTTP server of the control plane and CML, with or without TLS. Every connection has its own task.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::socket::{ResetSwitch, Socket};

/// Response extension that makes the server end the connection instead of sending the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutConnection {
    /// With a TCP reset, like a machine that has crashed.
    Reset,
    /// With an orderly close, like a server process that has died.
    Closed,
}

/// Returns a response that makes the server end the connection without sending it.
pub(crate) fn cut_connection(how: CutConnection) -> Response {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(how);
    response
}

/// Whether connections are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// Connections are reset immediately, because a bound listener cannot refuse them.
    Shut,
}

/// Serves until `shutdown` resolves, then drops the listener and all connections, like a machine that is powered off.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    gate: impl Fn() -> Gate,
    shutdown: impl Future<Output = ()>,
) {
    accept(listener, gate, |stream| serve_connection(stream, router.clone(), tls.clone()), shutdown).await;
}

/// Runs `connect` in a task for each connection until `shutdown` resolves, then drops the listener and all connections.
pub(crate) async fn accept<F>(
    listener: TcpListener,
    gate: impl Fn() -> Gate,
    connect: impl Fn(TcpStream) -> F,
    shutdown: impl Future<Output = ()>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if gate() == Gate::Shut => reset(stream),
                Ok((stream, _)) => {
                    // Small responses must not wait for an acknowledgment. A failure only costs latency.
                    drop(stream.set_nodelay(true));
                    connections.spawn(connect(stream));
                }
                // The process is out of file descriptors, or the peer has left. Neither ends the server.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve_connection(stream: TcpStream, router: Router, tls: Option<TlsAcceptor>) {
    let switch = ResetSwitch::default();
    let socket = Socket::new(stream, switch.clone());
    match tls {
        None => serve_http(socket, router, switch).await,
        Some(acceptor) => {
            // A client that does not trust the certificate aborts the handshake.
            if let Ok(stream) = acceptor.accept(socket).await {
                serve_http(stream, router, switch).await;
            }
        }
    }
}

async fn serve_http(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, router: Router, switch: ResetSwitch) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, switch) = (router.clone(), switch.clone());
        async move {
            let response = match router.oneshot(request.map(Body::new)).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            match response.extensions().get::<CutConnection>() {
                Some(CutConnection::Reset) => switch.reset(),
                Some(CutConnection::Closed) => {}
                None => return Ok(response),
            }
            Err(io::Error::from(io::ErrorKind::ConnectionAborted))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The timer enables the timeout for incomplete request heads.
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new());
    // Errors mean that the client closed the connection early.
    drop(builder.serve_connection(TokioIo::new(stream), service).await);
}

fn reset(stream: TcpStream) {
    // A close without linger sends a reset. If the option fails, the peer sees an orderly close without a response.
    drop(stream.set_zero_linger());
}
