//! Takes items from the queue and reconciles them, for one term of leadership.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::controller::lease::LeaderLease;
use crate::controller::queue::{Key, Novelty, Priority, QueueConfig, ResourceState, WorkItem, WorkQueue};
use crate::controller::resource::{ListRequest, ListScope, Resource, ResourceList};
use crate::controller::result::{WorkReason, WorkResult};
use crate::controller::shards::ShardOwnership;
use crate::controller::shutdown::Shutdown;
use crate::controller::sweep::{SweepReport, SweepTracker};
use crate::controller::timers::{Busy, Timers};
use crate::controller::watch::{ResyncCause, WatchConfig, WatchEvent, WatchHandle};
use crate::lifecycle::backoff::Backoff;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::outcome::Outcome;
use crate::spans::CALLS;
use crate::telemetry::{Anomaly, Telemetry};

/// Settings of the reconcile loop.
#[derive(Clone)]
#[non_exhaustive]
pub struct ControllerConfig {
    /// Time between two polling cycles.
    pub interval: Duration,
    /// Whether resources are polled.
    pub polling: Polling,
    /// Time before the first polling cycle.
    pub initial_delay: Duration,
    /// Maximum number of concurrent reconciles. From two on, an eighth of them, and at least one, is kept for changed
    /// resources, so that a change starts at once behind any backlog of polling.
    pub max_concurrent: usize,
    /// Maximum duration of a reconcile.
    pub timeout: Duration,
    /// Delay between retries.
    pub backoff: Backoff,
    /// Time after which a waiting resource gets a share of the turns of more urgent ones.
    pub patience: Duration,
    /// Time for which a stop waits for reconciles in progress.
    pub grace: Duration,
    /// Returns a random number from 0 to 1 that spreads retries.
    pub jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
}

/// Whether resources are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Polling {
    /// Active resources are listed and reconciled in every cycle.
    Enabled,
    /// Resources are reconciled when they change or are due.
    Disabled,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            polling: Polling::Enabled,
            initial_delay: Duration::from_secs(5),
            max_concurrent: 10,
            timeout: Duration::from_secs(300),
            backoff: Backoff::default(),
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            jitter: Arc::new(rand::random),
        }
    }
}

impl ControllerConfig {
    /// Sets the time between two polling cycles.
    #[must_use]
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets whether resources are polled.
    #[must_use]
    pub fn with_polling(self, polling: Polling) -> Self {
        Self { polling, ..self }
    }

    /// Sets the time before the first polling cycle.
    #[must_use]
    pub fn with_initial_delay(self, initial_delay: Duration) -> Self {
        Self { initial_delay, ..self }
    }

    /// Sets the maximum number of concurrent reconciles.
    #[must_use]
    pub fn with_max_concurrent(self, max_concurrent: usize) -> Self {
        Self { max_concurrent, ..self }
    }

    /// Sets the maximum duration of a reconcile.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the delay between retries.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Sets the time after which a waiting resource gets a share of the turns of more urgent ones.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the time for which a stop waits for reconciles in progress.
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Sets the source of random numbers from 0 to 1 that spread retries.
    #[must_use]
    pub fn with_jitter(self, jitter: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self { jitter: Arc::new(jitter), ..self }
    }
}

impl fmt::Debug for ControllerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerConfig")
            .field("interval", &self.interval)
            .field("polling", &self.polling)
            .field("max_concurrent", &self.max_concurrent)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The reconcile loop over one kind of resource, for one term of leadership. Clones share one loop.
///
/// [`Controller`](crate::controller::Controller) starts one per term; use it directly where there is no election.
///
/// # Guarantees
/// - No resource is reconciled twice at the same time; a trigger during a reconcile makes it run once more.
/// - Only resources that are owned are reconciled, each under the lease of its shard.
/// - A panic or a timeout of one reconcile is counted and retried, and does not affect others.
pub struct Runner<R: Resource> {
    inner: Arc<Inner<R>>,
}

struct Inner<R: Resource> {
    resource: Arc<R>,
    ownership: ShardOwnership,
    config: ControllerConfig,
    queue: Mutex<WorkQueue<R::Object>>,
    wake: Notify,
    resync: Notify,
    watch: OnceLock<WatchHandle>,
    sweeps: SweepTracker,
    telemetry: Telemetry,
    timers: Timers,
}

