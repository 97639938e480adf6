//! The stream of the console: the whole state first, then what changed, twice a second at most.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures_util::stream;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::handlers::{AdminState, error_response};
use super::source::{AdminSource, ResourceSummary};
use crate::lifecycle::time::Timestamp;
use crate::reconciler::KnownWorker;

/// Time between two looks at the state.
const TICK: Duration = Duration::from_millis(500);

/// Time after which a comment is sent on a quiet stream, so that a client notices a lost connection, and the server a
/// client that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Largest number of streams. They leave connections free for probes and scrapes.
const MAX_STREAMS: usize = 16;

/// Difference from which a time counts as another one, in milliseconds. Times of the queue come from the monotonic clock
/// and are converted anew at every look.
const TOLERANCE: i64 = 100;

pub(crate) fn router(state: Arc<AdminState>) -> axum::Router {
    let streams = Streams { state, permits: Arc::new(Semaphore::new(MAX_STREAMS)), latest: Mutex::default() };
    axum::Router::new().route("/admin/stream", get(follow)).with_state(Arc::new(streams))
}

/// State that all streams share.
struct Streams {
    state: Arc<AdminState>,
    permits: Arc<Semaphore>,
    /// The last look at the state, and its time.
    latest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

/// The state at one look. A row that is as it was at the look before is the same allocation.
struct Snapshot {
    now: Timestamp,
    workers: HashMap<String, Arc<Row>>,
    parts: [(&'static str, Value); 2],
}

/// A worker, or another resource of the controller.
struct Row {
    known: Option<Arc<KnownWorker>>,
    queue: Option<ResourceSummary>,
}

async fn follow(State(streams): State<Arc<Streams>>) -> Response {
    let Ok(permit) = Arc::clone(&streams.permits).try_acquire_owned() else {
        let message = format!("{MAX_STREAMS} consoles are open already: close one, or use the JSON of the admin API");
        return error_response(StatusCode::SERVICE_UNAVAILABLE, &message);
    };
    let viewer = Viewer { streams, sent: Sent::default(), next: Instant::now(), _permit: permit };
    let messages = stream::unfold(viewer, |mut viewer| async move {
        let message = viewer.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(message)), viewer))
    });
    Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// One client and the state that it knows. A client that reads slowly is sent less: the next message is made when the
/// one before has left.
struct Viewer {
    streams: Arc<Streams>,
    sent: Sent,
    next: Instant,
    _permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Sent {
    workers: HashMap<String, Arc<Row>>,
    parts: HashMap<&'static str, Value>,
    /// The time that was sent last, and when.
    clock: Option<(Timestamp, Instant)>,
}

impl Viewer {
    /// Waits for changes and returns the next message; `None` once the server stops.
    async fn next(&mut self) -> Option<String> {
        loop {
            tokio::select! {
                biased;
                () = self.streams.state.shutdown.requested() => return None,
                () = sleep_until(self.next) => {}
            }
            self.next = Instant::now() + TICK;
            if let Some(message) = self.sent.changes(&self.streams.look()) {
                return Some(message);
            }
        }
    }
}

impl Streams {
    /// Looks at the state, or returns a look that is younger than half a tick: however many clients there are, the state
    /// is read a few times a second.
    fn look(&self) -> Arc<Snapshot> {
        let mut latest = self.latest.lock();
        if let Some((at, snapshot)) = &*latest
            && at.elapsed() < TICK / 2
        {
            return Arc::clone(snapshot);
        }
        let before = latest.as_ref().map(|(_, snapshot)| &**snapshot);
        let snapshot = Arc::new(Snapshot::new(&self.state, before));
        *latest = Some((Instant::now(), Arc::clone(&snapshot)));
        snapshot
    }
}

impl Snapshot {
    fn new(state: &AdminState, before: Option<&Self>) -> Self {
        let source = &*state.source;
        let mut queues: HashMap<String, ResourceSummary> =
            source.resources().into_iter().map(|queue| (queue.resource_id.clone(), queue)).collect();
        let mut rows: Vec<(String, Row)> = Vec::new();
        for known in source.known_workers() {
            let id = known.id.to_string();
            let queue = queues.remove(&id);
            rows.push((id, Row { known: Some(known), queue }));
        }
        rows.extend(queues.into_iter().map(|(id, queue)| (id, Row { known: None, queue: Some(queue) })));
        let workers = rows.into_iter().map(|(id, row)| {
            let same = before.and_then(|before| before.workers.get(&id)).filter(|earlier| earlier.is_same(&row));
            let row = same.map_or_else(|| Arc::new(row), Arc::clone);
            (id, row)
        });
        let operations = serde_json::to_value(state.requested_operations()).unwrap_or_default();
        Self {
            workers: workers.collect(),
            parts: [("stats", stats(state, source)), ("operations", operations)],
            now: source.now(),
        }
    }
}

/// The statistics of the controller, without those that change at every look: an age is sent as the time that it counts
/// from, in whole seconds.
fn stats(state: &AdminState, source: &dyn AdminSource) -> Value {
    let now = source.now();
    let second = |at: Timestamp| (at.timestamp_millis() + 500) / 1000 * 1000;
    let stats = source.stats();
    let shards = stats.shards.as_ref().map(|shards| {
        let row = |shard: &crate::controller::HeldShard| {
            let age = Duration::try_from_secs_f64(shard.lease_age_seconds).unwrap_or_default();
            json!({"shard": shard.shard, "fencing_token": shard.fencing_token, "renewed_at": second(now - age)})
        };
        shards.iter().map(row).collect::<Vec<_>>()
    });
    let lease = source.lease_remaining().map(|left| second(now + left));
    let mut stats = serde_json::to_value(stats).unwrap_or_default();
    stats["shards"] = shards.into();
    stats["lease_valid_until"] = lease.into();
    stats["version"] = env!("CARGO_PKG_VERSION").into();
    stats["longest_in_status"] = serde_json::to_value(state.longest_in_status()).unwrap_or_default();
    stats["ready"] = match source.readiness() {
        Ok(_) => Value::Null,
        Err(reason) => reason.to_string().into(),
    };
    stats
}

impl Row {
    fn is_same(&self, other: &Self) -> bool {
        let is_same_worker = match (&self.known, &other.known) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let is_same_place = match (&self.queue, &other.queue) {
            (Some(one), Some(other)) => is_same_state(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_same_worker && is_same_place
    }

    fn to_json(&self) -> Value {
        let mut row = Map::new();
        let mut set = |name: &str, value: Value| {
            if !value.is_null() {
                row.insert(name.to_owned(), value);
            }
        };
        if let Some(known) = &self.known {
            let statuses = known.statuses.iter().map(|(at, status)| json!([at.timestamp_millis(), status]));
            let states = known.instance_states.iter().map(|(at, state)| json!([at.timestamp_millis(), state]));
            let instance_state = known.instance_states.last().map(|(_, state)| match state {
                Some(state) => state.as_str(),
                None => "gone",
            });
            set("name", json!(known.name));
            set("status", json!(known.status));
            set("desired_status", json!(known.desired_status));
            set("aws_region", json!(known.aws_region));
            set("template_name", json!(known.template_name));
            set("ec2_instance_id", json!(known.ec2_instance_id));
            set("instance_state", json!(instance_state.filter(|_| known.ec2_instance_id.is_some())));
            set("statuses", statuses.collect());
            set("instance_states", states.collect());
        }
        if let Some(queue) = &self.queue {
            set("state", json!(queue.status));
            set("retry_count", json!(queue.retry_count));
            set("next_retry_at", json!(queue.next_retry_at.map(|at| at.timestamp_millis())));
            set(
                "waiting",
                json!(queue.waiting.as_ref().map(|waiting| {
                    json!({"priority": waiting.priority, "requested": waiting.requested, "since": waiting.since.timestamp_millis()})
                })),
            );
            if let Some(last) = &queue.last_outcome {
                set("outcome", json!(last.outcome));
                set("reason", json!(last.reason));
                set("at", json!(last.at.timestamp_millis()));
            }
        }
        row.into()
    }
}

/// Whether two states of a resource differ in no more than the conversion of their times.
fn is_same_state(one: &ResourceSummary, other: &ResourceSummary) -> bool {
    let near = |one: Option<Timestamp>, other: Option<Timestamp>| match (one, other) {
        (Some(one), Some(other)) => (one - other).num_milliseconds().abs() < TOLERANCE,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let ending = |queue: &ResourceSummary| queue.last_outcome.as_ref().map(|last| (last.outcome, last.reason.clone()));
    let waits = |queue: &ResourceSummary| {
        queue.waiting.as_ref().map(|waiting| ((waiting.priority, waiting.requested), waiting.since))
    };
    one.status == other.status
        && one.retry_count == other.retry_count
        && ending(one) == ending(other)
        && waits(one).map(|(priority, _)| priority) == waits(other).map(|(priority, _)| priority)
        && near(waits(one).map(|(_, since)| since), waits(other).map(|(_, since)| since))
        && near(one.next_retry_at, other.next_retry_at)
        && near(one.last_outcome.as_ref().map(|last| last.at), other.last_outcome.as_ref().map(|last| last.at))
}

impl Sent {
    /// Returns the changes since the last message, which count as sent; `None` if there are none.
    fn changes(&mut self, snapshot: &Snapshot) -> Option<String> {
        let mut message = Map::new();
        let mut workers = Map::new();
        for (id, row) in &snapshot.workers {
            if self.workers.get(id).is_none_or(|sent| !Arc::ptr_eq(sent, row)) {
                workers.insert(id.clone(), row.to_json());
                self.workers.insert(id.clone(), Arc::clone(row));
            }
        }
        if self.workers.len() > snapshot.workers.len() {
            self.workers
                .retain(|id, _| snapshot.workers.contains_key(id) || workers.insert(id.clone(), Value::Null).is_some());
        }
        if !workers.is_empty() {
            message.insert("workers".to_owned(), workers.into());
        }
        for (name, value) in &snapshot.parts {
            if self.parts.get(name) != Some(value) {
                message.insert((*name).to_owned(), value.clone());
                self.parts.insert(name, value.clone());
            }
        }
        let is_right = self.clock.is_some_and(|(sent, read)| {
            let shown = sent + read.elapsed();
            (snapshot.now - shown).num_milliseconds().abs() < TOLERANCE + TICK.as_millis() as i64
        });
        if message.is_empty() && is_right {
            return None;
        }
        if self.clock.replace((snapshot.now, Instant::now())).is_none() {
            message.insert("full".to_owned(), true.into());
        }
        let clock = json!({"now": snapshot.now, "pace": "real", "factor": 1});
        message.insert("clock".to_owned(), clock);
        Some(Value::Object(message).to_string())
    }
}
