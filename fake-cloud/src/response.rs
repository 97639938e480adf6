//! Response bodies. Long lists are encoded while they are sent, in chunks, so that memory stays bounded and the first
//! items arrive early. EC2 sends its lists in chunks, too.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Frame;

/// Approximate size of a chunk, in bytes.
const CHUNK_SIZE: usize = 64 * 1024;
/// Extra capacity of a chunk for its last item, in bytes.
const CHUNK_MARGIN: usize = 8 * 1024;

/// Encodes the items of a list one by one.
pub(crate) trait EncodeList: Send + 'static {
    /// Returns the number of items.
    fn len(&self) -> usize;
    /// Appends the encoded item at `index` to `bytes`.
    fn encode(&self, index: usize, bytes: &mut Vec<u8>);
}

/// Body of a response.
pub(crate) enum ResponseBody {
    /// A body that is completely encoded.
    Bytes(Vec<u8>),
    /// A list that is encoded while it is sent.
    List(ListBody),
}

impl ResponseBody {
    /// Creates the body of a list between `prefix` and `suffix`. `item_size` is the approximate size of an encoded item;
    /// a short list is encoded at once.
    pub(crate) fn list(prefix: Vec<u8>, list: impl EncodeList, suffix: Vec<u8>, item_size: usize) -> Self {
        let is_short = list.len().saturating_mul(item_size) <= CHUNK_SIZE;
        let mut body = ListBody { prefix, list: Box::new(list), next: 0, suffix, is_done: false };
        if is_short { Self::Bytes(body.encode(usize::MAX)) } else { Self::List(body) }
    }

    #[cfg(test)]
    pub(crate) fn into_text(self) -> String {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::List(mut body) => body.encode(usize::MAX),
        };
        String::from_utf8(bytes).expect("a body in UTF-8")
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<ResponseBody> for Body {
    fn from(body: ResponseBody) -> Self {
        match body {
            ResponseBody::Bytes(bytes) => Self::from(bytes),
            ResponseBody::List(list) => Self::new(list),
        }
    }
}

/// Streaming body of a list.
pub(crate) struct ListBody {
    prefix: Vec<u8>,
    list: Box<dyn EncodeList>,
    next: usize,
    suffix: Vec<u8>,
    is_done: bool,
}

impl ListBody {
    /// Encodes further items until at least `min_size` bytes or the end of the list is reached.
    fn encode(&mut self, min_size: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.prefix);
        bytes.reserve(min_size.min(CHUNK_SIZE) + CHUNK_MARGIN);
        while self.next < self.list.len() && bytes.len() < min_size {
            self.list.encode(self.next, &mut bytes);
            self.next += 1;
        }
        if self.next == self.list.len() {
            bytes.append(&mut self.suffix);
            self.is_done = true;
        }
        bytes
    }
}

impl hyper::body::Body for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.encode(CHUNK_SIZE).into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_done
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    struct Numbers(usize);

    impl EncodeList for Numbers {
        fn len(&self) -> usize {
            self.0
        }

        fn encode(&self, index: usize, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(format!("{index:0>1000},").as_bytes());
        }
    }

    #[tokio::test]
    async fn long_lists_are_sent_in_chunks() {
        for (items, chunks) in [(0, 1), (1, 1), (66, 1), (67, 2), (1000, 16)] {
            let body = || ResponseBody::list(b"[".to_vec(), Numbers(items), b"]".to_vec(), 1000);
            let text = body().into_text();
            assert_eq!(text.len(), items * 1001 + 2);
            let mut body = Body::from(body());
            let mut received = Vec::new();
            while let Some(frame) = body.frame().await {
                received.push(frame.expect("it never fails").into_data().expect("data"));
            }
            assert_eq!(received.concat(), text.as_bytes());
            assert_eq!(received.len(), chunks, "{items} items");
        }
    }
}
