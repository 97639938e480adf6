//! The state of a world as data, and back.

use std::sync::atomic::Ordering;

use serde::Deserialize;
use serde_json::{Value, json};

use super::World;
use super::account::Accounts;
use super::change_feed::InstanceChange;
use super::ec2::Ec2;
use super::metrics::Metrics;
use super::settings::Settings;
use crate::clock::ClockState;
use crate::faults::FaultsState;

/// A world that was read from a snapshot.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorldState {
    pub(crate) clock: ClockState,
    pub(crate) settings: Settings,
    accounts: Accounts,
    ec2: Ec2,
    metrics: Metrics,
    faults: FaultsState,
    requests: u64,
    logged: u64,
}

impl World {
    /// Runs `work` on the state for a snapshot. EC2 and CloudWatch do not change until it returns.
    ///
    /// The log of requests is left out, except for its count.
    pub(crate) fn capture<T>(&self, work: impl FnOnce(serde_json::Result<Value>) -> T) -> T {
        // Without `..`, so that a new field is either captured or left out on purpose.
        let Self { settings, clock, accounts, ec2, metrics, faults, request_log, requests, subscribers: _ } = self;
        let ec2 = ec2.lock();
        let metrics = metrics.lock();
        let state = || -> serde_json::Result<Value> {
            Ok(json!({
                "clock": clock.capture(),
                "settings": serde_json::to_value(&*settings.read())?,
                "accounts": serde_json::to_value(&*accounts.read())?,
                "ec2": serde_json::to_value(&*ec2)?,
                "metrics": serde_json::to_value(&*metrics)?,
                "faults": faults.capture()?,
                "requests": requests.load(Ordering::Relaxed),
                "logged": request_log.total(),
            }))
        };
        work(state())
    }

    /// Replaces the state, with the time and the pace of the clock.
    pub(crate) fn restore(&self, state: WorldState) {
        let WorldState { clock, settings, accounts, ec2, metrics, faults, requests, logged } = state;
        {
            let mut current = self.ec2.lock();
            *self.settings.write() = Settings { clock: self.clock.clone(), ..settings };
            self.clock.restore(clock);
            *self.accounts.write() = accounts;
            *self.metrics.lock() = metrics;
            *current = ec2;
            self.faults.restore(faults);
            self.requests.store(requests, Ordering::Relaxed);
            self.request_log.restore(logged);
            // Under the lock, so that later changes are published after the restore.
            self.subscribers.publish_reset();
            let all = current.regions().flat_map(|region| {
                region.instances().map(|instance| InstanceChange { region: region.name, sequence: instance.sequence })
            });
            self.subscribers.publish(&all.collect::<Vec<_>>());
        }
    }
}
