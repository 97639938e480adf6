//! CML servers by instance id.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::options::{BootStage, Listens, Options};
use super::server::{CmlServer, ServerState, wait_until_listening};
use crate::clock::Clock;
use crate::middleware::Middleware;

/// CML servers by instance id. Clones share the entries.
#[derive(Clone, Default)]
pub struct CmlServers {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    registered: u64,
    entries: BTreeMap<String, Entry>,
    /// Options of all servers except version, instance id and address.
    options: Options,
    /// Options by version.
    by_version: BTreeMap<String, Arc<Options>>,
    /// Makes the middleware of the servers of a version.
    middleware: Option<Box<MakeMiddleware>>,
    /// Registration numbers of the servers that were restored last.
    restored: Option<RangeInclusive<u64>>,
}

type MakeMiddleware = dyn Fn(&str) -> Middleware + Send + Sync;

impl Inner {
    /// Options for servers of a version. A configured version wins.
    fn options_of(&mut self, version: Option<String>) -> Arc<Options> {
        let Self { options, by_version, middleware, .. } = self;
        let version = options.version.clone().or(version);
        let options = Options { version, ..options.clone() };
        let shared = by_version.entry(options.version().to_owned()).or_insert_with(|| {
            let middleware = middleware.as_ref().map_or_else(Middleware::default, |make| make(options.version()));
            Arc::new(Options { middleware, ..options })
        });
        Arc::clone(shared)
    }
}

/// All servers of a snapshot.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServersState {
    options: Options,
    servers: BTreeMap<String, EntryState>,
}

/// A server of a snapshot. Where it listens follows from its instance.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryState {
    version: Option<String>,
    address: Ipv4Addr,
    at: DateTime<Utc>,
    state: Option<ServerState>,
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

impl ServerConfig {
    fn server(&self, instance: &str, create: impl FnOnce(Clock, Options) -> CmlServer) -> CmlServer {
        let (instance_id, address) = (Some(instance.to_owned()), self.address.to_string());
        create(self.clock.clone(), Options { instance_id, address, ..Options::clone(&self.options) })
    }
}

impl Entry {
    fn server(&mut self, instance: &str) -> CmlServer {
        let Self { config, server, .. } = self;
        let create = || {
            let server = config.server(instance, CmlServer::new);
            server.power_on_at(config.at);
            server
        };
        server.get_or_insert_with(create).clone()
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

    /// Sets the options of all servers except version, instance id and address, and the source of their middleware.
    pub(crate) fn configure(&self, options: Options, middleware: impl Fn(&str) -> Middleware + Send + Sync + 'static) {
        let inner = &mut *self.inner.lock();
        inner.options = options;
        inner.middleware = Some(Box::new(middleware));
        inner.by_version.clear();
    }

    /// Returns the options for servers of a version.
    pub(crate) fn options_of(&self, version: Option<String>) -> Arc<Options> {
        self.inner.lock().options_of(version)
    }

    /// Returns the options of all servers.
    pub(crate) fn options(&self) -> Options {
        self.inner.lock().options.clone()
    }

    /// Returns the state of all servers for a snapshot.
    pub(crate) fn capture(&self) -> serde_json::Result<Value> {
        // Without `..`, so that a new field is either captured or left out on purpose.
        let Inner { registered: _, entries, options, by_version: _, middleware: _, restored: _ } = &*self.inner.lock();
        let mut servers = serde_json::Map::new();
        for (instance, entry) in entries {
            let Entry { number: _, config, server, address: _, listen_state: _ } = entry;
            let ServerConfig { clock: _, options, address, at } = config;
            let state = server.as_ref().map(CmlServer::capture).transpose()?;
            let entry = json!({"version": options.version, "address": address, "at": at, "state": state});
            servers.insert(instance.clone(), entry);
        }
        Ok(json!({"options": serde_json::to_value(options)?, "servers": servers}))
    }

    /// Replaces all servers. Each listens again once it is told to.
    pub(crate) fn restore(&self, state: ServersState, clock: &Clock) {
        let inner = &mut *self.inner.lock();
        inner.options = state.options;
        inner.by_version.clear();
        inner.entries.clear();
        let first = inner.registered + 1;
        for (instance, EntryState { version, address, at, state }) in state.servers {
            let options = inner.options_of(version);
            let config = ServerConfig { clock: clock.clone(), options, address, at };
            let server = state
                .map(|state| config.server(&instance, |clock, options| CmlServer::restored(clock, options, state)));
            inner.registered += 1;
            let (number, listen_state) = (inner.registered, ListenState::default());
            inner.entries.insert(instance, Entry { number, config, server, address: None, listen_state });
        }
        inner.restored = Some(first..=inner.registered);
    }

    /// Returns whether a registration is one of the last restore.
    pub(crate) fn is_restored(&self, number: u64) -> bool {
        self.inner.lock().restored.as_ref().is_some_and(|restored| restored.contains(&number))
    }

    /// Returns the registration number of the server of an instance.
    pub(crate) fn number(&self, instance: &str) -> Option<u64> {
        self.inner.lock().entries.get(instance).map(|entry| entry.number)
    }

    /// Instances with a server, with their listen address while they run.
    pub fn addresses(&self) -> BTreeMap<String, Option<Ipv4Addr>> {
        self.inner.lock().entries.iter().map(|(instance, entry)| (instance.clone(), entry.address)).collect()
    }

    /// Registers a server for an instance unless it has one. Returns its registration number.
    pub(crate) fn register(&self, instance: &str, config: ServerConfig) -> u64 {
        let Inner { registered, entries, .. } = &mut *self.inner.lock();
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
