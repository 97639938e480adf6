//! Follows the records of workers: a watch on etcd reports which changed, and regular listings find the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::{Shutdown, WatchConfig, WatchEvent, WatchHandle, Watcher};
use lcm_sdk::ports::{Clock as _, ControlPlane, Coordination, Scope, SystemClock};
use lcm_sdk::reconciler::RecordSummary;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Timestamp, WorkerId};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior};

use crate::output::{Paint, printable, status_style};

/// Longest time between two listings where no watch reports changes.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(5);

/// A change of a worker's record.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RecordChange {
    /// When the change was seen.
    pub(crate) at: Timestamp,
    pub(crate) kind: ChangeKind,
    pub(crate) worker_id: String,
    /// The fields that changed, each with its values before and after.
    pub(crate) changed: BTreeMap<String, (Value, Value)>,
    /// The record after the change; none if it was removed.
    pub(crate) record: Option<RecordSummary>,
}

/// Kind of a [`RecordChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChangeKind {
    /// The worker was listed at the beginning.
    Listed,
    Added,
    Changed,
    Removed,
}

/// A watch on keys of etcd.
pub(crate) struct Watch {
    events: UnboundedReceiver<WatchEvent>,
    handle: WatchHandle,
    /// Ends the watch when dropped.
    _task: JoinSet<()>,
}

impl Watch {
    /// Watches prefixes; `reader` reads names from keys.
    pub(crate) fn start(
        etcd: Arc<dyn Coordination>,
        config: WatchConfig,
        reader: impl Fn(&str, &[u8]) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let (sender, events) = unbounded_channel();
        let (watcher, handle) = Watcher::new(etcd, config, Telemetry::default());
        let mut task = JoinSet::new();
        task.spawn(watcher.with_key_reader(reader).run(move |event| drop(sender.send(event)), Shutdown::new()));
        Self { events, handle, _task: task }
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> WatchEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    fn ready(&mut self) -> Option<WatchEvent> {
        self.events.try_recv().ok()
    }
}

/// The records of the selected workers, and their changes.
pub(crate) struct Records {
    control_plane: Arc<dyn ControlPlane>,
    scope: Scope,
    known: BTreeMap<String, RecordSummary>,
    watch: Option<Watch>,
    debounce: Duration,
    interval: Interval,
    /// Whether the last listing failed, which was reported.
    is_failing: bool,
}

impl Records {
    /// Lists the records and watches them. Without etcd they are listed every few seconds.
    ///
    /// # Errors
    /// If the records cannot be listed.
    pub(crate) async fn start(
        settings: &Settings,
        control_plane: Arc<dyn ControlPlane>,
        etcd: Option<Arc<dyn Coordination>>,
        scope: Scope,
    ) -> Result<Self, CallFailure> {
        // Watched before they are listed, so that no change falls in between.
        let watch = etcd.map(|etcd| {
            Watch::start(etcd, WatchConfig::new(settings.watch_prefixes()), lcm_sdk::controller::first_segment)
        });
        let every = settings.reconciliation.reconcile_interval;
        let every = if watch.is_some() { every } else { every.min(UNWATCHED_INTERVAL) };
        let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let debounce = settings.watch.debounce_seconds;
        let known = list(&*control_plane, &scope).await?;
        Ok(Self { control_plane, scope, known, watch, debounce, interval, is_failing: false })
    }

    /// The records as they are known.
    pub(crate) fn listed(&self) -> impl Iterator<Item = RecordChange> {
        let now = SystemClock.now();
        self.known.values().map(move |record| RecordChange {
            at: now,
            kind: ChangeKind::Listed,
            worker_id: record.id.clone(),
            changed: BTreeMap::new(),
            record: Some(record.clone()),
        })
    }

    /// Waits for the next changes. Failed calls are reported on standard error and repeated.
    pub(crate) async fn changes(&mut self) -> Vec<RecordChange> {
        loop {
            let names = self.changed_names().await;
            let read = match &names {
                Some(names) => self.read(names).await,
                None => list(&*self.control_plane, &self.scope).await,
            };
            match read {
                Ok(current) => {
                    self.is_failing = false;
                    let changes = self.compare(names.as_ref(), current);
                    if !changes.is_empty() {
                        return changes;
                    }
                }
                Err(failure) if !self.is_failing => {
                    self.is_failing = true;
                    eprintln!("lcm: the records could not be read: {failure}; trying again");
                }
                Err(_) => {}
            }
        }
    }

