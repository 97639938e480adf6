//! A cloud for tests: EC2, CloudWatch, CML, etcd and a control plane that unmodified clients talk to over sockets.
//!
//! All services share one clock, one seed and one set of fault rules. Nothing leaves the machine.
//!
//! # How do I start a cloud?
//! [`FakeCloud::start`] listens on free ports of 127.0.0.1. [`FakeCloud::builder`] sets the ports, the clock, the seed,
//! the delays and the initial state.
//!
//! ```
//! use fake_cloud::FakeCloud;
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let cloud = FakeCloud::start().await?;
//! // Point boto3, the AWS CLI, etcdctl or any SDK to these addresses.
//! println!("{:#?}", cloud.endpoints());
//! cloud.stop().await;
//! # Ok::<(), std::io::Error>(())
//! # }).unwrap();
//! ```
//!
//! # How do I control time?
//! A clock with [`Pace::Manual`] stands still until [`FakeCloud::advance`] moves it. Instances, leases, tokens and
//! metrics follow immediately. [`FakeCloud::advance_with`] moves the timers of controllers along with it, so that hours of
//! reconciles pass in seconds.
//!
//! # How do I change the cloud without a request?
//! [`FakeCloud`] has a method for each action in the AWS console and for each record of the control plane. None of them
//! is added to the request log.
//!
//! # How do I inject faults?
//! [`FakeCloud::inject`] adds a [`faults::Rule`]: errors, latency, lost responses, hidden instances and others, for
//! chosen services, operations and numbers of requests.
//!
//! # How do I check the requests of a client?
//! [`FakeCloud::requests`] and [`FakeCloud::count`] read the log of all requests to all services.
//!
//! ```
//! use std::time::Duration;
//!
//! use fake_cloud::faults::{Action, Rule};
//! use fake_cloud::world::InstanceState;
//! use fake_cloud::{FakeCloud, Pace, RequestFilter};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let cloud = FakeCloud::builder().pace(Pace::Manual).start().await?;
//! let instance = cloud.run_instance("us-east-1", &[("team", "blue")])?;
//! assert_eq!(instance.state(cloud.now()), InstanceState::Pending);
//! cloud.advance(Duration::from_secs(60)).await;
//! assert_eq!(instance.state(cloud.now()), InstanceState::Running);
//!
//! cloud.inject(Rule::new(Action::Reset))?;
//! // ... run the client ...
//! assert!(cloud.requests(&RequestFilter::default()).is_empty());
//! cloud.stop().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # How do I start with existing instances and records?
//! [`Scenario::find`] loads a built-in scenario or a YAML file; pass it to [`FakeCloudBuilder::scenario`].
//!
//! # How do I use one service only?
//! The modules [`aws`], [`etcd`], [`cml`] and [`control_plane`] each have a `serve` function. [`world`] holds the state
//! of EC2 and CloudWatch. [`admin`] is the HTTP API under `/_fake/`, and [`command`] the command-line program.

pub mod admin;
pub mod aws;
mod body;
mod clock;
mod cloud;
mod cloudwatch;
pub mod cml;
pub mod command;
pub mod control_plane;
mod ec2;
pub mod etcd;
pub mod faults;
mod http_server;
pub mod middleware;
mod names;
mod operations;
mod request_log;
mod response;
mod scenario;
mod serial;
mod service;
mod snapshot;
mod socket;
mod sts;
mod suggest;
pub mod world;
mod yaml;

#[doc(inline)]
pub use self::clock::{Clock, Pace};
#[doc(inline)]
pub use self::cloud::{
    Advancer, Endpoints, Exposure, FakeCloud, FakeCloudBuilder, LeaseClock, NotIdle, Ports, TimeFollower, Unmet,
};
#[doc(inline)]
pub use self::request_log::{LoggedRequest, Notice, REDACTED, RequestFilter, RequestLog, RequestOutcome};
#[doc(inline)]
pub use self::scenario::{BUILTIN as BUILTIN_SCENARIOS, BuiltinScenario, Scenario, ScenarioError};
#[doc(inline)]
pub use self::service::Service;
#[doc(inline)]
pub use self::snapshot::{MaskedSecret, Restored, Secrets, Snapshot, SnapshotError};
#[doc(inline)]
pub use self::suggest::with_suggestion;

/// Examples of a page, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../docs/fake-etcd.md")]
struct Pages;
