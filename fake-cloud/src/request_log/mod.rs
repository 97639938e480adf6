//! Logs every request to the fake cloud, without secrets and with bounded memory.
//!
//! Clients poll, so most requests repeat an earlier one. Identical requests share one interned payload; an entry is a
//! timestamp and a reference to it.

mod display;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::control_plane::Records;
use crate::middleware::RequestInfo;
use crate::names;
use crate::service::Service;
use crate::world::World;

/// Maximum number of entries.
const MAX_ENTRIES: usize = 100_000;
/// Maximum size of all entries, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of notices.
const MAX_NOTICES: usize = 1000;
/// Longer texts are truncated to this many bytes.
const MAX_TEXT: usize = 1024;
/// Replaces the value of a secret parameter.
pub const REDACTED: &str = "[redacted]";

/// A request to one of the services, as the log returns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoggedRequest {
    /// Sequence number, from 1.
    pub number: u64,
    /// Arrival time on the world's clock.
    pub at: DateTime<Utc>,
    /// Service that received the request.
    pub service: Service,
    /// Operation, as the service names it.
    pub operation: String,
    /// AWS region; none for the other services.
    pub region: Option<String>,
    /// Resources the request names, joined by commas: instances, a worker, a session or a key.
    pub subject: Option<String>,
    /// Request parameters in wire order. Secret values are [`REDACTED`].
    pub parameters: Vec<(String, String)>,
    /// Invocation id that all attempts of one SDK call share.
    pub call: Option<String>,
    /// Attempt number, if the client sends one.
    pub attempt: Option<u32>,
    /// User agent of the client.
    pub client: Option<String>,
    /// Ids of the fault rules that applied.
    pub faults: Vec<u64>,
    /// Result of the request.
    pub outcome: RequestOutcome,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RequestOutcome {
    /// The request succeeded.
    Served {
        /// HTTP status of the response.
        status: u16,
    },
    /// The request failed with an error response.
    Refused {
        /// HTTP status of the response.
        status: u16,
        /// Error code, as the service names it.
        code: String,
    },
    /// The connection was reset before the request was handled.
    Reset,
    /// The request was handled and its response dropped.
    ResponseDropped,
    /// The client disconnected before the request was handled.
    Abandoned,
}

/// Selects logged requests. Fields that are `None` match every request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestFilter {
    /// Matches requests to this service.
    pub service: Option<Service>,
    /// Matches requests for this operation.
    pub operation: Option<String>,
    /// Matches requests in this region.
    pub region: Option<String>,
    /// Matches requests that name this resource, alone or among others.
    pub subject: Option<String>,
    /// Matches all attempts of this SDK call.
    pub call: Option<String>,
    /// Matches requests that failed with this error code.
    pub code: Option<String>,
    /// Matches requests with a larger sequence number.
    pub after: Option<u64>,
    /// Returns at most this many requests, the latest ones.
    pub limit: Option<usize>,
}

impl RequestFilter {
    /// Validates the filter.
    ///
    /// # Errors
    /// A message for an operation or a region that no request can have, because such a filter would let a test pass for
    /// the wrong reason.
    pub fn check(&self) -> Result<(), String> {
        self.region.as_deref().map_or(Ok(()), crate::world::check_region)?;
        self.operation.as_deref().map_or(Ok(()), |operation| crate::operations::check(operation, self.service))
    }

    /// Returns the filter with the id of its subject in place of a name.
    ///
    /// # Errors
    /// A message with the operation, the region or the subject that was probably meant.
    pub(crate) fn resolve(self, world: &World, records: Option<&Records>) -> Result<Self, String> {
        self.check()?;
        let place = (self.service, self.operation.as_deref());
        let subject = self.subject.as_deref().map(|text| names::find_subject(world, records, place, text));
        Ok(Self { subject: subject.transpose()?, ..self })
    }
}

/// A problem of the fake cloud itself, such as an address that is already in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Notice {
    /// Time on the world's clock.
    pub at: DateTime<Utc>,
    /// Description of the problem.
    pub text: String,
}

/// Bounded log of requests and notices. The oldest entries are evicted first.
#[derive(Default)]
pub struct RequestLog {
    entries: Mutex<Entries>,
    on_request: Mutex<Option<Box<RequestCallback>>>,
    notices: Mutex<VecDeque<Notice>>,
    on_notice: Mutex<Option<Box<NoticeCallback>>>,
}

