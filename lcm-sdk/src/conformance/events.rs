//! What every [`Events`] does.

use async_trait::async_trait;

use crate::lifecycle::event::Event;
use crate::lifecycle::time::Timestamp;
use crate::ports::{CloudEvent, Events};

/// A place for events, and somebody who looks what arrived there.
#[async_trait]
pub trait EventsWorld: Send + Sync {
    /// The port under test.
    fn events(&self) -> &dyn Events;
    /// The type and subject of what has arrived, oldest first.
    async fn arrived(&self) -> Vec<(String, String)>;
}

/// Runs the whole suite.
///
/// # Panics
/// When the port does not do what its docs say.
pub async fn suite(world: &dyn EventsWorld) {
    promise!(events_arrive_in_the_order_they_were_published(world));
}

async fn events_arrive_in_the_order_they_were_published(world: &dyn EventsWorld) {
    let at: Timestamp = Timestamp::UNIX_EPOCH;
    let started =
        Event::DrainStarted { running_sessions: 2, reason: "scale_down".into(), requested_by: "somebody".into() };
    for event in [started, Event::DrainCompleted] {
        world.events().publish(&CloudEvent::about("w-1", &event, at)).await.expect("an event is published");
    }
    let expected =
        ["cml_worker.drain.started.v1", "cml_worker.drain.completed.v1"].map(|kind| (kind.into(), "w-1".into()));
    assert_eq!(world.arrived().await, expected, "events arrive in the order they were published");
}
