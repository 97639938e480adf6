//! Writes XML into a byte buffer.

use std::fmt::Display;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Range;

use chrono::{DateTime, Datelike, Timelike, Utc};

/// An XML writer.
#[derive(Debug)]
pub(crate) struct Xml {
    out: Vec<u8>,
    /// The last timestamp and its text. Most instances repeat the time of their launch.
    timestamp: Option<(DateTime<Utc>, [u8; 24])>,
}

impl Xml {
    /// Starts a document with the XML declaration. `size` is the initial capacity in bytes.
    pub(crate) fn document(size: usize) -> Self {
        let mut xml = Self { out: Vec::with_capacity(size), timestamp: None };
        xml.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        xml
    }

    /// Starts a fragment of a document.
    pub(crate) fn fragment() -> Self {
        Self { out: Vec::new(), timestamp: None }
    }

    /// Appends XML to a buffer.
    pub(crate) fn append(bytes: &mut Vec<u8>, content: impl FnOnce(&mut Self)) {
        let mut xml = Self { out: std::mem::take(bytes), timestamp: None };
        content(&mut xml);
        *bytes = xml.out;
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

    /// Writes text that needs no escaping.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Writes encoded XML.
    pub(crate) fn bytes(&mut self, encoded: &[u8]) {
        self.out.extend_from_slice(encoded);
    }

    /// Writes text and escapes it.
    pub(crate) fn escaped(&mut self, text: &str) {
        escape(&mut self.out, text);
    }

    /// Writes an element with escaped text.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.open(name);
        self.escaped(text);
        self.close(name);
    }

    /// Writes a value whose text needs no escaping.
    pub(crate) fn print(&mut self, value: impl Display) {
        // Writing to memory does not fail.
        let _ = write!(self.out, "{value}");
    }

    /// Writes a number, in less time than [`Xml::print`].
    pub(crate) fn number(&mut self, number: u32) {
        let (mut digits, mut rest, mut from) = ([0; 10], number, 10);
        loop {
            from -= 1;
            digits[from] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.out.extend_from_slice(&digits[from..]);
    }

    /// Writes `content`, and returns its place for [`Xml::repeat`].
    pub(crate) fn record(&mut self, content: impl FnOnce(&mut Self)) -> Range<usize> {
        let from = self.out.len();
        content(self);
        from..self.out.len()
    }

    /// Writes a recorded piece again.
    pub(crate) fn repeat(&mut self, recorded: Range<usize>) {
        self.out.extend_from_within(recorded);
    }

    /// Writes an element with a value whose text needs no escaping.
    pub(crate) fn plain(&mut self, name: &str, value: impl Display) {
        self.open(name);
        self.print(value);
        self.close(name);
    }

    /// Writes the octets of an address with a separator.
    pub(crate) fn address(&mut self, address: Ipv4Addr, separator: u8) {
        let (mut text, mut length) = ([0; 15], 0);
        for (index, octet) in address.octets().into_iter().enumerate() {
            if index > 0 {
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

    /// Writes an element with a timestamp.
    pub(crate) fn timestamp(&mut self, name: &str, timestamp: DateTime<Utc>) {
        self.open(name);
        let text = match self.timestamp {
            Some((last, text)) if last == timestamp => text,
            Some(_) | None => format_timestamp(timestamp),
        };
        self.timestamp = Some((timestamp, text));
        self.out.extend_from_slice(&text);
        self.close(name);
    }

    /// Writes an element with the content written by `content`.
    pub(crate) fn element(&mut self, name: &str, content: impl FnOnce(&mut Self)) {
        self.open(name);
        content(self);
        self.close(name);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Formats a timestamp as `2026-01-01T00:00:00.000Z`. Every instance has three timestamps, for which the general
/// formatter of chrono is too slow.
fn format_timestamp(timestamp: DateTime<Utc>) -> [u8; 24] {
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut put = |from: usize, digits: usize, mut number: u32| {
        for index in (from..from + digits).rev() {
            text[index] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    // Clocks end in the year 9999.
    put(0, 4, timestamp.year().clamp(0, 9999).unsigned_abs());
    put(5, 2, timestamp.month());
    put(8, 2, timestamp.day());
    put(11, 2, timestamp.hour());
    put(14, 2, timestamp.minute());
    put(17, 2, timestamp.second());
    put(20, 3, timestamp.timestamp_subsec_millis().min(999));
    text
}

fn escape(out: &mut Vec<u8>, text: &str) {
    // Most texts need no escaping. A fold without an early exit is vectorized.
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
    fn text_is_escaped() {
        let mut xml = Xml::document(0);
        xml.element("tag", |xml| xml.text("value", "a<b>&\"ä'\r"));
        let text = String::from_utf8(xml.finish()).expect("UTF-8");
        assert!(text.ends_with("<tag><value>a&lt;b&gt;&amp;\"ä'&#13;</value></tag>"), "{text}");
    }

    #[test]
    fn addresses_are_formatted_like_the_standard_library() {
        for octets in [[0, 0, 0, 0], [127, 16, 0, 1], [255, 255, 255, 255], [10, 99, 100, 109]] {
            let mut xml = Xml::fragment();
            xml.address(octets.into(), b'.');
            assert_eq!(String::from_utf8(xml.finish()), Ok(Ipv4Addr::from(octets).to_string()));
        }
    }

    #[test]
    fn numbers_are_formatted_like_the_standard_library() {
        for number in [0, 7, 10, 65_536, u32::MAX] {
            let mut xml = Xml::fragment();
            xml.number(number);
            assert_eq!(String::from_utf8(xml.finish()), Ok(number.to_string()));
        }
    }

    #[test]
    fn recorded_piece_is_written_again() {
        let mut xml = Xml::fragment();
        xml.raw("<a/>");
        let piece = xml.record(|xml| xml.text("b", "1"));
        xml.raw("<c/>");
        xml.repeat(piece);
        assert_eq!(String::from_utf8(xml.finish()).as_deref(), Ok("<a/><b>1</b><c/><b>1</b>"));
    }

    #[test]
    fn timestamps_have_milliseconds() {
        let mut xml = Xml::document(0);
        xml.timestamp("launchTime", DateTime::from_timestamp(1_767_225_600, 0).expect("a timestamp"));
        assert!(xml.finish().ends_with(b"<launchTime>2026-01-01T00:00:00.000Z</launchTime>"));
    }

    #[test]
    fn timestamps_are_formatted_like_chrono() {
        for (seconds, nanoseconds) in
            [(0, 0), (1_767_225_599, 999_999_999), (951_782_400, 7_000_000), (253_370_764_800, 0)]
        {
            let timestamp = DateTime::from_timestamp(seconds, nanoseconds).expect("a timestamp");
            assert_eq!(
                format_timestamp(timestamp),
                timestamp.to_rfc3339_opts(chrono::SecondsFormat::Millis, true).as_bytes()
            );
        }
    }
}
