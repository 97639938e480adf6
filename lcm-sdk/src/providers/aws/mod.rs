//! [`Compute`](crate::ports::Compute) and [`Metrics`](crate::ports::Metrics) with EC2 and CloudWatch.
//!
//! ```no_run
//! use lcm_sdk::providers::aws::{Account, CloudWatch, Ec2, Tuning};
//! use lcm_sdk::ports::Compute;
//! use lcm_sdk::telemetry::Telemetry;
//!
//! # async fn example() {
//! let account = Account::from_environment(Tuning::default(), &Telemetry::default()).await;
//! let (ec2, cloudwatch) = (Ec2::new(account.clone()), CloudWatch::new(account));
//! println!("{:?}", ec2.instance("us-east-1", &"i-0c71f2b3d4e5f6a7b".into()).await);
//! # }
//! ```

mod access_key;
mod account;
mod api;
mod cloudwatch;
mod complete;
mod convert;
mod describe;
mod ec2;
mod errors;
mod identity;
mod image_cache;
mod invocation;

pub use account::{Account, Tuning};
pub use cloudwatch::CloudWatch;
pub use ec2::Ec2;
#[doc(hidden)]
pub use errors::failure;
