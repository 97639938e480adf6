//! The stream of changes: the whole state first, then the rows that changed, a few times a second at most.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use chrono::{DateTime, Utc};
use futures_util::stream;
use hyper::StatusCode;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

use super::super::{AdminError, AdminState};
use super::rows::{self, NextEvent};
use crate::clock::Pace;
use crate::control_plane::Worker;
use crate::request_log::RequestFilter;
use crate::world::{Instance, InstanceState};

/// Time between two looks at the state.
const TICK: Duration = Duration::from_millis(250);

/// Time between two looks at the parts that are costly to compare.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// Time after which a comment is sent on a quiet stream, so that a client notices a lost connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Largest number of streams. They leave connections free for clients.
const MAX_STREAMS: usize = 16;

/// Largest number of requests in one message. A client that misses some still has their number.
const MAX_REQUESTS: usize = 400;

/// Difference between a client's clock and the server's from which the time is sent again, in real time.
const MAX_DRIFT: Duration = Duration::from_millis(100);

/// Reports that the server stops, so that streams end.
#[derive(Debug, Clone)]
pub(crate) struct Stopping(pub(crate) watch::Receiver<()>);

/// Streams the state of every service, without secrets.
pub(super) async fn events(
    State(state): State<AdminState>,
    stopping: Option<Extension<Stopping>>,
) -> Result<impl IntoResponse, AdminError> {
    let permit = Arc::clone(&state.streams.permits).try_acquire_owned().map_err(|_| {
        let message = format!("{MAX_STREAMS} consoles are open already: close one, or use the JSON of the admin API");
        AdminError(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let stopping = stopping.map(|Extension(Stopping(receiver))| receiver);
    let viewer = Viewer { state, stopping, sent: Sent::default(), next: Instant::now(), _permit: permit };
    let messages = stream::unfold(viewer, |mut viewer| async move {
        let message = viewer.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(message)), viewer))
    });
    Ok(Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// State that all streams share.
#[derive(Debug)]
pub(in super::super) struct Streams {
    permits: Arc<Semaphore>,
    /// The last look at the state.
    latest: Mutex<Option<Arc<Look>>>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_STREAMS)), latest: Mutex::default() }
    }
}