impl<R: Resource> Clone for Runner<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R: Resource> Runner<R> {
    /// Creates a loop over all resources, without an election. It does nothing until it runs.
    pub fn new(resource: Arc<R>, config: ControllerConfig, telemetry: Telemetry) -> Self {
        Self::with_ownership(resource, ShardOwnership::from_lease(LeaderLease::unfenced()), config, telemetry)
    }

    /// Creates a loop over the owned resources.
    pub fn with_ownership(
        resource: Arc<R>,
        ownership: ShardOwnership,
        config: ControllerConfig,
        telemetry: Telemetry,
    ) -> Self {
        Self::with_timers(resource, ownership, config, telemetry, Timers::default())
    }

    /// Creates a loop over the owned resources that shares its timers.
    pub(crate) fn with_timers(
        resource: Arc<R>,
        ownership: ShardOwnership,
        config: ControllerConfig,
        telemetry: Telemetry,
        timers: Timers,
    ) -> Self {
        let queue = WorkQueue::new(QueueConfig {
            backoff: config.backoff,
            patience: config.patience,
            background_limit: config.max_concurrent.saturating_sub(slots_for_changes(config.max_concurrent)).max(1),
            next_cycle: match config.polling {
                Polling::Enabled => None,
                Polling::Disabled => Some(config.interval),
            },
        });
        let inner = Inner {
            resource,
            ownership,
            config,
            queue: Mutex::new(queue),
            wake: Notify::new(),
            resync: Notify::new(),
            watch: OnceLock::new(),
            sweeps: SweepTracker::default(),
            telemetry,
            timers,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reports a change of a resource.
    pub fn changed(&self, key: &str) {
        if self.inner.queue.lock().changed(key, self.inner.timers.now()) {
            self.inner.wake.notify_one();
        }
    }

    /// Requests a reconcile of a resource now, changed or not.
    pub fn enqueue(&self, key: &str) {
        if self.inner.queue.lock().enqueue(key, self.inner.timers.now()) {
            self.inner.wake.notify_one();
        }
    }

    /// Whether the resource of this name is owned.
    pub fn owns(&self, key: &str) -> bool {
        self.inner.ownership.owns(key)
    }

    /// States of all known resources, ordered by name.
    pub fn resources(&self) -> Vec<ResourceState> {
        let mut states: Vec<_> = self.inner.queue.lock().states().collect();
        states.sort_by(|a, b| a.resource_id.cmp(&b.resource_id));
        states
    }

    /// State of one resource.
    pub fn resource(&self, key: &str) -> Option<ResourceState> {
        self.inner.queue.lock().state(key)
    }

    /// Number of reconciles in progress, and of waiting resources by priority.
    pub fn load(&self) -> (usize, [(&'static str, usize); 3]) {
        let queue = self.inner.queue.lock();
        (queue.running(), queue.waiting())
    }

    /// Whether no resource is being reconciled, waits or is due.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.inner.queue.lock();
        let is_waiting = queue.waiting().iter().any(|(_, waiting)| *waiting > 0);
        let is_due = queue.next_due().is_some_and(|due| due <= self.inner.timers.now());
        queue.running() == 0 && !is_waiting && !is_due
    }

    /// The next deadline at which a resource can be taken.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.inner.queue.lock().next_due()
    }

    /// Revives this watch in every cycle.
    pub(crate) fn attach_watch(&self, watch: WatchHandle) {
        // A runner has one watch; a second one would be ignored.
        let _ = self.inner.watch.set(watch);
    }

    /// Handles an event of the watch.
    pub(crate) fn handle(&self, event: WatchEvent, config: &WatchConfig) {
        match event {
            WatchEvent::Changed(key) => {
                let overflows = {
                    let mut queue = self.inner.queue.lock();
                    if queue.changed_after(&key, config.debounce, self.inner.timers.now()) {
                        self.inner.wake.notify_one();
                    }
                    let overflows = queue.debounced() > config.max_pending;
                    if overflows {
                        queue.drop_debounced();
                    }
                    overflows
                };
                if overflows {
                    self.request_resync(ResyncCause::TooMany);
                }
            }
            WatchEvent::Resync(cause) => self.request_resync(cause),
        }
    }

    fn request_resync(&self, cause: ResyncCause) {
        match cause {
            ResyncCause::Began => {}
            ResyncCause::Compacted | ResyncCause::Rewound | ResyncCause::TooMany => {
                tracing::warn!(target: "lcm::watch", ?cause, "changes may have been missed: listing everything");
            }
        }
        self.inner.resync.notify_one();
    }

    /// Runs a cycle for every requested resync, without end. A request during a cycle leads to one more.
    pub(crate) async fn resync(&self) {
        loop {
            self.inner.resync.notified().await;
            let mut busy = self.inner.timers.busy();
            let mut failures = 0;
            // Until it succeeds: without polling, nothing else would find the missed changes.
            while let Err(failure) = self.cycle().await {
                let delay = self.inner.config.backoff.delay(failures);
                failures = failures.saturating_add(1);
                tracing::warn!(target: "lcm::watch", %failure, retry_in = ?delay, "resources could not be listed");
                drop(busy);
                busy = self.inner.timers.sleep(delay).await;
            }
            drop(busy);
        }
    }

    /// Reconciles and polls until the shutdown is requested; then waits for reconciles in progress, up to the grace.
    pub async fn run(&self, shutdown: &Shutdown) {
        let polling = async {
            let busy = self.inner.timers.sleep(self.inner.config.initial_delay).await;
            self.poll(busy).await;
        };
        self.run_with(polling, shutdown).await;
    }

    /// Reconciles until the shutdown is requested, with another future beside that is dropped on shutdown.
    pub(crate) async fn run_with(&self, beside: impl Future<Output = ()>, shutdown: &Shutdown) {
        let serving = self.serve(shutdown);
        let beside = async {
            tokio::select! {
                biased;
                () = beside => {}
                () = shutdown.requested() => {}
            }
        };
        tokio::join!(serving, beside);
    }

    /// Runs polling cycles without end, beginning now. Without polling, only the watch is revived.
    pub(crate) async fn poll(&self, mut busy: Busy) {
        let mut failures = 0;
        loop {
            if self.inner.config.polling == Polling::Disabled {
                self.revive_watch();
                drop(busy);
                busy = self.inner.timers.sleep(self.inner.config.interval).await;
                continue;
            }
            let wait = match self.cycle().await {
                Ok(_) => {
                    failures = 0;
                    self.inner.config.interval
                }
                Err(failure) => {
                    let delay = self.inner.config.backoff.delay_with_jitter(failures, (self.inner.config.jitter)());
                    failures = failures.saturating_add(1);
                    tracing::warn!(target: "lcm::controller", %failure, retry_in = ?delay, "resources could not be listed");
                    delay.min(self.inner.config.interval)
                }
            };
            drop(busy);
            busy = self.inner.timers.sleep(wait).await;
        }
    }

    fn revive_watch(&self) {
        if let Some(watch) = self.inner.watch.get() {
            watch.reconnect();
        }
    }

    /// Reconciles until the shutdown is requested, without polling; then waits for reconciles in progress, up to the
    /// grace.
    pub async fn serve(&self, shutdown: &Shutdown) {
        let mut workers = JoinSet::new();
        for _ in 0..self.inner.config.max_concurrent.max(1) {
            let (inner, shutdown) = (Arc::clone(&self.inner), shutdown.clone());
            workers.spawn(async move { inner.work(&shutdown).await });
        }
        let finishing = async {
            while let Some(ended) = workers.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(target: "lcm::controller", %error, "a reconcile task failed");
                }
            }
        };
        tokio::select! {
            biased;
            () = finishing => {}
            () = self.publish_load() => {}
            () = async {
                shutdown.requested().await;
                tokio::time::sleep(self.inner.config.grace).await;
            } => {
                let busy = self.inner.queue.lock().running();
                tracing::error!(target: "lcm::controller", busy, "reconciles did not end within the grace; abandoning them");
            }
        }
    }

