//! Reads request bodies of bounded length.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

/// A body that is too long is read up to this length and discarded, because a client that is still sending would miss
/// the error response.
const MAX_DISCARDED: usize = 64 * 1024 * 1024;

/// Error of reading a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyProblem {
    /// The body is longer than allowed.
    TooLong,
    /// The body ended early or its framing is invalid.
    Incomplete,
}

/// Reads a body to its end. At most `max` bytes are kept in memory.
pub(crate) async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B, max: usize) -> Result<Bytes, BodyProblem> {
    let mut bytes = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|_| BodyProblem::Incomplete)?.into_data().unwrap_or_default();
        length += data.len();
        if length <= max {
            bytes.extend_from_slice(&data);
        } else if length > MAX_DISCARDED {
            break;
        }
    }
    if length > max { Err(BodyProblem::TooLong) } else { Ok(bytes.freeze()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn body_of_maximum_length_is_accepted() {
        let read = |length| read(axum::body::Body::from(vec![b'x'; length]), 1000);
        assert_eq!(read(1000).await.map(|body| body.len()), Ok(1000));
        assert_eq!(read(1001).await, Err(BodyProblem::TooLong));
    }
}
