//! LCM keeps a fleet of cloud workers honest.

pub mod core;
pub mod rehearsal;

pub use crate::core::backoff::Backoff;
pub use crate::core::decide::decide;
pub use crate::core::decision::Decision;
pub use crate::core::effect::Effect;
pub use crate::core::failure::{CallFailure, FailureKind};
pub use crate::core::fleet::FleetView;
pub use crate::core::ids::{InstanceId, SessionId, WorkerId};
pub use crate::core::instance::{Image, Instance};
pub use crate::core::observation::{Answer, Observation};
pub use crate::core::outcome::{LookAgain, Outcome};
pub use crate::core::patch::StatusPatch;
pub use crate::core::placement::eligible_workers;
pub use crate::core::policy::Policy;
pub use crate::core::query::{Queries, Query, queries};
pub use crate::core::reason::{Reason, ReasonCode};
pub use crate::core::record::{Applied, EffectResult, Record, record};
pub use crate::core::region::{RegionConfig, RegionConfigs};
pub use crate::core::secret::Secret;
pub use crate::core::session::Session;
pub use crate::core::status::{DesiredStatus, Ec2State, WorkerStatus};
pub use crate::core::template::Template;
pub use crate::core::time::Timestamp;
pub use crate::core::transition::{EdgeKind, InvalidTransition, Transition};
pub use crate::core::worker::Worker;
