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

use super::convert::READ_OF_AN_INSTANCE;

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
        let pared = pare(&received).unwrap_or(received);
        Poll::Ready(Some(Ok(Frame::data(pared.into()))))
    }
}

/// The answer with nothing but what is read in it; `None` if it is not the answer that is expected.
fn pare(answer: &[u8]) -> Option<Vec<u8>> {
    let mut pared = Vec::with_capacity(answer.len() / 3);
    let (mut place, mut taken_to, mut depth) = (0, 0, 0_usize);
    while let Some(tag) = Tag::next(answer, place) {
        place = tag.end;
        match tag.kind {
            Kind::Declaration if depth == 0 => {}
            Kind::Declaration => return None,
            Kind::Closes => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    pared.extend_from_slice(&answer[taken_to..]);
                    return (tag.name == ROOT).then_some(pared);
                }
            }
            Kind::Opens | Kind::IsEmpty if !is_read(depth, tag.name)? => {
                pared.extend_from_slice(&answer[taken_to..tag.begin]);
                place = if tag.kind == Kind::Opens { end_of(answer, tag.end)? } else { tag.end };
                taken_to = place;
            }
            Kind::Opens => depth += 1,
            Kind::IsEmpty => {}
        }
    }
    None
}

/// Where an element ends whose tag ends here.
fn end_of(answer: &[u8], mut place: usize) -> Option<usize> {
    let mut depth = 1_usize;
    while depth > 0 {
        let tag = Tag::next(answer, place)?;
        match tag.kind {
            Kind::Opens => depth += 1,
            Kind::Closes => depth -= 1,
            Kind::IsEmpty => {}
            Kind::Declaration => return None,
        }
        place = tag.end;
    }
    Some(place)
}

struct Tag<'a> {
    begin: usize,
    end: usize,
    kind: Kind,
    /// With its attributes, where it has some.
    name: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Opens,
    Closes,
    IsEmpty,
    /// Or a comment, or text in quotes: nothing that EC2 sends inside an answer.
    Declaration,
}

impl<'a> Tag<'a> {
    /// The first tag from here on.
    fn next(answer: &'a [u8], place: usize) -> Option<Self> {
        let begin = place + answer.get(place..)?.iter().position(|letter| *letter == b'<')?;
        let end = begin + answer[begin..].iter().position(|letter| *letter == b'>')?;
        let (kind, name) = match &answer[begin + 1..end] {
            [b'/', name @ ..] => (Kind::Closes, name),
            [b'!' | b'?', name @ ..] => (Kind::Declaration, name),
            [name @ .., b'/'] => (Kind::IsEmpty, name),
            name => (Kind::Opens, name),
        };
        Some(Self { begin, end: end + 1, kind, name })
    }
}

const ROOT: &[u8] = b"DescribeInstancesResponse";

/// Whether an element with so many around it is read; `None` if it should not be there.
///
/// The response holds a set of reservations, each a set of instances.
fn is_read(depth: usize, name: &[u8]) -> Option<bool> {
    match depth {
        0 => name.starts_with(ROOT).then_some(true),
        3 => Some(name == b"instancesSet"),
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
        let pared = pare(answer(&format!("{unread}{read}{unread}")).as_bytes()).expect("it is as expected");
        assert_eq!(String::from_utf8_lossy(&pared), expected);
    }

    #[test]
    fn what_is_not_as_expected_is_left_as_it_came() {
        let whole = answer("<instanceId>i-1</instanceId><platform>x</platform>");
        for cut in 0..whole.len() {
            assert_eq!(pare(&whole.as_bytes()[..cut]), None, "cut at {cut}");
        }
        let refusal = "<Response><Errors><Error><Code>c</Code><Message>m</Message></Error></Errors></Response>";
        let quoted = answer("<platform><![CDATA[<instanceId>]]></platform>");
        let uneven = answer("</item></item></item></item></item></item>");
        for strange in [refusal, "", "<", "no tag", &quoted, &uneven] {
            assert_eq!(pare(strange.as_bytes()), None, "{strange}");
        }
    }
}
