//! CML in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use super::fault_injection::{Fault, FaultInjection};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::time::{Timestamp, age};
use crate::ports::{Clock, Cml, CmlTarget};

/// A [`Cml`] port in memory: CML systems by address. Calls to other addresses are refused connections.
pub struct MemoryCml {
    clock: Arc<dyn Clock>,
    systems: Mutex<BTreeMap<String, MemoryCmlSystem>>,
    faults: FaultInjection,
}

/// A CML system. Change it with [`MemoryCml::edit`].
#[derive(Debug, Clone)]
pub struct MemoryCmlSystem {
    /// User that may log in. Default: `admin`.
    pub username: String,
    /// Password of the user. Default: `admin`.
    pub password: Secret,
    /// Metrics that the system reports.
    pub metrics: CmlMetrics,
    /// Reported telemetry events.
    pub telemetry: Vec<Value>,
    /// Power state. Default: [`CmlPower::On`].
    pub power: CmlPower,
    /// Number of running nodes. Deregistration fails unless it is zero.
    pub running_nodes: u64,
    /// Duration of a registration. Default: 10 s.
    pub registration_takes: Duration,
    /// Result of the next registrations. Default: [`RegistrationEnd::Completes`].
    pub registration_ends: RegistrationEnd,
    /// License token of the latest registration.
    pub token: Option<Secret>,
    attempt: Option<(Timestamp, RegistrationEnd)>,
}

/// Power state of a [`MemoryCmlSystem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmlPower {
    /// Connections are refused.
    Off,
    /// A web server responds with a 502 page.
    Booting,
    /// The API responds.
    On,
}

/// Result of a simulated license registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationEnd {
    /// The system is registered.
    Completes,
    /// The registration fails.
    Fails,
    /// The registration stays in progress.
    Hangs,
}

impl Default for MemoryCmlSystem {
    fn default() -> Self {
        Self {
            username: "admin".to_owned(),
            password: Secret::from("admin"),
            metrics: CmlMetrics {
                labs_count: Some(0),
                nodes_count: Some(0),
                cml_version: Some("2.9.1+build.7".to_owned()),
                ready: Some(true),
                ..CmlMetrics::default()
            },
            telemetry: Vec::new(),
            power: CmlPower::On,
            running_nodes: 0,
            registration_takes: Duration::from_secs(10),
            registration_ends: RegistrationEnd::Completes,
            token: None,
            attempt: None,
        }
    }
}

