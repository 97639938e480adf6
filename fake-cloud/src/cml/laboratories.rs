//! The CML of every instance, by instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::system::System;

/// The systems there are. Clones show the same ones.
#[derive(Clone, Default)]
pub struct Laboratories {
    systems: Arc<Mutex<BTreeMap<String, System>>>,
}

impl Laboratories {
    /// The system of an instance, if the instance has ever run.
    pub fn find(&self, instance: &str) -> Option<System> {
        self.systems.lock().get(instance).cloned()
    }

    /// The system of an instance; `make` makes it if there is none.
    pub fn find_or_insert(&self, instance: &str, make: impl FnOnce() -> System) -> System {
        self.systems.lock().entry(instance.to_owned()).or_insert_with(make).clone()
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
        self.systems.lock().get(instance).is_some_and(|known| known.is_same(system))
    }

    /// All of them, as JSON.
    pub fn show(&self) -> Value {
        let systems = self.systems.lock();
        let shown = systems.iter().map(|(instance, system)| {
            let labs = system.with(|state, _| state.labs.len());
            json!({
                "instance": instance,
                "address": system.options().address,
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
