//! The body of a request, bounded.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

/// What is too long is read up to here and thrown away: a caller that is still sending would miss the refusal.
const LONGEST_REFUSED: usize = 64 * 1024 * 1024;

/// Why there is no body to work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyProblem {
    /// It is longer than allowed.
    TooLong,
    /// It ended early, or is not framed as HTTP asks for.
    Incomplete,
}

/// Reads a body to its end. Of one that is longer than `longest`, no more than that is ever held.
pub(crate) async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B, longest: usize) -> Result<Bytes, BodyProblem> {
    let mut bytes = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|_| BodyProblem::Incomplete)?.into_data().unwrap_or_default();
        length += data.len();
        if length <= longest {
            bytes.extend_from_slice(&data);
        } else if length > LONGEST_REFUSED {
            break;
        }
    }
    if length > longest { Err(BodyProblem::TooLong) } else { Ok(bytes.freeze()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_may_be_as_long_as_allowed_and_not_a_byte_longer() {
        let read = |length| read(axum::body::Body::from(vec![b'x'; length]), 1000);
        assert_eq!(read(1000).await.map(|body| body.len()), Ok(1000));
        assert_eq!(read(1001).await, Err(BodyProblem::TooLong));
    }
}
