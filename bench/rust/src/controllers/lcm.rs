//! LCM's controller.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lcm_sdk::controller::{Controller, ControllerConfig, Fetched, ListScope, Listing, Reconcile};
use lcm_sdk::controller::queue::WorkResult;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Requeue, Worker};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Again, worker};
use crate::Error;

/// Passes that do nothing, over workers that are all in memory.
struct Fleet {
    workers: Vec<Arc<Worker>>,
    by_name: HashMap<String, usize>,
    again: Again,
    left: AtomicUsize,
    done: Notify,
}

/// Handed to the controller, and kept to follow what it does.
#[derive(Clone)]
struct Passes(Arc<Fleet>);

impl Reconcile for Passes {
    type Resource = Arc<Worker>;

    fn key<'a>(&self, worker: &'a Arc<Worker>) -> &'a str {
        worker.id.as_str()
    }

    async fn list(&self, _: ListScope) -> Result<Listing<Arc<Worker>>, CallFailure> {
        Ok(Listing { resources: self.0.workers.clone(), resting: Vec::new() })
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<Arc<Worker>>, CallFailure> {
        let found = self.0.by_name.get(key).map(|place| Arc::clone(&self.0.workers[*place]));
        Ok(found.map_or(Fetched::Gone, Fetched::Resource))
    }

    async fn reconcile(&self, worker: Arc<Worker>) -> WorkResult {
        std::hint::black_box(&*worker);
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.done.notify_one();
        }
        ending(self.0.again)
    }
}

/// How a pass that does nothing ends.
#[must_use]
pub fn ending(again: Again) -> WorkResult {
    let requeue = match again {
        Again::OnChange => Requeue::OnChange,
        Again::After(delay) => Requeue::After(delay),
    };
    WorkResult { requeue, ..WorkResult::success() }
}

/// The controller over so many workers, serving until it is dropped.
pub struct LcmController {
    controller: Controller<Passes>,
    fleet: Arc<Fleet>,
    serving: JoinHandle<()>,
}

impl LcmController {
    /// A controller that knows so many workers and runs at most so many passes at once.
    #[must_use]
    pub fn new(size: usize, concurrency: usize, again: Again) -> Self {
        let workers: Vec<Arc<Worker>> = (0..size).map(|number| Arc::new(worker(number))).collect();
        let by_name =
            workers.iter().enumerate().map(|(place, worker)| (worker.id.as_str().to_owned(), place)).collect();
        let fleet = Arc::new(Fleet { workers, by_name, again, left: AtomicUsize::new(0), done: Notify::new() });
        let controller = Controller::new(Passes(Arc::clone(&fleet)), quiet(concurrency), Telemetry::default());
        let serving = tokio::spawn({
            let controller = controller.clone();
            async move { controller.serve(&Shutdown::new()).await }
        });
        Self { controller, fleet, serving }
    }

    /// Looks at every worker once because of a listing.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn look_at_all(&self) -> Result<(), Error> {
        self.fleet.left.store(self.fleet.workers.len(), Ordering::Release);
        self.controller.cycle().await?;
        self.fleet.done.notified().await;
        Ok(())
    }

    /// Looks at every worker once because each is said to have changed.
    pub async fn tell_of_all(&self) {
        self.fleet.left.store(self.fleet.workers.len(), Ordering::Release);
        for worker in &self.fleet.workers {
            self.controller.changed(worker.id.as_str());
        }
        self.fleet.done.notified().await;
    }
}

impl Drop for LcmController {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A controller that does only what it is told to, with the settings it usually has.
#[must_use]
pub fn quiet(concurrency: usize) -> ControllerConfig {
    ControllerConfig { max_concurrent: concurrency, interval: Duration::from_secs(3600), ..ControllerConfig::default() }
}
