//! What controllers changed, as the cloud heard it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use fake_cloud::{LoggedRequest, RequestLog, RequestOutcome, Service};

/// Operations of the control plane that a decision rests on. Metrics and events are none.
const WRITES: [&str; 7] = [
    "write_status",
    "write_ec2_details",
    "terminate_worker",
    "drain_worker",
    "transition_session",
    "terminate_session",
    "bulk_import",
];

/// An instance that was told to stop or to end, and when.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) at: DateTime<Utc>,
    pub(crate) instances: String,
}

#[derive(Debug, Default)]
struct Heard {
    changes: u64,
    endings: Vec<Ending>,
}

/// Clones hear the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal(Arc<(Mutex<Heard>, Condvar)>);

impl Journal {
    pub(crate) fn listen_to(&self, request_log: &RequestLog) {
        let journal = self.clone();
        request_log.on_request(move |record| journal.hear(record));
    }

    fn hear(&self, record: &LoggedRequest) {
        // What was carried out, whether or not anybody was told.
        let is_done = matches!(record.outcome, RequestOutcome::Served { .. } | RequestOutcome::ResponseDropped);
        let (operation, ec2) = (record.operation.as_str(), record.service == Service::Ec2);
        let ends = ec2 && matches!(operation, "StopInstances" | "TerminateInstances");
        let begins = ec2 && matches!(operation, "RunInstances" | "StartInstances");
        let writes = record.service == Service::ControlPlane && WRITES.contains(&operation);
        if !is_done || !(ends || begins || writes) {
            return;
        }
        let (heard, more) = &*self.0;
        let mut heard = heard.lock().expect("no panic while it was held");
        heard.changes += 1;
        if ends {
            let instances = record.subject.clone().unwrap_or_default();
            heard.endings.push(Ending { at: record.at, instances });
        }
        more.notify_all();
    }

    /// How many changes were made so far.
    pub(crate) fn changes(&self) -> u64 {
        self.0.0.lock().expect("no panic while it was held").changes
    }

    pub(crate) fn endings(&self) -> Vec<Ending> {
        self.0.0.lock().expect("no panic while it was held").endings.clone()
    }

    /// Waits until so many changes were made; false if they are not in time.
    pub(crate) fn wait_for(&self, changes: u64, limit: Duration) -> bool {
        let (heard, more) = &*self.0;
        let deadline = Instant::now() + limit;
        let mut heard = heard.lock().expect("no panic while it was held");
        while heard.changes < changes {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            heard = more.wait_timeout(heard, left).expect("no panic while it was held").0;
        }
        true
    }
}