    /// Lists, prepares and queues active resources. Returns their number.
    ///
    /// # Errors
    /// If the resources cannot be listed; nothing was queued then.
    pub async fn cycle(&self) -> Result<usize, CallFailure> {
        self.revive_watch();
        Ok(self.offer(ListScope::Active).await?.0)
    }

    /// Reconciles every resource once and waits until all have ended, or until `limit`. A resource that hangs is named in
    /// the report and does not delay others.
    ///
    /// # Errors
    /// If the resources cannot be listed.
    pub async fn sweep(&self, limit: Duration) -> Result<SweepReport, CallFailure> {
        let began = Instant::now();
        let (_, listed) = self.offer(ListScope::Everything).await?;
        Ok(self.inner.sweeps.wait_for(listed, began, limit).await)
    }

    /// Lists, prepares and queues resources. Returns their number, and the names of those in a sweep.
    async fn offer(&self, scope: ListScope) -> Result<(usize, Vec<Key>), CallFailure> {
        let Inner { resource, ownership, timers, .. } = &*self.inner;
        let began = timers.now();
        let request = ListRequest::new(scope, ownership.clone());
        let ResourceList { mut objects, resting } = resource.list(&request).await?;
        objects.retain(|object| ownership.owns(resource.key(object)));
        resource.prepare(&objects).await;
        let now = timers.now();
        let (count, mut swept) = (objects.len(), Vec::new());
        {
            let mut queue = self.inner.queue.lock();
            queue.begin_listing();
            for object in objects {
                let name = resource.key(&object);
                if scope == ListScope::Everything {
                    let key = Key::from(name);
                    self.inner.sweeps.expect(&key);
                    swept.push(key);
                }
                let novelty = match scope {
                    // A sweep trusts no record, and waits for all of them.
                    ListScope::Everything => Novelty::New,
                    ListScope::Active if resource.is_known(&object) => Novelty::Known,
                    ListScope::Active => Novelty::New,
                };
                let slot = queue.listed(name);
                queue.offer_listed(slot, object, novelty, now);
            }
            for name in resting.iter().filter(|name| ownership.owns(name)) {
                queue.mark_idle(name, now);
            }
            queue.end_listing(began);
        }
        self.inner.wake.notify_waiters();
        Ok((count, swept))
    }

