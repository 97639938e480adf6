//! One write for all that a connection has to say at once.
//!
//! HTTP/2 writes an answer in pieces, and each would be a packet and a wake-up of the client. Here the pieces wait
//! until the connection has no more to say for the moment, and leave together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// What may wait before it is written anyway.
const LIMIT: usize = 64 * 1024;

/// Splits a socket into what the protocol reads and writes, and what sends the written.
pub(super) fn open(stream: TcpStream) -> (Letters, Outbox) {
    let (reader, writer) = stream.into_split();
    let outbox = Outbox { shared: Arc::new(Mutex::new(Waiting { writer, bytes: Vec::new(), sent: 0 })) };
    (Letters { reader, outbox: outbox.clone() }, outbox)
}

/// A socket whose writes wait until [`Outbox::poll_send`]. Flushing it does nothing, closing it sends everything first.
#[derive(Debug)]
pub(super) struct Letters {
    reader: OwnedReadHalf,
    outbox: Outbox,
}

/// What waits to be sent.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    shared: Arc<Mutex<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    writer: OwnedWriteHalf,
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Sends what waits. To be called after each turn of the connection, or what it said stays here.
    pub(super) fn poll_send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.lock().poll_send(context)
    }
}

impl Waiting {
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            let sent = ready!(Pin::new(&mut self.writer).poll_write(context, &self.bytes[self.sent..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.bytes.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Letters {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Letters {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut waiting = self.outbox.shared.lock();
        if waiting.bytes.len() >= LIMIT {
            ready!(waiting.poll_send(context))?;
        }
        let taken = bytes.len().min(LIMIT);
        waiting.bytes.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waiting = self.outbox.shared.lock();
        ready!(waiting.poll_send(context))?;
        Pin::new(&mut waiting.writer).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let here = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        (here, listener.accept().await.expect("a client").0)
    }

    #[tokio::test]
    async fn what_is_written_leaves_when_it_is_sent_and_in_order() {
        let (mut client, server) = pair().await;
        let (mut letters, outbox) = open(server);
        for word in ["one ", "two ", "three"] {
            letters.write_all(word.as_bytes()).await.expect("room");
        }
        letters.flush().await.expect("nothing to do");
        assert_eq!(client.try_read(&mut [0; 1]).expect_err("nothing yet").kind(), io::ErrorKind::WouldBlock);
        poll_fn(|context| outbox.poll_send(context)).await.expect("sent");
        let mut received = [0; 13];
        client.read_exact(&mut received).await.expect("all of it");
        assert_eq!(&received, b"one two three");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_makes_the_writer_wait_and_loses_nothing() {
        let (mut client, server) = pair().await;
        let (mut letters, _outbox) = open(server);
        let sent: Vec<u8> = (0..20_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            letters.write_all(&sent).await.expect("written");
            letters.shutdown().await.expect("closed");
        });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(!writer.is_finished(), "more than fits was taken from the writer");
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("all of it");
        assert!(received == expected, "bytes were lost or changed");
        writer.await.expect("no panic");
    }
}
