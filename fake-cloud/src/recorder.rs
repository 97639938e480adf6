//! What was asked of the world: every request, without its secrets, as many as fit.

mod kept;
mod line;
mod sketch;

use std::collections::VecDeque;
use std::fmt;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub(crate) use self::sketch::Sketch;

use self::kept::Kept;
use crate::service::Service;

/// At most this many requests are kept…
const REQUESTS_KEPT: usize = 100_000;
/// …and at most this many bytes of what they say.
const BYTES_KEPT: usize = 64 * 1024 * 1024;
/// At most this many notices are kept.
const NOTICES_KEPT: usize = 1000;
/// What is written instead of a secret.
pub const REDACTED: &str = "[redacted]";

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Its number, from 1.
    pub number: u64,
    /// When it came in, on the world's clock.
    pub at: DateTime<Utc>,
    /// The service.
    pub service: Service,
    /// The operation.
    pub operation: String,
    /// The region, where there is one.
    pub region: Option<String>,
    /// Whom it is about: instances, a worker, a session, a key.
    pub subject: Option<String>,
    /// What was asked.
    pub parameters: Vec<(String, String)>,
    /// What all attempts of the same call have in common.
    pub call: Option<String>,
    /// Which attempt of the caller it was, if the caller says.
    pub attempt: Option<u32>,
    /// Who called.
    pub client: Option<String>,
    /// The rules that struck.
    pub faults: Vec<u64>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was served.
    Served {
        /// The HTTP status.
        status: u16,
    },
    /// It was refused.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error code.
        code: String,
    },
    /// The connection was reset before anything was done.
    Reset,
    /// It was carried out, and the answer dropped.
    ResponseDropped,
    /// The caller went away before anything was done.
    Abandoned,
}

/// Which records to look at. What is left out matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordFilter {
    /// Of this service.
    pub service: Option<Service>,
    /// Of this operation.
    pub operation: Option<String>,
    /// In this region.
    pub region: Option<String>,
    /// About this, alone or with others.
    pub subject: Option<String>,
    /// Of this call.
    pub call: Option<String>,
    /// Refused with this code.
    pub code: Option<String>,
    /// After the one of this number.
    pub after: Option<u64>,
    /// At most this many, the latest.
    pub limit: Option<usize>,
}

/// The records of a world.
#[derive(Default)]
pub struct Recorder {
    kept: Mutex<Kept>,
    listener: Mutex<Option<Box<Listener>>>,
    notices: Mutex<VecDeque<Notice>>,
    notice_listener: Mutex<Option<Box<NoticeListener>>>,
}

type Listener = dyn Fn(&Record) + Send + Sync;
type NoticeListener = dyn Fn(&Notice) + Send + Sync;

/// Something the world could not do as it should, which nobody asked for and somebody should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// When, on the world's clock.
    pub at: DateTime<Utc>,
    /// What.
    pub text: String,
}

impl Recorder {
    /// Writes a request down; numbers it, takes its secrets out, forgets the oldest if there are too many.
    pub fn record(&self, record: &Record) {
        self.write(&Sketch::of(record), &record.outcome);
    }

    /// The same, of a request that ended like this.
    pub(crate) fn write(&self, sketch: &Sketch<'_>, outcome: &Outcome) {
        let mut kept = self.kept.lock();
        kept.push(sketch, outcome);
        // Under the lock, so that the listener hears of them in the order of their numbers.
        if let Some(listener) = &*self.listener.lock()
            && let Some(record) = kept.latest()
        {
            listener(&record);
        }
        kept.forget_down_to(REQUESTS_KEPT, BYTES_KEPT);
    }

    /// Has `listener` told about every request from now on, as soon as it is written down. It must not ask the recorder
    /// anything.
    pub fn listen(&self, listener: impl Fn(&Record) + Send + Sync + 'static) {
        *self.listener.lock() = Some(Box::new(listener));
    }

    /// Writes down that something could not be done as it should.
    pub fn notice(&self, at: DateTime<Utc>, text: String) {
        let notice = Notice { at, text };
        if let Some(listener) = &*self.notice_listener.lock() {
            listener(&notice);
        }
        let mut notices = self.notices.lock();
        if notices.len() == NOTICES_KEPT {
            notices.pop_front();
        }
        notices.push_back(notice);
    }

    /// Has `listener` told about every notice from now on. It must not ask the recorder anything.
    pub fn listen_to_notices(&self, listener: impl Fn(&Notice) + Send + Sync + 'static) {
        *self.notice_listener.lock() = Some(Box::new(listener));
    }

    /// The notices, oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().iter().cloned().collect()
    }

    /// How many match.
    pub fn count(&self, filter: &RecordFilter) -> usize {
        self.kept.lock().count(filter)
    }

    /// How many were written down, forgotten ones included.
    pub fn recorded(&self) -> u64 {
        self.kept.lock().recorded()
    }

    /// The records that match, oldest first.
    pub fn find(&self, filter: &RecordFilter) -> Vec<Record> {
        self.kept.lock().find(filter)
    }

    /// Forgets everything and counts from 1 again.
    pub fn clear(&self) {
        *self.kept.lock() = Kept::default();
        self.notices.lock().clear();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("recorded", &self.recorded()).finish_non_exhaustive()
    }
}

/// A record that is written whatever happens: with its outcome once that is known, as abandoned if it never is.
#[derive(Debug)]
pub(crate) struct OpenRecord<'a> {
    recorder: &'a Recorder,
    sketch: Option<Sketch<'a>>,
}

