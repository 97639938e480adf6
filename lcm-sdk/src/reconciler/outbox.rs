//! Delivers events and audits in tasks of their own, so that a slow receiver delays no reconcile.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tracing::{Instrument as _, Span};

use crate::controller::timers::{Busy, Timers};
use crate::lifecycle::event::Audit;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::ports::{CloudEvent, ControlPlane, Events, Fence};
use crate::telemetry::{Anomaly, Telemetry};

/// Maximum number of events, and of audits, that wait for delivery. Further ones are dropped and counted.
const CAPACITY: usize = 1024;
/// Maximum duration of one delivery.
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// Queues of events and audits. Each is delivered in order; neither waits for the other.
pub(super) struct Outbox {
    events: Lane<CloudEvent>,
    audits: Lane<AuditEntry>,
    left: Arc<Left>,
    receivers: Receivers,
    timers: Timers,
}

/// An entry of the scaling audit.
pub(super) struct AuditEntry {
    pub(super) worker: WorkerId,
    pub(super) audit: Audit,
    pub(super) detail: String,
    pub(super) fence: Fence,
}

#[derive(Clone)]
struct Receivers {
    events: Arc<dyn Events>,
    control_plane: Arc<dyn ControlPlane>,
    telemetry: Telemetry,
}

struct Lane<T> {
    /// `None` until the first message: a reconciler can be created outside a runtime.
    sender: Mutex<Option<mpsc::Sender<Message<T>>>>,
    /// Logged once per outage, not once per message.
    is_dropping: AtomicBool,
}

struct Message<T> {
    content: T,
    span: Span,
    _undelivered: Undelivered,
}

/// Number of messages that are not delivered yet.
#[derive(Default)]
struct Left {
    count: AtomicUsize,
    none: Notify,
}

/// Counts one message until it is dropped.
struct Undelivered {
    left: Arc<Left>,
    _busy: Busy,
}

impl Undelivered {
    fn new(left: &Arc<Left>, timers: &Timers) -> Self {
        left.count.fetch_add(1, Ordering::AcqRel);
        Self { left: Arc::clone(left), _busy: timers.busy() }
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if self.left.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.left.none.notify_waiters();
        }
    }
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { sender: Mutex::new(None), is_dropping: AtomicBool::new(false) }
    }
}

impl<T: Send + 'static> Lane<T> {
    /// Queues a message for the lane's task, which is spawned if it does not run.
    ///
    /// # Errors
    /// If the queue is full. The message is dropped.
    fn send<F>(
        &self,
        content: T,
        (left, timers): (&Arc<Left>, &Timers),
        deliver: impl Fn(T) -> F + Send + 'static,
    ) -> Result<(), CallFailure>
    where
        F: Future<Output = ()> + Send,
    {
        let mut message = Message { content, span: Span::current(), _undelivered: Undelivered::new(left, timers) };
        let mut sender = self.sender.lock();
        if let Some(open) = &*sender {
            match open.try_send(message) {
                Ok(()) => {
                    self.is_dropping.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                Err(mpsc::error::TrySendError::Full(_)) => {
                    let reason = format!("{CAPACITY} earlier ones are not delivered yet");
                    return Err(CallFailure::new(FailureKind::Unreachable, reason));
                }
                // The runtime of the task has ended.
                Err(mpsc::error::TrySendError::Closed(returned)) => message = returned,
            }
        }
        let (open, mut messages) = mpsc::channel::<Message<T>>(CAPACITY);
        // A new queue has room.
        let _ = open.try_send(message);
        *sender = Some(open);
        drop(sender);
        tokio::spawn(async move {
            while let Some(Message { content, span, _undelivered }) = messages.recv().await {
                deliver(content).instrument(span).await;
            }
        });
        Ok(())
    }

    /// Whether this is the first message that was dropped since one was queued.
    fn begins_to_drop(&self) -> bool {
        !self.is_dropping.swap(true, Ordering::Relaxed)
    }
}

impl Outbox {
    pub(super) fn new(
        events: Arc<dyn Events>,
        control_plane: Arc<dyn ControlPlane>,
        telemetry: Telemetry,
        timers: Timers,
    ) -> Self {
        let receivers = Receivers { events, control_plane, telemetry };
        Self { events: Lane::default(), audits: Lane::default(), left: Arc::default(), receivers, timers }
    }

