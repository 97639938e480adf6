//! The admin server: binds a port, bounds connections and serves until shutdown.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::middleware;
use axum::serve::Listener;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use super::auth::{self, AccessPolicy, AdminOptions, Exposure, is_local};
use super::console;
use super::handlers::{self, AdminState};
use super::source::AdminSource;
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::secret::Secret;
use crate::telemetry::Telemetry;

/// Time for requests in progress to finish after a shutdown request.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Largest number of open connections. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 64;

/// Time after which a connection without traffic is closed. Without it, abandoned connections would use up
/// [`MAX_CONNECTIONS`] and health checks would fail.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves statistics, metrics and health of a controller over HTTP.
///
/// # Flow
/// [`AdminServer::bind`] binds the port, so that a port in use is an error before the controller starts.
/// [`AdminServer::run`] serves until shutdown is requested.
///
/// # Guarantees
/// - An address other than loopback is rejected unless the options have [`Exposure::Network`].
/// - If a key is set, every change needs it. Without a key, changes are accepted from this host only, and from no web
///   page but the console.
/// - On a server that is open to the network, the data of the console need the key.
/// - Heads, paths, bodies, the number of connections, of those the streams, and their idle time are bounded.
///
/// # Assumptions
/// Other reads need no key: responses contain ids, statuses and reasons, but no secrets. The server does not speak TLS.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
    key: Option<Secret>,
}

/// Error of [`AdminServer::bind`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The address is not loopback and the options do not allow that.
    #[error(
        "the admin server would be open to the network on {address}; ADMIN_EXPOSE=true (Exposure::Network) allows that"
    )]
    NotLoopback {
        /// Address that was requested.
        address: SocketAddr,
    },
    /// Another process listens on the port.
    #[error(
        "the admin server cannot listen on {address}: the port is in use. Does another controller run here? ADMIN_PORT takes another port, 0 any free one"
    )]
    PortInUse {
        /// Address that was requested.
        address: SocketAddr,
    },
    /// The operating system reports another error.
    #[error("the admin server cannot listen on {address}; ADMIN_HOST and ADMIN_PORT set another address")]
    CannotListen {
        /// Address that was requested.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl AdminServer {
    /// Binds the port.
    ///
    /// # Errors
    /// If the address cannot be bound, or is not loopback and the options do not allow that.
    pub async fn bind(options: AdminOptions) -> Result<Self, AdminError> {
        let AdminOptions { address, exposure, key } = options;
        if exposure == Exposure::LoopbackOnly && !is_local(address.ip()) {
            return Err(AdminError::NotLoopback { address });
        }
        let bind_error = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => AdminError::PortInUse { address },
            _ => AdminError::CannotListen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        if !is_local(address.ip()) {
            tracing::warn!(target: "lcm::admin", %address, "the admin server is open to the network");
        }
        Ok(Self { listener, address, key })
    }

    /// Returns the address the server listens on, with the port that was selected for port 0.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until shutdown is requested. Requests in progress get two seconds to finish.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port. Open connections end with their request, or when they are idle too long.
    pub async fn run(self, source: Arc<dyn AdminSource>, telemetry: Telemetry, shutdown: Shutdown) {
        tracing::info!(target: "lcm::admin", address = %self.address, "the admin server listens");
        let policy = AccessPolicy::new(self.address, self.key.as_ref());
        let state = Arc::new(AdminState::new(source, telemetry, shutdown.clone()));
        let router = handlers::router(Arc::clone(&state))
            .merge(console::router(state))
            .layer(middleware::from_fn_with_state(policy, auth::authorize));
        let requested = shutdown.clone();
        let serving = axum::serve(BoundedListener::new(self.listener), router)
            .with_graceful_shutdown(async move { requested.requested().await });
        let overdue = async {
            shutdown.requested().await;
            // A client that never finishes its request must not delay the end of the process.
            tokio::time::sleep(SHUTDOWN_GRACE).await;
        };
        tokio::select! {
            result = async { serving.await } => {
                if let Err(error) = result {
                    tracing::error!(target: "lcm::admin", %error, "the admin server ended");
                }
            }
            () = overdue => tracing::warn!(target: "lcm::admin", "open connections were closed at shutdown"),
        }
    }
}

/// A listener that accepts a bounded number of connections.
struct BoundedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl BoundedListener {
    fn new(listener: TcpListener) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = match Arc::clone(&self.permits).acquire_owned().await {
            Ok(permit) => permit,
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        };
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (Connection { stream, idle: Box::pin(tokio::time::sleep(IDLE_TIMEOUT)), _permit: permit }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when it is idle for [`IDLE_TIMEOUT`].
struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Restarts the idle timeout after traffic; returns an error once it has expired without traffic.
    fn check_idle<T>(&mut self, poll: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        match poll {
            Poll::Ready(result) => {
                self.idle.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(self.idle.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, into);
        self.check_idle(poll, context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_idle(poll, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
