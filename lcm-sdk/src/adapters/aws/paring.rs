//! Pares an answer to `DescribeInstances` down to what is read of it, before the client parses it.
//!
//! EC2 tells some hundred things about an instance, of which a dozen matter here. The client compares the name of each
//! with all it knows: more than half of what a sweep of a large fleet cost. Leaving them out first costs a tenth of that.
//!
//! # Guarantees
//! What is read stays byte by byte. An answer that is not as expected in any way, an error or one that was cut off
//! included, is left to the client as it came.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_sdk_ec2::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body::{Body, Frame};

/// What [`convert::instance`](super::convert::instance) reads of an instance.
const READ_OF_AN_INSTANCE: [&str; 11] = [
    "clientToken",
    "imageId",
    "instanceId",
    "instanceState",
    "instanceType",
    "ipAddress",
    "launchTime",
    "privateIpAddress",
    "reason",
    "stateReason",
    "tagSet",
];

/// Pares the answers of the call it is given to.
#[derive(Debug)]
pub(super) struct Paring;

impl Intercept for Paring {
    fn name(&self) -> &'static str {
        "Paring"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = context.response_mut().body_mut();
        let answer = std::mem::replace(body, SdkBody::taken());
        *body = SdkBody::from_body_1_x(Pared { answer, received: Vec::new(), rest: Rest::ToCome });
        Ok(())
    }
}

/// A body that is there at once, pared, when all of it has come.
struct Pared {
    answer: SdkBody,
    received: Vec<u8>,
    rest: Rest,
}

enum Rest {
    ToCome,
    HandedOn,
}

impl Body for Pared {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Rest::HandedOn = self.rest {
            return Poll::Ready(None);
        }
        while let Some(frame) = ready!(Pin::new(&mut self.answer).poll_frame(context)) {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.received.extend_from_slice(&data),
                // Trailers say nothing about instances.
                Ok(Err(_)) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        self.rest = Rest::HandedOn;
        let received = std::mem::take(&mut self.received);
        let pared = std::str::from_utf8(&received).ok().and_then(pare);
        Poll::Ready(Some(Ok(Frame::data(pared.map_or_else(|| received.into(), Bytes::from)))))
    }
}

/// The answer with nothing but what is read in it; `None` if it is not the answer that is expected.
fn pare(answer: &str) -> Option<String> {
    let mut pared = String::with_capacity(answer.len() / 3);
    let (mut rest, mut depth) = (answer, 0_usize);
    // The depth at which what is left out began.
    let mut left_out: Option<usize> = None;
    while let Some(place) = rest.find('<') {
        let (before, from_tag) = rest.split_at(place);
        let (tag, after) = from_tag.split_at(from_tag.find('>')? + 1);
        let inside = tag.get(1..tag.len() - 1)?;
        if left_out.is_none() {
            pared.push_str(before);
        }
        let mut keep = left_out.is_none();
        if let Some(name) = inside.strip_prefix('/') {
            depth = depth.checked_sub(1)?;
            if left_out == Some(depth) {
                left_out = None;
            }
            if depth == 0 {
                return (name == ROOT && left_out.is_none()).then(|| pared + tag + after);
            }
        } else if inside.starts_with('?') && depth == 0 {
            // The declaration at the beginning.
        } else if inside.starts_with(['!', '?']) {
            return None;
        } else {
            let closed = inside.ends_with('/');
            let name = inside.trim_end_matches('/').split_ascii_whitespace().next()?;
            if keep && !is_read(depth, name)? {
                keep = false;
                if !closed {
                    left_out = Some(depth);
                }
            }
            if !closed {
                depth += 1;
            }
        }
        if keep {
            pared.push_str(tag);
        }
        rest = after;
    }
    None
}

const ROOT: &str = "DescribeInstancesResponse";

/// Whether an element with so many around it is read; `None` if it should not be there.
///
/// The response holds a set of reservations, each a set of instances.
fn is_read(depth: usize, name: &str) -> Option<bool> {
    match depth {
        0 => (name == ROOT).then_some(true),
        3 => Some(name == "instancesSet"),
        5 => Some(READ_OF_AN_INSTANCE.contains(&name)),
        _ => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer around one instance.
    fn answer(instance: &str) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<DescribeInstancesResponse xmlns=\"http://ec2\">\
             <requestId>r</requestId><reservationSet><item>{}<instancesSet><item>{instance}</item></instancesSet></item>\
             </reservationSet><nextToken>t</nextToken></DescribeInstancesResponse>",
            "<reservationId>r-1</reservationId><groupSet/>"
        )
    }

    #[test]
    fn what_is_read_stays_and_the_rest_goes() {
        let read = "<instanceId>i-1</instanceId><instanceState><code>16</code><name>running</name></instanceState>\
                    <tagSet><item><key>a&amp;b</key><value/></item></tagSet><ipAddress>203.0.113.1</ipAddress>";
        let unread = "<networkInterfaceSet><item><ipAddress>1</ipAddress><instanceId>i-2</instanceId><a/></item>\
                      </networkInterfaceSet><ebsOptimized>false</ebsOptimized><platform/>";
        let expected = answer(read).replace("<reservationId>r-1</reservationId><groupSet/>", "");
        assert_eq!(pare(&answer(&format!("{unread}{read}{unread}"))), Some(expected));
    }

    #[test]
    fn what_is_not_as_expected_is_left_as_it_came() {
        let whole = answer("<instanceId>i-1</instanceId><platform>x</platform>");
        for cut in 0..whole.len() {
            assert_eq!(pare(&whole[..cut]), None, "cut at {cut}");
        }
        let refusal = "<Response><Errors><Error><Code>c</Code><Message>m</Message></Error></Errors></Response>";
        assert_eq!(pare(refusal), None);
        assert_eq!(pare(&answer("<platform><![CDATA[<instanceId>]]></platform>")), None);
        assert_eq!(pare(&answer("</item></item></item>")), None);
    }
}
