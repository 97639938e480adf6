//! The service `etcdserverpb.Watch`.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::{self, Stream};
use prost::Message;
use tonic::{Status, Streaming};

use super::super::auth::Access;
use super::super::error::EtcdError;
use super::super::key_range::KeyRange;
use super::super::mvcc;
use super::super::proto::etcdserverpb::{self as pb, WatchRequestUnion};
use super::super::proto::{Event, KeyValue};
use super::super::store::{Caller, WatchStream};
use super::super::watch::{EventFilters, EventFormat, WatchMessage, WatchRequest};
use super::Context;
use super::grpc::{MAX_MESSAGE, convert_size_error};
use crate::clock::Clock;

/// Interval of progress notifications for idle watchers that requested them.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);

/// Serves one watch stream, on which the client creates and cancels any number of watchers.
pub(super) fn watch(
    context: &Context,
    caller: &Caller,
    requests: Streaming<pb::WatchRequest>,
) -> impl Stream<Item = Result<pb::WatchResponse, Status>> + use<> {
    let watch = Watch {
        context: context.clone(),
        caller: caller.clone(),
        requests: Some(requests),
        stream: context.store.watch(),
        responses: VecDeque::new(),
        progress_due: None,
    };
    stream::try_unfold(watch, |mut watch| async move { Ok(Some((watch.next_response().await?, watch))) })
}

struct Watch {
    context: Context,
    caller: Caller,
    /// `None` once the client has closed its side of the stream.
    requests: Option<Streaming<pb::WatchRequest>>,
    stream: WatchStream,
    /// Encoded responses that were not sent yet.
    responses: VecDeque<pb::WatchResponse>,
    progress_due: Option<DateTime<Utc>>,
}

impl Watch {
    async fn next_response(&mut self) -> Result<pb::WatchResponse, Status> {
        loop {
            if let Some(response) = self.responses.pop_front() {
                return Ok(response);
            }
            tokio::select! {
                request = next_request(&mut self.requests) => match request? {
                    Some(_) if self.context.store.is_unavailable() => return Err(EtcdError::Unavailable.into()),
                    Some(request) => {
                        self.handle(request);
                        // Bounds the queue for a client that sends requests faster than it reads responses.
                        if let Some(message) = self.stream.try_recv() {
                            self.push(message);
                        }
                    }
                    None => self.requests = None,
                },
                message = self.stream.recv() => match message {
                    Some(message) => self.push(message),
                    None => return Err(EtcdError::Unavailable.into()),
                },
                () = self.context.stopped() => return Err(EtcdError::Stopped.into()),
                () = sleep_until(self.context.store.clock(), self.progress_due) => {
                    self.stream.notify_idle();
                    self.schedule_progress();
                }
            }
        }
    }

    fn handle(&mut self, request: pb::WatchRequest) {
        match request.request {
            Some(WatchRequestUnion::Create(create)) => self.create(&create),
            Some(WatchRequestUnion::Cancel(cancel)) => self.stream.cancel(cancel.watch_id),
            Some(WatchRequestUnion::Progress(_)) => self.stream.request_progress(),
            None => {}
        }
    }

    fn create(&mut self, create: &pb::WatchCreateRequest) {
        // An empty key stands for the smallest one.
        let key = if create.key.is_empty() { Bytes::from_static(&[0]) } else { create.key.clone() };
        if self.context.store.permit(&self.caller, &[Access::read(&key, &create.range_end)]).is_err() {
            return self.deny(create.watch_id);
        }
        self.stream.create(&WatchRequest {
            keys: KeyRange::new(key, create.range_end.clone()),
            start_revision: create.start_revision,
            watch_id: create.watch_id,
            filters: EventFilters { no_put: create.filters.contains(&0), no_delete: create.filters.contains(&1) },
            format: EventFormat { prev_kv: create.prev_kv, fragment: create.fragment },
            progress_notify: create.progress_notify,
        });
        if create.progress_notify && self.progress_due.is_none() {
            self.schedule_progress();
        }
    }

    /// Reports that the caller may not read the keys. Real etcd reports an invalid token in the same way.
    fn deny(&mut self, watch_id: i64) {
        self.responses.push_back(pb::WatchResponse {
            header: self.context.header(self.context.store.revision()),
            watch_id,
            created: true,
            canceled: true,
            cancel_reason: "rpc error: code = PermissionDenied desc = etcdserver: permission denied".to_owned(),
            ..pb::WatchResponse::default()
        });
    }

