//! The loop that keeps resources reconciled. It knows nothing about workers: a scheduler or a lablet controller runs
//! on the same.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::queue::{Ending, Job, Key, Lane, QueueConfig, ResourceState, WorkQueue};
use super::shutdown::Shutdown;
use super::sweep::{SweepReport, SweepTracker};
use super::telemetry::{Mishap, Telemetry};
use crate::core::backoff::Backoff;
use crate::core::failure::CallFailure;

pub use super::resource::{Fetched, ListScope, Listing, Reconcile};

/// Settings of a controller, with the defaults of the documents.
#[derive(Clone)]
pub struct ControllerConfig {
    /// Time between two polling cycles.
    pub interval: Duration,
    /// Whether there are polling cycles at all.
    pub polling: Polling,
    /// Time before the first one.
    pub initial_delay: Duration,
    /// Passes at the same time.
    pub max_concurrent: usize,
    /// The longest a pass may take.
    pub timeout: Duration,
    /// Waiting between retries.
    pub backoff: Backoff,
    /// How long a resource may be overtaken by more urgent ones.
    pub patience: Duration,
    /// How long a stop waits for passes under way.
    pub grace: Duration,
    /// Draws a number from 0 to 1 that spreads retries.
    pub jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
}

/// Whether a controller polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Polling {
    /// It does.
    Enabled,
    /// It relies on being told.
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

impl std::fmt::Debug for ControllerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerConfig")
            .field("interval", &self.interval)
            .field("polling", &self.polling)
            .field("max_concurrent", &self.max_concurrent)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Keeps resources reconciled: by polling, by being told, and by their own wish to be looked at again.
///
/// # Guarantees
/// No resource is reconciled twice at the same time; a trigger during a pass makes it run once more. A panic or a
/// time-out in one pass is counted and retried; the others never notice.
///
/// Clones are the same controller.
pub struct Controller<C: Reconcile> {
    inner: Arc<Inner<C>>,
}

struct Inner<C: Reconcile> {
    reconcile: C,
    config: ControllerConfig,
    queue: Mutex<WorkQueue<C::Resource>>,
    wake: Notify,
    sweeps: SweepTracker,
    telemetry: Telemetry,
}

impl<C: Reconcile> Clone for Controller<C> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<C: Reconcile> Controller<C> {
    /// A controller that does nothing until it runs.
    pub fn new(reconcile: C, config: ControllerConfig, telemetry: Telemetry) -> Self {
        let queue = WorkQueue::new(QueueConfig {
            backoff: config.backoff,
            patience: config.patience,
            next_cycle: match config.polling {
                Polling::Enabled => None,
                Polling::Disabled => Some(config.interval),
            },
        });
        let inner = Inner {
            reconcile,
            config,
            queue: Mutex::new(queue),
            wake: Notify::new(),
            sweeps: SweepTracker::default(),
            telemetry,
        };
        Self { inner: Arc::new(inner) }
    }

    /// What it reconciles.
    pub fn reconciler(&self) -> &C {
        &self.inner.reconcile
    }

    /// Says that a resource changed.
    pub fn changed(&self, key: &str) {
        if self.inner.queue.lock().changed(key, Instant::now()) {
            self.inner.wake.notify_one();
        }
    }

    /// Wants a resource looked at now, changed or not.
    pub fn demand(&self, key: &str) {
        if self.inner.queue.lock().demand(key, Instant::now()) {
            self.inner.wake.notify_one();
        }
    }

    /// What is known about every resource, in the order of their names.
    pub fn resources(&self) -> Vec<ResourceState> {
        let mut states: Vec<_> = self.inner.queue.lock().states().collect();
        states.sort_by(|a, b| a.resource_id.cmp(&b.resource_id));
        states
    }

    /// What is known about one resource.
    pub fn resource(&self, key: &str) -> Option<ResourceState> {
        self.inner.queue.lock().state(key)
    }