type RequestCallback = dyn Fn(&LoggedRequest) + Send + Sync;
type NoticeCallback = dyn Fn(&Notice) + Send + Sync;

impl RequestLog {
    /// Appends a request: numbers it, redacts its secrets and evicts the oldest entries that exceed the bounds.
    pub(crate) fn append(&self, request: &RequestInfo<'_>, at: DateTime<Utc>, faults: &[u64], outcome: RequestOutcome) {
        let payload = Payload::new(request, faults, outcome);
        let call = request.call.map(|call| truncated(call).into());
        let mut entries = self.entries.lock();
        entries.push(at, payload, call);
        // Called under the lock, so that requests are reported in the order of their numbers.
        if let Some(callback) = &*self.on_request.lock()
            && let Some(request) = entries.latest()
        {
            callback(&request);
        }
        entries.evict(MAX_ENTRIES, MAX_BYTES);
    }

    /// Calls `callback` for every request from now on. Replaces an earlier callback.
    ///
    /// The callback must not call the log.
    pub fn on_request(&self, callback: impl Fn(&LoggedRequest) + Send + Sync + 'static) {
        *self.on_request.lock() = Some(Box::new(callback));
    }

    /// Appends a notice.
    pub(crate) fn notify(&self, at: DateTime<Utc>, text: String) {
        let notice = Notice { at, text };
        if let Some(callback) = &*self.on_notice.lock() {
            callback(&notice);
        }
        let mut notices = self.notices.lock();
        if notices.len() == MAX_NOTICES {
            notices.pop_front();
        }
        notices.push_back(notice);
    }

    /// Calls `callback` for every notice from now on. Replaces an earlier callback.
    ///
    /// The callback must not call the log.
    pub fn on_notice(&self, callback: impl Fn(&Notice) + Send + Sync + 'static) {
        *self.on_notice.lock() = Some(Box::new(callback));
    }

    /// Returns the notices, oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().iter().cloned().collect()
    }

    /// Counts the requests that match, up to the filter's limit.
    pub fn count(&self, filter: &RequestFilter) -> usize {
        let entries = self.entries.lock();
        let matching = entries.matching(filter).count();
        filter.limit.map_or(matching, |limit| matching.min(limit))
    }

    /// Removes all requests and notices. Numbers go on after this one.
    pub(crate) fn restore(&self, total: u64) {
        *self.entries.lock() = Entries { total, ..Entries::default() };
        self.notices.lock().clear();
    }

    /// Returns whether a logged request named this resource.
    pub(crate) fn has_subject(&self, subject: &str) -> bool {
        let filter = RequestFilter { subject: Some(subject.to_owned()), ..RequestFilter::default() };
        self.count(&RequestFilter { limit: Some(1), ..filter }) > 0
    }

    /// Returns the number of requests since the log was created or cleared, evicted ones included.
    pub fn total(&self) -> u64 {
        self.entries.lock().total
    }

    /// Returns the requests that match, oldest first.
    pub fn find(&self, filter: &RequestFilter) -> Vec<LoggedRequest> {
        let entries = self.entries.lock();
        let limit = filter.limit.unwrap_or(usize::MAX);
        let mut found: Vec<_> =
            entries.matching(filter).take(limit).map(|(number, entry)| entry.to_request(number)).collect();
        found.reverse();
        found
    }

    /// Removes all requests and notices. Numbers start at 1 again.
    pub fn clear(&self) {
        *self.entries.lock() = Entries::default();
        self.notices.lock().clear();
    }
}

impl fmt::Debug for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLog").field("total", &self.total()).finish_non_exhaustive()
    }
}

/// The latest requests in the order of their numbers.
#[derive(Debug, Default)]
struct Entries {
    total: u64,
    bytes: usize,
    queue: VecDeque<Entry>,
    interned: HashSet<Arc<Payload>>,
}

#[derive(Debug)]
struct Entry {
    at: DateTime<Utc>,
    payload: Arc<Payload>,
    /// Invocation ids are unique, so they are not part of the shared payload.
    call: Option<Box<str>>,
}

