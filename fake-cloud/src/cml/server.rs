//! One CML: its state, and everything that can be asked of it.

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

use super::boot::BootStage;
use super::error::CmlError;
use super::labs::{Action, Lab};
use super::licensing::Licensing;
use super::options::Options;
use super::system_stats::{self, Load, NodeCounts};
use super::tokens::Tokens;
use crate::clock::Clock;

/// The id of the user every CML begins with.
pub const ADMIN_ID: &str = "00000000-0000-4000-a000-000000000000";

/// One CML. Clones are the same one.
#[derive(Clone)]
pub struct CmlServer {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    options: Options,
    state: Mutex<State>,
}

pub(super) struct State {
    switched_on_at: DateTime<Utc>,
    pub(super) held_at: Option<BootStage>,
    pub(super) compute_id: String,
    product_uuid: String,
    pub(super) labs: BTreeMap<String, Lab>,
    pub(super) tokens: Tokens,
    pub(super) licensing: Licensing,
    pub(super) telemetry: Telemetry,
    pub(super) load: Option<Load>,
    draw: StdRng,
}

impl State {
    pub(super) fn id(&mut self) -> String {
        let mut bytes = [0; 16];
        self.draw.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    pub(super) fn lab(&mut self, id: &str) -> Result<&mut Lab, CmlError> {
        self.labs.get_mut(id).ok_or_else(|| CmlError::not_found("Lab", id))
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
    /// A system that is switched on now.
    pub fn new(clock: Clock, options: Options) -> Self {
        // Systems of one world share its seed and must not share their ids.
        let mut own = DefaultHasher::new();
        (&options.instance_id, &options.address).hash(&mut own);
        let draw = StdRng::seed_from_u64(options.seed ^ own.finish());
        // The one thing no seed decides, or a token of one system could be good for another.
        let secret = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(uuid::Uuid::into_bytes).concat();
        let mut state = State {
            switched_on_at: clock.now(),
            held_at: None,
            compute_id: String::new(),
            product_uuid: String::new(),
            labs: BTreeMap::new(),
            tokens: Tokens::new(secret, options.token_lifetime),
            licensing: Licensing::new(options.licensing.clone()),
            telemetry: Telemetry::default(),
            load: None,
            draw,
        };
        state.compute_id = state.id();
        state.product_uuid = state.id();
        Self { shared: Arc::new(Shared { clock, options, state: Mutex::new(state) }) }
    }

    /// The clock it goes by.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// How it is set up.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// How far it has come since it was switched on.
    pub fn stage(&self) -> BootStage {
        let now = self.shared.clock.now();
        let state = self.shared.state.lock();
        state.held_at.unwrap_or_else(|| self.shared.options.boot.stage(state.switched_on_at, now))
    }

    /// Switches it off: nodes stop. What serves it should drop its listener too.
    pub fn power_off(&self) {
        self.with(|state, now| {
            for lab in state.labs.values_mut() {
                // Stopping is possible in every state.
                drop(lab.apply(None, Action::Stop, now));
            }
        });
    }

    /// Switches it on again: it boots from the beginning.
    pub fn power_on(&self) {
        self.power_on_at(self.shared.clock.now());
    }

    /// The same, from a moment that may have passed already.
    pub fn power_on_at(&self, moment: DateTime<Utc>) {
        self.with(|state, _| state.switched_on_at = moment);
    }

    /// Waits until something listens, on the clock.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn wait_until_listening(&self) {
        loop {
            if self.stage() > BootStage::Refused {
                return;
            }
            let begins = {
                let state = self.shared.state.lock();
                let held = state.held_at.is_some();
                (!held).then(|| self.shared.options.boot.reaches(BootStage::BadGateway, state.switched_on_at))
            };
            match begins {
                Some(begins) => self.shared.clock.sleep_until(begins).await,
                // Held back by hand: nothing but a hand can change it, so look now and then.
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Logs in; the answer is a token.
    ///
    /// # Errors
    /// 403 on a wrong name or password.
    pub fn log_in(&self, username: &str, password: &str) -> Result<String, CmlError> {
        let options = &self.shared.options;
        if username != options.username || password != options.password {
            return Err(CmlError::forbidden());
        }
        self.with(|state, now| {
            let id = state.id();
            state.telemetry.note("user_activity", json!({"user_id": ADMIN_ID, "action": "login"}), now);
            state.tokens.issue(id, now)
        })
    }

    /// Whether a token is good; the answer is its id.
    ///
    /// # Errors
    /// 401.
    pub fn check_token(&self, token: &str) -> Result<String, CmlError> {
        self.with(|state, now| state.tokens.check(token, now))
    }

    /// Logs one token out.
    pub fn log_out(&self, id: &str) {
        self.with(|state, _| state.tokens.revoke(id));
    }

    /// `system_information`: needs no login.
    pub fn information(&self) -> Value {
        system_stats::information(&self.shared.options, self.stage())
    }

    /// `system_stats`.
    pub fn stats(&self) -> Value {
        self.with(|state, _| system_stats::stats(&self.shared.options, state, state.counts()))
    }

    /// `system_health`.
    pub fn health(&self) -> Value {
        let stage = self.stage();
        self.with(|state, now| {
            let licensed = state.licensing.is_licensed(now);
            system_stats::health(&self.shared.options, state, stage, licensed)
        })
    }

    /// The one compute host.
    pub fn compute_host(&self) -> Value {
        let stage = self.stage();
        self.with(|state, _| system_stats::compute_host(&self.shared.options, state, stage, state.counts()))
    }

    /// `telemetry/events`.
    pub fn telemetry_events(&self) -> Value {
        self.with(|state, _| state.telemetry.list())
    }

    /// The licensing status.
    pub fn licensing_status(&self) -> Value {
        let hostname = &self.shared.options.hostname;
        self.with(|state, now| state.licensing.status(&state.product_uuid, hostname, now))
    }

    /// Accepts `{"token", "reregister"}`; the registration itself takes its time on the clock.
    ///
    /// # Errors
    /// 400 for a token that cannot be one or a second registration, 409 while one is on its way.
    pub fn register(&self, body: &Value) -> Result<(), CmlError> {
        self.with(|state, now| state.licensing.register(body, now))
    }

    /// Gives the licence back; the answer is 204, or 202 if the licensing server was out of reach.
    ///
    /// # Errors
    /// 400 when there is no licence or nodes run, 409 while a registration is on its way.
    pub fn deregister(&self) -> Result<u16, CmlError> {
        self.with(|state, now| {
            let running = state.counts().running;
            state.licensing.deregister(running, now)
        })
    }

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        let mut state = self.shared.state.lock();
        change(&mut state, self.shared.clock.now())
    }
}

impl fmt::Debug for CmlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmlServer")
            .field("options", &self.shared.options)
            .field("stage", &self.stage())
            .finish_non_exhaustive()
    }
}

/// How many events are remembered.
const REMEMBERED: usize = 1_000;

#[derive(Default)]
pub(super) struct Telemetry(VecDeque<Value>);

impl Telemetry {
    pub(super) fn note(&mut self, category: &str, data: Value, now: DateTime<Utc>) {
        let timestamp = now.to_rfc3339_opts(SecondsFormat::Micros, false);
        self.0.push_back(json!({"category": category, "timestamp": timestamp, "data": data}));
        if self.0.len() > REMEMBERED {
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
