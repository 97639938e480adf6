//! What is answered. A long list is written while it is sent: in one piece, that of a large fleet would take many
//! megabytes at once, and whoever asks would wait for all of them. So it is sent in chunks, as EC2 does too: how long it
//! is nobody knows before it is written.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Frame;

/// About how long the pieces are in which a list is sent.
const PIECE: usize = 64 * 1024;
/// How much the last item of a piece may run over without the piece having to grow.
const OVERHANG: usize = 8 * 1024;

/// Items that can be written.
pub(crate) trait List: Send + 'static {
    /// How many there are.
    fn len(&self) -> usize;
    /// Writes one of them.
    fn write(&self, place: usize, answer: &mut Vec<u8>);
}

/// An answer.
pub(crate) enum Answer {
    /// All of it.
    Whole(Vec<u8>),
    /// A list with something around it.
    List(Listing),
}

impl Answer {
    /// A list with something around it; an item is about so long.
    pub(crate) fn list(before: Vec<u8>, list: impl List, after: Vec<u8>, item_size: usize) -> Self {
        let is_short = list.len().saturating_mul(item_size) <= PIECE;
        let mut listing = Listing { before, list: Box::new(list), next: 0, after, is_over: false };
        if is_short { Self::Whole(listing.write(usize::MAX)) } else { Self::List(listing) }
    }

    /// All of it at once.
    #[cfg(test)]
    pub(crate) fn into_text(self) -> String {
        let bytes = match self {
            Self::Whole(bytes) => bytes,
            Self::List(mut listing) => listing.write(usize::MAX),
        };
        String::from_utf8(bytes).expect("answers are text")
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Whole(bytes)
    }
}

impl From<Answer> for Body {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Whole(bytes) => Self::from(bytes),
            Answer::List(listing) => Self::new(listing),
        }
    }
}

/// A list on its way.
pub(crate) struct Listing {
    before: Vec<u8>,
    list: Box<dyn List>,
    next: usize,
    after: Vec<u8>,
    is_over: bool,
}

impl Listing {
    /// Writes on until there are at least so many bytes, or nothing more to write.
    fn write(&mut self, enough: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.before);
        bytes.reserve(enough.min(PIECE) + OVERHANG);
        while self.next < self.list.len() && bytes.len() < enough {
            self.list.write(self.next, &mut bytes);
            self.next += 1;
        }
        if self.next == self.list.len() {
            bytes.append(&mut self.after);
            self.is_over = true;
        }
        bytes
    }
}

impl hyper::body::Body for Listing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.write(PIECE).into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    struct Numbers(usize);

    impl List for Numbers {
        fn len(&self) -> usize {
            self.0
        }

        fn write(&self, place: usize, answer: &mut Vec<u8>) {
            answer.extend_from_slice(format!("{place:0>1000},").as_bytes());
        }
    }

    #[tokio::test]
    async fn a_list_arrives_whole_and_a_long_one_in_pieces() {
        for (items, pieces) in [(0, 1), (1, 1), (66, 1), (67, 2), (1000, 16)] {
            let answer = || Answer::list(b"[".to_vec(), Numbers(items), b"]".to_vec(), 1000);
            let whole = answer().into_text();
            assert_eq!(whole.len(), items * 1001 + 2);
            let mut body = Body::from(answer());
            let mut received = Vec::new();
            while let Some(frame) = body.frame().await {
                received.push(frame.expect("it never fails").into_data().expect("data"));
            }
            assert_eq!(received.concat(), whole.as_bytes());
            assert_eq!(received.len(), pieces, "{items} items");
        }
    }
}