impl<'a> OpenRecord<'a> {
    /// Opens a record.
    pub(crate) fn new(recorder: &'a Recorder, sketch: Sketch<'a>) -> Self {
        Self { recorder, sketch: Some(sketch) }
    }

    /// Writes it.
    pub(crate) fn close(mut self, outcome: &Outcome) {
        self.write(outcome);
    }

    fn write(&mut self, outcome: &Outcome) {
        if let Some(sketch) = self.sketch.take() {
            self.recorder.write(&sketch, outcome);
        }
    }
}

impl Drop for OpenRecord<'_> {
    fn drop(&mut self) {
        self.write(&Outcome::Abandoned);
    }
}

/// Whether a record's subject is this one, or a list with this one on it.
fn names(of: &str, subject: &str) -> bool {
    of == subject || of.split(',').any(|one| one == subject)
}

fn is_secret(name: &str) -> bool {
    let name = name.as_bytes();
    let begins = |start: usize, secret: &str| {
        let end = start + secret.len();
        name.get(start..end).is_some_and(|found| found.eq_ignore_ascii_case(secret.as_bytes()))
    };
    // By the first two letters, because every parameter of every request is looked at.
    name.windows(2).enumerate().any(|(start, letters)| match [letters[0] | 0x20, letters[1] | 0x20] {
        [b'a', b'u'] => begins(start, "authorization"),
        [b'a', b'p'] => begins(start, "api-key") || begins(start, "apikey"),
        [b'p', b'a'] => begins(start, "password"),
        [b's', b'e'] => ["secret", "security-token", "securitytoken"].into_iter().any(|secret| begins(start, secret)),
        [b'u', b's'] => begins(start, "userdata"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn record(operation: &str, parameters: &[(&str, &str)]) -> Record {
        Record {
            number: 0,
            at: DateTime::<Utc>::UNIX_EPOCH,
            service: Service::Ec2,
            operation: operation.to_owned(),
            region: Some("us-east-1".to_owned()),
            subject: None,
            parameters: parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            call: None,
            attempt: Some(1),
            client: None,
            faults: Vec::new(),
            outcome: Outcome::Served { status: 200 },
        }
    }

    #[test]
    fn secrets_do_not_get_in() {
        let recorder = Recorder::default();
        let names = ["UserData", "Authorization", "X-Amz-Security-Token", "password", "AdminPassword", "ClientToken"];
        recorder.record(&record("RunInstances", &names.map(|name| (name, "hush"))));
        let found = recorder.find(&RecordFilter::default());
        let values: Vec<&str> = found[0].parameters.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, [REDACTED, REDACTED, REDACTED, REDACTED, REDACTED, "hush"]);
    }

    #[test]
    fn the_latest_are_kept_and_found_in_order() {
        let recorder = Recorder::default();
        for number in 0..10 {
            recorder.record(&record(if number % 2 == 0 { "Even" } else { "Odd" }, &[]));
        }
        let filter = RecordFilter { operation: Some("Odd".to_owned()), limit: Some(2), ..RecordFilter::default() };
        let numbers: Vec<u64> = recorder.find(&filter).iter().map(|record| record.number).collect();
        assert_eq!(numbers, [8, 10]);
        let filter = RecordFilter { after: Some(9), ..RecordFilter::default() };
        assert_eq!(recorder.find(&filter).len(), 1);
    }

    #[test]
    fn memory_is_bounded_whatever_is_asked() {
        let recorder = Recorder::default();
        let long = "ä".repeat(4000);
        let parameters = vec![("Filter", long.as_str()); 100];
        for number in 0..1000 {
            let operation = format!("{number}{long}");
            recorder.record(&Record { subject: Some(long.clone()), ..record(&operation, &parameters) });
        }
        let kept = recorder.find(&RecordFilter::default());
        let bytes =
            |record: &Record| record.parameters.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        assert!(kept.iter().map(bytes).sum::<usize>() <= BYTES_KEPT);
        assert!(kept.len() < 1000);
        assert!(kept[0].operation.len() < 1100 && kept[0].operation.ends_with('…'));
        assert!(kept[0].subject.as_ref().is_some_and(|subject| subject.len() < 1100));
        assert_eq!(recorder.recorded(), 1000);
    }

    #[test]
    fn a_request_about_several_is_found_by_each_of_them() {
        let recorder = Recorder::default();
        recorder.record(&Record { subject: Some("i-1,i-2".to_owned()), ..record("StopInstances", &[]) });
        let found = |subject: &str| {
            recorder.find(&RecordFilter { subject: Some(subject.to_owned()), ..RecordFilter::default() }).len()
        };
        assert_eq!(["i-1", "i-2", "i-1,i-2", "i-", "i-3"].map(found), [1, 1, 1, 0, 0]);
    }

    #[test]
    fn a_notice_is_told_and_kept_and_the_oldest_go() {
        let recorder = Recorder::default();
        let (tell, told) = std::sync::mpsc::channel();
        recorder.listen_to_notices(move |notice| drop(tell.send(notice.to_string())));
        for number in 0..=NOTICES_KEPT {
            recorder.notice(DateTime::<Utc>::UNIX_EPOCH, format!("notice {number}"));
        }
        assert_eq!(told.recv().expect("told"), "00:00:00.000  notice 0");
        let kept = recorder.notices();
        assert_eq!((kept.len(), kept[0].text.as_str()), (NOTICES_KEPT, "notice 1"));
    }
}
