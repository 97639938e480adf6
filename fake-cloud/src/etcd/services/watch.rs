//! `etcdserverpb.Watch`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context as Wakeup, Poll};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::super::delivery::{Delivery, Telling};
use super::super::error::EtcdError;
use super::super::handle::WatchStream;
use super::super::key_range::KeyRange;
use super::super::proto::watch as pb;
use super::super::record::Event;
use super::super::watch::{WatchRequest, Without};
use super::context::{Context, key_value};
use super::grpc::{MAX_MESSAGE, too_large};

/// How often an idle watcher that asked for it is told how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);

/// Many watchers on one call.
///
/// One stream does it all: it reads what the client asks whenever it is asked for what to tell the client, so a
/// thousand watchers need no thousand tasks more.
pub(super) fn watch(context: &Context, requests: Streaming<pb::WatchRequest>) -> Watch {
    Watch {
        context: context.clone(),
        requests: Some(requests),
        stream: context.store.watch(),
        pending: VecDeque::new(),
        stopped: Box::pin(context.stopped()),
        progress_due: None,
        is_over: false,
    }
}

pub(super) struct Watch {
    context: Context,
    /// None when the client has said all it wants to say.
    requests: Option<Streaming<pb::WatchRequest>>,
    stream: WatchStream,
    pending: VecDeque<pb::Told>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    progress_due: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    is_over: bool,
}

impl Stream for Watch {
    type Item = Result<pb::Told, Status>;

    fn poll_next(self: Pin<&mut Self>, wakeup: &mut Wakeup<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        if watch.is_over {
            return Poll::Ready(None);
        }
        let end = loop {
            if let Some(response) = watch.pending.pop_front() {
                return Poll::Ready(Some(Ok(response)));
            }
            // One request, one delivery, in turns: a client that asks without end must hear what it asked for, or that
            // piles up; and one that is told without end must be able to say that it is enough.
            let mut is_asked = false;
            match watch.requests.as_mut().map(|requests| Pin::new(requests).poll_next(wakeup)) {
                Some(Poll::Ready(Some(Ok(_)))) if watch.context.store.is_unavailable() => {
                    break EtcdError::Unavailable.into();
                }
                Some(Poll::Ready(Some(Ok(request)))) => {
                    watch.ask(request);
                    is_asked = true;
                }
                Some(Poll::Ready(Some(Err(status)))) => break too_large(status),
                Some(Poll::Ready(None)) => watch.requests = None,
                Some(Poll::Pending) | None => {}
            }
            match watch.stream.deliveries.poll(wakeup) {
                Poll::Ready(Some(delivery)) => {
                    watch.tell(delivery);
                    continue;
                }
                Poll::Ready(None) => break EtcdError::Unavailable.into(),
                Poll::Pending if is_asked => continue,
                Poll::Pending => {}
            }
            if watch.stopped.as_mut().poll(wakeup).is_ready() {
                break EtcdError::Stopped.into();
            }
            match watch.progress_due.as_mut().map(|due| due.as_mut().poll(wakeup)) {
                Some(Poll::Ready(())) => watch.tell_progress(),
                Some(Poll::Pending) | None => return Poll::Pending,
            }
        };
        watch.is_over = true;
        Poll::Ready(Some(Err(end)))
    }
}

impl Watch {
    fn ask(&mut self, request: pb::WatchRequest) {
        match request.request {
            Some(pb::RequestUnion::Create(create)) => self.create(&create),
            Some(pb::RequestUnion::Cancel(cancel)) => self.stream.cancel(cancel.watch_id),
            Some(pb::RequestUnion::Progress(_)) => self.stream.progress(),
            None => {}
        }
    }

    fn create(&mut self, create: &pb::WatchCreateRequest) {
        // The smallest key there can be stands for no key.
        let key = if create.key.is_empty() { Bytes::from_static(&[0]) } else { create.key.clone() };
        let request = WatchRequest {
            keys: KeyRange::new(key, create.range_end.clone()),
            start_revision: create.start_revision,
            id: create.watch_id,
            without: Without { puts: create.filters.contains(&0), deletes: create.filters.contains(&1) },
            telling: Telling { previous: create.prev_kv, fragment: create.fragment },
            progress: create.progress_notify,
        };
        self.stream.create(&request);
        if create.progress_notify && self.progress_due.is_none() {
            self.schedule_progress();
        }
    }

    fn schedule_progress(&mut self) {
        let clock = self.context.store.clock().clone();
        self.progress_due = Some(Box::pin(async move { clock.sleep(PROGRESS_INTERVAL).await }));
    }

    fn tell_progress(&mut self) {
        self.stream.idle_progress();
        self.schedule_progress();
    }

