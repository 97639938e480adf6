//! The admin server: listens, and ends when asked.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::answers::{self, Desk};
use super::connection::Gate;
use super::source::AdminSource;
use crate::runtime::shutdown::Shutdown;
use crate::runtime::telemetry::Telemetry;

/// How long requests in progress may take to finish after a request to stop.
const GRACE: Duration = Duration::from_secs(2);

/// Tells operators about a controller, over HTTP.
///
/// # Flow
/// [`AdminServer::bind`] takes the port, so that one in use is an error before anything else starts;
/// [`AdminServer::run`] serves until the shutdown is requested.
///
/// # Assumptions
/// It asks nobody who they are. The default address is a loopback one; whoever binds another, which is logged as a
/// warning, lets everyone on that network read and trigger.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
}

/// Why the admin server cannot serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
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
    /// Takes the port. Port 0 takes any free one.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn bind(address: SocketAddr) -> Result<Self, AdminError> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => AdminError::PortInUse { address },
            _ => AdminError::CannotListen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        if !address.ip().is_loopback() {
            tracing::warn!(target: "lcm::admin", %address, "the admin server is open to the network");
        }
        Ok(Self { listener, address })
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
        let router = answers::router(Desk { source, telemetry, started: Instant::now() });
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
