//! The HTTP server under the control plane and CML: plain or over TLS, one connection per task.

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

/// Marks a response that must not be sent: the connection ends instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutConnection {
    /// With a reset, as from a machine that is gone.
    Reset,
    /// In order, as from a server that died at its work.
    Closed,
}

/// A response that makes the server end the connection without an answer.
pub(crate) fn cut_connection(how: CutConnection) -> Response {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(how);
    response
}

/// Whether a connection is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// It is reset at once. A listener that exists cannot refuse; this is as close as it comes.
    Shut,
}

/// Serves until `shutdown` resolves, then drops the listener and every connection at once, as a machine does that is
/// switched off.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    gate: impl Fn() -> Gate,
    shutdown: impl Future<Output = ()>,
) {
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if gate() == Gate::Shut => reset(stream),
                Ok((stream, _)) => {
                    // Small answers must not wait for the peer's acknowledgement; a failure only costs speed.
                    drop(stream.set_nodelay(true));
                    connections.spawn(connection(stream, router.clone(), tls.clone()));
                }
                // Out of file descriptors, or a peer that left before it was let in: neither ends the server.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection(stream: TcpStream, router: Router, tls: Option<TlsAcceptor>) {
    let switch = ResetSwitch::default();
    let socket = Socket::new(stream, switch.clone());
    match tls {
        None => talk(socket, router, switch).await,
        Some(acceptor) => {
            // A client that does not trust us ends here; it knows why.
            if let Ok(stream) = acceptor.accept(socket).await {
                talk(stream, router, switch).await;
            }
        }
    }
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, router: Router, switch: ResetSwitch) {
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
    // With a clock, somebody who never finishes the head of a request is not waited for.
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new());
    // Ends with an error whenever a client goes away early, which is the client's business.
    drop(builder.serve_connection(TokioIo::new(stream), service).await);
}

fn reset(stream: TcpStream) {
    // Without lingering, closing sends a reset; if the option fails the peer sees an orderly end, which is no answer
    // either.
    drop(stream.set_zero_linger());
}
