//! State and operations of one CML server.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::administration::Administration;
use super::definitions::Definitions;
use super::diagnostics;
use super::error::CmlError;
use super::import::{self, Imported};
use super::labs::{Action, Host, Lab, NewLab, NewNode};
use super::licensing::{Deregistration, Licensing, Registration};
use super::links::{Interface, Ports};
use super::options::{BootStage, Listens, Options};
use super::release::Release;
use super::system_stats::{self, Load, NodeCounts};
use super::tokens::{Login, Tokens};
use super::users::{Caller, Permission, Users};
use crate::clock::Clock;
use crate::world::{SeededRng, hash_text};

/// Id of the built-in admin user.
pub const ADMIN_ID: &str = "00000000-0000-4000-a000-000000000000";

/// Maximum number of labs; creating more is rejected with 400.
const MAX_LABS: usize = 1000;
/// Maximum number of interfaces created by one request.
const MAX_NEW_INTERFACES: u32 = 128;

/// One CML server. Clones share its state.
#[derive(Clone)]
pub struct CmlServer {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    options: Options,
    state: Mutex<State>,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct State {
    powered_on_at: DateTime<Utc>,
    pub(super) pinned_stage: Option<BootStage>,
    pub(super) compute_id: String,
    product_uuid: String,
    pub(super) labs: BTreeMap<String, Lab>,
    pub(super) tokens: Tokens,
    pub(super) licensing: Licensing,
    pub(super) telemetry: Telemetry,
    pub(super) load: Option<Load>,
    pub(super) users: Users,
    pub(super) definitions: Definitions,
    pub(super) administration: Administration,
    ids: Ids,
}

/// State of a server in a snapshot.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct ServerState(State);

/// Generates ids.
#[derive(serde::Serialize, serde::Deserialize)]
struct Ids(SeededRng);

impl Ids {
    fn next(&mut self) -> String {
        self.0.uuid()
    }
}

impl State {
    pub(super) fn new_id(&mut self) -> String {
        self.ids.next()
    }

    /// Adds resource pools, whose ids are new.
    pub(super) fn add_pools(&mut self, body: Map<String, Value>) -> Result<Value, CmlError> {
        let Self { administration, users, ids, .. } = self;
        administration.add_pools(body, users, || ids.next())
    }

    /// Ids of the labs that a user owns.
    pub(super) fn labs_of(&self, user: &str) -> Vec<&String> {
        self.labs.iter().filter(|(_, lab)| lab.owner == user).map(|(id, _)| id).collect()
    }

    /// A user as JSON.
    pub(super) fn user_json(&self, id: &str, release: Release) -> Result<Value, CmlError> {
        self.users.user_json(id, &self.labs_of(id), release)
    }

    /// All users as JSON.
    pub(super) fn all_users_json(&self, release: Release) -> Vec<Value> {
        self.users.user_ids().filter_map(|id| self.user_json(id, release).ok()).collect()
    }

    pub(super) fn lab(&mut self, id: &str) -> Result<&mut Lab, CmlError> {
        self.labs.get_mut(id).ok_or_else(|| CmlError::not_found("Lab", id))
    }

    /// Stores a lab and adds a telemetry event.
    fn add_lab(&mut self, lab: Lab, now: DateTime<Utc>) -> Result<String, CmlError> {
        if self.labs.len() >= MAX_LABS {
            return Err(CmlError::bad_request(format!("There are at most {MAX_LABS} labs.")));
        }
        let id = self.new_id();
        self.labs.insert(id.clone(), lab);
        self.telemetry.add("import_lab", json!({"lab_id": id}), now);
        Ok(id)
    }

