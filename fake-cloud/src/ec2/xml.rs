//! XML, written straight into one string.

use std::fmt::{Display, Write};

use chrono::{DateTime, SecondsFormat, Utc};

/// XML as it grows.
#[derive(Debug)]
pub(crate) struct Xml {
    out: String,
}

impl Xml {
    /// The beginning of a document of about this size.
    pub(crate) fn document(size: usize) -> Self {
        let mut out = String::with_capacity(size);
        out.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        Self { out }
    }

    pub(crate) fn open(&mut self, name: &str) {
        self.out.push('<');
        self.out.push_str(name);
        self.out.push('>');
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }

    /// What needs no escaping, as it is.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// A text, escaped.
    pub(crate) fn escaped(&mut self, text: &str) {
        escape(&mut self.out, text);
    }

    /// An element with a text.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.open(name);
        escape(&mut self.out, text);
        self.close(name);
    }

    /// An element with a number or an address: something that prints without anything to escape.
    pub(crate) fn plain(&mut self, name: &str, value: impl Display) {
        self.open(name);
        // Writing to a string does not fail.
        let _ = write!(self.out, "{value}");
        self.close(name);
    }

    /// An element with a moment.
    pub(crate) fn moment(&mut self, name: &str, moment: DateTime<Utc>) {
        self.plain(name, moment.to_rfc3339_opts(SecondsFormat::Millis, true));
    }

    /// An element with whatever `inside` writes.
    pub(crate) fn element(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.open(name);
        inside(self);
        self.close(name);
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }
}

fn escape(out: &mut String, text: &str) {
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
        out.push_str(&text[from..at]);
        out.push_str(entity);
        from = at + 1;
    }
    out.push_str(&text[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_come_out_whole() {
        let mut xml = Xml::document(0);
        xml.element("tag", |xml| xml.text("value", "a<b>&\"ä'\r"));
        let text = xml.finish();
        assert!(text.ends_with("<tag><value>a&lt;b&gt;&amp;\"ä'&#13;</value></tag>"), "{text}");
    }

    #[test]
    fn moments_have_milliseconds() {
        let mut xml = Xml::document(0);
        xml.moment("launchTime", DateTime::from_timestamp(1_767_225_600, 0).expect("a moment"));
        assert!(xml.finish().ends_with("<launchTime>2026-01-01T00:00:00.000Z</launchTime>"));
    }
}
