//! The look at everything on becoming leader, or on gaining a shard; and polling after it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Readiness, StartupConfig, Swept, WorkerController};
use crate::controller::Controller;
use crate::controller::shards::ShardOwnership;
use crate::controller::sweep::SweepReport;
use crate::workers::fleet::WorkerFleet;

impl WorkerController {
    pub(crate) async fn sweep_then_poll(
        &self,
        controller: &Controller<WorkerFleet>,
        mandate: &ShardOwnership,
        listed: &AtomicBool,
    ) {
        let StartupConfig { delay, limit } = self.inner.config.startup;
        let mut gains = mandate.gains();
        tokio::time::sleep(delay).await;
        listed.store(true, Ordering::Release);
        let report = match limit {
            None => SweepReport::default(),
            Some(limit) => self.sweep(controller, limit).await,
        };
        self.inner.reconciler.telemetry().set_ready();
        self.swept(report);
        let polling = async {
            // The sweep was the first cycle.
            let config = &self.inner.config.controller;
            tokio::time::sleep(config.interval.min(config.initial_delay)).await;
            controller.poll().await;
        };
        let taking_over = async {
            loop {
                gains.next().await;
                // More may come with it.
                tokio::time::sleep(delay).await;
                match limit {
                    Some(limit) => self.swept(self.sweep(controller, limit).await),
                    None => self.cycle(controller).await,
                }
            }
        };
        tokio::join!(polling, taking_over);
    }

    fn swept(&self, report: SweepReport) {
        let ended_at = self.inner.reconciler.ports().clock.now();
        self.inner.readiness.send_replace(Readiness::Ready(Swept { report, ended_at }));
    }

    /// A look at what is gained, where nothing is swept.
    async fn cycle(&self, controller: &Controller<WorkerFleet>) {
        if let Err(failure) = controller.cycle().await {
            tracing::warn!(target: "lcm::controller", %failure, "the workers of a shard could not be listed; polling will");
        }
    }

    async fn sweep(&self, controller: &Controller<WorkerFleet>, limit: Duration) -> SweepReport {
        let backoff = self.inner.config.controller.backoff;
        for failures in 0.. {
            match controller.sweep(limit).await {
                Ok(report) if report.is_complete() => {
                    tracing::info!(target: "lcm::sweep", workers = report.listed, took = ?report.took, outcomes = ?report.outcomes, "start-up sweep done");
                    return report;
                }
                Ok(report) => {
                    tracing::error!(target: "lcm::sweep", workers = report.listed, unfinished = ?report.unfinished, "start-up sweep did not get to everybody in time; going on");
                    return report;
                }
                Err(failure) => {
                    let delay = backoff.delay(failures);
                    tracing::warn!(target: "lcm::sweep", %failure, retry_in = ?delay, "the workers could not be listed for the start-up sweep");
                    tokio::time::sleep(delay).await;
                }
            }
        }
        SweepReport::default()
    }
}