    pub(super) fn counts(&self) -> NodeCounts {
        self.labs.values().map(Lab::counts).fold(NodeCounts::default(), |sum, lab| NodeCounts {
            total: sum.total.saturating_add(lab.total),
            running: sum.running.saturating_add(lab.running),
            cpus: sum.cpus.saturating_add(lab.cpus),
            memory_mib: sum.memory_mib.saturating_add(lab.memory_mib),
        })
    }
}

impl CmlServer {
    /// Creates a server that is powered on now.
    pub fn new(clock: Clock, options: Options) -> Self {
        // Servers of one world share its seed and need distinct ids.
        let place = format!("{} {}", options.instance_id.as_deref().unwrap_or_default(), options.address);
        let rng = SeededRng::new(options.seed ^ hash_text(&place), "cml");
        // Random in every run: a token of one server must not be valid at another.
        let secret = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(uuid::Uuid::into_bytes).concat();
        let mut state = State {
            powered_on_at: clock.now(),
            pinned_stage: None,
            compute_id: String::new(),
            product_uuid: String::new(),
            labs: BTreeMap::new(),
            tokens: Tokens::new(secret, options.token_lifetime),
            licensing: Licensing::new(options.licensing.clone()),
            telemetry: Telemetry::default(),
            load: None,
            users: Users::new(options.username.clone(), options.password.clone(), clock.now()),
            definitions: Definitions::new(options.release()),
            administration: Administration::new(),
            ids: Ids(rng),
        };
        state.compute_id = state.new_id();
        state.product_uuid = state.new_id();
        Self { inner: Arc::new(Inner { clock, options, state: Mutex::new(state) }) }
    }

    /// Creates a server in the state of a snapshot.
    pub(super) fn restored(clock: Clock, options: Options, state: ServerState) -> Self {
        Self { inner: Arc::new(Inner { clock, options, state: Mutex::new(state.0) }) }
    }

    /// Returns the state for a snapshot.
    pub(super) fn capture(&self) -> serde_json::Result<Value> {
        serde_json::to_value(&*self.inner.state.lock())
    }

    /// Clock that boot, nodes, licensing and tokens follow.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Options given to [`CmlServer::new`].
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Current boot stage.
    pub fn stage(&self) -> BootStage {
        let now = self.inner.clock.now();
        let state = self.inner.state.lock();
        state.pinned_stage.unwrap_or_else(|| self.inner.options.boot.stage(state.powered_on_at, now))
    }

    /// Powers the server off: all nodes stop. The caller drops its listener.
    pub fn power_off(&self) {
        self.with(|state, now| {
            for lab in state.labs.values_mut() {
                // `Stop` succeeds in every state.
                drop(lab.apply(None, Action::Stop, now));
            }
        });
    }

    /// Powers the server on; it boots from the first stage.
    pub fn power_on(&self) {
        self.power_on_at(self.inner.clock.now());
    }

    /// Powers the server on as of `moment`, which may be in the past.
    pub fn power_on_at(&self, moment: DateTime<Utc>) {
        self.with(|state, _| state.powered_on_at = moment);
    }

    /// Waits until the server has left [`BootStage::Refused`].
    ///
    /// # Cancel safety
    /// Cancel safe: the future can be dropped at any time.
    pub async fn wait_until_listening(&self) {
        wait_until_listening(&self.inner.clock, || self.listens()).await;
    }

    /// When the server begins to listen.
    pub(super) fn listens(&self) -> Listens {
        let now = self.inner.clock.now();
        let state = self.inner.state.lock();
        match state.pinned_stage {
            Some(BootStage::Refused) => Listens::Unknown,
            Some(BootStage::BadGateway | BootStage::NotReady | BootStage::Ready) => Listens::Now,
            None => self.inner.options.boot.listens(state.powered_on_at, now),
        }
    }

    /// Logs in and returns a token.
    ///
    /// # Errors
    /// 403 for a wrong username or password.
    pub fn log_in(&self, username: &str, password: &str) -> Result<String, CmlError> {
        self.log_in_as(username, password).map(|(_, token)| token)
    }

    /// Logs in and returns the id of the user, and a token.
    pub(super) fn log_in_as(&self, username: &str, password: &str) -> Result<(Caller, String), CmlError> {
        self.with(|state, now| {
            let user = state.users.log_in(username, password, now)?;
            let id = state.new_id();
            state.telemetry.add("user_activity", json!({"user_id": user, "action": "login"}), now);
            Ok((state.users.caller(&user)?, state.tokens.issue(id, &user, now)?))
        })
    }

    /// Validates a token and returns its id.
    ///
    /// # Errors
    /// 401 if the token is invalid, expired or revoked.
    pub fn check_token(&self, token: &str) -> Result<String, CmlError> {
        self.check_login(token).map(|(token, _)| token)
    }

