//! A request on its way into the records: borrowed from whoever serves it, and written without its secrets.

use std::borrow::Cow;

use chrono::{DateTime, Utc};

use super::{Outcome, REDACTED, Record, RecordFilter, is_secret, names};
use crate::service::Service;

/// Longer texts are cut.
const LONGEST_TEXT: usize = 1024;
/// What says that a text was cut.
const CUT: &str = "…";
/// The length of a text that is not there.
const NONE: u16 = u16::MAX;

/// A request that is not over yet. It owns nothing, so that a request that says what others said costs next to nothing.
#[derive(Debug)]
pub(crate) struct Sketch<'a> {
    /// When it came in, on the world's clock.
    pub(crate) at: DateTime<Utc>,
    /// The service.
    pub(crate) service: Service,
    /// The operation.
    pub(crate) operation: &'a str,
    /// The region, where there is one.
    pub(crate) region: Option<&'a str>,
    /// Whom it is about.
    pub(crate) subject: Option<Cow<'a, str>>,
    /// What was asked.
    pub(crate) parameters: Vec<(&'a str, Cow<'a, str>)>,
    /// What all attempts of the same call have in common.
    pub(crate) call: Option<&'a str>,
    /// Which attempt of the caller it was.
    pub(crate) attempt: Option<u32>,
    /// Who called.
    pub(crate) client: Option<&'a str>,
    /// The rules that struck.
    pub(crate) faults: Cow<'a, [u64]>,
}

impl<'a> Sketch<'a> {
    /// A record as a sketch: everything but its number and its outcome.
    pub(super) fn of(record: &'a Record) -> Self {
        let parameters = record.parameters.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value.as_str())));
        Self {
            at: record.at,
            service: record.service,
            operation: &record.operation,
            region: record.region.as_deref(),
            subject: record.subject.as_deref().map(Cow::Borrowed),
            parameters: parameters.collect(),
            call: record.call.as_deref(),
            attempt: record.attempt,
            client: record.client.as_deref(),
            faults: Cow::Borrowed(&record.faults),
        }
    }

    /// The name of its call, if that is not longer than any name should be.
    pub(super) fn call(&self) -> Option<Cow<'_, str>> {
        self.call.map(|call| {
            let (kept, cut) = shortened(call);
            if cut.is_empty() { kept.into() } else { format!("{kept}{cut}").into() }
        })
    }

    /// Writes everything down that requests may have in common. [`Said`] reads it.
    pub(super) fn write(&self, outcome: &Outcome, out: &mut Vec<u8>) {
        out.push(self.service as u8);
        let (kind, status, code) = match outcome {
            Outcome::Served { status } => (0, *status, None),
            Outcome::Refused { status, code } => (1, *status, Some(code.as_str())),
            Outcome::Reset => (2, 0, None),
            Outcome::ResponseDropped => (3, 0, None),
            Outcome::Abandoned => (4, 0, None),
        };
        out.push(kind);
        out.extend(status.to_le_bytes());
        text(out, code);
        text(out, Some(self.operation));
        text(out, self.region);
        text(out, self.subject.as_deref());
        text(out, self.client);
        out.push(u8::from(self.attempt.is_some()));
        out.extend(self.attempt.unwrap_or_default().to_le_bytes());
        out.extend((self.faults.len() as u32).to_le_bytes());
        self.faults.iter().for_each(|rule| out.extend(rule.to_le_bytes()));
        for (name, value) in &self.parameters {
            text(out, Some(name));
            text(out, Some(if is_secret(name) { REDACTED } else { value }));
        }
    }
}

fn text(out: &mut Vec<u8>, text: Option<&str>) {
    let Some(text) = text else { return out.extend(NONE.to_le_bytes()) };
    let (kept, cut) = shortened(text);
    out.extend(((kept.len() + cut.len()) as u16).to_le_bytes());
    out.extend_from_slice(kept.as_bytes());
    out.extend_from_slice(cut.as_bytes());
}

/// As much of a text as is kept, and what is put after it.
fn shortened(text: &str) -> (&str, &'static str) {
    if text.len() <= LONGEST_TEXT { (text, "") } else { (&text[..text.floor_char_boundary(LONGEST_TEXT)], CUT) }
}

/// What [`Sketch::write`] wrote, as far as requests are looked for by it; the rest is read when it is wanted.
pub(super) struct Said<'a> {
    service: Service,
    outcome: (u8, u16),
    code: Option<&'a str>,
    operation: &'a str,
    region: Option<&'a str>,
    subject: Option<&'a str>,
    rest: Reader<'a>,
}

impl<'a> Said<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Self {
        let mut reader = Reader(bytes);
        let [service, kind] = reader.take();
        Self {
            service: Service::ALL.get(usize::from(service)).copied().unwrap_or(Service::Ec2),
            outcome: (kind, u16::from_le_bytes(reader.take())),
            code: reader.text(),
            operation: reader.text().unwrap_or_default(),
            region: reader.text(),
            subject: reader.text(),
            rest: reader,
        }
    }

    /// Whether it is what a filter looks for, the call aside, which is kept elsewhere.
    pub(super) fn matches(&self, filter: &RecordFilter) -> bool {
        let wants = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        filter.service.is_none_or(|service| service == self.service)
            && wants(&filter.operation, Some(self.operation))
            && wants(&filter.region, self.region)
            && filter.subject.as_ref().is_none_or(|subject| self.subject.is_some_and(|of| names(of, subject)))
            && wants(&filter.code, self.code)
    }

    pub(super) fn into_record(mut self, number: u64, at: DateTime<Utc>, call: Option<&str>) -> Record {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (kind, status) = self.outcome;
        let client = owned(self.rest.text());
        let [is_numbered] = self.rest.take();
        let attempt = u32::from_le_bytes(self.rest.take());
        let faults = (0..u32::from_le_bytes(self.rest.take())).map(|_| u64::from_le_bytes(self.rest.take())).collect();
        let mut parameters = Vec::new();
        while let Some(name) = self.rest.text() {
            parameters.push((name.to_owned(), self.rest.text().unwrap_or_default().to_owned()));
        }
        Record {
            number,
            at,
            service: self.service,
            operation: self.operation.to_owned(),
            region: owned(self.region),
            subject: owned(self.subject),
            parameters,
            call: owned(call),
            attempt: (is_numbered == 1).then_some(attempt),
            client,
            faults,
            outcome: match kind {
                0 => Outcome::Served { status },
                1 => Outcome::Refused { status, code: self.code.unwrap_or_default().to_owned() },
                2 => Outcome::Reset,
                3 => Outcome::ResponseDropped,
                _ => Outcome::Abandoned,
            },
        }
    }
}

/// Reads what was written, in the same order. At the end there is nothing: no text, and zeros.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let Some((taken, rest)) = self.0.split_first_chunk() else { return [0; LENGTH] };
        self.0 = rest;
        *taken
    }

    fn text(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let length = u16::from_le_bytes(self.take());
        let (text, rest) = self.0.split_at_checked(usize::from(length)).filter(|_| length != NONE)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}