    /// Queues an event. Returns at once; a failed delivery is logged and counted later.
    ///
    /// # Errors
    /// If the queue is full. The event is dropped and counted.
    pub(super) fn publish(&self, event: CloudEvent) -> Result<(), CallFailure> {
        let (receivers, subject, kind) = (self.receivers.clone(), event.subject.clone(), event.kind);
        let queued = self.events.send(event, (&self.left, &self.timers), move |event| {
            let receivers = receivers.clone();
            async move {
                let published = within_limit(receivers.events.publish(&event)).await;
                if let Err(failure) = published {
                    tracing::warn!(target: "lcm::events", subject = event.subject, kind = event.kind, %failure, "an event was not delivered");
                    receivers.telemetry.count_anomaly(Anomaly::EventUndelivered);
                }
            }
        });
        if let Err(failure) = &queued {
            self.receivers.telemetry.count_anomaly(Anomaly::EventUndelivered);
            if self.events.begins_to_drop() {
                tracing::warn!(target: "lcm::events", subject, kind, %failure, "events are dropped");
            }
        }
        queued
    }

    /// Queues an audit. Returns at once; a failed delivery is logged and counted later.
    pub(super) fn audit(&self, entry: AuditEntry) {
        let receivers = self.receivers.clone();
        let queued = self.audits.send(entry, (&self.left, &self.timers), move |entry| {
            let receivers = receivers.clone();
            async move {
                let AuditEntry { worker, audit, detail, fence } = entry;
                let audited = within_limit(receivers.control_plane.audit(&worker, audit, &detail, fence)).await;
                if let Err(failure) = audited {
                    let label = audit.label();
                    tracing::warn!(target: "lcm::events", %worker, label, %failure, "not audited");
                    receivers.telemetry.count_anomaly(Anomaly::AuditUndelivered);
                }
            }
        });
        if let Err(failure) = queued {
            self.receivers.telemetry.count_anomaly(Anomaly::AuditUndelivered);
            if self.audits.begins_to_drop() {
                tracing::warn!(target: "lcm::events", %failure, "audits are dropped");
            }
        }
    }

    /// Waits until all events and audits are delivered or have failed, up to a limit. Returns the number of those left.
    pub(super) async fn flush(&self, limit: Duration) -> usize {
        let delivered = async {
            loop {
                let none = self.left.none.notified();
                tokio::pin!(none);
                // From here on no delivery is missed.
                none.as_mut().enable();
                if self.left.count.load(Ordering::Acquire) == 0 {
                    return;
                }
                none.await;
            }
        };
        // The number of those left is returned.
        let _ = tokio::time::timeout(limit, delivered).await;
        self.left.count.load(Ordering::Acquire)
    }
}

async fn within_limit(delivery: impl Future<Output = Result<(), CallFailure>>) -> Result<(), CallFailure> {
    match tokio::time::timeout(DELIVERY_LIMIT, delivery).await {
        Ok(result) => result,
        Err(_) => {
            Err(CallFailure::new(FailureKind::Unclear, format!("not answered within {} s", DELIVERY_LIMIT.as_secs())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::event::Event;
    use crate::providers::memory::{ManualClock, MemoryControlPlane};

    /// A receiver that never answers.
    struct Hung;

    #[async_trait::async_trait]
    impl Events for Hung {
        async fn publish(&self, _: &CloudEvent) -> Result<(), CallFailure> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_beyond_the_capacity_are_dropped_and_counted() {
        let at = "2026-02-06T08:00:00Z".parse().expect("a timestamp");
        let control_plane = Arc::new(MemoryControlPlane::new(Arc::new(ManualClock::new(at))));
        let telemetry = Telemetry::default();
        let outbox = Outbox::new(Arc::new(Hung), control_plane, telemetry.clone(), Timers::default());
        let event = CloudEvent::new("w-1", &Event::DrainCompleted, at);
        for _ in 0..CAPACITY {
            outbox.publish(event.clone()).expect("queued");
        }
        assert!(outbox.publish(event.clone()).is_err());
        assert_eq!(telemetry.anomalies(Anomaly::EventUndelivered), 1);
        // One is under way, and makes room for another.
        assert_eq!(outbox.flush(Duration::from_secs(1)).await, CAPACITY);
        outbox.publish(event).expect("queued");
        tokio::time::sleep(DELIVERY_LIMIT).await;
        assert_eq!(telemetry.anomalies(Anomaly::EventUndelivered), 2, "given up");
    }
}