/// The part of a request that repeats.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Payload {
    service: Service,
    operation: Box<str>,
    region: Option<Box<str>>,
    subject: Option<Box<str>>,
    parameters: Box<[(Box<str>, Box<str>)]>,
    attempt: Option<u32>,
    client: Option<Box<str>>,
    faults: Box<[u64]>,
    outcome: RequestOutcome,
}

impl Entries {
    fn push(&mut self, at: DateTime<Utc>, payload: Payload, call: Option<Box<str>>) {
        let payload = match self.interned.get(&payload) {
            Some(known) => Arc::clone(known),
            None => {
                let payload = Arc::new(payload);
                self.bytes += payload.size();
                self.interned.insert(Arc::clone(&payload));
                payload
            }
        };
        let entry = Entry { at, payload, call };
        self.total += 1;
        self.bytes += entry.size();
        self.queue.push_back(entry);
    }

    fn evict(&mut self, max_entries: usize, max_bytes: usize) {
        while self.queue.len() > max_entries || self.bytes > max_bytes {
            let Some(entry) = self.queue.pop_front() else { return };
            self.bytes -= entry.size();
            // Only this entry and the set refer to the payload.
            if Arc::strong_count(&entry.payload) == 2 {
                self.interned.remove(&entry.payload);
                self.bytes -= entry.payload.size();
            }
        }
    }

    /// Returns the matching entries, latest first.
    fn matching<'a>(&'a self, filter: &'a RequestFilter) -> impl Iterator<Item = (u64, &'a Entry)> {
        let after = filter.after.unwrap_or(0);
        let numbered = (0..self.total).rev().map(|before| before + 1).zip(self.queue.iter().rev());
        numbered.take_while(move |(number, _)| *number > after).filter(|(_, entry)| entry.matches(filter))
    }

    fn latest(&self) -> Option<LoggedRequest> {
        self.queue.back().map(|entry| entry.to_request(self.total))
    }
}

impl Entry {
    fn matches(&self, filter: &RequestFilter) -> bool {
        let Payload { service, operation, region, subject, outcome, .. } = &*self.payload;
        let code = match outcome {
            RequestOutcome::Refused { code, .. } => Some(code.as_str()),
            RequestOutcome::Served { .. }
            | RequestOutcome::Reset
            | RequestOutcome::ResponseDropped
            | RequestOutcome::Abandoned => None,
        };
        let equals = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        filter.service.is_none_or(|wanted| wanted == *service)
            && equals(&filter.operation, Some(operation))
            && equals(&filter.region, region.as_deref())
            && equals(&filter.call, self.call.as_deref())
            && equals(&filter.code, code)
            && filter.subject.as_ref().is_none_or(|wanted| {
                subject.as_ref().is_some_and(|found| **found == **wanted || found.split(',').any(|one| one == wanted))
            })
    }

    fn to_request(&self, number: u64) -> LoggedRequest {
        let payload = &*self.payload;
        let owned = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        let parameters = payload.parameters.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        LoggedRequest {
            number,
            at: self.at,
            service: payload.service,
            operation: payload.operation.to_string(),
            region: owned(&payload.region),
            subject: owned(&payload.subject),
            parameters: parameters.collect(),
            call: owned(&self.call),
            attempt: payload.attempt,
            client: owned(&payload.client),
            faults: payload.faults.to_vec(),
            outcome: payload.outcome.clone(),
        }
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.call.as_ref().map_or(0, |call| call.len())
    }
}

impl Payload {
    fn new(request: &RequestInfo<'_>, faults: &[u64], outcome: RequestOutcome) -> Self {
        let boxed = |text: &str| Box::<str>::from(truncated(text));
        let parameters = request.parameters.iter().map(|(name, value)| {
            let value = if is_secret(name) { REDACTED } else { value };
            (boxed(name), boxed(value))
        });
        Self {
            service: request.service,
            operation: boxed(request.operation),
            region: request.region.map(boxed),
            subject: request.subject().as_deref().map(boxed),
            parameters: parameters.collect(),
            attempt: request.attempt,
            client: request.client.map(boxed),
            faults: faults.into(),
            outcome: match outcome {
                RequestOutcome::Refused { status, code } if code.len() > MAX_TEXT => {
                    RequestOutcome::Refused { status, code: truncated(&code).into_owned() }
                }
                other => other,
            },
        }
    }

