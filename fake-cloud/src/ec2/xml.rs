//! XML, written straight into an answer.

use std::fmt::Display;
use std::io::Write;
use std::net::Ipv4Addr;

use chrono::{DateTime, Datelike, Timelike, Utc};

/// XML as it grows.
#[derive(Debug)]
pub(crate) struct Xml {
    out: Vec<u8>,
}

impl Xml {
    /// The beginning of a document of about this size.
    pub(crate) fn document(size: usize) -> Self {
        let mut xml = Self { out: Vec::with_capacity(size) };
        xml.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        xml
    }

    /// A part of a document.
    pub(crate) fn fragment() -> Self {
        Self { out: Vec::new() }
    }

    /// Has `inside` write on where something was written before.
    pub(crate) fn write_on(answer: &mut Vec<u8>, inside: impl FnOnce(&mut Self)) {
        let mut xml = Self { out: std::mem::take(answer) };
        inside(&mut xml);
        *answer = xml.out;
    }

    pub(crate) fn open(&mut self, name: &str) {
        self.raw("<");
        self.raw(name);
        self.raw(">");
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.raw("</");
        self.raw(name);
        self.raw(">");
    }

    /// What needs no escaping, as it is.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// A text, escaped.
    pub(crate) fn escaped(&mut self, text: &str) {
        escape(&mut self.out, text);
    }

    /// An element with a text.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.open(name);
        self.escaped(text);
        self.close(name);
    }

    /// Something that prints without anything to escape.
    pub(crate) fn print(&mut self, value: impl Display) {
        // Writing to memory does not fail.
        let _ = write!(self.out, "{value}");
    }

    /// An element with a number or an address.
    pub(crate) fn plain(&mut self, name: &str, value: impl Display) {
        self.open(name);
        self.print(value);
        self.close(name);
    }

    /// An address, with something else than dots if need be.
    pub(crate) fn address(&mut self, address: Ipv4Addr, separator: u8) {
        let (mut text, mut length) = ([0; 15], 0);
        for (place, octet) in address.octets().into_iter().enumerate() {
            if place > 0 {
                text[length] = separator;
                length += 1;
            }
            for (unit, digit) in [(100, octet / 100), (10, octet / 10 % 10), (1, octet % 10)] {
                if octet >= unit || unit == 1 {
                    text[length] = b'0' + digit;
                    length += 1;
                }
            }
        }
        self.out.extend_from_slice(&text[..length]);
    }

    /// An element with a moment.
    pub(crate) fn moment(&mut self, name: &str, moment: DateTime<Utc>) {
        self.open(name);
        self.out.extend_from_slice(&written(moment));
        self.close(name);
    }

    /// An element with whatever `inside` writes.
    pub(crate) fn element(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.open(name);
        inside(self);
        self.close(name);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// A moment with milliseconds, as `2026-01-01T00:00:00.000Z`. Every instance has three of them, so it is not left to a
/// formatter that could print any other form as well.
fn written(moment: DateTime<Utc>) -> [u8; 24] {
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut put = |from: usize, digits: usize, mut number: u32| {
        for place in (from..from + digits).rev() {
            text[place] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    // The end of time is in the year 9999.
    put(0, 4, moment.year().clamp(0, 9999).unsigned_abs());
    put(5, 2, moment.month());
    put(8, 2, moment.day());
    put(11, 2, moment.hour());
    put(14, 2, moment.minute());
    put(17, 2, moment.second());
    put(20, 3, moment.timestamp_subsec_millis().min(999));
    text
}

fn escape(out: &mut Vec<u8>, text: &str) {
    // Nearly every text is written as it is. Without a way out in the middle, many bytes are looked at in one go.
    if !text.bytes().fold(false, |found, byte| found | matches!(byte, b'&' | b'<' | b'>' | b'\r')) {
        return out.extend_from_slice(text.as_bytes());
    }
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let entity = match byte {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            // Parsers turn a bare carriage return into a line feed.
            b'\r' => "&#13;",
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[from..at]);
        out.extend_from_slice(entity.as_bytes());
        from = at + 1;
    }
    out.extend_from_slice(&text.as_bytes()[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_come_out_whole() {
        let mut xml = Xml::document(0);
        xml.element("tag", |xml| xml.text("value", "a<b>&\"ä'\r"));
        let text = String::from_utf8(xml.finish()).expect("UTF-8");
        assert!(text.ends_with("<tag><value>a&lt;b&gt;&amp;\"ä'&#13;</value></tag>"), "{text}");
    }

    #[test]
    fn addresses_are_written_as_everybody_writes_them() {
        for octets in [[0, 0, 0, 0], [127, 16, 0, 1], [255, 255, 255, 255], [10, 99, 100, 109]] {
            let mut xml = Xml::fragment();
            xml.address(octets.into(), b'.');
            assert_eq!(String::from_utf8(xml.finish()), Ok(Ipv4Addr::from(octets).to_string()));
        }
    }

    #[test]
    fn moments_have_milliseconds() {
        let mut xml = Xml::document(0);
        xml.moment("launchTime", DateTime::from_timestamp(1_767_225_600, 0).expect("a moment"));
        assert!(xml.finish().ends_with(b"<launchTime>2026-01-01T00:00:00.000Z</launchTime>"));
    }

    #[test]
    fn moments_are_written_as_everybody_writes_them() {
        for (seconds, nanoseconds) in
            [(0, 0), (1_767_225_599, 999_999_999), (951_782_400, 7_000_000), (253_370_764_800, 0)]
        {
            let moment = DateTime::from_timestamp(seconds, nanoseconds).expect("a moment");
            assert_eq!(written(moment), moment.to_rfc3339_opts(chrono::SecondsFormat::Millis, true).as_bytes());
        }
    }
}
