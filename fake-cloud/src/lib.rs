//! A cloud on your laptop: EC2, CloudWatch, CML, etcd and the control plane, as real clients know them.
//!
//! ```
//! use std::time::Duration;
//! use fake_cloud::clock::{Clock, Pace};
//! use fake_cloud::cloud::{FakeCloud, Options};
//! use fake_cloud::world::Settings;
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let settings = Settings { clock: Clock::new(Pace::Manual), ..Settings::default() };
//! let cloud = FakeCloud::start(Options { settings, ..Options::default() }).await?;
//! // Point boto3, the aws command line, etcdctl, virl2_client or any SDK at these:
//! println!("{:?}", cloud.endpoints());
//! // Make an hour pass, and see what was asked:
//! cloud.world().clock().advance(Duration::from_secs(3600));
//! assert_eq!(cloud.world().request_log().total(), 0);
//! cloud.stop().await;
//! # Ok::<(), std::io::Error>(())
//! # }).unwrap();
//! ```
//!
//! # The map
//! | question | room |
//! |---|---|
//! | How is it all started? | [`cloud`], [`command`] |
//! | What exists, and what time is it? | [`world`], [`clock`] |
//! | What goes wrong on purpose? | [`faults`], [`middleware`] |
//! | What was asked? | [`request_log`] |
//! | How is it steered and set up? | [`admin`], [`scenario`] |
//! | How does EC2, CloudWatch answer? | [`aws`] |
//! | How does etcd answer? | [`etcd`] |
//! | How do the control plane and CML answer? | [`control_plane`], [`cml`] |

pub mod admin;
mod answer;
pub mod aws;
mod body;
pub mod clock;
pub mod cloud;
pub(crate) mod cloudwatch;
pub mod cml;
pub mod command;
pub mod control_plane;
pub(crate) mod ec2;
pub mod etcd;
pub mod faults;
mod http_server;
pub mod middleware;
pub mod request_log;
pub mod scenario;
pub mod service;
mod socket;
pub mod world;
mod yaml;
