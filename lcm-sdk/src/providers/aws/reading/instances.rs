//! The instances in an answer to `DescribeInstances`: reservations, each with a set of them.

use aws_sdk_ec2::primitives::{DateTime, DateTimeFormat};

use super::tags::{Cursor, Kind, Tag};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::time::Timestamp;

const ROOT: &[u8] = b"DescribeInstancesResponse";

/// What was read of an answer.
#[derive(Default)]
pub(super) struct Read {
    /// The instances that were read.
    pub(super) instances: Vec<Instance>,
    /// The answer without them.
    pub(super) rest: Vec<u8>,
}

/// An answer that is read while it comes.
#[derive(Default)]
pub(super) struct Incoming {
    inside: Inside,
    /// Everything before this was gone through.
    place: usize,
    /// Everything before this is in the rest, or was read.
    copied_to: usize,
    read: Read,
    /// How much must have come before it is worth going on: at the least twice as much as was in vain, so that one long
    /// element is not begun again with every piece of it.
    worthwhile_from: usize,
}

/// What stands open at the place that was reached.
#[derive(Clone, Copy, Default)]
enum Inside {
    #[default]
    Nothing,
    Response,
    ReservationSet,
    /// All is closed.
    Over,
}

impl Incoming {
    /// Reads on in what has come until now, from where it stopped before.
    pub(super) fn read_on(&mut self, so_far: &[u8]) {
        if so_far.len() < self.worthwhile_from {
            return;
        }
        while !matches!(self.inside, Inside::Over) {
            let (kept, found, copied_to) = (self.read.rest.len(), self.read.instances.len(), self.copied_to);
            let mut reader = Reader { cursor: Cursor { answer: so_far, place: self.place }, incoming: self };
            let Some((inside, place)) = reader.step() else {
                // Not all of it is there, or it is not what is expected: who knows before all has come?
                self.read.rest.truncate(kept);
                self.read.instances.truncate(found);
                self.copied_to = copied_to;
                self.worthwhile_from = so_far.len() + (so_far.len() - self.place);
                return;
            };
            (self.inside, self.place) = (inside, place);
        }
    }

    /// Reads what is left of an answer when all of it has come; `None` if it is not the answer that is expected.
    pub(super) fn read_all(mut self, answer: &[u8]) -> Option<Read> {
        self.worthwhile_from = 0;
        self.read_on(answer);
        if !matches!(self.inside, Inside::Over) {
            return None;
        }
        self.read.rest.extend_from_slice(&answer[self.copied_to..]);
        Some(self.read)
    }
}

/// Reads an answer, one element at a time.
struct Reader<'a, 'i> {
    cursor: Cursor<'a>,
    incoming: &'i mut Incoming,
}

impl<'a> Reader<'a, '_> {
    /// Goes through the next element; says what is open after that, and where that is.
    fn step(&mut self) -> Option<(Inside, usize)> {
        let begin = self.cursor.place;
        let inside = match self.incoming.inside {
            Inside::Nothing => {
                self.root()?;
                return Some((Inside::Response, self.cursor.place));
            }
            Inside::Response => match self.child(ROOT)? {
                Some(tag) if tag.kind == Kind::Opens && tag.name == b"reservationSet" => Inside::ReservationSet,
                Some(tag) => {
                    self.cursor.skip(tag)?;
                    Inside::Response
                }
                None => Inside::Over,
            },
            Inside::ReservationSet => match self.child(b"reservationSet")? {
                Some(reservation) => {
                    self.reservation(reservation)?;
                    Inside::ReservationSet
                }
                None => Inside::Response,
            },
            Inside::Over => Inside::Over,
        };
        (!self.cursor.has_attributes_since(begin)).then_some((inside, self.cursor.place))
    }

    /// Goes up to the root, which alone has attributes.
    fn root(&mut self) -> Option<()> {
        let root = loop {
            let tag = self.cursor.next()?;
            if tag.name.starts_with(ROOT) {
                break tag;
            }
            if tag.kind != Kind::Strange {
                return None;
            }
        };
        let is_root = root.kind == Kind::Opens && root.name[ROOT.len()..].first().is_none_or(u8::is_ascii_whitespace);
        is_root.then_some(())
    }

    /// A reservation goes with the last of its instances: nothing else in it is looked at.
    fn reservation(&mut self, reservation: Tag<'a>) -> Option<()> {
        if reservation.name != b"item" || reservation.kind != Kind::Opens {
            return None;
        }
        self.copy_to(reservation.begin);
        let (kept, mut left) = (self.incoming.read.rest.len(), 0_usize);
        while let Some(tag) = self.child(b"item")? {
            if tag.kind == Kind::Opens && tag.name == b"instancesSet" {
                while let Some(item) = self.child(b"instancesSet")? {
                    left += usize::from(!self.instance(item)?);
                }
            } else {
                self.cursor.skip(tag)?;
            }
        }
        if left == 0 {
            self.incoming.read.rest.truncate(kept);
            self.incoming.copied_to = self.cursor.place;
        }
        Some(())
    }

    /// Whether an instance could be read. If not, it stays in the answer.
    fn instance(&mut self, item: Tag<'a>) -> Option<bool> {
        if item.name != b"item" || item.kind != Kind::Opens {
            return None;
        }
        let mut cursor = self.cursor.clone();
        let Some(instance) = instance(&mut cursor) else {
            self.cursor.skip(item)?;
            return Some(false);
        };
        self.copy_to(item.begin);
        self.incoming.read.instances.push(instance);
        self.cursor = cursor;
        self.incoming.copied_to = self.cursor.place;
        Some(true)
    }

    /// The next element inside of one; `None` inside if that ends here.
    fn child(&mut self, parent: &[u8]) -> Option<Option<Tag<'a>>> {
        child(&mut self.cursor, parent)
    }

    fn copy_to(&mut self, place: usize) {
        let Incoming { copied_to, read, .. } = &mut *self.incoming;
        read.rest.extend_from_slice(&self.cursor.answer[*copied_to..place]);
        *copied_to = place;
    }
}

