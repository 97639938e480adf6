//! Changes made by controllers, from the request log of the cloud.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use fake_cloud::{LoggedRequest, RequestLog, RequestOutcome, Service};

/// Control plane operations that change decisions. Metrics and events do not.
const WRITES: [&str; 7] = [
    "write_status",
    "write_ec2_details",
    "terminate_worker",
    "drain_worker",
    "transition_session",
    "terminate_session",
    "bulk_import",
];

/// A request to stop or terminate instances.
#[derive(Debug, Clone)]
pub(crate) struct StopRequest {
    pub(crate) at: DateTime<Utc>,
    pub(crate) instances: String,
}

#[derive(Debug, Default)]
struct State {
    changes: u64,
    stop_requests: Vec<StopRequest>,
}

/// Clones share the same state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal(Arc<(Mutex<State>, Condvar)>);

impl Journal {
    pub(crate) fn subscribe(&self, request_log: &RequestLog) {
        let journal = self.clone();
        request_log.on_request(move |record| journal.record(record));
    }

    fn record(&self, request: &LoggedRequest) {
        // Applied requests, even if their response was lost.
        let is_applied = matches!(request.outcome, RequestOutcome::Served { .. } | RequestOutcome::ResponseDropped);
        let (operation, ec2) = (request.operation.as_str(), request.service == Service::Ec2);
        let ends = ec2 && matches!(operation, "StopInstances" | "TerminateInstances");
        let begins = ec2 && matches!(operation, "RunInstances" | "StartInstances");
        let writes = request.service == Service::ControlPlane && WRITES.contains(&operation);
        if !is_applied || !(ends || begins || writes) {
            return;
        }
        let (state, changed) = &*self.0;
        let mut state = state.lock().expect("not poisoned");
        state.changes += 1;
        if ends {
            let instances = request.subject.clone().unwrap_or_default();
            state.stop_requests.push(StopRequest { at: request.at, instances });
        }
        changed.notify_all();
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.0.0.lock().expect("not poisoned").changes
    }

    pub(crate) fn stop_requests(&self) -> Vec<StopRequest> {
        self.0.0.lock().expect("not poisoned").stop_requests.clone()
    }

    /// Waits until this many changes were made; returns false after `limit`.
    pub(crate) fn wait_for(&self, changes: u64, limit: Duration) -> bool {
        let (state, changed) = &*self.0;
        let deadline = Instant::now() + limit;
        let mut state = state.lock().expect("not poisoned");
        while state.changes < changes {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            state = changed.wait_timeout(state, left).expect("not poisoned").0;
        }
        true
    }
}
