//! LCM's controller over workers in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lcm_sdk::controller::{
    ControllerConfig, LeaderLease, ListRequest, Resource, ResourceList, Runner, Shutdown, WorkResult,
};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Requeue, Worker};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Again, worker};
use crate::Error;

/// Workers in memory, and the number of reconciles left in this round.
struct Fleet {
    workers: Vec<Arc<Worker>>,
    by_name: HashMap<String, usize>,
    again: Again,
    left: AtomicUsize,
    done: Notify,
}

/// No-op reconciles of a fleet.
#[derive(Clone)]
struct NoOp(Arc<Fleet>);

impl Resource for NoOp {
    type Object = Arc<Worker>;

    fn key<'a>(&self, worker: &'a Arc<Worker>) -> &'a str {
        worker.id.as_str()
    }

    async fn list(&self, _: &ListRequest) -> Result<ResourceList<Arc<Worker>>, CallFailure> {
        Ok(ResourceList::from(self.0.workers.clone()))
    }

    async fn fetch(&self, key: &str) -> Result<Option<Arc<Worker>>, CallFailure> {
        Ok(self.0.by_name.get(key).map(|place| Arc::clone(&self.0.workers[*place])))
    }

    async fn reconcile(&self, worker: Arc<Worker>, _: LeaderLease) -> WorkResult {
        std::hint::black_box(&*worker);
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.done.notify_one();
        }
        work_result(self.0.again)
    }
}

/// Result of a no-op reconcile.
#[must_use]
pub fn work_result(again: Again) -> WorkResult {
    let requeue = match again {
        Again::OnChange => Requeue::OnChange,
        Again::After(delay) => Requeue::After(delay),
    };
    WorkResult { requeue, ..WorkResult::success() }
}

/// LCM's controller, running until it is dropped.
pub struct LcmController {
    controller: Runner<NoOp>,
    fleet: Arc<Fleet>,
    serving: JoinHandle<()>,
}

impl LcmController {
    /// Starts a controller over `size` workers that runs at most `concurrency` reconciles at once.
    #[must_use]
    pub fn new(size: usize, concurrency: usize, again: Again) -> Self {
        let workers: Vec<Arc<Worker>> = (0..size).map(|number| Arc::new(worker(number))).collect();
        let by_name =
            workers.iter().enumerate().map(|(place, worker)| (worker.id.as_str().to_owned(), place)).collect();
        let fleet = Arc::new(Fleet { workers, by_name, again, left: AtomicUsize::new(0), done: Notify::new() });
        let controller =
            Runner::new(Arc::new(NoOp(Arc::clone(&fleet))), without_cycles(concurrency), Telemetry::default());
        let serving = tokio::spawn({
            let controller = controller.clone();
            async move { controller.serve(&Shutdown::new()).await }
        });
        Self { controller, fleet, serving }
    }

    /// Reconciles every worker once after a listing.
    ///
    /// # Errors
    /// If the listing fails.
    pub async fn reconcile_listed(&self) -> Result<(), Error> {
        self.fleet.left.store(self.fleet.workers.len(), Ordering::Release);
        self.controller.cycle().await?;
        self.fleet.done.notified().await;
        Ok(())
    }

    /// Reconciles every worker once after reporting each as changed.
    pub async fn reconcile_changed(&self) {
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

/// Returns the default configuration without periodic listings.
#[must_use]
pub fn without_cycles(concurrency: usize) -> ControllerConfig {
    ControllerConfig::default().with_max_concurrent(concurrency).with_interval(Duration::from_secs(3600))
}