/// The state of every service at one time.
#[derive(Debug)]
struct Look {
    at: Instant,
    workers: Vec<Arc<Worker>>,
    instances: Vec<(&'static str, Arc<Instance>, InstanceState)>,
    now: DateTime<Utc>,
    /// Parts that are sent as a whole. One that is as it was at the look before is the same allocation.
    parts: Vec<(&'static str, Arc<Value>)>,
    /// Identifies the instances that are gone.
    gone: u64,
    /// Rows of the CML servers, and the time at which they were read.
    cml: (Instant, Arc<BTreeMap<String, Value>>),
    clock: SentClock,
}

impl Streams {
    /// Looks at the state, or returns a look that is younger than half a tick: however many clients there are, the state
    /// is read a few times a second.
    fn look(&self, state: &AdminState) -> Arc<Look> {
        let mut latest = self.latest.lock();
        if let Some(look) = latest.as_ref().filter(|look| look.at.elapsed() < TICK / 2) {
            return Arc::clone(look);
        }
        let look = Arc::new(Look::new(state, latest.as_deref()));
        *latest = Some(Arc::clone(&look));
        look
    }
}

impl Look {
    fn new(state: &AdminState, before: Option<&Self>) -> Self {
        let at = Instant::now();
        let (instances, now) = state.world.with_ec2(|ec2, now| {
            let names: Vec<&'static str> = ec2.regions().map(|region| region.name).collect();
            let mut all = Vec::new();
            for name in names {
                // `Ec2::region` drops terminated instances that are no longer visible.
                let Ok(region) = ec2.region(name, now) else { continue };
                all.extend(region.instances().map(|instance| (name, Arc::clone(instance), instance.state(now))));
            }
            (all, now)
        });
        let cml = match before.map(|before| &before.cml).filter(|(read, _)| read.elapsed() < SLOW_TICK) {
            Some((read, rows)) => (*read, Arc::clone(rows)),
            None => {
                let servers = state.services.as_ref().map(|services| rows::cml(&services.cml_servers));
                (at, Arc::new(servers.unwrap_or_default()))
            }
        };
        let clock = state.world.clock();
        let clock = SentClock { now: clock.now(), read: at, pace: clock.pace(), next: rows::next_event(state) };
        let gone = rows::gone(&state.world);
        let parts = parts(state, gone, before);
        Self { at, workers: rows::workers(state), instances, now, parts, gone, cml, clock }
    }
}

/// Returns the parts that are sent as a whole.
fn parts(state: &AdminState, gone: u64, before: Option<&Look>) -> Vec<(&'static str, Arc<Value>)> {
    let world = &state.world;
    let part = |name| before?.parts.iter().find(|(part, _)| *part == name).map(|(_, value)| value);
    let past = part("past").filter(|_| before.is_some_and(|before| before.gone == gone));
    let mut parts = vec![
        ("faults", Arc::new(json!(world.faults().list()))),
        ("notices", Arc::new(json!(world.request_log().notices()))),
        ("past", past.map_or_else(|| Arc::new(rows::past(world)), Arc::clone)),
    ];
    if let Some(services) = &state.services {
        let etcd = &services.etcd;
        // Not the time to live that is left, which a client counts down itself.
        let seen = json!({
            "revision": etcd.revision(),
            "leases": etcd.leases().len(),
            "watchers": etcd.watchers().len(),
            "available": !etcd.is_unavailable(),
            "seen": etcd.fingerprint(),
        });
        // The keys of leaders are as before if no key has changed.
        let known = part("leaders").filter(|_| part("etcd").is_some_and(|etcd| etcd["revision"] == seen["revision"]));
        parts.push(("leaders", known.map_or_else(|| Arc::new(rows::leaders(etcd)), Arc::clone)));
        parts.push(("etcd", Arc::new(seen)));
        parts.push(("timeline", Arc::new(rows::without_secrets(&json!(services.timeline.pending())))));
    }
    parts
}

/// One client and the state that it knows.
struct Viewer {
    state: AdminState,
    stopping: Option<watch::Receiver<()>>,
    sent: Sent,
    next: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The state that was sent.
#[derive(Default)]
struct Sent {
    is_started: bool,
    workers: HashMap<String, Arc<Worker>>,
    instances: HashMap<String, (Arc<Instance>, InstanceState)>,
    requests: u64,
    parts: HashMap<&'static str, Arc<Value>>,
    cml: Arc<BTreeMap<String, Value>>,
    clock: Option<SentClock>,
}

impl Viewer {
    /// Waits for changes and returns the next message; `None` once the server stops.
    async fn next(&mut self) -> Option<String> {
        loop {
            match &mut self.stopping {
                Some(stopping) => tokio::select! {
                    _ = stopping.changed() => return None,
                    () = sleep_until(self.next) => {}
                },
                None => sleep_until(self.next).await,
            }
            self.next = Instant::now() + TICK;
            if let Some(message) = self.look() {
                return Some(message);
            }
        }
    }

    /// Returns the changes since the last message; `None` if there are none.
    fn look(&mut self) -> Option<String> {
        let mut message = Map::new();
        let look = self.state.streams.look(&self.state);
        self.workers(&look, &mut message);
        self.instances(&look, &mut message);
        self.requests(&mut message);
        self.parts(&look, &mut message);
        self.cml(&look, &mut message);
        let clock = look.clock.clone();
        if message.is_empty() && self.sent.clock.as_ref().is_some_and(|sent| clock.follows(sent)) {
            return None;
        }
        message.insert("clock".to_owned(), clock.to_json());
        self.sent.clock = Some(clock);
        if !std::mem::replace(&mut self.sent.is_started, true) {
            message.insert("full".to_owned(), true.into());
        }
        Some(Value::Object(message).to_string())
    }

    /// Adds the workers whose record was written since. A record that was not has the same address.
    fn workers(&mut self, look: &Look, message: &mut Map<String, Value>) {
        let current = &look.workers;
        let mut changed = Map::new();
        for worker in current {
            if self.sent.workers.get(worker.id()).is_none_or(|sent| !Arc::ptr_eq(sent, worker)) {
                changed.insert(worker.id().to_owned(), rows::worker(worker));
                self.sent.workers.insert(worker.id().to_owned(), Arc::clone(worker));
            }
        }
        if self.sent.workers.len() > current.len() {
            let ids: HashSet<&str> = current.iter().map(|worker| worker.id()).collect();
            self.sent
                .workers
                .retain(|id, _| ids.contains(id.as_str()) || changed.insert(id.clone(), Value::Null).is_some());
        }
        add(message, "workers", changed);
    }

    fn instances(&mut self, look: &Look, message: &mut Map<String, Value>) {
        let (current, now) = (&look.instances, look.now);
        let mut changed = Map::new();
        for (region, instance, state) in current {
            let is_same =
                |(sent, before): &(Arc<Instance>, InstanceState)| Arc::ptr_eq(sent, instance) && before == state;
            if !self.sent.instances.get(&instance.id).is_some_and(is_same) {
                changed.insert(instance.id.clone(), rows::instance(region, instance, now, rows::Detail::Row));
                self.sent.instances.insert(instance.id.clone(), (Arc::clone(instance), *state));
            }
        }
        if self.sent.instances.len() > current.len() {
            let ids: HashSet<&str> = current.iter().map(|(_, instance, _)| instance.id.as_str()).collect();
            self.sent
                .instances
                .retain(|id, _| ids.contains(id.as_str()) || changed.insert(id.clone(), Value::Null).is_some());
        }
        add(message, "instances", changed);
    }

    fn requests(&mut self, message: &mut Map<String, Value>) {
        let log = self.state.world.request_log();
        let total = log.total();
        if total == self.sent.requests {
            return;
        }
        let cleared = total < self.sent.requests;
        let after = if cleared { 0 } else { self.sent.requests };
        let filter = RequestFilter { after: Some(after), limit: Some(MAX_REQUESTS), ..RequestFilter::default() };
        let latest = log.find(&filter);
        self.sent.requests = latest.last().map_or(total, |request| request.number);
        let total = self.sent.requests;
        message.insert("requests".to_owned(), json!({"total": total, "cleared": cleared, "latest": latest}));
    }

    /// Adds the parts that are sent as a whole.
    fn parts(&mut self, look: &Look, message: &mut Map<String, Value>) {
        for (name, value) in &look.parts {
            if self.sent.parts.get(name).is_some_and(|sent| Arc::ptr_eq(sent, value) || sent == value) {
                continue;
            }
            message.insert((*name).to_owned(), Value::clone(value));
            self.sent.parts.insert(name, Arc::clone(value));
        }
    }

    fn cml(&mut self, look: &Look, message: &mut Map<String, Value>) {
        let current = &look.cml.1;
        if Arc::ptr_eq(current, &self.sent.cml) {
            return;
        }
        let mut changed = Map::new();
        for id in self.sent.cml.keys().filter(|id| !current.contains_key(*id)) {
            changed.insert(id.clone(), Value::Null);
        }
        for (id, row) in current.iter().filter(|(id, row)| self.sent.cml.get(*id) != Some(row)) {
            changed.insert(id.clone(), row.clone());
        }
        self.sent.cml = Arc::clone(current);
        add(message, "cml", changed);
    }
}

fn add(message: &mut Map<String, Value>, part: &str, changed: Map<String, Value>) {
    if !changed.is_empty() {
        message.insert(part.to_owned(), changed.into());
    }
}

/// The clock at a time of reading. A client continues it at its pace.
#[derive(Debug, Clone)]
struct SentClock {
    now: DateTime<Utc>,
    read: Instant,
    pace: Pace,
    next: Option<NextEvent>,
}

impl SentClock {
    fn factor(&self) -> f64 {
        match self.pace {
            Pace::Real => 1.0,
            Pace::Manual => 0.0,
            Pace::Accelerated(factor) => factor,
        }
    }

    /// Whether a client that continues `sent` at its pace shows this time.
    fn follows(&self, sent: &Self) -> bool {
        let expected = (self.read - sent.read).as_secs_f64() * sent.factor();
        let passed = (self.now - sent.now).as_seconds_f64();
        let tolerance = MAX_DRIFT.as_secs_f64() * sent.factor().max(1.0);
        self.pace == sent.pace && self.next == sent.next && (passed - expected).abs() < tolerance
    }

    fn to_json(&self) -> Value {
        let pace = match self.pace {
            Pace::Real => "real".to_owned(),
            Pace::Manual => "manual".to_owned(),
            Pace::Accelerated(factor) => format!("x{factor}"),
        };
        let next = self.next.as_ref().map(|event| json!({"at": event.at, "what": event.what}));
        json!({"now": self.now, "pace": pace, "factor": self.factor(), "next": next})
    }
}
