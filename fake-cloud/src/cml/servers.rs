//! CML servers by instance id.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::options::{BootStage, Listens, Options};
use super::server::{CmlServer, wait_until_listening};
use crate::clock::Clock;

/// CML servers by instance id. Clones share the entries.
#[derive(Clone, Default)]
pub struct CmlServers {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    registered: u64,
    entries: BTreeMap<String, Entry>,
}

/// Server of one instance, its listen address and listen state.
struct Entry {
    number: u64,
    config: ServerConfig,
    /// Created on first use: most servers of a large fleet are never visited.
    server: Option<CmlServer>,
    address: Option<Ipv4Addr>,
    listen_state: ListenState,
}

/// Parameters of a server.
#[derive(Clone)]
pub(crate) struct ServerConfig {
    /// Clock of the world.
    pub(crate) clock: Clock,
    /// Options except the instance id and the address.
    pub(crate) options: Arc<Options>,
    /// Public address of the instance at registration.
    pub(crate) address: Ipv4Addr,
    /// Time at which the instance was powered on last.
    pub(crate) at: DateTime<Utc>,
}

impl Entry {
    fn server(&mut self, instance: &str) -> CmlServer {
        let ServerConfig { clock, options, address, at } = &self.config;
        let create = || {
            let (instance_id, address) = (Some(instance.to_owned()), address.to_string());
            let server = CmlServer::new(clock.clone(), Options { instance_id, address, ..Options::clone(options) });
            server.power_on_at(*at);
            server
        };
        self.server.get_or_insert_with(create).clone()
    }

    fn stage(&self) -> BootStage {
        let ServerConfig { clock, options, at, .. } = &self.config;
        self.server.as_ref().map_or_else(|| options.boot.stage(*at, clock.now()), CmlServer::stage)
    }

    fn listens(&self) -> Listens {
        let ServerConfig { clock, options, at, .. } = &self.config;
        self.server.as_ref().map_or_else(|| options.boot.listens(*at, clock.now()), CmlServer::listens)
    }
}

/// Whether the server of an instance is reachable.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenState {
    /// Not listening: the instance is not running, or CML has not booted far enough.
    #[default]
    Off,
    /// Listening on its address.
    Listening,
    /// Listening failed, with the reason.
    Prevented(String),
}

impl CmlServers {
    /// Server of an instance; `None` if the instance has never run.
    pub fn find(&self, instance: &str) -> Option<CmlServer> {
        self.inner.lock().entries.get_mut(instance).map(|entry| entry.server(instance))
    }

    /// Listen state of an instance's server; `None` if it has none.
    pub fn listen_state(&self, instance: &str) -> Option<ListenState> {
        self.inner.lock().entries.get(instance).map(|entry| entry.listen_state.clone())
    }

    /// Instances with a server, with their listen address while they run.
    pub fn addresses(&self) -> BTreeMap<String, Option<Ipv4Addr>> {
        self.inner.lock().entries.iter().map(|(instance, entry)| (instance.clone(), entry.address)).collect()
    }

    /// Registers a server for an instance unless it has one. Returns its registration number.
    pub(crate) fn register(&self, instance: &str, config: ServerConfig) -> u64 {
        let Inner { registered, entries } = &mut *self.inner.lock();
        if let Some(entry) = entries.get(instance) {
            return entry.number;
        }
        *registered += 1;
        let entry =
            Entry { number: *registered, config, server: None, address: None, listen_state: ListenState::default() };
        entries.insert(instance.to_owned(), entry);
        *registered
    }

    /// Removes the server of an instance.
    pub fn remove(&self, instance: &str) {
        self.inner.lock().entries.remove(instance);
    }

    /// Removes every server.
    pub fn reset(&self) {
        self.inner.lock().entries.clear();
    }

    /// Whether `number` is the current registration of the instance.
    pub(crate) fn is_current(&self, instance: &str, number: u64) -> bool {
        self.inner.lock().entries.get(instance).is_some_and(|entry| entry.number == number)
    }

    /// Powers the server of an instance on as of `moment`, at an address. An outdated `number` changes nothing.
    pub(crate) fn power_on(&self, instance: &str, number: u64, address: Ipv4Addr, moment: DateTime<Utc>) {
        self.change(instance, number, |entry| {
            entry.address = Some(address);
            entry.config.at = moment;
            if let Some(server) = &entry.server {
                server.power_on_at(moment);
            }
        });
    }

    /// Powers the server of an instance off. An outdated `number` changes nothing.
    pub(crate) fn power_off(&self, instance: &str, number: u64) {
        self.change(instance, number, |entry| {
            entry.address = None;
            if let Some(server) = &entry.server {
                server.power_off();
            }
        });
    }

    fn change(&self, instance: &str, number: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.inner.lock().entries.get_mut(instance)
            && entry.number == number
        {
            change(entry);
        }
    }

    /// Boot stage of an instance's server; `None` if it has none.
    pub(crate) fn stage(&self, instance: &str) -> Option<BootStage> {
        self.inner.lock().entries.get(instance).map(Entry::stage)
    }

    /// Waits until the server of an instance has left [`BootStage::Refused`].
    pub(crate) async fn wait_until_listening(&self, clock: &Clock, instance: &str) {
        let listens = || self.inner.lock().entries.get(instance).map_or(Listens::Unknown, Entry::listens);
        wait_until_listening(clock, listens).await;
    }

    /// Sets the listen state. Returns whether it changed; an outdated `number` changes nothing.
    pub(crate) fn set_listen_state(&self, instance: &str, number: u64, listen_state: ListenState) -> bool {
        let mut is_new = false;
        self.change(instance, number, |entry| {
            is_new = entry.listen_state != listen_state;
            entry.listen_state = listen_state;
        });
        is_new
    }

    /// All servers as JSON, for the admin API.
    pub fn to_json(&self) -> Value {
        let inner = self.inner.lock();
        let servers = inner.entries.iter().map(|(instance, entry)| {
            let Entry { config, server, address, listen_state, .. } = entry;
            let labs = server.as_ref().map_or(0, |server| server.with(|state, _| state.labs.len()));
            let problem = match listen_state {
                ListenState::Prevented(why) => Some(why),
                ListenState::Off | ListenState::Listening => None,
            };
            json!({
                "instance": instance,
                "address": address,
                "version": config.options.version(),
                "stage": format!("{:?}", entry.stage()),
                "listening": *listen_state == ListenState::Listening,
                "problem": problem,
                "labs": labs,
            })
        });
        servers.collect()
    }
}

impl std::fmt::Debug for CmlServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.inner.lock().entries.keys()).finish()
    }
}
