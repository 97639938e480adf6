//! The CML of every instance, by instance.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::system::System;

/// The systems there are. Clones show the same ones.
#[derive(Clone, Default)]
pub struct Laboratories {
    systems: Arc<Mutex<BTreeMap<String, Laboratory>>>,
}

/// A system, and where it listens while it does.
struct Laboratory {
    system: System,
    address: Option<Ipv4Addr>,
}

impl Laboratories {
    /// The system of an instance, if the instance has ever run.
    pub fn find(&self, instance: &str) -> Option<System> {
        self.systems.lock().get(instance).map(|laboratory| laboratory.system.clone())
    }

    /// The system of an instance; `make` makes it if there is none.
    pub fn find_or_insert(&self, instance: &str, make: impl FnOnce() -> System) -> System {
        let mut systems = self.systems.lock();
        let fresh = || Laboratory { system: make(), address: None };
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

    /// Notes where the system of an instance listens; none once it does not.
    pub(crate) fn note_address(&self, instance: &str, address: Option<Ipv4Addr>) {
        if let Some(laboratory) = self.systems.lock().get_mut(instance) {
            laboratory.address = address;
        }
    }

    /// All of them, as JSON.
    pub fn show(&self) -> Value {
        let systems = self.systems.lock();
        let shown = systems.iter().map(|(instance, Laboratory { system, address })| {
            let labs = system.with(|state, _| state.labs.len());
            json!({
                "instance": instance,
                "address": address,
                "version": system.options().version,
                "stage": format!("{:?}", system.stage()),
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
