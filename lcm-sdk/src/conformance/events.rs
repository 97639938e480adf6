//! Conformance suite of [`Events`].

use async_trait::async_trait;

use crate::lifecycle::event::Event;
use crate::lifecycle::time::Timestamp;
use crate::ports::{CloudEvent, Events};

/// Fixture of the suite: a sink whose received events can be read.
#[async_trait]
pub trait EventsWorld: Send + Sync {
    /// The port under test.
    fn events(&self) -> &dyn Events;
    /// Type and subject of the received events, oldest first.
    async fn arrived(&self) -> Vec<(String, String)>;
}

/// Checks all promises of the port.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn EventsWorld) {
    promise!(events_arrive_in_order(world));
}

async fn events_arrive_in_order(world: &dyn EventsWorld) {
    let at: Timestamp = Timestamp::UNIX_EPOCH;
    let started =
        Event::DrainStarted { running_sessions: 2, reason: "scale_down".into(), requested_by: "an operator".into() };
    for event in [started, Event::DrainCompleted] {
        world.events().publish(&CloudEvent::new("w-1", &event, at)).await.expect("an event is published");
    }
    let expected =
        ["cml_worker.drain.started.v1", "cml_worker.drain.completed.v1"].map(|kind| (kind.into(), "w-1".into()));
    assert_eq!(world.arrived().await, expected, "events arrive in the order of publication");
}