fn child<'a>(cursor: &mut Cursor<'a>, parent: &[u8]) -> Option<Option<Tag<'a>>> {
    let tag = cursor.next()?;
    match tag.kind {
        Kind::Opens | Kind::IsEmpty => tag.is_plain().then_some(Some(tag)),
        Kind::Closes => (tag.name == parent).then_some(None),
        Kind::Strange => None,
    }
}

/// What matters of an instance, in the words of [`convert::instance`](super::super::convert::instance).
fn instance(cursor: &mut Cursor<'_>) -> Option<Instance> {
    let mut instance = Instance::new("", Ec2State::Other);
    let (mut id, mut reason, mut transition) = (None, None, None);
    while let Some(tag) = child(cursor, b"item")? {
        match tag.name {
            b"instanceId" => id = Some(cursor.text(tag)?),
            b"instanceState" => {
                instance.state = among(cursor, tag, b"name")?.map_or(Ec2State::Other, Ec2State::from_wire);
            }
            b"stateReason" => reason = among(cursor, tag, b"message")?,
            b"reason" => transition = Some(cursor.text(tag)?),
            b"launchTime" => instance.launched_at = moment(cursor.text(tag)?)?,
            b"tagSet" => tags(cursor, tag, &mut instance)?,
            b"ipAddress" => instance.public_ip = owned(cursor.text(tag)?),
            b"privateIpAddress" => instance.private_ip = owned(cursor.text(tag)?),
            b"clientToken" => instance.client_token = owned(cursor.text(tag)?),
            b"instanceType" => instance.instance_type = owned(cursor.text(tag)?),
            b"imageId" => instance.image_id = owned(cursor.text(tag)?),
            _ => cursor.skip(tag)?,
        }
    }
    instance.id = id?.into();
    instance.state_reason = reason.and_then(owned).or_else(|| transition.and_then(owned));
    Some(instance)
}

/// The text of one element among others.
fn among<'a>(cursor: &mut Cursor<'a>, parent: Tag<'a>, wanted: &[u8]) -> Option<Option<&'a str>> {
    let mut found = None;
    if parent.kind == Kind::IsEmpty {
        return Some(found);
    }
    while let Some(tag) = child(cursor, parent.name)? {
        let text = cursor.text(tag)?;
        if tag.name == wanted {
            found = Some(text);
        }
    }
    Some(found)
}

fn tags(cursor: &mut Cursor<'_>, set: Tag<'_>, instance: &mut Instance) -> Option<()> {
    // Of an element that is there twice, the last counts.
    instance.tags.clear();
    if set.kind == Kind::IsEmpty {
        return Some(());
    }
    while let Some(item) = child(cursor, b"tagSet")? {
        if item.name != b"item" || item.kind != Kind::Opens {
            return None;
        }
        let (mut key, mut value) = (None, "");
        while let Some(tag) = child(cursor, b"item")? {
            match tag.name {
                b"key" => key = Some(cursor.text(tag)?),
                b"value" => value = cursor.text(tag)?,
                _ => cursor.skip(tag)?,
            }
        }
        instance.tags.extend(key.map(|key| (key.to_owned(), value.to_owned())));
    }
    Some(())
}

/// A moment as the client reads it, or it is for the client to say what is wrong with it.
fn moment(text: &str) -> Option<Option<Timestamp>> {
    let moment = DateTime::from_str(text, DateTimeFormat::DateTimeWithOffset).ok()?;
    Some(Timestamp::from_timestamp(moment.secs(), moment.subsec_nanos()))
}

