//! The admin server: listens, and ends when asked.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::auth::{AdminOptions, Door, Exposure, is_local};
use super::connection::Gate;
use super::handlers::{self, Desk};
use super::source::AdminSource;
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::secret::Secret;
use crate::telemetry::Telemetry;

/// How long requests in progress may take to finish after a request to stop.
const GRACE: Duration = Duration::from_secs(2);

/// Tells operators about a controller, over HTTP.
///
/// # Flow
/// [`AdminServer::bind`] takes the port, so that one in use is an error before anything else starts;
/// [`AdminServer::run`] serves until the shutdown is requested.
///
/// # Guarantees
/// - An address that others than this machine can reach is refused, unless [`Exposure::Network`] says that it is meant.
/// - A change needs the key, where there is one. Without one, only this machine may change something, and no web page.
/// - Heads, paths and bodies are bounded, and so are connections and how long they may be idle.
///
/// # Assumptions
/// Whoever reaches it may look: it tells ids, statuses and reasons, no secrets. It speaks no TLS.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
    key: Option<Secret>,
}

/// Why the admin server cannot serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Others than this machine could reach it, and nobody said that they may.
    #[error(
        "the admin server would be open to the network on {address}; ADMIN_EXPOSE=true (Exposure::Network) allows that"
    )]
    NotLoopback {
        /// Where.
        address: SocketAddr,
    },
    /// Somebody else listens there.
    #[error(
        "the admin server cannot listen on {address}: the port is in use. Does another controller run here? ADMIN_PORT takes another port, 0 any free one"
    )]
    PortInUse {
        /// Where.
        address: SocketAddr,
    },
    /// The operating system refuses for another reason.
    #[error("the admin server cannot listen on {address}; ADMIN_HOST and ADMIN_PORT say where it should")]
    CannotListen {
        /// Where.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
}

impl AdminServer {
    /// Takes the port.
    ///
    /// # Errors
    /// If the address cannot be listened on, or lets in more than the options allow.
    pub async fn bind(options: AdminOptions) -> Result<Self, AdminError> {
        let AdminOptions { address, exposure, key } = options;
        if exposure == Exposure::LoopbackOnly && !is_local(address.ip()) {
            return Err(AdminError::NotLoopback { address });
        }
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => AdminError::PortInUse { address },
            _ => AdminError::CannotListen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        if !is_local(address.ip()) {
            tracing::warn!(target: "lcm::admin", %address, "the admin server is open to the network");
        }
        Ok(Self { listener, address, key })
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the shutdown is requested. Requests in progress get two seconds to finish.
    ///
    /// # Cancel safety
    /// Dropping it closes the port. Connections that are open end with their request, or when they are idle too long.
    pub async fn run(self, source: Arc<dyn AdminSource>, telemetry: Telemetry, shutdown: Shutdown) {
        tracing::info!(target: "lcm::admin", address = %self.address, "the admin server listens");
        let door = Door::new(self.address, self.key.as_ref());
        let router = handlers::router(Desk { source, telemetry, started: Instant::now() }, door);
        let stop = shutdown.clone();
        let serving =
            axum::serve(Gate::new(self.listener), router).with_graceful_shutdown(async move { stop.requested().await });
        let overdue = async {
            shutdown.requested().await;
            // A client that never finishes its request must not hold the process back.
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            ended = async { serving.await } => {
                if let Err(error) = ended {
                    tracing::error!(target: "lcm::admin", %error, "the admin server ended");
                }
            }
            () = overdue => tracing::warn!(target: "lcm::admin", "a connection was cut at shutdown"),
        }
    }
}
