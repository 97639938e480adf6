//! Instances, one after the other, as a listing and a launch show them.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::Xml;
use super::instance_xml::instance;
use crate::answer::List;
use crate::world::{ACCOUNT, Instance, InstanceState, Novelty};

/// Instances as they were at a moment. Nothing that happens to them later shows.
pub(super) struct InstanceList {
    /// Each with the place of its reservation in the order in which they first appear.
    instances: Vec<(usize, Arc<Instance>)>,
    frame: Frame,
    now: DateTime<Utc>,
}

/// What is around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// The reservation of each.
    Reservations,
    /// Nothing: they are of one launch, which is new or was known.
    Launch(Novelty),
}

impl InstanceList {
    /// Instances of one launch stay together, in the order in which each launch first appears.
    pub(super) fn by_reservation(instances: Vec<Arc<Instance>>, now: DateTime<Utc>) -> Self {
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut found: Vec<usize> = Vec::with_capacity(instances.len());
        let mut before: Option<(&str, usize)> = None;
        for instance in &instances {
            let id = &*instance.reservation_id;
            let place = match before {
                // Mostly they come together.
                Some((same, place)) if same == id => place,
                Some(_) | None => {
                    let next = places.len();
                    *places.entry(id).or_insert(next)
                }
            };
            before = Some((id, place));
            found.push(place);
        }
        let mut instances: Vec<_> = found.into_iter().zip(instances).collect();
        instances.sort_by_key(|(place, _)| *place);
        Self { instances, frame: Frame::Reservations, now }
    }

    /// The instances of a launch.
    pub(super) fn of_launch(instances: Vec<Arc<Instance>>, novelty: Novelty, now: DateTime<Utc>) -> Self {
        let instances = instances.into_iter().map(|instance| (0, instance)).collect();
        Self { instances, frame: Frame::Launch(novelty), now }
    }

    fn reservation(&self, place: Option<usize>) -> Option<usize> {
        self.instances.get(place?).map(|(reservation, _)| *reservation)
    }
}

impl List for InstanceList {
    fn len(&self) -> usize {
        self.instances.len()
    }

    fn write(&self, place: usize, answer: &mut Vec<u8>) {
        let Some((reservation, member)) = self.instances.get(place) else { return };
        let (reservation, now) = (Some(*reservation), self.now);
        Xml::write_on(answer, |xml| match self.frame {
            // However fast it is, a launch answers that it is on its way.
            Frame::Launch(Novelty::New) => instance(xml, member, InstanceState::Pending, now),
            Frame::Launch(Novelty::Known) => instance(xml, member, member.state(now), now),
            Frame::Reservations => {
                if self.reservation(place.checked_sub(1)) != reservation {
                    xml.open("item");
                    reservation_head(xml, &member.reservation_id);
                    xml.open("instancesSet");
                }
                instance(xml, member, member.state(now), now);
                if self.reservation(place.checked_add(1)) != reservation {
                    xml.close("instancesSet");
                    xml.close("item");
                }
            }
        });
    }
}

pub(super) fn reservation_head(xml: &mut Xml, reservation_id: &str) {
    xml.text("reservationId", reservation_id);
    xml.text("ownerId", ACCOUNT);
    xml.raw("<groupSet/>");
}