/// EC2 sends empty elements where there is nothing.
fn owned(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "<instanceId>i-1</instanceId><imageId>ami-1</imageId><instanceState><code>16</code>\
        <name>running</name></instanceState><reason/><launchTime>2026-02-06T08:00:00.000Z</launchTime>\
        <networkInterfaceSet><item><ipAddress>1</ipAddress><instanceId>i-2</instanceId><a/></item></networkInterfaceSet>\
        <ipAddress>203.0.113.1</ipAddress><tagSet><item><key>team</key><value>net</value></item>\
        <item><key>lcm:protect</key><value/></item></tagSet>";

    /// Reads an answer that comes in pieces of a length.
    fn read_in_pieces(answer: &[u8], length: usize) -> Option<Read> {
        let mut incoming = Incoming::default();
        (length..answer.len()).step_by(length).for_each(|come| incoming.read_on(&answer[..come]));
        incoming.read_all(answer)
    }

    /// Reads an answer; in how many pieces it comes makes no difference.
    fn read(answer: &[u8]) -> Option<Read> {
        let whole = Incoming::default().read_all(answer);
        for length in [1, 7, 100, 1000] {
            let pieces = read_in_pieces(answer, length);
            let parts = |read: &Option<Read>| read.as_ref().map(|read| (read.instances.clone(), read.rest.clone()));
            assert_eq!(parts(&pieces), parts(&whole), "in pieces of {length}: {}", String::from_utf8_lossy(answer));
        }
        whole
    }

    /// Reservations of instances, as EC2 answers.
    fn answer(reservations: &[&[&str]]) -> String {
        let item = |inside: &str| format!("<item>{inside}</item>");
        let reservation = |instances: &&[&str]| {
            let items: String = instances.iter().map(|instance| item(instance)).collect();
            item(&format!("<reservationId>r-1</reservationId><groupSet/><instancesSet>{items}</instancesSet>"))
        };
        let reservations: String = reservations.iter().map(reservation).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<DescribeInstancesResponse xmlns=\"http://ec2\">\
             <requestId>r</requestId><reservationSet>{reservations}</reservationSet><nextToken>t</nextToken>\
             </DescribeInstancesResponse>"
        )
    }

    #[test]
    fn an_instance_is_read_and_taken_out_with_its_reservation() {
        let Read { instances, rest } = read(answer(&[&[PLAIN], &[PLAIN, PLAIN]]).as_bytes()).expect("as expected");
        assert_eq!(String::from_utf8_lossy(&rest), answer(&[]));
        let [first, _, _] = &instances[..] else { panic!("three instances, not {}", instances.len()) };
        assert_eq!((first.id.as_str(), first.state), ("i-1", Ec2State::Running));
        assert_eq!(first.launched_at.map(|at| at.to_rfc3339()).as_deref(), Some("2026-02-06T08:00:00+00:00"));
        assert_eq!((first.public_ip.as_deref(), first.private_ip.as_deref()), (Some("203.0.113.1"), None));
        assert_eq!((first.image_id.as_deref(), first.state_reason.as_deref()), (Some("ami-1"), None));
        assert!(first.is_protected(), "a tag without a value is a tag");
        assert_eq!(first.tags.get("team").map(String::as_str), Some("net"));
    }

    #[test]
    fn what_is_not_plain_stays_for_the_client() {
        let escaped = PLAIN.replace("net<", "R&amp;D<");
        for odd in [
            escaped.as_str(),
            &PLAIN.replace("<instanceId>i-1</instanceId>", ""),
            &PLAIN.replace("2026-02-06T08:00:00.000Z", "yesterday"),
            &PLAIN.replace("<key>team</key>", "<key><b>team</b></key>"),
            &PLAIN.replace("instanceId>", "a:instanceId>"),
            &PLAIN.replace("net<", "  <"),
            &PLAIN.replace("net<", "\u{1}<"),
            &PLAIN.replace("net<", "\u{fffe}<"),
            &PLAIN.replace("<imageId>", "<imageId >"),
        ] {
            let Read { instances, rest } = read(answer(&[&[PLAIN, odd], &[PLAIN]]).as_bytes()).expect("as expected");
            assert_eq!((instances.len(), String::from_utf8_lossy(&rest)), (2, answer(&[&[odd]]).into()), "{odd}");
        }
    }

    #[test]
    fn what_is_not_as_expected_is_left_as_it_came() {
        let whole = answer(&[&[PLAIN]]);
        for cut in 0..whole.len() {
            assert!(read(&whole.as_bytes()[..cut]).is_none(), "cut at {cut}");
        }
        let refusal = "<Response><Errors><Error><Code>c</Code><Message>m</Message></Error></Errors></Response>";
        let quoted = answer(&[&["<platform><![CDATA[<instanceId>]]></platform>"]]);
        let attribute = answer(&[&["<platform a=\"/>\">x</platform><instanceId>i-1</instanceId>"]]);
        let uneven = answer(&[&["</item></item></item></item></item></item>"]]);
        let other = whole.replace("DescribeInstancesResponse", "DescribeInstancesResponses");
        for strange in
            [refusal, "", "<", "no tag", &quoted, &attribute, &uneven, &other, "<DescribeInstancesResponse/>"]
        {
            assert!(read(strange.as_bytes()).is_none(), "{strange}");
        }
    }
}
