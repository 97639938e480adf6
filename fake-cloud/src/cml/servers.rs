//! The CML of every instance, by instance.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::boot::BootStage;
use super::options::Options;
use super::server::CmlServer;
use crate::clock::Clock;

/// The entries there are. Clones show the same ones.
#[derive(Clone, Default)]
pub struct CmlServers {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    registered: u64,
    entries: BTreeMap<String, Entry>,
}

/// A server, where it is to listen while its instance runs, and how that goes.
struct Entry {
    number: u64,
    config: ServerConfig,
    /// None until somebody wants to do something with it: of a large fleet most are never looked into.
    server: Option<CmlServer>,
    address: Option<Ipv4Addr>,
    listen_state: ListenState,
}

/// What a server begins with.
#[derive(Clone)]
pub(crate) struct ServerConfig {
    /// The clock it goes by.
    pub(crate) clock: Clock,
    /// How it is set up, but for the instance and the address.
    pub(crate) options: Arc<Options>,
    /// The address that its instance has then.
    pub(crate) address: Ipv4Addr,
    /// When that is.
    pub(crate) at: DateTime<Utc>,
}

impl Entry {
    fn server(&mut self, instance: &str) -> CmlServer {
        let ServerConfig { clock, options, address, at } = &self.config;
        let make = || {
            let (instance_id, address) = (Some(instance.to_owned()), address.to_string());
            let server = CmlServer::new(clock.clone(), Options { instance_id, address, ..Options::clone(options) });
            server.power_on_at(*at);
            server
        };
        self.server.get_or_insert_with(make).clone()
    }

    fn stage(&self) -> BootStage {
        let ServerConfig { clock, options, at, .. } = &self.config;
        self.server.as_ref().map_or_else(|| options.boot.stage(*at, clock.now()), CmlServer::stage)
    }
}

/// Whether the server of an instance can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenState {
    /// Nobody listens: the instance does not run, or its CML has not come that far.
    #[default]
    Off,
    /// It listens.
    Listening,
    /// It should listen and cannot; this is why.
    Prevented(String),
}

impl CmlServers {
    /// The server of an instance, if the instance has ever run.
    pub fn find(&self, instance: &str) -> Option<CmlServer> {
        self.inner.lock().entries.get_mut(instance).map(|entry| entry.server(instance))
    }

    /// Whether the server of an instance can be reached; none if it has none.
    pub fn listen_state(&self, instance: &str) -> Option<ListenState> {
        self.inner.lock().entries.get(instance).map(|entry| entry.listen_state.clone())
    }

    /// The instances that have a server, with where each is to listen.
    pub fn addresses(&self) -> BTreeMap<String, Option<Ipv4Addr>> {
        self.inner.lock().entries.iter().map(|(instance, entry)| (instance.clone(), entry.address)).collect()
    }

    /// Gives an instance a server if it has none. The answer stands for that one, whatever comes after it.
    pub(crate) fn register(&self, instance: &str, config: ServerConfig) -> u64 {
        let Inner { registered, entries } = &mut *self.inner.lock();
        if let Some(entry) = entries.get(instance) {
            return entry.number;
        }
        *registered += 1;
        let fresh =
            Entry { number: *registered, config, server: None, address: None, listen_state: ListenState::default() };
        entries.insert(instance.to_owned(), fresh);
        *registered
    }

    /// Forgets the server of an instance.
    pub fn remove(&self, instance: &str) {
        self.inner.lock().entries.remove(instance);
    }

    /// Forgets all of them.
    pub fn reset(&self) {
        self.inner.lock().entries.clear();
    }

    /// Whether this very server is still the one of an instance.
    pub(crate) fn is_current(&self, instance: &str, number: u64) -> bool {
        self.inner.lock().entries.get(instance).is_some_and(|known| known.number == number)
    }

    /// Notes where the server of an instance is to listen; none once it is not.
    pub(crate) fn set_address(&self, instance: &str, address: Option<Ipv4Addr>) {
        if let Some(entry) = self.inner.lock().entries.get_mut(instance) {
            entry.address = address;
        }
    }

    /// Notes whether the server of an instance can be reached. Says whether that is news; a server that is not the
    /// instance's any more is none.
    pub(crate) fn set_listen_state(&self, instance: &str, number: u64, listen_state: ListenState) -> bool {
        match self.inner.lock().entries.get_mut(instance) {
            Some(entry) if entry.number == number => {
                std::mem::replace(&mut entry.listen_state, listen_state.clone()) != listen_state
            }
            Some(_) | None => false,
        }
    }

    /// All of them, as JSON.
    pub fn show(&self) -> Value {
        let inner = self.inner.lock();
        let shown = inner.entries.iter().map(|(instance, entry)| {
            let Entry { config, server, address, listen_state, .. } = entry;
            let labs = server.as_ref().map_or(0, |server| server.with(|state, _| state.labs.len()));
            let problem = match listen_state {
                ListenState::Prevented(why) => Some(why),
                ListenState::Off | ListenState::Listening => None,
            };
            json!({
                "instance": instance,
                "address": address,
                "version": config.options.version,
                "stage": format!("{:?}", entry.stage()),
                "listening": *listen_state == ListenState::Listening,
                "problem": problem,
                "labs": labs,
            })
        });
        shown.collect()
    }
}

impl std::fmt::Debug for CmlServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.inner.lock().entries.keys()).finish()
    }
}
