//! Connections of the admin server: so many at once, none of them idle for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// How many connections are served at once; more wait to be accepted.
const CONNECTIONS: usize = 64;

/// How long a connection may neither send nor take anything. Without this, a few clients that open connections and
/// forget them would use all the room up and make the controller look dead.
const IDLE: Duration = Duration::from_secs(30);

/// A listener with room for so many connections.
pub(crate) struct Gate {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(CONNECTIONS)) }
    }
}

impl Listener for Gate {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = match Arc::clone(&self.room).acquire_owned().await {
            Ok(permit) => permit,
            // The room is never closed.
            Err(_) => std::future::pending().await,
        };
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (Connection { stream, idle: Box::pin(tokio::time::sleep(IDLE)), _permit: permit }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when it is idle for too long.
pub(crate) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Passes on what the stream said. If it said nothing, looks whether it has been silent for too long.
    fn watched<T>(&mut self, said: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        match said {
            Poll::Ready(answer) => {
                self.idle.as_mut().reset(Instant::now() + IDLE);
                Poll::Ready(answer)
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
        let said = Pin::new(&mut self.stream).poll_read(context, into);
        self.watched(said, context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(said, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