    /// Validates a token and returns its id and its user.
    pub(super) fn check_login(&self, token: &str) -> Result<(String, Caller), CmlError> {
        self.with(|state, now| {
            let Login { token, user } = state.tokens.check(token, now)?;
            Ok((token, state.users.caller(&user)?))
        })
    }

    /// Whether a user may do something to a lab.
    ///
    /// # Errors
    /// 404 for an unknown lab and one that the user cannot see, 403 without the permission.
    pub(super) fn check_permission(&self, caller: &Caller, lab: &str, needed: Permission) -> Result<(), CmlError> {
        self.with(|state, _| {
            let owner = state.lab(lab)?.owner.clone();
            let is_permitted = |permission| state.users.is_permitted(caller, lab, &owner, permission);
            match (is_permitted(Permission::View), is_permitted(needed)) {
                (_, true) => Ok(()),
                (true, false) => Err(CmlError::new(403, format!("User has no such permission on the lab: {lab}"))),
                (false, false) => Err(CmlError::not_found("Lab", lab)),
            }
        })
    }

    /// Revokes one token.
    pub fn log_out(&self, id: &str) {
        self.with(|state, _| state.tokens.revoke(id));
    }

    /// Response of `system_information`, which requires no login.
    pub fn information(&self) -> Value {
        system_stats::information(&self.inner.options, self.stage())
    }

    /// Response of `system_stats`: utilization and node counts.
    pub fn stats(&self) -> Value {
        self.with(|state, _| system_stats::stats(&self.inner.options, state, state.counts()))
    }

    /// Response of `system_health`: service and license checks.
    pub fn health(&self) -> Value {
        let stage = self.stage();
        self.with(|state, now| {
            let licensed = state.licensing.is_licensed(now);
            system_stats::health(&self.inner.options, state, stage, licensed)
        })
    }

    /// The only compute host, as listed by `system/compute_hosts`.
    pub fn compute_host(&self) -> Value {
        let stage = self.stage();
        self.with(|state, _| system_stats::compute_host(&self.inner.options, state, stage, state.counts()))
    }

    /// Response of `telemetry/events`, oldest first.
    pub fn telemetry_events(&self) -> Value {
        self.with(|state, _| state.telemetry.list())
    }

    /// Response of `licensing`: registration and authorization status.
    pub fn licensing_status(&self) -> Value {
        let hostname = &self.inner.options.hostname;
        self.with(|state, now| state.licensing.status(&state.product_uuid, hostname, now))
    }

    /// Starts a registration from `{"token", "reregister"}`. It completes later, on the clock.
    ///
    /// # Errors
    /// 400 for a malformed token or a second registration, 409 while a registration is in progress.
    pub fn register(&self, body: &Value) -> Result<(), CmlError> {
        self.with(|state, now| state.licensing.register(body, now))
    }

    /// Releases the license. Returns the response status: 204, or 202 if the licensing server was unreachable.
    ///
    /// # Errors
    /// 400 without a license or while nodes run, 409 while a registration is in progress.
    pub fn deregister(&self) -> Result<u16, CmlError> {
        self.with(|state, now| {
            let running = state.counts().running;
            state.licensing.deregister(running, now)
        })
    }

    /// Diagnostics of one category.
    pub(super) fn diagnostics(&self, category: &str) -> Result<Value, CmlError> {
        let stage = self.stage();
        self.with(|state, now| diagnostics::diagnostics(category, state, &self.host(state, now), stage))
    }

    fn host<'a>(&'a self, state: &'a State, now: DateTime<Utc>) -> Host<'a> {
        let State { definitions, users, compute_id, .. } = state;
        Host { options: &self.inner.options, definitions, users, compute_id, now }
    }

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        let mut state = self.inner.state.lock();
        change(&mut state, self.inner.clock.now())
    }
}

// Labs, nodes and links.
impl CmlServer {
    /// Creates a lab of the built-in admin and returns its id.
    ///
    /// # Errors
    /// 400 if the maximum number of labs is reached.
    pub fn create_lab(&self, lab: NewLab) -> Result<String, CmlError> {
        self.create_lab_of(lab, ADMIN_ID)
    }