    fn tell(&mut self, delivery: Delivery) {
        let response = |watch_id, revision| pb::WatchResponse {
            header: self.context.header(revision),
            watch_id,
            ..pb::WatchResponse::default()
        };
        let response = match delivery {
            Delivery::Created { id, revision } => pb::WatchResponse { created: true, ..response(id, revision) },
            Delivery::Refused { revision, reason } => pb::WatchResponse {
                created: true,
                canceled: true,
                cancel_reason: reason.to_owned(),
                ..response(-1, revision)
            },
            Delivery::Canceled { id, revision } => pb::WatchResponse { canceled: true, ..response(id, revision) },
            Delivery::Compacted { id, compact_revision } => {
                pb::WatchResponse { canceled: true, compact_revision, ..response(id, 0) }
            }
            Delivery::Events { id, revision, events, telling } if telling.fragment => {
                let whole = pb::WatchResponse { events: told(&events, telling), ..response(id, revision) };
                return self.pending.extend(fragments(whole).into_iter().map(pb::Told::from));
            }
            Delivery::Events { id, revision, events, telling } => {
                let events = events.words(telling, |events| words(events, telling));
                return self.pending.push_back(pb::Told { response: response(id, revision), events });
            }
            Delivery::Progress { id, revision } => response(id, revision),
            Delivery::FellBehind => return self.stream.catch_up(),
        };
        self.pending.push_back(response.into());
    }
}

fn told(events: &[Event], telling: Telling) -> Vec<pb::Event> {
    let told = |event: &Event| pb::Event {
        kind: i32::from(event.is_delete()),
        kv: Some(key_value(&event.record)),
        prev_kv: event.previous.as_ref().filter(|_| telling.previous).map(|record| key_value(record)),
    };
    events.iter().map(told).collect()
}

/// Events, and nothing else of a response.
fn words(events: &[Event], telling: Telling) -> Bytes {
    pb::WatchResponse { events: told(events, telling), ..Default::default() }.encode_to_vec().into()
}

/// The response in pieces that fit into a message, unless one event alone is too large.
fn fragments(mut response: pb::WatchResponse) -> Vec<pb::WatchResponse> {
    if response.encoded_len() < MAX_MESSAGE || response.events.len() < 2 {
        return vec![response];
    }
    let events = std::mem::take(&mut response.events);
    let empty = pb::WatchResponse { fragment: true, ..response };
    let (mut pieces, mut piece, mut size) = (Vec::new(), empty.clone(), empty.encoded_len());
    for event in events {
        let length = event.encoded_len();
        let added = length + 1 + prost::length_delimiter_len(length);
        if !piece.events.is_empty() && size + added >= MAX_MESSAGE {
            pieces.push(std::mem::replace(&mut piece, empty.clone()));
            size = empty.encoded_len();
        }
        piece.events.push(event);
        size += added;
    }
    piece.fragment = false;
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::delivery::Batch;
    use super::super::super::record::Record;
    use super::*;

    #[test]
    fn pieces_fit_into_messages_and_lose_nothing() {
        let event = |size| pb::Event {
            kind: 0,
            kv: Some(super::super::super::proto::common::KeyValue {
                value: vec![7; size].into(),
                ..Default::default()
            }),
            prev_kv: None,
        };
        let whole = pb::WatchResponse {
            watch_id: 5,
            events: [900_000, 900_000, 900_000, 3_000_000, 10].map(event).into(),
            ..Default::default()
        };
        let pieces = fragments(whole.clone());
        let counts: Vec<_> = pieces.iter().map(|piece| piece.events.len()).collect();
        assert_eq!(counts, [2, 1, 1, 1]);
        assert!(pieces.iter().all(|piece| piece.watch_id == 5));
        let (last, others) = pieces.split_last().expect("pieces");
        assert!(!last.fragment && others.iter().all(|piece| piece.fragment));
        assert_eq!(pieces.into_iter().flat_map(|piece| piece.events).collect::<Vec<_>>(), whole.events);
    }

    #[test]
    fn events_that_were_put_into_words_before_are_told_like_any_others() {
        let record = |value: &'static str| {
            let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(value.as_bytes()));
            Arc::new(Record { key, value, create_revision: 2, mod_revision: 3, version: 2, lease: 7 })
        };
        let gone = Arc::new(Record::tombstone(Bytes::from_static(b"gone"), 3));
        let batch = Batch::new(Arc::new([
            Event { record: record("new"), previous: Some(record("old")) },
            Event { record: gone, previous: None },
        ]));
        for previous in [true, false] {
            let telling = Telling { previous, fragment: false };
            for watch_id in [0, 5] {
                let response = pb::WatchResponse { watch_id, ..Default::default() };
                let whole = pb::WatchResponse { events: told(&batch, telling), ..response.clone() };
                let told = pb::Told { response, events: batch.words(telling, |events| words(events, telling)) };
                assert_eq!(told.encode_to_vec(), whole.encode_to_vec());
                assert_eq!(told.encoded_len(), whole.encoded_len());
            }
        }
    }

    #[test]
    fn what_fits_stays_whole() {
        let small = pb::WatchResponse { events: vec![pb::Event::default(); 3], ..Default::default() };
        assert_eq!(fragments(small.clone()), [small]);
    }
}