    /// Waits until a record may have changed. Returns the names of the workers, or `None` for all.
    async fn changed_names(&mut self) -> Option<BTreeSet<String>> {
        let Some(watch) = &mut self.watch else {
            self.interval.tick().await;
            return None;
        };
        let mut event = tokio::select! {
            event = watch.next() => Some(event),
            _ = self.interval.tick() => {
                watch.handle.reconnect();
                return None;
            }
        };
        // A change of a worker often writes several keys.
        tokio::time::sleep(self.debounce).await;
        let mut names = Some(BTreeSet::new());
        while let Some(seen) = event {
            match (seen, &mut names) {
                (WatchEvent::Changed(name), Some(names)) => drop(names.insert(name)),
                (WatchEvent::Resync(_), _) => names = None,
                (WatchEvent::Changed(_), None) => {}
            }
            event = watch.ready();
        }
        names
    }

    async fn read(&self, names: &BTreeSet<String>) -> Result<BTreeMap<String, RecordSummary>, CallFailure> {
        let mut read = BTreeMap::new();
        for name in names {
            if let Some(worker) = self.control_plane.worker(&WorkerId::from(name.as_str())).await?
                && self.is_selected(&worker)
            {
                read.insert(name.clone(), RecordSummary::from(&worker));
            }
        }
        Ok(read)
    }

    fn is_selected(&self, worker: &lcm_sdk::Worker) -> bool {
        let Scope { region, with_terminated } = &self.scope;
        let is_here = region.as_deref().is_none_or(|region| worker.aws_region.as_deref() == Some(region));
        is_here && (*with_terminated || worker.status != lcm_sdk::WorkerStatus::Terminated)
    }

    /// Notes the current records, of these workers or of all, and returns what changed.
    fn compare(
        &mut self,
        names: Option<&BTreeSet<String>>,
        current: BTreeMap<String, RecordSummary>,
    ) -> Vec<RecordChange> {
        let at = SystemClock.now();
        let mut changes = Vec::new();
        let is_covered = |name: &String| names.is_none_or(|names| names.contains(name));
        let gone: Vec<String> =
            self.known.keys().filter(|name| is_covered(name) && !current.contains_key(*name)).cloned().collect();
        for worker_id in gone {
            self.known.remove(&worker_id);
            let (kind, changed) = (ChangeKind::Removed, BTreeMap::new());
            changes.push(RecordChange { at, kind, worker_id, changed, record: None });
        }
        for (worker_id, record) in current {
            let before = self.known.insert(worker_id.clone(), record.clone());
            let changed = before.as_ref().map_or_else(BTreeMap::new, |before| difference(before, &record));
            if before.is_some() && changed.is_empty() {
                continue;
            }
            let kind = if before.is_some() { ChangeKind::Changed } else { ChangeKind::Added };
            changes.push(RecordChange { at, kind, worker_id, changed, record: Some(record) });
        }
        changes
    }
}

async fn list(control_plane: &dyn ControlPlane, scope: &Scope) -> Result<BTreeMap<String, RecordSummary>, CallFailure> {
    let listing = control_plane.workers(scope).await?;
    let records = listing.workers.iter().map(RecordSummary::from);
    Ok(records.map(|record| (record.id.clone(), record)).collect())
}

/// The fields that differ. Version and time of the last write differ with every report, and tell nothing.
fn difference(before: &RecordSummary, after: &RecordSummary) -> BTreeMap<String, (Value, Value)> {
    let fields = |record| match serde_json::to_value(record) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let (mut before, after) = (fields(before), fields(after));
    let silent = |name: &str| matches!(name, "version" | "updated_at");
    let changed = after.into_iter().filter(|(name, _)| !silent(name)).filter_map(|(name, after)| {
        let before = before.remove(&name).unwrap_or_default();
        (before != after).then_some((name, (before, after)))
    });
    changed.collect()
}

impl RecordChange {
    /// One line: time, worker, and what changed.
    pub(crate) fn line(&self, paint: Paint) -> String {
        let at = paint.dim(&self.at.format("%H:%M:%S").to_string());
        let worker = paint.bold(&printable(&self.worker_id));
        let status = self.record.as_ref().map(|record| paint.with(status_style(record.status), record.status.as_str()));
        let what = match (self.kind, status) {
            (ChangeKind::Listed | ChangeKind::Added, Some(status)) => {
                format!("{}{status}", if self.kind == ChangeKind::Added { "added, " } else { "" })
            }
            (ChangeKind::Removed, _) | (_, None) => "removed".to_owned(),
            (ChangeKind::Changed, Some(status)) => {
                let change = |(name, (before, after)): (&String, &(Value, Value))| {
                    let after = if name == "status" { status.clone() } else { value_text(after) };
                    format!("{}: {} → {after}", name.replace('_', " "), value_text(before))
                };
                self.changed.iter().map(change).collect::<Vec<_>>().join("; ")
            }
        };
        format!("{at}  {worker}  {what}\n")
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => printable(text).into_owned(),
        other => printable(&other.to_string()).into_owned(),
    }
}