    /// How many passes are under way, and how many resources wait in each lane.
    pub fn load(&self) -> (usize, [(&'static str, usize); 3]) {
        let queue = self.inner.queue.lock();
        (queue.running(), queue.waiting())
    }

    /// Runs passes and polls until asked to stop; then lets the passes under way finish, up to the grace.
    pub async fn run(&self, shutdown: &Shutdown) {
        let polling = async {
            tokio::time::sleep(self.inner.config.initial_delay).await;
            self.poll().await;
        };
        self.run_with(polling, shutdown).await;
    }

    /// Runs passes until asked to stop, and something else beside them that ends no later.
    pub async fn run_with(&self, beside: impl Future<Output = ()>, shutdown: &Shutdown) {
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

    /// Polls for ever, beginning now: for [`Controller::run_with`]. Without polling nothing is listed.
    pub async fn poll(&self) {
        let mut failures = 0;
        loop {
            if self.inner.config.polling == Polling::Disabled {
                // Whoever relies on being told needs what tells it (a watch that has given up) to be looked after.
                self.inner.reconcile.on_cycle();
                tokio::time::sleep(self.inner.config.interval).await;
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
            tokio::time::sleep(wait).await;
        }
    }

    /// Runs passes until asked to stop, without polling; then lets those under way finish, up to the grace.
    pub async fn serve(&self, shutdown: &Shutdown) {
        let mut workers = JoinSet::new();
        for _ in 0..self.inner.config.max_concurrent.max(1) {
            let (inner, shutdown) = (Arc::clone(&self.inner), shutdown.clone());
            workers.spawn(async move { inner.work(&shutdown).await });
        }
        let finishing = async {
            while let Some(ended) = workers.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(target: "lcm::controller", %error, "a serving task ended");
                }
            }
        };
        tokio::select! {
            biased;
            () = finishing => {}
            () = self.measure() => {}
            () = async {
                shutdown.requested().await;
                tokio::time::sleep(self.inner.config.grace).await;
            } => {
                let busy = self.inner.queue.lock().running();
                tracing::error!(target: "lcm::controller", busy, "passes did not end within the grace; leaving them");
            }
        }
    }

    /// One cycle: lists, prepares and queues what is active.
    ///
    /// # Errors
    /// If the resources cannot be listed; nothing was queued then.
    pub async fn cycle(&self) -> Result<usize, CallFailure> {
        self.inner.reconcile.on_cycle();
        Ok(self.offer(ListScope::Active).await?.len())
    }

    /// Looks at everything once and waits until all of it was looked at, or until `limit` has passed: one resource
    /// that hangs is reported, and holds nobody up.
    ///
    /// # Errors
    /// If the resources cannot be listed.
    pub async fn sweep(&self, limit: Duration) -> Result<SweepReport, CallFailure> {
        let began = Instant::now();
        let listed = self.offer(ListScope::Everything).await?;
        Ok(self.inner.sweeps.wait_for(listed, began, limit).await)
    }

    async fn offer(&self, scope: ListScope) -> Result<Vec<Key>, CallFailure> {
        let began = Instant::now();
        let Listing { resources, resting } = self.inner.reconcile.list(scope).await?;
        self.inner.reconcile.prepare(&resources).await;
        let now = Instant::now();
        let mut known: HashMap<Key, ()> = HashMap::with_capacity(resources.len() + resting.len());
        let mut queued = Vec::with_capacity(resources.len());
        {
            let mut queue = self.inner.queue.lock();
            for resource in resources {
                let key: Key = self.inner.reconcile.key(&resource).into();
                if scope == ListScope::Everything {
                    self.inner.sweeps.expect(&key);
                }
                queue.offer(&key, resource, now);
                known.insert(Arc::clone(&key), ());
                queued.push(key);
            }
            known.extend(resting.into_iter().map(|key| (Key::from(key), ())));
            queue.retain(began, |key| known.contains_key(key));
        }
        self.inner.wake.notify_waiters();
        Ok(queued)
    }

    async fn measure(&self) {
        loop {
            let (running, waiting) = self.load();
            self.inner.telemetry.queue(running, waiting);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl<C: Reconcile> Inner<C> {
    async fn work(&self, shutdown: &Shutdown) {
        while let Some(job) = self.next(shutdown).await {
            self.run(job).await;
        }
    }

    async fn next(&self, shutdown: &Shutdown) -> Option<Job<C::Resource>> {
        loop {
            if shutdown.is_requested() {
                return None;
            }
            let woken = self.wake.notified();
            tokio::pin!(woken);
            // From here on no wake-up is missed.
            woken.as_mut().enable();
            let (job, due, more) = {
                let mut queue = self.queue.lock();
                (queue.take(Instant::now()), queue.next_due(), queue.expects_more())
            };
            if job.is_some() {
                if more {
                    // The others wait for what was due when they last looked; somebody has to know what is due now.
                    self.wake.notify_one();
                }
                return job;
            }
            let due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = woken => {}
                () = due => {}
                () = shutdown.requested() => return None,
            }
        }
    }

    async fn run(&self, job: Job<C::Resource>) {
        let Job { key, lane, resource } = job;
        let resource = match resource {
            Some(resource) => resource,
            None => match self.fetch(&key, lane).await {
                Some(resource) => resource,
                None => return,
            },
        };
        let began = Instant::now();
        let pass = tokio::time::timeout(self.config.timeout, self.reconcile.reconcile(resource));
        let ending = match AssertUnwindSafe(pass).catch_unwind().await {
            Ok(Ok(ending)) => ending,
            Ok(Err(_)) => {
                self.telemetry.mishap(Mishap::TimedOut);
                tracing::error!(target: "lcm::controller", resource = %key, limit = ?self.config.timeout, "a pass took too long");
                Ending::retry("timed_out", format!("took longer than {:?}", self.config.timeout))
            }
            Err(panic) => {
                self.telemetry.mishap(Mishap::Panic);
                let message = message_of(&*panic);
                tracing::error!(target: "lcm::controller", resource = %key, message, "a pass panicked");
                Ending::retry("panicked", message)
            }
        };
        self.telemetry.reconciled(ending.outcome, began.elapsed());
        self.finish(&key, ending);
    }

    /// Reads a resource that was not listed just now; `None` if there is nothing to do.
    async fn fetch(&self, key: &Key, lane: Lane) -> Option<C::Resource> {
        let fetching = tokio::time::timeout(self.config.timeout, self.reconcile.fetch(key));
        match AssertUnwindSafe(fetching).catch_unwind().await {
            Ok(Ok(Ok(Fetched::Resource(resource)))) => {
                if lane == Lane::Changed && self.reconcile.is_echo(&resource) {
                    if self.queue.lock().put_back(key, Instant::now()) {
                        self.wake.notify_one();
                    }
                    return None;
                }
                Some(resource)
            }
            Ok(Ok(Ok(Fetched::Gone))) => {
                self.sweeps.done(key, None);
                if self.queue.lock().gone(key, Instant::now()) {
                    self.wake.notify_one();
                }
                None
            }
            Ok(Ok(Err(failure))) => {
                self.finish(key, Ending::retry("unreadable", failure.to_string()));
                None
            }
            Ok(Err(_)) => {
                self.finish(key, Ending::retry("timed_out", "could not be read in time"));
                None
            }
            Err(panic) => {
                self.telemetry.mishap(Mishap::Panic);
                self.finish(key, Ending::retry("panicked", message_of(&*panic)));
                None
            }
        }
    }

    fn finish(&self, key: &Key, ending: Ending) {
        self.sweeps.done(key, Some(ending.outcome));
        let fraction = (self.config.jitter)();
        if self.queue.lock().finish(key, ending, fraction, Instant::now()) {
            self.wake.notify_one();
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