    async fn publish_load(&self) {
        loop {
            let (running, waiting) = self.load();
            self.inner.telemetry.set_queue_depth(running, waiting);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl<R: Resource> Inner<R> {
    async fn work(&self, shutdown: &Shutdown) {
        while let Some((item, now)) = self.next(shutdown).await {
            let span = tracing::trace_span!(
                target: CALLS, parent: None, "work", otel.name = "controller.reconcile", resource = %item.key,
                outcome = Empty, otel.status_code = Empty,
            );
            self.run(item, now).instrument(span).await;
            // Reconciles that never wait must not starve other tasks.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn next(&self, shutdown: &Shutdown) -> Option<(WorkItem<R::Object>, Instant)> {
        // Kept until the item that was due is taken, which counts as running from then on.
        let mut _busy = None;
        loop {
            if shutdown.is_requested() {
                return None;
            }
            if let Ok(taken) = self.take() {
                return Some(taken);
            }
            let woken = self.wake.notified();
            tokio::pin!(woken);
            // From here on no wake-up is missed; the second `take` finds items queued before.
            woken.as_mut().enable();
            let due = match self.take() {
                Ok(taken) => return Some(taken),
                Err(due) => due,
            };
            let due = async {
                match due {
                    Some(due) => self.timers.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            _busy = None;
            tokio::select! {
                biased;
                () = woken => {}
                awake = due => _busy = Some(awake),
                () = shutdown.requested() => return None,
            }
        }
    }

    /// Takes the next item, or else returns the next deadline.
    fn take(&self) -> Result<(WorkItem<R::Object>, Instant), Option<Instant>> {
        let now = self.timers.now();
        let (item, more) = {
            let mut queue = self.queue.lock();
            (queue.take(now).ok_or_else(|| queue.next_due())?, queue.has_pending())
        };
        if more {
            // Idle tasks sleep until the deadline they saw last; one of them has to see the current one.
            self.wake.notify_one();
        }
        Ok((item, now))
    }

    async fn run(&self, item: WorkItem<R::Object>, now: Instant) {
        let WorkItem { key, priority, resource } = item;
        let (object, began) = match resource {
            Some(object) => (object, now),
            None => match self.fetch(&key, priority).await {
                Some(object) => (object, self.timers.now()),
                None => return,
            },
        };
        // Kept until the reconcile has ended. The shard may have been handed over while the item waited.
        let Some(lease) = self.ownership.lease(&key) else {
            return self.finish(&key, WorkResult::not_owned(), self.timers.now());
        };
        if !lease.is_valid() {
            let result = WorkResult::retry(WorkReason::LeaseLost, "the lease ended before the reconcile began");
            return self.finish(&key, result, self.timers.now());
        }
        let reconcile = AssertUnwindSafe(self.resource.reconcile(object, lease)).catch_unwind();
        let result = match until(self.config.timeout, reconcile).await {
            Ok(Ok(result)) => result,
            Err(_) => {
                self.telemetry.count_anomaly(Anomaly::TimedOut);
                tracing::error!(target: "lcm::controller", resource = %key, limit = ?self.config.timeout, "a reconcile took too long");
                WorkResult::retry(WorkReason::TimedOut, format!("took longer than {:?}", self.config.timeout))
            }
            Ok(Err(panic)) => {
                self.telemetry.count_anomaly(Anomaly::Panic);
                let message = panic_message(&*panic);
                tracing::error!(target: "lcm::controller", resource = %key, message, "a reconcile panicked");
                WorkResult::retry(WorkReason::Panicked, message)
            }
        };
        let ended = self.timers.now();
        let span = tracing::Span::current();
        span.record("outcome", result.outcome.as_str());
        if result.outcome == Outcome::Retry {
            span.record("otel.status_code", "error");
        }
        self.telemetry.reconciled(result.outcome, ended - began);
        self.finish(&key, result, ended);
    }

    /// Reads a resource that no listing returned; `None` if nothing is to be done.
    async fn fetch(&self, key: &Key, priority: Priority) -> Option<R::Object> {
        if !self.ownership.owns(key) {
            self.remove_missing(key);
            return None;
        }
        let fetching = AssertUnwindSafe(self.resource.fetch(key)).catch_unwind();
        let failed = match until(self.config.timeout, fetching).await {
            Ok(Ok(Ok(Some(object)))) => {
                if priority == Priority::Changed && self.resource.is_echo(&object) {
                    if self.queue.lock().release(key, self.timers.now()) {
                        self.wake.notify_one();
                    }
                    return None;
                }
                return Some(object);
            }
            Ok(Ok(Ok(None))) => {
                self.remove_missing(key);
                return None;
            }
            Ok(Ok(Err(failure))) => WorkResult::retry(WorkReason::Unreadable, failure.to_string()),
            Err(_) => WorkResult::retry(WorkReason::TimedOut, "could not be read in time"),
            Ok(Err(panic)) => {
                self.telemetry.count_anomaly(Anomaly::Panic);
                WorkResult::retry(WorkReason::Panicked, panic_message(&*panic))
            }
        };
        self.finish(key, failed, self.timers.now());
        None
    }

    /// Removes a resource that does not exist, or belongs to another controller.
    fn remove_missing(&self, key: &Key) {
        self.sweeps.done(key, None);
        if self.queue.lock().remove_missing(key, self.timers.now()) {
            self.wake.notify_one();
        }
    }

    fn finish(&self, key: &Key, result: WorkResult, now: Instant) {
        self.sweeps.done(key, Some(result.outcome));
        let fraction = if result.is_jittered() { (self.config.jitter)() } else { 0.0 };
        if self.queue.lock().finish(key, result, fraction, now) {
            self.wake.notify_one();
        }
    }
}

/// Number of concurrent reconciles that are kept for changed resources.
const fn slots_for_changes(max_concurrent: usize) -> usize {
    if max_concurrent > 15 { max_concurrent / 8 } else { 1 }
}

/// Runs a future up to a time limit. A timer is set only if the future is not ready at once.
async fn until<F: Future>(limit: Duration, task: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    let mut task = std::pin::pin!(task);
    match std::future::poll_fn(|context| Poll::Ready(task.as_mut().poll(context))).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => tokio::time::timeout(limit, task).await,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
