//! The CML of every instance, by instance.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::system::System;

/// The systems there are. Clones show the same ones.
#[derive(Clone, Default)]
pub struct Laboratories {
    systems: Arc<Mutex<BTreeMap<String, Laboratory>>>,
}

/// A system, where it is to listen while its instance runs, and how that goes.
struct Laboratory {
    system: System,
    address: Option<Ipv4Addr>,
    presence: Presence,
}

/// Whether the system of an instance can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// Nobody listens: the instance does not run, or its CML has not come that far.
    #[default]
    Off,
    /// It listens.
    Listening,
    /// It should listen and cannot; this is why.
    Prevented(String),
}

impl Laboratories {
    /// The system of an instance, if the instance has ever run.
    pub fn find(&self, instance: &str) -> Option<System> {
        self.systems.lock().get(instance).map(|laboratory| laboratory.system.clone())
    }

    /// Whether the system of an instance can be reached; none if it has none.
    pub fn presence(&self, instance: &str) -> Option<Presence> {
        self.systems.lock().get(instance).map(|laboratory| laboratory.presence.clone())
    }

    /// The instances that have a system, with where each is to listen.
    pub fn addresses(&self) -> BTreeMap<String, Option<Ipv4Addr>> {
        self.systems.lock().iter().map(|(instance, laboratory)| (instance.clone(), laboratory.address)).collect()
    }

    /// The system of an instance; `make` makes it if there is none.
    pub fn find_or_insert(&self, instance: &str, make: impl FnOnce() -> System) -> System {
        let mut systems = self.systems.lock();
        let fresh = || Laboratory { system: make(), address: None, presence: Presence::Off };
        systems.entry(instance.to_owned()).or_insert_with(fresh).system.clone()
    }

    /// Forgets the system of an instance.
    pub fn remove(&self, instance: &str) {
        self.systems.lock().remove(instance);
    }

    /// Forgets all of them.
    pub fn reset(&self) {
        self.systems.lock().clear();
    }

    /// Whether this very system is still the one of an instance.
    pub(crate) fn is_current(&self, instance: &str, system: &System) -> bool {
        self.systems.lock().get(instance).is_some_and(|known| known.system.is_same(system))
    }

    /// Notes where the system of an instance is to listen; none once it is not.
    pub(crate) fn note_address(&self, instance: &str, address: Option<Ipv4Addr>) {
        if let Some(laboratory) = self.systems.lock().get_mut(instance) {
            laboratory.address = address;
        }
    }

    /// Notes whether the system of an instance can be reached. Says whether that is news; a system that is not the
    /// instance's any more is none.
    pub(crate) fn note_presence(&self, instance: &str, system: &System, presence: Presence) -> bool {
        match self.systems.lock().get_mut(instance) {
            Some(laboratory) if laboratory.system.is_same(system) => {
                std::mem::replace(&mut laboratory.presence, presence.clone()) != presence
            }
            Some(_) | None => false,
        }
    }

    /// All of them, as JSON.
    pub fn show(&self) -> Value {
        let systems = self.systems.lock();
        let shown = systems.iter().map(|(instance, Laboratory { system, address, presence })| {
            let labs = system.with(|state, _| state.labs.len());
            let problem = match presence {
                Presence::Prevented(why) => Some(why),
                Presence::Off | Presence::Listening => None,
            };
            json!({
                "instance": instance,
                "address": address,
                "version": system.options().version,
                "stage": format!("{:?}", system.stage()),
                "listening": *presence == Presence::Listening,
                "problem": problem,
                "labs": labs,
            })
        });
        shown.collect()
    }
}

impl std::fmt::Debug for Laboratories {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.systems.lock().keys()).finish()
    }
}