    fn schedule_progress(&mut self) {
        self.progress_due = Some(self.context.store.clock().now() + PROGRESS_INTERVAL);
    }

    /// Encodes a message for the client, or catches up if the stream has lagged.
    fn push(&mut self, message: WatchMessage) {
        let response = |watch_id, revision| pb::WatchResponse {
            header: self.context.header(revision),
            watch_id,
            ..pb::WatchResponse::default()
        };
        let response = match message {
            WatchMessage::Created { id, revision } => pb::WatchResponse { created: true, ..response(id, revision) },
            WatchMessage::Rejected { revision, reason } => pb::WatchResponse {
                created: true,
                canceled: true,
                cancel_reason: reason.to_owned(),
                ..response(-1, revision)
            },
            WatchMessage::Canceled { id, revision } => pb::WatchResponse { canceled: true, ..response(id, revision) },
            WatchMessage::Compacted { id, compact_revision } => {
                pb::WatchResponse { canceled: true, compact_revision, ..response(id, 0) }
            }
            WatchMessage::Events { id, revision, events, format } => {
                let events = events.iter().map(|event| encode_event(event, format)).collect();
                let response = pb::WatchResponse { events, ..response(id, revision) };
                if format.fragment {
                    return self.responses.extend(fragments(response));
                }
                response
            }
            WatchMessage::Progress { id, revision } => response(id, revision),
            WatchMessage::Lagged => return self.stream.catch_up(),
        };
        self.responses.push_back(response);
    }
}

/// Waits for the next request; forever once the client has closed its side of the stream.
async fn next_request(requests: &mut Option<Streaming<pb::WatchRequest>>) -> Result<Option<pb::WatchRequest>, Status> {
    match requests {
        Some(requests) => requests.message().await.map_err(convert_size_error),
        None => pending().await,
    }
}

async fn sleep_until(clock: &Clock, due: Option<DateTime<Utc>>) {
    match due {
        Some(due) => clock.sleep_until(due).await,
        None => pending().await,
    }
}

fn encode_event(event: &mvcc::Event, format: EventFormat) -> Event {
    Event {
        r#type: i32::from(event.is_delete()),
        kv: Some(KeyValue::from(&*event.record)),
        prev_kv: event.previous.as_ref().filter(|_| format.prev_kv).map(|record| KeyValue::from(&**record)),
    }
}

/// Splits a response into fragments that fit into a message. An event that is too large has a fragment of its own.
fn fragments(mut response: pb::WatchResponse) -> Vec<pb::WatchResponse> {
    if response.encoded_len() < MAX_MESSAGE || response.events.len() < 2 {
        return vec![response];
    }
    let events = std::mem::take(&mut response.events);
    let empty = pb::WatchResponse { fragment: true, ..response };
    let (mut fragments, mut fragment, mut size) = (Vec::new(), empty.clone(), empty.encoded_len());
    for event in events {
        let length = event.encoded_len();
        let added = length + 1 + prost::length_delimiter_len(length);
        if !fragment.events.is_empty() && size + added >= MAX_MESSAGE {
            fragments.push(std::mem::replace(&mut fragment, empty.clone()));
            size = empty.encoded_len();
        }
        fragment.events.push(event);
        size += added;
    }
    fragment.fragment = false;
    fragments.push(fragment);
    fragments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_fit_into_messages() {
        let event = |size| Event {
            r#type: 0,
            kv: Some(KeyValue { value: vec![7; size].into(), ..Default::default() }),
            prev_kv: None,
        };
        let whole = pb::WatchResponse {
            watch_id: 5,
            events: [900_000, 900_000, 900_000, 3_000_000, 10].map(event).into(),
            ..Default::default()
        };
        let fragments = fragments(whole.clone());
        let counts: Vec<_> = fragments.iter().map(|fragment| fragment.events.len()).collect();
        assert_eq!(counts, [2, 1, 1, 1]);
        assert!(fragments.iter().all(|fragment| fragment.watch_id == 5));
        let (last, others) = fragments.split_last().expect("fragments");
        assert!(!last.fragment && others.iter().all(|fragment| fragment.fragment));
        assert_eq!(fragments.into_iter().flat_map(|fragment| fragment.events).collect::<Vec<_>>(), whole.events);
    }

    #[test]
    fn small_responses_are_not_split() {
        let small = pb::WatchResponse { events: vec![Event::default(); 3], ..Default::default() };
        assert_eq!(fragments(small.clone()), [small]);
    }
}