    /// Creates a lab of a user and returns its id.
    pub(super) fn create_lab_of(&self, lab: NewLab, owner: &str) -> Result<String, CmlError> {
        self.with(|state, now| state.add_lab(Lab::new(lab, owner, now), now))
    }

    /// Creates a lab from a topology in YAML or JSON and returns its id.
    ///
    /// # Errors
    /// 400 for an invalid topology, or if the maximum number of labs is reached.
    pub fn import_lab(&self, topology: &[u8], title: Option<String>) -> Result<String, CmlError> {
        self.import_lab_of(topology, title, ADMIN_ID).map(|(id, _)| id)
    }

    /// Creates a lab of a user from a topology. Returns its id, and warnings about what the server does not know.
    pub(super) fn import_lab_of(
        &self,
        topology: &[u8],
        title: Option<String>,
        owner: &str,
    ) -> Result<(String, Vec<String>), CmlError> {
        self.with(|state, now| {
            let State { definitions, users, compute_id, ids, .. } = state;
            let host = Host { options: &self.inner.options, definitions, users, compute_id, now };
            let Imported { lab, warnings } = import::parse_topology(topology, title, owner, &host, || ids.next())?;
            Ok((state.add_lab(lab, now)?, warnings))
        })
    }

    /// Adds a node to a lab and returns its id.
    ///
    /// # Errors
    /// 404 for an unknown lab, node definition or image, 400 for an invalid field, or if the maximum number of nodes is
    /// reached.
    pub fn add_node(&self, lab: &str, node: NewNode) -> Result<String, CmlError> {
        let id = self.with(|state, _| state.new_id());
        self.with_lab(lab, |lab, host| {
            Lab::check_new_node(&node, host)?;
            lab.add_node(id.clone(), node, host)
        })?;
        Ok(id)
    }

    /// Adds interfaces to a node and returns their ids: one in the next free slot, or one in each free slot up to
    /// `slot`.
    ///
    /// # Errors
    /// 404 for an unknown lab or node, 400 for a slot that is in use or out of range.
    pub fn add_interfaces(&self, lab: &str, node: &str, slot: Option<u32>) -> Result<Vec<String>, CmlError> {
        // Generate the ids first: `state` cannot be borrowed for ids and for the lab at the same time.
        let count = slot.unwrap_or(0).min(MAX_NEW_INTERFACES);
        let mut ids: Vec<String> = self.with(|state, _| (0..=count).map(|_| state.new_id()).collect());
        self.with_lab(lab, |lab, host| {
            let definition = lab.find_node(node)?.node_definition.clone();
            let ports = Ports {
                name: &|slot| host.definitions.interface_name(&definition, slot),
                count: host.definitions.slots(&definition),
            };
            lab.cabling.add_interfaces(node, slot, &ports, || ids.pop().unwrap_or_default())
        })
    }

    /// Adds the loopback interface and the default number of physical interfaces to a new node.
    pub(super) fn populate_interfaces(&self, lab: &str, node: &str) -> Result<(), CmlError> {
        let id = self.with(|state, _| state.new_id());
        let count = self.with_lab(lab, |lab, host| {
            let definition = &lab.find_node(node)?.node_definition;
            let loopback = host.definitions.loopback(definition).map(str::to_owned);
            let count = host.definitions.default_interfaces(definition);
            if let Some(name) = loopback {
                lab.cabling.insert(id, Interface::new(node, name, None));
            }
            Ok(count)
        })?;
        match count.checked_sub(1) {
            Some(last) => self.add_interfaces(lab, node, Some(last)).map(drop),
            None => Ok(()),
        }
    }

    /// Connects two interfaces and returns the id of the link.
    ///
    /// # Errors
    /// 404 for an unknown lab or interface, 400 if an interface is already connected or both belong to one node.
    pub fn add_link(&self, lab: &str, ends: [String; 2]) -> Result<String, CmlError> {
        self.with(|state, _| {
            let id = state.new_id();
            state.lab(lab)?.cabling.connect(id.clone(), ends, None)?;
            Ok(id)
        })
    }

    pub(super) fn remove_lab(&self, id: &str) -> Result<(), CmlError> {
        self.with(|state, _| {
            state.lab(id)?.check_stopped()?;
            state.labs.remove(id);
            state.users.forget_lab(id);
            Ok(())
        })
    }

