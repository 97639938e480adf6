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
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::super::AdminState;
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
) -> impl IntoResponse {
    let stopping = stopping.map(|Extension(Stopping(receiver))| receiver);
    let viewer = Viewer { state, stopping, sent: Sent::default(), next: Instant::now(), slow: Instant::now() };
    let messages = stream::unfold(viewer, |mut viewer| async move {
        let message = viewer.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(message)), viewer))
    });
    Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

/// One client and the state that it knows.
struct Viewer {
    state: AdminState,
    stopping: Option<watch::Receiver<()>>,
    sent: Sent,
    next: Instant,
    slow: Instant,
}

/// The state that was sent.
#[derive(Default)]
struct Sent {
    is_started: bool,
    workers: HashMap<String, Arc<Worker>>,
    instances: HashMap<String, (Arc<Instance>, InstanceState)>,
    requests: u64,
    parts: HashMap<&'static str, Value>,
    cml: BTreeMap<String, Value>,
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
        self.workers(&mut message);
        self.instances(&mut message);
        self.requests(&mut message);
        self.parts(&mut message);
        let now = Instant::now();
        if self.slow <= now {
            self.slow = now + SLOW_TICK;
            self.cml(&mut message);
        }
        let clock = self.clock();
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
    fn workers(&mut self, message: &mut Map<String, Value>) {
        let current = rows::workers(&self.state);
        let mut changed = Map::new();
        for worker in &current {
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

    fn instances(&mut self, message: &mut Map<String, Value>) {
        let (current, now) = self.state.world.with_ec2(|ec2, now| {
            let names: Vec<&'static str> = ec2.regions().map(|region| region.name).collect();
            let mut all = Vec::new();
            for name in names {
                // `Ec2::region` drops terminated instances that are no longer visible.
                let Ok(region) = ec2.region(name, now) else { continue };
                all.extend(region.instances().map(|instance| (name, Arc::clone(instance))));
            }
            (all, now)
        });
        let mut changed = Map::new();
        for (region, instance) in &current {
            let state = instance.state(now);
            let is_same =
                |(sent, before): &(Arc<Instance>, InstanceState)| Arc::ptr_eq(sent, instance) && *before == state;
            if !self.sent.instances.get(&instance.id).is_some_and(is_same) {
                changed.insert(instance.id.clone(), rows::instance(region, instance, now, rows::Detail::Row));
                self.sent.instances.insert(instance.id.clone(), (Arc::clone(instance), state));
            }
        }
        if self.sent.instances.len() > current.len() {
            let ids: HashSet<&str> = current.iter().map(|(_, instance)| instance.id.as_str()).collect();
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
    fn parts(&mut self, message: &mut Map<String, Value>) {
        let world = &self.state.world;
        let log = world.request_log();
        let mut parts = vec![("faults", json!(world.faults().list())), ("notices", json!(log.notices()))];
        if let Some(services) = &self.state.services {
            let etcd = &services.etcd;
            let (leases, watchers) = (etcd.leases().len(), etcd.watchers().len());
            let (revision, is_available) = (etcd.revision(), !etcd.is_unavailable());
            let seen = json!({"revision": revision, "leases": leases, "watchers": watchers, "available": is_available});
            parts.push(("etcd", seen));
        }
        for (name, value) in parts {
            if self.sent.parts.get(name) != Some(&value) {
                message.insert(name.to_owned(), value.clone());
                self.sent.parts.insert(name, value);
            }
        }
    }

    fn cml(&mut self, message: &mut Map<String, Value>) {
        let Some(services) = &self.state.services else { return };
        let current = rows::cml(&services.cml_servers);
        let mut changed = Map::new();
        for id in self.sent.cml.keys().filter(|id| !current.contains_key(*id)) {
            changed.insert(id.clone(), Value::Null);
        }
        for (id, row) in current.iter().filter(|(id, row)| self.sent.cml.get(*id) != Some(row)) {
            changed.insert(id.clone(), row.clone());
        }
        self.sent.cml = current;
        add(message, "cml", changed);
    }

    fn clock(&self) -> SentClock {
        let clock = self.state.world.clock();
        let (pace, next) = (clock.pace(), rows::next_event(&self.state));
        SentClock { now: clock.now(), read: Instant::now(), pace, next }
    }
}

fn add(message: &mut Map<String, Value>, part: &str, changed: Map<String, Value>) {
    if !changed.is_empty() {
        message.insert(part.to_owned(), changed.into());
    }
}

/// The clock at a time of reading. A client continues it at its pace.
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