impl MemoryCml {
    /// Creates a port without systems. The clock times registrations.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, systems: Mutex::default(), faults: FaultInjection::default() }
    }

    /// Adds or replaces the system at an address.
    pub fn install(&self, address: &str, system: MemoryCmlSystem) {
        self.systems.lock().insert(address.to_owned(), system);
    }

    /// Removes the system at an address, as terminating its instance does.
    pub fn remove(&self, address: &str) -> Option<MemoryCmlSystem> {
        self.systems.lock().remove(address)
    }

    /// Reads or changes the system at an address.
    pub fn edit<T>(&self, address: &str, edit: impl FnOnce(&mut MemoryCmlSystem) -> T) -> Option<T> {
        self.systems.lock().get_mut(address).map(edit)
    }

    /// Fails the next call, without effect.
    pub fn fail_next(&self, failure: CallFailure) {
        self.faults.plan(None, Fault::Fail(failure));
    }

    /// Injects a fault into the next call of an operation, such as `register`.
    pub fn plan(&self, operation: &str, fault: Fault) {
        self.faults.plan(Some(operation), fault);
    }

    /// Recorded calls as `operation address`, oldest first.
    pub fn calls(&self) -> Vec<String> {
        self.faults.calls()
    }

    fn call<T>(
        &self,
        operation: &str,
        at: &CmlTarget,
        work: impl FnOnce(&mut MemoryCmlSystem, Timestamp) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.faults.call(operation, &at.address, || {
            let mut systems = self.systems.lock();
            let refused = || CallFailure::new(FailureKind::Unreachable, "connection refused");
            let system = systems.get_mut(&at.address).ok_or_else(refused)?;
            match system.power {
                CmlPower::Off => return Err(refused()),
                CmlPower::Booting => {
                    return Err(CallFailure::with_code(FailureKind::Unclear, "502", "502 Bad Gateway"));
                }
                CmlPower::On => {}
            }
            work(system, self.clock.now())
        })
    }

    fn submit(&self, operation: &str, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.call(operation, at, |system, now| {
            system.authenticate(at)?;
            match (operation, system.stage(now)) {
                (_, Stage::InProgress) => {
                    Err(CallFailure::with_code(FailureKind::Conflict, "409", "one is in progress"))
                }
                ("register", Stage::Completed) => {
                    Err(CallFailure::with_code(FailureKind::Refused, "400", "Licensing issue: already registered."))
                }
                (_, Stage::None | Stage::Failed | Stage::Completed) => {
                    system.attempt = Some((now, system.registration_ends));
                    system.token = Some(token.clone());
                    Ok(())
                }
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    None,
    InProgress,
    Completed,
    Failed,
}

impl MemoryCmlSystem {
    fn stage(&self, now: Timestamp) -> Stage {
        match self.attempt {
            None => Stage::None,
            Some((begun, _)) if age(begun, now) < self.registration_takes => Stage::InProgress,
            Some((_, RegistrationEnd::Hangs)) => Stage::InProgress,
            Some((_, RegistrationEnd::Completes)) => Stage::Completed,
            Some((_, RegistrationEnd::Fails)) => Stage::Failed,
        }
    }

    fn authenticate(&self, at: &CmlTarget) -> Result<(), CallFailure> {
        if self.username == at.username && self.password == at.password {
            return Ok(());
        }
        Err(CallFailure::with_code(FailureKind::Unreachable, "403", "CML rejected the login"))
    }
}

#[async_trait]
impl Cml for MemoryCml {
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        self.call("system", at, |system, _| {
            let metrics = system.metrics.clone();
            let open =
                CmlMetrics { cml_version: metrics.cml_version.clone(), ready: metrics.ready, ..CmlMetrics::default() };
            Ok(if system.authenticate(at).is_ok() { metrics } else { open })
        })
    }

    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure> {
        self.call("telemetry", at, |system, _| system.authenticate(at).map(|()| system.telemetry.clone()))
    }

    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        self.call("registration", at, |system, now| {
            system.authenticate(at)?;
            let status = RegistrationStatus::from_wire(match system.stage(now) {
                Stage::None => "NOT_REGISTERED",
                Stage::InProgress => "IN_PROGRESS",
                Stage::Completed => "COMPLETED",
                Stage::Failed => "FAILED",
            });
            Ok(match system.attempt {
                None => status,
                Some((begun, _)) => status.attempted(&begun.format("%Y-%m-%d %H:%M:%S").to_string()),
            })
        })
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.submit("register", at, token)
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.submit("reregister", at, token)
    }

    async fn deregister(&self, at: &CmlTarget) -> Result<(), CallFailure> {
        self.call("deregister", at, |system, now| {
            system.authenticate(at)?;
            match system.stage(now) {
                Stage::InProgress => Err(CallFailure::with_code(FailureKind::Conflict, "409", "one is in progress")),
                Stage::Completed if system.running_nodes > 0 => Err(CallFailure::with_code(
                    FailureKind::Conflict,
                    "400",
                    "Cannot de-register when nodes are running.",
                )),
                Stage::None | Stage::Failed => Ok(()),
                Stage::Completed => {
                    system.attempt = None;
                    system.token = None;
                    Ok(())
                }
            }
        })
    }
}

impl fmt::Debug for MemoryCml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCml").field("systems", &self.systems.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::super::ManualClock;
    use super::*;
    use crate::conformance::cml::{Booting, CmlWorld, Registration, suite};

    struct World {
        clock: ManualClock,
        cml: MemoryCml,
    }

    impl World {
        fn edit(&self, edit: impl FnOnce(&mut MemoryCmlSystem)) {
            self.cml.edit("10.0.0.1", edit).expect("installed");
        }
    }

    #[async_trait]
    impl CmlWorld for World {
        fn cml(&self) -> &dyn Cml {
            &self.cml
        }

        fn target(&self) -> CmlTarget {
            let password = Secret::from("admin");
            CmlTarget { address: "10.0.0.1".into(), username: "admin".into(), password }
        }

        fn nowhere(&self) -> CmlTarget {
            CmlTarget { address: "10.0.0.2".into(), ..self.target() }
        }

        async fn set_booting(&self, booting: Booting) {
            self.edit(|system| {
                system.power = match booting {
                    Booting::Yes => CmlPower::Booting,
                    Booting::No => CmlPower::On,
                }
            });
        }

        async fn pass(&self, time: Duration) {
            self.clock.advance(time);
        }

        async fn start_lab(&self) {
            self.edit(|system| system.telemetry.push(serde_json::json!({"category": "start_lab"})));
        }

        async fn end_logins(&self) {}

        async fn next_registration(&self, end: Registration) {
            self.edit(|system| {
                system.registration_ends = match end {
                    Registration::Completes => RegistrationEnd::Completes,
                    Registration::Fails => RegistrationEnd::Fails,
                }
            });
        }
    }

    #[tokio::test]
    async fn memory_cml_conforms() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let cml = MemoryCml::new(Arc::new(clock.clone()));
        let mut system = MemoryCmlSystem::default();
        system.metrics.labs_count = Some(1);
        system.metrics.nodes_count = Some(2);
        cml.install("10.0.0.1", system);
        suite(&World { clock, cml }).await;
    }
}
