//! The CML of every instance, by instance.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::boot::Stage;
use super::options::Options;
use super::system::System;
use crate::clock::Clock;

/// The systems there are. Clones show the same ones.
#[derive(Clone, Default)]
pub struct Laboratories {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    founded: u64,
    systems: BTreeMap<String, Laboratory>,
}

/// A system, where it is to listen while its instance runs, and how that goes.
struct Laboratory {
    number: u64,
    founding: Founding,
    /// None until somebody wants to do something with it: of a large fleet most are never looked into.
    system: Option<System>,
    address: Option<Ipv4Addr>,
    presence: Presence,
}

/// What a system begins with.
#[derive(Clone)]
pub(crate) struct Founding {
    /// The clock it goes by.
    pub(crate) clock: Clock,
    /// How it is set up, but for the instance and the address.
    pub(crate) options: Arc<Options>,
    /// The address that its instance has then.
    pub(crate) address: Ipv4Addr,
    /// When that is.
    pub(crate) at: DateTime<Utc>,
}

impl Laboratory {
    fn system(&mut self, instance: &str) -> System {
        let Founding { clock, options, address, at } = &self.founding;
        let make = || {
            let (instance_id, address) = (Some(instance.to_owned()), address.to_string());
            let system = System::new(clock.clone(), Options { instance_id, address, ..Options::clone(options) });
            system.switch_on_at(*at);
            system
        };
        self.system.get_or_insert_with(make).clone()
    }

    fn stage(&self) -> Stage {
        let Founding { clock, options, at, .. } = &self.founding;
        self.system.as_ref().map_or_else(|| options.boot.stage(*at, clock.now()), System::stage)
    }
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
        self.shared.lock().systems.get_mut(instance).map(|laboratory| laboratory.system(instance))
    }

    /// Whether the system of an instance can be reached; none if it has none.
    pub fn presence(&self, instance: &str) -> Option<Presence> {
        self.shared.lock().systems.get(instance).map(|laboratory| laboratory.presence.clone())
    }

    /// The instances that have a system, with where each is to listen.
    pub fn addresses(&self) -> BTreeMap<String, Option<Ipv4Addr>> {
        self.shared.lock().systems.iter().map(|(instance, laboratory)| (instance.clone(), laboratory.address)).collect()
    }

    /// Gives an instance a system if it has none. The answer stands for that one, whatever comes after it.
    pub(crate) fn found(&self, instance: &str, founding: Founding) -> u64 {
        let Shared { founded, systems } = &mut *self.shared.lock();
        if let Some(laboratory) = systems.get(instance) {
            return laboratory.number;
        }
        *founded += 1;
        let fresh =
            Laboratory { number: *founded, founding, system: None, address: None, presence: Presence::default() };
        systems.insert(instance.to_owned(), fresh);
        *founded
    }

    /// Forgets the system of an instance.
    pub fn remove(&self, instance: &str) {
        self.shared.lock().systems.remove(instance);
    }

    /// Forgets all of them.
    pub fn reset(&self) {
        self.shared.lock().systems.clear();
    }

    /// Whether this very system is still the one of an instance.
    pub(crate) fn is_current(&self, instance: &str, number: u64) -> bool {
        self.shared.lock().systems.get(instance).is_some_and(|known| known.number == number)
    }

    /// Notes where the system of an instance is to listen; none once it is not.
    pub(crate) fn note_address(&self, instance: &str, address: Option<Ipv4Addr>) {
        if let Some(laboratory) = self.shared.lock().systems.get_mut(instance) {
            laboratory.address = address;
        }
    }

    /// Notes whether the system of an instance can be reached. Says whether that is news; a system that is not the
    /// instance's any more is none.
    pub(crate) fn note_presence(&self, instance: &str, number: u64, presence: Presence) -> bool {
        match self.shared.lock().systems.get_mut(instance) {
            Some(laboratory) if laboratory.number == number => {
                std::mem::replace(&mut laboratory.presence, presence.clone()) != presence
            }
            Some(_) | None => false,
        }
    }

    /// All of them, as JSON.
    pub fn show(&self) -> Value {
        let shared = self.shared.lock();
        let shown = shared.systems.iter().map(|(instance, laboratory)| {
            let Laboratory { founding, system, address, presence, .. } = laboratory;
            let labs = system.as_ref().map_or(0, |system| system.with(|state, _| state.labs.len()));
            let problem = match presence {
                Presence::Prevented(why) => Some(why),
                Presence::Off | Presence::Listening => None,
            };
            json!({
                "instance": instance,
                "address": address,
                "version": founding.options.version,
                "stage": format!("{:?}", laboratory.stage()),
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
        f.debug_set().entries(self.shared.lock().systems.keys()).finish()
    }
}
