//! The loop that keeps resources reconciled. It knows nothing about workers: a scheduler or a lablet controller runs
//! on the same.

mod config;
pub mod election;
mod hash;
pub mod lease;
pub mod queue;
mod resource;
pub mod shards;
pub mod shutdown;
pub mod sweep;
pub mod watch;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::controller::queue::{Key, Priority, QueueConfig, ResourceState, WorkItem, WorkQueue, WorkResult};
use crate::controller::shutdown::Shutdown;
use crate::controller::sweep::{SweepReport, SweepTracker};
use crate::lifecycle::failure::CallFailure;
use crate::telemetry::{Anomaly, Telemetry};

pub use self::config::{ControllerConfig, Polling};
pub use self::resource::{Fetched, ListScope, Listing, Reconcile};

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
        Ok(self.offer(ListScope::Active).await?.0)
    }

    /// Looks at everything once and waits until all of it was looked at, or until `limit` has passed: one resource
    /// that hangs is reported, and holds nobody up.
    ///
    /// # Errors
    /// If the resources cannot be listed.
    pub async fn sweep(&self, limit: Duration) -> Result<SweepReport, CallFailure> {
        let began = Instant::now();
        let (_, listed) = self.offer(ListScope::Everything).await?;
        Ok(self.inner.sweeps.wait_for(listed, began, limit).await)
    }

    /// Lists, prepares and queues, and says how many there were; of a sweep, who.
    async fn offer(&self, scope: ListScope) -> Result<(usize, Vec<Key>), CallFailure> {
        let began = Instant::now();
        let Listing { resources, resting } = self.inner.reconcile.list(scope).await?;
        self.inner.reconcile.prepare(&resources).await;
        let now = Instant::now();
        let (count, mut swept) = (resources.len(), Vec::new());
        {
            let mut queue = self.inner.queue.lock();
            queue.begin_listing();
            for resource in resources {
                let name = self.inner.reconcile.key(&resource);
                if scope == ListScope::Everything {
                    let key = Key::from(name);
                    self.inner.sweeps.expect(&key);
                    swept.push(key);
                }
                let slot = queue.listed(name);
                queue.offer_listed(slot, resource, now);
            }
            resting.iter().for_each(|name| queue.rests(name));
            queue.end_listing(began);
        }
        self.inner.wake.notify_waiters();
        Ok((count, swept))
    }

    async fn measure(&self) {
        loop {
            let (running, waiting) = self.load();
            self.inner.telemetry.set_queue_depth(running, waiting);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl<C: Reconcile> Inner<C> {
    async fn work(&self, shutdown: &Shutdown) {
        while let Some((job, now)) = self.next(shutdown).await {
            self.run(job, now).await;
            // Passes that wait for nothing must not keep everybody else waiting.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn next(&self, shutdown: &Shutdown) -> Option<(WorkItem<C::Resource>, Instant)> {
        loop {
            if shutdown.is_requested() {
                return None;
            }
            if let Ok(taken) = self.take() {
                return Some(taken);
            }
            let woken = self.wake.notified();
            tokio::pin!(woken);
            // From here on no wake-up is missed; what came before is found by looking once more.
            woken.as_mut().enable();
            let due = match self.take() {
                Ok(taken) => return Some(taken),
                Err(due) => due,
            };
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

    /// Who is next and what time it is, or else when somebody is due.
    fn take(&self) -> Result<(WorkItem<C::Resource>, Instant), Option<Instant>> {
        let now = Instant::now();
        let (job, more) = {
            let mut queue = self.queue.lock();
            (queue.take(now).ok_or_else(|| queue.next_due())?, queue.expects_more())
        };
        if more {
            // The others wait for what was due when they last looked; somebody has to know what is due now.
            self.wake.notify_one();
        }
        Ok((job, now))
    }

    async fn run(&self, job: WorkItem<C::Resource>, now: Instant) {
        let WorkItem { key, lane, resource } = job;
        let (resource, began) = match resource {
            Some(resource) => (resource, now),
            None => match self.fetch(&key, lane, now).await {
                Some(resource) => (resource, Instant::now()),
                None => return,
            },
        };
        let pass = AssertUnwindSafe(self.reconcile.reconcile(resource)).catch_unwind();
        let ending = match until(began.checked_add(self.config.timeout), pass).await {
            Ok(Ok(ending)) => ending,
            Err(_) => {
                self.telemetry.count_anomaly(Anomaly::TimedOut);
                tracing::error!(target: "lcm::controller", resource = %key, limit = ?self.config.timeout, "a pass took too long");
                WorkResult::retry("timed_out", format!("took longer than {:?}", self.config.timeout))
            }
            Ok(Err(panic)) => {
                self.telemetry.count_anomaly(Anomaly::Panic);
                let message = message_of(&*panic);
                tracing::error!(target: "lcm::controller", resource = %key, message, "a pass panicked");
                WorkResult::retry("panicked", message)
            }
        };
        let ended = Instant::now();
        self.telemetry.reconciled(ending.outcome, ended - began);
        self.finish(&key, ending, ended);
    }

    /// Reads a resource that was not listed just now; `None` if there is nothing to do.
    async fn fetch(&self, key: &Key, lane: Priority, now: Instant) -> Option<C::Resource> {
        let fetching = AssertUnwindSafe(self.reconcile.fetch(key)).catch_unwind();
        match until(now.checked_add(self.config.timeout), fetching).await {
            Ok(Ok(Ok(Fetched::Resource(resource)))) => {
                if lane == Priority::Changed && self.reconcile.is_echo(&resource) {
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
                self.finish(key, WorkResult::retry("unreadable", failure.to_string()), Instant::now());
                None
            }
            Err(_) => {
                self.finish(key, WorkResult::retry("timed_out", "could not be read in time"), Instant::now());
                None
            }
            Ok(Err(panic)) => {
                self.telemetry.count_anomaly(Anomaly::Panic);
                self.finish(key, WorkResult::retry("panicked", message_of(&*panic)), Instant::now());
                None
            }
        }
    }

    fn finish(&self, key: &Key, ending: WorkResult, now: Instant) {
        self.sweeps.done(key, Some(ending.outcome));
        // Drawn only for those it spreads: most passes end well.
        let fraction = if ending.is_spread() { (self.config.jitter)() } else { 0.0 };
        if self.queue.lock().finish(key, ending, fraction, now) {
            self.wake.notify_one();
        }
    }
}

/// What comes of something that may take until a deadline, if there is one. A timer is set only for what is not there
/// at once.
async fn until<F: Future>(deadline: Option<Instant>, task: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    let mut task = std::pin::pin!(task);
    match (std::future::poll_fn(|context| Poll::Ready(task.as_mut().poll(context))).await, deadline) {
        (Poll::Ready(output), _) => Ok(output),
        (Poll::Pending, Some(deadline)) => tokio::time::timeout_at(deadline, task).await,
        (Poll::Pending, None) => Ok(task.await),
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
