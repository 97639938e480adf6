//! A system on a socket.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::authority::Certificate;
use super::boot::Stage;
use super::http::router;
use super::system::System;
use crate::http_server::{self, Gate};

/// Serves a system over TLS until `shutdown` resolves; then the listener is dropped, and connections are refused.
///
/// A listener that exists cannot refuse: while the system is at [`Stage::Refused`], connections are reset. Where the
/// difference matters, [`serve_tls_at`] listens only once something would.
pub async fn serve_tls(
    listener: TcpListener,
    system: System,
    certificate: Certificate,
    shutdown: impl Future<Output = ()>,
) {
    serve(listener, system, Some(TlsAcceptor::from(certificate.config)), shutdown).await;
}

/// Serves a system over plain HTTP until `shutdown` resolves. See [`serve_tls`].
pub async fn serve_http(listener: TcpListener, system: System, shutdown: impl Future<Output = ()>) {
    serve(listener, system, None, shutdown).await;
}

/// Listens at an address once the system answers at all, and serves it over TLS until `shutdown` resolves.
///
/// # Errors
/// When the address cannot be listened at.
pub async fn serve_tls_at(
    address: SocketAddr,
    system: System,
    certificate: Certificate,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_at(address, system, Some(TlsAcceptor::from(certificate.config)), shutdown).await
}

/// Listens at an address once the system answers at all, and serves it over plain HTTP until `shutdown` resolves.
///
/// # Errors
/// When the address cannot be listened at.
pub async fn serve_http_at(address: SocketAddr, system: System, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    serve_at(address, system, None, shutdown).await
}

async fn serve_at(
    address: SocketAddr,
    system: System,
    tls: Option<TlsAcceptor>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => return Ok(()),
        () = system.answers() => {}
    }
    let listener = TcpListener::bind(address).await?;
    serve(listener, system, tls, shutdown).await;
    Ok(())
}

async fn serve(listener: TcpListener, system: System, tls: Option<TlsAcceptor>, shutdown: impl Future<Output = ()>) {
    let looked_at = system.clone();
    let gate = move || if looked_at.stage() == Stage::Refused { Gate::Shut } else { Gate::Open };
    http_server::serve(listener, router(system), tls, gate, shutdown).await;
}
