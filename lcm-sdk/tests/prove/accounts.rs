//! The accounts of AWS that the credentials of the controllers can belong to, and regions that are not ours.

use std::sync::{Arc, LazyLock};

use lcm_sdk::providers::memory::MemoryCompute;
use lcm_sdk::resilience::{Access, CallKind, CallPolicy, CallPolicySettings, RateLimit};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Ec2State, FailureKind, Image, Instance, InstanceId};

use super::cluster::on_paused_time;
use super::world::{OTHER_REGION, REGION, World};

/// The account of a staging environment, say.
pub(crate) const OTHER_ACCOUNT: &str = "210987654321";

/// The credentials that all controllers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credentials {
    Own,
    OtherAccount,
    Expired,
}

impl World {
    /// EC2 as the credentials show it in a region.
    pub(crate) fn ec2(&self, region: &str) -> Result<Arc<MemoryCompute>, CallFailure> {
        if region != REGION && region != OTHER_REGION {
            let message = format!("ec2.{region}.amazonaws.com cannot be resolved");
            return Err(CallFailure::new(FailureKind::Unreachable, message));
        }
        match *self.credentials.lock() {
            Credentials::Own => Ok(Arc::clone(&self.compute)),
            Credentials::OtherAccount => Ok(Arc::clone(&self.other_account)),
            Credentials::Expired => Err(expired()),
        }
    }

    /// Whether EC2 answers with the account of our instances.
    pub(crate) fn uses_own_account(&self) -> bool {
        *self.credentials.lock() == Credentials::Own
    }

    /// Deploys other credentials.
    pub(crate) fn use_credentials(&self, credentials: Credentials) {
        self.log(format!("credentials: {credentials:?}"));
        *self.credentials.lock() = credentials;
    }

    /// Adds an instance of the other account that discovery's filter matches.
    pub(crate) fn add_instance_of_other_account(&self) -> InstanceId {
        let mut instance = Instance::new(format!("i-0{:04x}", self.next_number()), Ec2State::Running);
        instance.launched_at = Some(self.clock.true_time() - std::time::Duration::from_secs(86_400));
        instance.image_id = Some("ami-9".to_owned());
        let id = instance.id.clone();
        self.other_account.put(REGION, instance);
        id
    }
}

/// The images and subnets of both accounts.
pub(crate) fn furnish(own: &MemoryCompute, other: &MemoryCompute) {
    other.use_account(OTHER_ACCOUNT);
    for region in [REGION, OTHER_REGION] {
        own.put_image(region, image("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z"));
        own.put_subnet(region, "subnet-1");
        other.put_image(region, image("ami-9", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z"));
        other.put_subnet(region, "subnet-9");
    }
}

pub(crate) fn image(id: &str, name: &str, creation_date: &str) -> Image {
    Image { id: id.to_owned(), name: name.to_owned(), creation_date: creation_date.to_owned() }
}

/// The answer of EC2 to credentials that have expired.
pub(crate) fn expired() -> CallFailure {
    CallFailure::with_code(FailureKind::RefusedForNow, "RequestExpired", "the credentials have expired")
}

/// The result of a write whose first attempt got no answer and whose second one was refused, as the retries of the real
/// clients report it.
pub(crate) fn unclear_then_refused() -> CallFailure {
    static RESULT: LazyLock<CallFailure> = LazyLock::new(|| {
        let history = || on_paused_time(retried());
        std::thread::spawn(history).join().expect("no panic")
    });
    RESULT.clone()
}

async fn retried() -> CallFailure {
    let policy = CallPolicy::new(CallPolicySettings::default(), &Telemetry::default());
    let rate_limit = RateLimit { burst: 10.0, per_second: 10.0 };
    let kind = CallKind { service: "ec2", api: "RunInstances", region: REGION, rate_limit, access: Access::Write };
    let attempts = std::cell::Cell::new(0);
    let result: Result<(), CallFailure> = policy
        .call(kind, || {
            attempts.set(attempts.get() + 1);
            let failure = match attempts.get() {
                1 => CallFailure::new(FailureKind::Unclear, "the connection was reset"),
                _ => expired(),
            };
            async move { Err(failure) }
        })
        .await;
    result.expect_err("no attempt succeeded")
}
