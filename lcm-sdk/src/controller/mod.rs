//! Reconciles resources of any kind: election, shards, watch, queue, sweep and polling.
//!
//! The worker controller is built on this module, and other controllers can be as well: implement [`Resource`], compose a
//! [`Controller`], run it.
//!
//! ```
//! use std::sync::Arc;
//! use lcm_sdk::CallFailure;
//! use lcm_sdk::controller::{Controller, LeaderLease, ListRequest, ResourceList, Resource, Shutdown, WorkResult};
//! use lcm_sdk::providers::memory::MemoryCoordination;
//!
//! struct Greeter;
//!
//! impl Resource for Greeter {
//!     type Object = String;
//!
//!     fn key<'a>(&self, name: &'a String) -> &'a str {
//!         name
//!     }
//!
//!     async fn list(&self, _: &ListRequest) -> Result<ResourceList<String>, CallFailure> {
//!         Ok(ResourceList::from(vec!["Ada".to_owned()]))
//!     }
//!
//!     async fn reconcile(&self, name: String, _: LeaderLease) -> WorkResult {
//!         println!("hello {name}");
//!         WorkResult::success()
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let etcd = Arc::new(MemoryCoordination::new());
//! let shutdown = Shutdown::new();
//! # shutdown.request();
//! let controller = Controller::builder(Greeter)
//!     .elect(etcd, "/greeter/leader")
//!     .watch(["/greetings/"])
//!     .concurrency(5)
//!     .build()?;
//! controller.run(&shutdown).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Flow
//! A change goes from [`Watcher`] into [`WorkQueue`], which debounces it. [`Runner`] takes the item, fetches the object,
//! drops an echo of an own write, and calls [`Resource::reconcile`]. The result decides when the object is queued again.

mod builder;
pub(crate) mod election;
mod hash;
mod heartbeat;
pub(crate) mod lease;
mod lease_clock;
pub(crate) mod queue;
mod resource;
mod result;
mod runner;
mod shards;
pub(crate) mod shutdown;
pub(crate) mod sweep;
pub(crate) mod timers;
pub(crate) mod watch;

pub use self::builder::{
    BuildError, Controller, ControllerBuilder, FinishedSweep, LeaderTerm, Readiness, ResignError, StartupConfig,
};
pub use self::election::{
    ElectionConfig, ElectionConfigError, ElectionHandle, ElectionState, Leader, LeaderElection, leaders,
};
pub use self::hash::{Shard, Shards, ShardsError};
pub use self::lease::{LeaderLease, LeaseKeeper};
pub use self::lease_clock::LeaseClock;
pub use self::queue::{Key, Priority, QueueConfig, ResourceState, ResourceStatus, WorkItem, WorkQueue};
pub use self::resource::{ListRequest, ListScope, Resource, ResourceList};
pub use self::result::{WorkReason, WorkResult};
pub use self::runner::{ControllerConfig, Polling, Runner};
pub use self::shards::{
    Assignment, HeldShard, MemberRank, OwnershipChanges, ShardOwnership, ShardedElection, ShardedHandle, assign,
    fair_share,
};
pub use self::shutdown::Shutdown;
pub use self::sweep::SweepReport;
pub use self::watch::{ResyncCause, WatchConfig, WatchEvent, WatchHandle, WatchState, Watcher, first_segment};
