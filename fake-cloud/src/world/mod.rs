//! The one world behind all protocols: one clock, one seed, one truth.
//!
//! Protocol modules decode, call the world, and encode; they keep no state. The world does no I/O: whatever takes time
//! is a moment on its clock, and what is read is derived from the moment of reading.

mod catalog;
mod ec2;
mod error;
mod fields;
mod filter;
mod hands;
mod instance;
mod launch;
mod lifecycle;
pub mod metrics;
mod orders;
mod page;
mod rng;
mod settings;
mod shared;
mod status;
mod tagging;
mod tags;
mod tokens;
mod view;

use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::faults::Faults;
use crate::request_log::RequestLog;

pub use self::catalog::{ACCOUNT, Catalog, IMAGE_OWNER, Image, REGIONS, SecurityGroup, Subnet};
pub use self::ec2::{Ec2, InstanceQuery, Intent, Region};
pub use self::error::{AwsError, status_of};
pub use self::fields::{ImageField, InstanceField, RegionField, SubnetField, TagField, TagListField};
pub use self::filter::{Field, Filter, Filters, Pattern, Piece};
pub use self::instance::{Course, Instance, InstanceState, Monitoring, Profile, Run};
pub use self::launch::{Launch, LaunchRequest, Novelty};
pub use self::lifecycle::{Order, StateChange};
pub use self::orders::{News, Orders, Told};
pub use self::page::{Page, PageRequest};
pub use self::rng::SeededRng;
pub use self::settings::{AgentDimensions, DelayError, Delays, Settings, StopWhilePending};
pub use self::shared::Shared;
pub use self::status::{Health, InstanceStatus, StatusField, StatusQuery, StatusScope};
pub use self::tags::{TagRemoval, TaggedResource, Tags};
pub use self::view::{Hidden, HiddenReason, PageCut, View};

pub(crate) use self::catalog::is_well_formed;
pub(crate) use self::rng::{hash_text, mix};

use self::metrics::Metrics;
use self::orders::Subscribers;

/// A world. Two of them share nothing.
///
/// ```
/// use std::time::Duration;
/// use fake_cloud::clock::{Clock, Pace};
/// use fake_cloud::world::{Intent, InstanceState, LaunchRequest, Settings, World};
///
/// let world = World::new(Settings { clock: Clock::new(Pace::Manual), ..Settings::default() });
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
    settings: Settings,
    ec2: Mutex<Ec2>,
    metrics: Mutex<Metrics>,
    faults: Faults,
    request_log: RequestLog,
    requests: AtomicU64,
    subscribers: Subscribers,
}

impl World {
    /// A world in which nothing has happened yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            ec2: Mutex::new(Ec2::new(&settings)),
            metrics: Mutex::new(Metrics::new(settings.seed, settings.agent_dimensions)),
            faults: Faults::new(settings.seed),
            request_log: RequestLog::default(),
            requests: AtomicU64::new(0),
            subscribers: Subscribers::default(),
            settings,
        }
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.settings.clock
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the log of all requests to all services.
    pub fn request_log(&self) -> &RequestLog {
        &self.request_log
    }

    /// Looks at EC2 or changes it, in one piece, at one moment. Keep it short: everybody else waits.
    pub fn with_ec2<T>(&self, work: impl FnOnce(&mut Ec2, DateTime<Utc>) -> T) -> T {
        let mut ec2 = self.ec2.lock();
        // Read under the lock, so that moments follow on each other as the changes do.
        let now = self.clock().now();
        let result = work(&mut ec2, now);
        if !ec2.told.is_empty() {
            self.subscribers.tell(&ec2.told);
            ec2.told.clear();
        }
        result
    }

    /// News of every instance that is launched or told something from now on. What follows from time alone is no news.
    pub fn orders(&self) -> Orders {
        self.subscribers.subscribe()
    }

    /// A fresh request id.
    pub fn request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        SeededRng::new(self.settings.seed ^ mix(number), "request").uuid()
    }

    /// Back to the beginning: no instances, no metrics, no faults, no records. The clock goes on.
    pub fn reset(&self) {
        {
            let mut ec2 = self.ec2.lock();
            *ec2 = Ec2::new(&self.settings);
            // Under the lock, so that news of the new world come after it.
            self.subscribers.tell_of_beginning();
        }
        *self.metrics.lock() = Metrics::new(self.settings.seed, self.settings.agent_dimensions);
        self.faults.clear();
        self.request_log.clear();
    }
}

#[cfg(test)]
mod tests;
