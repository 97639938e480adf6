//! State and operations of one CML server.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::error::CmlError;
use super::import;
use super::labs::{Action, Lab, NewLab, NewNode};
use super::licensing::{Deregistration, Licensing, Registration};
use super::options::{BootStage, Options};
use super::system_stats::{self, Load, NodeCounts};
use super::tokens::Tokens;
use crate::clock::Clock;

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
    rng: StdRng,
}

impl State {
    pub(super) fn new_id(&mut self) -> String {
        let mut bytes = [0; 16];
        self.rng.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
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

    fn counts(&self) -> NodeCounts {
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
        let mut hasher = DefaultHasher::new();
        (&options.instance_id, &options.address).hash(&mut hasher);
        let rng = StdRng::seed_from_u64(options.seed ^ hasher.finish());
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
            rng,
        };
        state.compute_id = state.new_id();
        state.product_uuid = state.new_id();
        Self { inner: Arc::new(Inner { clock, options, state: Mutex::new(state) }) }
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
        loop {
            if self.stage() > BootStage::Refused {
                return;
            }
            let listens_at = {
                let state = self.inner.state.lock();
                let pinned = state.pinned_stage.is_some();
                (!pinned).then(|| self.inner.options.boot.reached_at(BootStage::BadGateway, state.powered_on_at))
            };
            match listens_at {
                Some(time) => self.inner.clock.sleep_until(time).await,
                // A pinned stage changes without a clock event, so poll.
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Logs in and returns a token.
    ///
    /// # Errors
    /// 403 for a wrong username or password.
    pub fn log_in(&self, username: &str, password: &str) -> Result<String, CmlError> {
        let options = &self.inner.options;
        if username != options.username || password != options.password {
            return Err(CmlError::forbidden());
        }
        self.with(|state, now| {
            let id = state.new_id();
            state.telemetry.add("user_activity", json!({"user_id": ADMIN_ID, "action": "login"}), now);
            state.tokens.issue(id, now)
        })
    }

    /// Validates a token and returns its id.
    ///
    /// # Errors
    /// 401 if the token is invalid, expired or revoked.
    pub fn check_token(&self, token: &str) -> Result<String, CmlError> {
        self.with(|state, now| state.tokens.check(token, now))
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

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        let mut state = self.inner.state.lock();
        change(&mut state, self.inner.clock.now())
    }
}

// Labs, nodes and links.
impl CmlServer {
    /// Creates a lab and returns its id.
    ///
    /// # Errors
    /// 400 if the maximum number of labs is reached.
    pub fn create_lab(&self, lab: NewLab) -> Result<String, CmlError> {
        self.with(|state, now| state.add_lab(Lab::new(lab, now), now))
    }

    /// Creates a lab from a topology in YAML or JSON and returns its id.
    ///
    /// # Errors
    /// 400 for an invalid topology, or if the maximum number of labs is reached.
    pub fn import_lab(&self, topology: &[u8], title: Option<String>) -> Result<String, CmlError> {
        self.with(|state, now| {
            let lab = import::parse_topology(topology, title, now, || state.new_id())?;
            state.add_lab(lab, now)
        })
    }

    /// Adds a node to a lab and returns its id.
    ///
    /// # Errors
    /// 404 for an unknown lab, 400 if the maximum number of nodes is reached.
    pub fn add_node(&self, lab: &str, node: NewNode) -> Result<String, CmlError> {
        self.with(|state, now| {
            let id = state.new_id();
            state.lab(lab)?.add_node(id.clone(), node, now)?;
            Ok(id)
        })
    }

    /// Adds interfaces to a node and returns their ids: one in the next free slot, or one in each free slot up to
    /// `slot`.
    ///
    /// # Errors
    /// 404 for an unknown lab or node, 400 for a slot that is in use or out of range.
    pub fn add_interfaces(&self, lab: &str, node: &str, slot: Option<u32>) -> Result<Vec<String>, CmlError> {
        self.with(|state, _| {
            // Generate the ids first: `state` cannot be borrowed for ids and for the lab at the same time.
            let mut ids: Vec<String> =
                (0..=slot.unwrap_or(0).min(MAX_NEW_INTERFACES)).map(|_| state.new_id()).collect();
            let lab = state.lab(lab)?;
            lab.node_is_on(node).ok_or_else(|| CmlError::not_found("Node", node))?;
            lab.cabling.add_interfaces(node, slot, || ids.pop().unwrap_or_default())
        })
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
        f: impl FnOnce(&mut Lab, DateTime<Utc>) -> Result<T, CmlError>,
    ) -> Result<T, CmlError> {
        self.with(|state, now| f(state.lab(id)?, now))
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

/// Maximum number of telemetry events; older ones are dropped.
const MAX_EVENTS: usize = 1_000;

#[derive(Default)]
pub(super) struct Telemetry(VecDeque<Value>);

impl Telemetry {
    pub(super) fn add(&mut self, category: &str, data: Value, now: DateTime<Utc>) {
        let timestamp = now.to_rfc3339_opts(SecondsFormat::Micros, false);
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