    /// Approximate heap size in bytes, including the slot in the set.
    fn size(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let code = match &self.outcome {
            RequestOutcome::Refused { code, .. } => code.len(),
            RequestOutcome::Served { .. }
            | RequestOutcome::Reset
            | RequestOutcome::ResponseDropped
            | RequestOutcome::Abandoned => 0,
        };
        let parameters: usize = self
            .parameters
            .iter()
            .map(|(name, value)| size_of::<(Box<str>, Box<str>)>() + name.len() + value.len())
            .sum();
        let texts = self.operation.len() + text(&self.region) + text(&self.subject) + text(&self.client) + code;
        2 * size_of::<usize>() + size_of::<Self>() + texts + parameters + size_of_val(&*self.faults)
    }
}

fn truncated(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return text.into();
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX_TEXT)]).into()
}

/// Whether a parameter of this name may hold a secret.
fn is_secret(name: &str) -> bool {
    const SECRETS: [&str; 8] =
        ["authorization", "api-key", "apikey", "password", "secret", "security-token", "securitytoken", "userdata"];
    let contains =
        |secret: &str| name.as_bytes().windows(secret.len()).any(|part| part.eq_ignore_ascii_case(secret.as_bytes()));
    SECRETS.into_iter().any(contains)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: DateTime<Utc> = DateTime::<Utc>::UNIX_EPOCH;
    const SERVED: RequestOutcome = RequestOutcome::Served { status: 200 };

    fn info<'a>(operation: &'a str, parameters: &[(&'a str, &'a str)]) -> RequestInfo<'a> {
        let parameters = parameters.iter().map(|(name, value)| (*name, Cow::Borrowed(*value))).collect();
        let region = Some("us-east-1");
        RequestInfo { region, attempt: Some(1), parameters, ..RequestInfo::new(Service::Ec2, operation) }
    }

    fn append(log: &RequestLog, request: &RequestInfo<'_>) {
        log.append(request, EPOCH, &[], SERVED);
    }

    fn push(entries: &mut Entries, request: &RequestInfo<'_>) {
        entries.push(EPOCH, Payload::new(request, &[], SERVED), request.call.map(Box::from));
    }

    #[test]
    fn secrets_are_redacted() {
        let log = RequestLog::default();
        let names = ["UserData", "Authorization", "X-Amz-Security-Token", "password", "AdminPassword", "ClientToken"];
        append(&log, &info("RunInstances", &names.map(|name| (name, "hush"))));
        let found = log.find(&RequestFilter::default());
        let values: Vec<&str> = found[0].parameters.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, [REDACTED, REDACTED, REDACTED, REDACTED, REDACTED, "hush"]);
    }

    #[test]
    fn latest_matches_are_returned_in_order() {
        let log = RequestLog::default();
        for number in 0..10 {
            append(&log, &info(if number % 2 == 0 { "Even" } else { "Odd" }, &[]));
        }
        let filter = RequestFilter { operation: Some("Odd".to_owned()), limit: Some(2), ..RequestFilter::default() };
        let numbers: Vec<u64> = log.find(&filter).iter().map(|request| request.number).collect();
        assert_eq!(numbers, [8, 10]);
        let filter = RequestFilter { after: Some(9), ..RequestFilter::default() };
        assert_eq!(log.find(&filter).len(), 1);
    }

    #[test]
    fn memory_is_bounded() {
        let log = RequestLog::default();
        let long = "ä".repeat(4000);
        let parameters = vec![("Filter", long.as_str()); 100];
        for number in 0..1000 {
            let operation = format!("{number}{long}");
            append(&log, &RequestInfo { subjects: vec![long.clone()], ..info(&operation, &parameters) });
        }
        let kept = log.find(&RequestFilter::default());
        let bytes = |request: &LoggedRequest| {
            request.parameters.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        };
        assert!(kept.iter().map(bytes).sum::<usize>() <= MAX_BYTES);
        assert!(kept.len() < 1000);
        assert!(kept[0].operation.len() < 1100 && kept[0].operation.ends_with('…'));
        assert!(kept[0].subject.as_ref().is_some_and(|subject| subject.len() < 1100));
        assert_eq!(log.total(), 1000);
    }

    #[test]
    fn request_is_found_by_each_of_its_subjects() {
        let log = RequestLog::default();
        let subjects = vec!["i-1".to_owned(), "i-2".to_owned()];
        append(&log, &RequestInfo { subjects, ..info("StopInstances", &[]) });
        let found = |subject: &str| {
            log.find(&RequestFilter { subject: Some(subject.to_owned()), ..RequestFilter::default() }).len()
        };
        assert_eq!(["i-1", "i-2", "i-1,i-2", "i-", "i-3"].map(found), [1, 1, 1, 0, 0]);
    }

    #[test]
    fn oldest_notices_are_evicted() {
        let log = RequestLog::default();
        let (sender, received) = std::sync::mpsc::channel();
        log.on_notice(move |notice| drop(sender.send(notice.to_string())));
        for number in 0..=MAX_NOTICES {
            log.notify(EPOCH, format!("notice {number}"));
        }
        assert_eq!(received.recv().expect("a notice"), "00:00:00.000  notice 0");
        let kept = log.notices();
        assert_eq!((kept.len(), kept[0].text.as_str()), (MAX_NOTICES, "notice 1"));
    }

    #[test]
    fn repeated_requests_share_one_payload() {
        let mut entries = Entries::default();
        let request = info("DescribeInstances", &[("InstanceId.1", "i-1")]);
        push(&mut entries, &request);
        let first = entries.bytes;
        (0..99).for_each(|_| push(&mut entries, &request));
        assert_eq!(entries.bytes, first + 99 * size_of::<Entry>());
        assert_eq!((entries.interned.len(), entries.queue.len()), (1, 100));
    }

    #[test]
    fn every_field_is_returned_as_it_was_logged() {
        let log = RequestLog::default();
        let full = RequestInfo {
            subjects: vec!["i-1".to_owned(), "i-2".to_owned()],
            call: Some("a-call"),
            client: Some(""),
            ..info("StopInstances", &[("InstanceId.1", "i-1"), ("Tag", "ä\0"), ("", "")])
        };
        let refused = RequestOutcome::Refused { status: 503, code: "RequestLimitExceeded".to_owned() };
        log.append(&full, EPOCH, &[1, u64::MAX], refused.clone());
        log.append(&RequestInfo::new(Service::Etcd, ""), EPOCH, &[], RequestOutcome::Reset);
        let found = log.find(&RequestFilter::default());
        let texts = [("InstanceId.1", "i-1"), ("Tag", "ä\0"), ("", "")];
        assert_eq!(
            found[0],
            LoggedRequest {
                number: 1,
                at: EPOCH,
                service: Service::Ec2,
                operation: "StopInstances".to_owned(),
                region: Some("us-east-1".to_owned()),
                subject: Some("i-1,i-2".to_owned()),
                parameters: texts.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
                call: Some("a-call".to_owned()),
                attempt: Some(1),
                client: Some(String::new()),
                faults: vec![1, u64::MAX],
                outcome: refused,
            }
        );
        let bare = &found[1];
        assert_eq!(
            (bare.number, &bare.outcome, bare.region.as_ref(), bare.attempt),
            (2, &RequestOutcome::Reset, None, None)
        );
    }

    #[test]
    fn unused_payloads_are_evicted_with_their_bytes() {
        let mut entries = Entries::default();
        for number in 0..100 {
            let (operation, call) = (format!("Operation{}", number % 7), format!("call-{number}"));
            let call = (number % 3 == 0).then_some(&*call);
            push(&mut entries, &RequestInfo { call, ..info(&operation, &[]) });
        }
        entries.evict(2, usize::MAX);
        let all = RequestFilter::default();
        let found: Vec<_> = entries.matching(&all).map(|(number, entry)| (number, &*entry.payload.operation)).collect();
        assert_eq!(found, [(100, "Operation1"), (99, "Operation0")]);
        assert_eq!(entries.interned.len(), 2);
        entries.evict(0, 0);
        assert_eq!((entries.bytes, entries.interned.len()), (0, 0));
        push(&mut entries, &info("Again", &[]));
        assert_eq!(entries.latest().map(|it| (it.number, it.operation)), Some((101, "Again".to_owned())));
    }
}
