use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use super::fault_injection::{Fault, Trouble};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::time::{Timestamp, age};
use crate::ports::{Clock, Cml, CmlTarget};

/// A model of every CML of a fleet, by address. Nobody answers at an address that has none.
pub struct MemoryCml {
    clock: Arc<dyn Clock>,
    systems: Mutex<BTreeMap<String, MemoryCmlSystem>>,
    trouble: Trouble,
}

/// One CML. Change it with [`MemoryCml::edit`].
#[derive(Debug, Clone)]
pub struct MemoryCmlSystem {
    /// Who may sign in.
    pub username: String,
    /// With what.
    pub password: Secret,
    /// What it reports about itself. Before it has booted it reports nothing.
    pub metrics: CmlMetrics,
    /// Its telemetry.
    pub telemetry: Vec<Value>,
    /// How far it has booted.
    pub power: CmlPower,
    /// How many nodes run; with one running, the licence is not given back.
    pub running_nodes: u64,
    /// How long a registration takes.
    pub registration_takes: Duration,
    /// How the next registrations end.
    pub registration_ends: RegistrationEnd,
    /// The token it was last given.
    pub token: Option<Secret>,
    attempt: Option<(Timestamp, RegistrationEnd)>,
}

/// How far a CML has booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmlPower {
    /// Nobody is there.
    Off,
    /// Something answers with a page of HTML.
    Booting,
    /// It answers.
    On,
}

/// How a registration ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationEnd {
    /// With a licence.
    Completes,
    /// With a no.
    Fails,
    /// Not at all.
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
                version: Some("2.9.1+build.7".to_owned()),
                ready: Some(true),
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
    /// A fleet without any CML.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, systems: Mutex::default(), trouble: Trouble::default() }
    }

    /// Puts a CML at an address.
    pub fn install(&self, address: &str, system: MemoryCmlSystem) {
        self.systems.lock().insert(address.to_owned(), system);
    }

    /// Takes the CML at an address away, as a terminated instance does.
    pub fn remove(&self, address: &str) -> Option<MemoryCmlSystem> {
        self.systems.lock().remove(address)
    }

    /// Looks at the CML at an address, or changes it.
    pub fn edit<T>(&self, address: &str, edit: impl FnOnce(&mut MemoryCmlSystem) -> T) -> Option<T> {
        self.systems.lock().get_mut(address).map(edit)
    }

    /// Makes the next call fail.
    pub fn fail_next(&self, failure: CallFailure) {
        self.trouble.plan(None, Fault::Fail(failure));
    }

    /// Makes something go wrong with the next call of an operation, such as `register`.
    pub fn plan(&self, operation: &str, fault: Fault) {
        self.trouble.plan(Some(operation), fault);
    }

    /// What was asked, oldest first: the operation and the address.
    pub fn calls(&self) -> Vec<String> {
        self.trouble.calls()
    }

    fn ask<T>(
        &self,
        operation: &str,
        at: &CmlTarget,
        work: impl FnOnce(&mut MemoryCmlSystem, Timestamp) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.trouble.pass(operation, &at.address, || {
            let mut systems = self.systems.lock();
            let nobody = || CallFailure::new(FailureKind::Unreachable, "connection refused");
            let system = systems.get_mut(&at.address).ok_or_else(nobody)?;
            match system.power {
                CmlPower::Off => return Err(nobody()),
                CmlPower::Booting => return Err(CallFailure::coded(FailureKind::Unclear, "502", "502 Bad Gateway")),
                CmlPower::On => {}
            }
            work(system, self.clock.now())
        })
    }

    fn submit(&self, operation: &str, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.ask(operation, at, |system, now| {
            system.let_in(at)?;
            match (operation, system.stage(now)) {
                (_, Stage::InProgress) => Err(CallFailure::coded(FailureKind::Conflict, "409", "one is in progress")),
                ("register", Stage::Completed) => {
                    Err(CallFailure::coded(FailureKind::Refused, "400", "Licensing issue: already registered."))
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

    fn let_in(&self, at: &CmlTarget) -> Result<(), CallFailure> {
        if self.username == at.username && self.password == at.password {
            return Ok(());
        }
        // As the real client has it: nobody could be asked as this user.
        Err(CallFailure::coded(FailureKind::Unreachable, "403", "CML does not let this user in"))
    }
}

#[async_trait]
impl Cml for MemoryCml {
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        self.ask("system", at, |system, _| {
            let metrics = system.metrics.clone();
            let open = CmlMetrics { version: metrics.version.clone(), ready: metrics.ready, ..CmlMetrics::default() };
            Ok(if system.let_in(at).is_ok() { metrics } else { open })
        })
    }

    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure> {
        self.ask("telemetry", at, |system, _| system.let_in(at).map(|()| system.telemetry.clone()))
    }

    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        self.ask("registration", at, |system, now| {
            system.let_in(at)?;
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
        self.ask("deregister", at, |system, now| {
            system.let_in(at)?;
            match system.stage(now) {
                Stage::InProgress => Err(CallFailure::coded(FailureKind::Conflict, "409", "one is in progress")),
                Stage::Completed if system.running_nodes > 0 => {
                    Err(CallFailure::coded(FailureKind::Conflict, "400", "Cannot de-register when nodes are running."))
                }
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
    async fn the_model_conforms() {
        let clock = ManualClock::at(Timestamp::UNIX_EPOCH);
        let cml = MemoryCml::new(Arc::new(clock.clone()));
        let mut system = MemoryCmlSystem::default();
        system.metrics.labs_count = Some(1);
        system.metrics.nodes_count = Some(2);
        cml.install("10.0.0.1", system);
        suite(&World { clock, cml }).await;
    }
}