    /// Starts, stops or wipes a lab or one of its nodes, and adds a telemetry event.
    pub(super) fn apply(&self, lab: &str, node: Option<&str>, action: Action) -> Result<(), CmlError> {
        self.with(|state, now| {
            state.lab(lab)?.apply(node, action, now)?;
            let category = match (node, action) {
                (None, Action::Start) => "start_lab",
                (None, Action::Stop) => "stop_lab",
                (None, Action::Wipe) => "wipe_lab",
                (Some(_), Action::Start) => "start_node",
                (Some(_), Action::Stop) => "stop_node",
                (Some(_), Action::Wipe) => "wipe_node",
            };
            state.telemetry.add(category, json!({"lab_id": lab, "node_id": node}), now);
            Ok(())
        })
    }

    /// Calls `f` with one lab. 404 if it does not exist.
    pub(super) fn with_lab<T>(
        &self,
        id: &str,
        f: impl FnOnce(&mut Lab, &Host<'_>) -> Result<T, CmlError>,
    ) -> Result<T, CmlError> {
        self.with(|state, now| {
            let State { labs, definitions, users, compute_id, .. } = state;
            let lab = labs.get_mut(id).ok_or_else(|| CmlError::not_found("Lab", id))?;
            f(lab, &Host { options: &self.inner.options, definitions, users, compute_id, now })
        })
    }

    /// Calls `f` with all labs, by id.
    pub(super) fn with_labs<T>(&self, f: impl FnOnce(&BTreeMap<String, Lab>, &Host<'_>) -> T) -> T {
        self.with(|state, now| f(&state.labs, &self.host(state, now)))
    }
}

// Changes made outside the API, for tests.
impl CmlServer {
    /// Pins the server to a boot stage regardless of the clock; `None` resumes the boot sequence.
    pub fn pin_stage(&self, stage: Option<BootStage>) {
        self.with(|state, _| state.pinned_stage = stage);
    }

    /// Revokes every token, as a restart of the controller does. The next request gets 401.
    pub fn end_all_logins(&self) {
        self.with(|state, _| state.tokens.revoke_all());
    }

    /// Deletes all labs and telemetry events.
    pub fn wipe(&self) {
        self.with(|state, _| {
            state.labs.clear();
            state.users.forget_labs();
            state.telemetry.clear();
        });
    }

    /// Sets the reported utilization; `None` derives it from the running nodes.
    pub fn set_load(&self, load: Option<Load>) {
        self.with(|state, _| state.load = load);
    }

    /// Sets the result of later registrations.
    pub fn set_registration(&self, outcome: Registration) {
        self.with(|state, _| state.licensing.next_registration = outcome);
    }

    /// Sets the result of later deregistrations.
    pub fn set_deregistration(&self, result: Deregistration) {
        self.with(|state, _| state.licensing.next_deregistration = result);
    }

    /// Adds a telemetry event, as user activity in a browser does.
    pub fn record_activity(&self, category: &str, data: Value) {
        self.with(|state, now| state.telemetry.add(category, data, now));
    }
}

impl fmt::Debug for CmlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmlServer")
            .field("options", &self.inner.options)
            .field("stage", &self.stage())
            .finish_non_exhaustive()
    }
}

/// Waits on a clock until a server listens.
pub(super) async fn wait_until_listening(clock: &Clock, listens: impl Fn() -> Listens) {
    loop {
        match listens() {
            Listens::Now => return,
            Listens::At(time) => clock.sleep_until(time).await,
            // Changes without a clock event, so poll.
            Listens::Unknown => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Maximum number of telemetry events; older ones are dropped.
const MAX_EVENTS: usize = 1_000;

#[derive(Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Telemetry(VecDeque<Value>);

impl Telemetry {
    pub(super) fn add(&mut self, category: &str, data: Value, now: DateTime<Utc>) {
        let timestamp = now.to_rfc3339_opts(SecondsFormat::Micros, true);
        self.0.push_back(json!({"category": category, "timestamp": timestamp, "data": data}));
        if self.0.len() > MAX_EVENTS {
            self.0.pop_front();
        }
    }

    pub(super) fn list(&self) -> Value {
        self.0.iter().cloned().collect::<Vec<_>>().into()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
