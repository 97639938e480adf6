//! What runs beside the reconcile loop while leading.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Notify;

use crate::controller::Controller;
use crate::controller::shutdown::Shutdown;
use crate::controller::watch::{ResyncCause, WatchNotice};
use crate::lifecycle::backoff::Backoff;
use crate::workers::fleet::WorkerFleet;

/// How long a loop that panicked rests before it is started again.
const REST_AFTER_PANIC: Duration = Duration::from_secs(5);

/// Passes what the watch tells on to the controller.
pub(crate) async fn heed(
    mut notices: tokio::sync::mpsc::Receiver<WatchNotice<String>>,
    controller: &Controller<WorkerFleet>,
    listed: &AtomicBool,
    backoff: Backoff,
) {
    // Beside the notices, so that a slow listing does not hold changes up; asked for again meanwhile, it comes once more.
    let resync = Notify::new();
    let listening = async {
        while let Some(notice) = notices.recv().await {
            match notice {
                WatchNotice::Changed(workers) => workers.iter().for_each(|worker| controller.changed(worker)),
                WatchNotice::Resync(ResyncCause::Began) => {
                    // The start-up sweep looks at everything; a watch that begins after it has missed something.
                    if listed.load(Ordering::Acquire) {
                        resync.notify_one();
                    }
                }
                WatchNotice::Resync(cause) => {
                    tracing::warn!(target: "lcm::watch", ?cause, "changes may have been missed: looking at everything");
                    resync.notify_one();
                }
            }
        }
    };
    let resyncing = async {
        loop {
            resync.notified().await;
            let mut failures = 0;
            // Until it works: there may be no polling to find what was missed.
            while let Err(failure) = controller.cycle().await {
                let delay = backoff.delay(failures);
                failures = failures.saturating_add(1);
                tracing::warn!(target: "lcm::watch", %failure, retry_in = ?delay, "resources could not be listed");
                tokio::time::sleep(delay).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = listening => {}
        () = resyncing => {}
    }
}

/// Runs a loop, and starts it again if it panics: it must not take the others down, nor stay down itself.
pub(crate) async fn supervised<F: Future<Output = ()>>(name: &str, ended: &Shutdown, run: impl Fn() -> F) {
    while std::panic::AssertUnwindSafe(run()).catch_unwind().await.is_err() {
        tracing::error!(target: "lcm::controller", name, "a loop panicked; starting it again");
        tokio::select! {
            biased;
            () = ended.requested() => return,
            () = tokio::time::sleep(REST_AFTER_PANIC) => {}
        }
    }
}
