//! State of EC2 and CloudWatch, with the clock, the faults and the request log of all services.
//!
//! The protocol modules decode requests, call the [`World`] and encode responses; they keep no state. The world does no
//! I/O and runs no tasks: state changes are times on its clock, and reads derive the state from the current time.

mod account;
mod catalog;
mod change_feed;
mod console;
mod disruption;
mod ec2;
mod error;
mod fields;
mod filter;
mod instance;
mod instance_types;
mod launch;
mod lifecycle;
pub mod metrics;
mod options;
mod page;
mod resources;
mod rng;
mod settings;
mod snapshot;
mod status;
mod tags;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use parking_lot::{Mutex, RwLock};

use crate::clock::Clock;
use crate::faults::Faults;
use crate::request_log::RequestLog;

pub use self::account::{Account, AccountError};
pub use self::catalog::{
    ACCOUNT, AMAZON, Catalog, Direction, IMAGE_OWNER, Image, OPT_IN_REGIONS, Peer, REGIONS, RegionName, Rule,
    SecurityGroup, Sharing, Subnet, ZONES, ZoneId, all_regions, zone_id, zone_ids,
};
pub use self::change_feed::{ChangeFeed, Changes, InstanceChange};
pub use self::console::{OptInStatus, Presence};
pub use self::disruption::{CapacityLimit, CheckResult, EventCode, ImposedChecks, Interruption, ScheduledEvent};
pub use self::ec2::{Ec2, InstanceQuery, Intent, Region};
pub use self::error::{AwsError, default_status};
pub use self::fields::{InstanceField, TagField};
pub use self::filter::{Field, Filter, Filters, Pattern, PatternToken};
pub use self::instance::{
    Extra, ExtraInterface, Instance, InstanceState, Lifecycle, Monitoring, Profile, Run, StateCause,
};
pub use self::launch::{Launch, LaunchKind, LaunchRequest};
pub use self::lifecycle::{InstanceAction, StateChange};
pub use self::options::{
    InstanceOptions, InterfaceSpec, InterruptionBehavior, Keeps, Market, MetadataOptions, Protection, SpotOptions,
    VolumeSpec,
};
pub use self::page::{Page, PageRequest};
pub use self::resources::{
    Address, Interface, KeyPair, LaunchTemplate, Resources, TemplateVersion, VersionOrigin, Volume, Vpc,
};
pub use self::rng::SeededRng;
pub use self::settings::{AgentDimensions, DelayError, Delays, Settings, StopWhilePending};
pub use self::status::{Health, InstanceStatus, StatusQuery, StatusScope};
pub use self::tags::{TagRemoval, TaggedResource, Tags};
pub use self::view::{Hidden, HiddenReason, PageLimit, View};

pub(crate) use self::catalog::{check_region, is_well_formed};
pub(crate) use self::filter::check_filter_values;
pub(crate) use self::instance_types::{Disk, InstanceType, Storage, Trait, checked_type, default_cpu};
pub(crate) use self::resources::not_found;
pub(crate) use self::rng::{hash_text, mix};
pub(crate) use self::snapshot::WorldState;
pub(crate) use self::tags::validate as validate_tags;

use self::account::Accounts;
use self::change_feed::Subscribers;
use self::metrics::Metrics;

/// State of EC2 and CloudWatch. Worlds are independent of each other.
///
/// ```
/// use std::time::Duration;
/// use fake_cloud::{Clock, Pace};
/// use fake_cloud::world::{Intent, InstanceState, LaunchRequest, Settings, World};
///
/// let world = World::new(Settings::with_clock(Clock::new(Pace::Manual)));
/// let launch = world.with_ec2(|ec2, now| {
///     let image = ec2.region("us-east-1", now)?.catalog.images[0].id.clone();
///     ec2.launch("us-east-1", LaunchRequest::new(image), Intent::Execute, now)
/// })?;
/// let instance = &launch.instances[0];
/// assert_eq!(instance.state(world.clock().now()), InstanceState::Pending);
/// world.clock().advance(Duration::from_secs(60));
/// assert_eq!(instance.state(world.clock().now()), InstanceState::Running);
/// # Ok::<(), fake_cloud::world::AwsError>(())
/// ```
#[derive(Debug)]
pub struct World {
    settings: RwLock<Settings>,
    clock: Clock,
    accounts: RwLock<Accounts>,
    ec2: Mutex<Ec2>,
    metrics: Mutex<Metrics>,
    faults: Faults,
    request_log: RequestLog,
    requests: AtomicU64,
    subscribers: Subscribers,
}

impl World {
    /// Creates a world without instances, metrics, faults and requests.
    pub fn new(settings: Settings) -> Self {
        Self {
            accounts: RwLock::new(Accounts::new(&settings.accounts)),
            ec2: Mutex::new(Ec2::new(&settings)),
            metrics: Mutex::new(Metrics::new(settings.seed, settings.agent_dimensions)),
            faults: Faults::new(settings.seed),
            request_log: RequestLog::default(),
            requests: AtomicU64::new(0),
            subscribers: Subscribers::default(),
            clock: settings.clock.clone(),
            settings: RwLock::new(settings),
        }
    }

    /// Returns the clock of the world.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the settings of the world.
    pub fn settings(&self) -> Settings {
        self.settings.read().clone()
    }

    /// Returns the fault rules of all services.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the log of all requests to all services.
    pub fn request_log(&self) -> &RequestLog {
        &self.request_log
    }

    /// Reads or changes EC2 under its lock, with the current time. `work` must be short, because it blocks all requests.
    pub fn with_ec2<T>(&self, work: impl FnOnce(&mut Ec2, DateTime<Utc>) -> T) -> T {
        let mut ec2 = self.ec2.lock();
        // Read under the lock, so that times are in the order of the changes.
        let now = self.clock().now();
        ec2.settle(now);
        let result = work(&mut ec2, now);
        if !ec2.changed.is_empty() {
            self.subscribers.publish(&ec2.changed);
            ec2.changed.clear();
        }
        result
    }

    /// Subscribes to launches and state changes of instances. Transitions that follow from time alone are not published.
    pub fn subscribe(&self) -> ChangeFeed {
        self.subscribers.subscribe()
    }

    /// Adds an account, with a default subnet and security group in every region. Adding it again adds an access key.
    pub fn add_account(&self, account: &Account) {
        self.ec2.lock().add_account(account.id());
        self.accounts.write().add(account);
    }

    /// Returns the accounts beside the default account, once per access key.
    pub fn accounts(&self) -> Vec<Account> {
        self.accounts.read().list()
    }

    /// Returns the id of the account of an access key; unknown keys belong to the default account.
    pub fn account_of(&self, access_key: &str) -> Arc<str> {
        self.accounts.read().owner_of(access_key)
    }

    /// Returns a new request id.
    pub fn request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        SeededRng::new(self.settings.read().seed ^ mix(number), "request").uuid()
    }

    /// Removes all instances, metrics, faults, logged requests and added accounts. The clock continues.
    pub fn reset(&self) {
        let settings = self.settings();
        {
            let mut ec2 = self.ec2.lock();
            *ec2 = Ec2::new(&settings);
            *self.accounts.write() = Accounts::new(&settings.accounts);
            // Under the lock, so that later changes are published after the reset.
            self.subscribers.publish_reset();
        }
        *self.metrics.lock() = Metrics::new(settings.seed, settings.agent_dimensions);
        self.faults.clear();
        self.request_log.clear();
    }
}

#[cfg(test)]
mod tests;
