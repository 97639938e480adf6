//! What is answered. A long list is written while it is sent: in one piece, that of a large fleet would take many
//! megabytes at once, and whoever asks would wait for all of them.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// About how long the pieces are in which a list is sent.
const PIECE: usize = 64 * 1024;
/// How much the last item of a piece may run over without the piece having to grow.
const OVERHANG: usize = 8 * 1024;

/// Where an answer is written: into memory; or nowhere, to find out how long it will be.
#[derive(Debug)]
pub(crate) enum Ink {
    Written(Vec<u8>),
    Counted(u64),
}

impl Ink {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Written(written) => written.extend_from_slice(bytes),
            Self::Counted(count) => *count += bytes.len() as u64,
        }
    }

    /// What was written; nothing if it was only counted.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Written(written) => written,
            Self::Counted(_) => Vec::new(),
        }
    }
}

impl io::Write for Ink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Items that can be written, each as often as one likes and always alike.
pub(crate) trait List: Send + 'static {
    /// How many there are.
    fn len(&self) -> usize;
    /// Writes one of them.
    fn write(&self, place: usize, ink: &mut Ink);
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
        let mut listing = Listing { before, list: Box::new(list), next: 0, after, left: 0 };
        if is_short {
            return Self::Whole(listing.write(usize::MAX));
        }
        listing.left = listing.count();
        Self::List(listing)
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

/// A list on its way. How long it is is known before, and said to the caller, as of every answer.
pub(crate) struct Listing {
    before: Vec<u8>,
    list: Box<dyn List>,
    next: usize,
    after: Vec<u8>,
    left: u64,
}

impl Listing {
    fn count(&self) -> u64 {
        let mut ink = Ink::Counted((self.before.len() + self.after.len()) as u64);
        (0..self.list.len()).for_each(|place| self.list.write(place, &mut ink));
        match ink {
            Ink::Counted(count) => count,
            Ink::Written(_) => 0,
        }
    }

    /// Writes on until there are at least so many bytes, or nothing more to write.
    fn write(&mut self, enough: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.before);
        bytes.reserve(enough.min(PIECE) + OVERHANG);
        let mut ink = Ink::Written(bytes);
        while self.next < self.list.len() && matches!(&ink, Ink::Written(written) if written.len() < enough) {
            self.list.write(self.next, &mut ink);
            self.next += 1;
        }
        if self.next == self.list.len() {
            ink.push(&std::mem::take(&mut self.after));
        }
        ink.into_bytes()
    }
}

impl hyper::body::Body for Listing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let piece = self.write(PIECE);
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::body::Body as _;

    use super::*;

    struct Numbers(usize);

    impl List for Numbers {
        fn len(&self) -> usize {
            self.0
        }

        fn write(&self, place: usize, ink: &mut Ink) {
            ink.push(format!("{place:0>1000},").as_bytes());
        }
    }

    #[tokio::test]
    async fn a_list_arrives_whole_and_its_length_is_known_before() {
        for items in [0, 1, 65, 66, 1000] {
            let answer = || Answer::list(b"[".to_vec(), Numbers(items), b"]".to_vec(), 1000);
            let whole = answer().into_text();
            assert_eq!(whole.len(), items * 1001 + 2);
            let body = Body::from(answer());
            assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
            assert_eq!(body.collect().await.expect("it never fails").to_bytes(), whole);
        }
    }
}
