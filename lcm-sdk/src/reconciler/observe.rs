//! Observing: putting the questions of a pass to those who know, a stage at a time, and all of a stage at once.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::OwnedMutexGuard;

use crate::controller::shards::ScaleDownLock;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::launch::image_pattern;
use crate::lifecycle::observation::{Lookup, Observation};
use crate::lifecycle::query::{Queries, Query, queries};
use crate::lifecycle::scale_down::fleet_guards;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::CmlTarget;
use crate::reconciler::{Mode, Reconciler};

/// The stages a pass can have at the most. More would mean that the core asks for what it was told already.
const MAX_STAGES: usize = 10;

/// What was seen, and what the looking itself has left behind.
pub(crate) struct Observed {
    pub(crate) seen: Observation,
    /// Held from looking at the fleet until the pass is recorded: two passes that both count the same fleet could
    /// scale it down below its minimum together.
    pub(crate) fleet: Option<OwnedMutexGuard<CachedFleet>>,
    /// The same among the members that share a fleet, held as long.
    pub(crate) scale_down: Option<ScaleDownLock>,
}

/// An answer that is put where it belongs.
type Given = Box<dyn FnOnce(&mut Observed) + Send>;

/// The fleet as last seen, with what was decided since.
#[derive(Debug, Default)]
pub(crate) struct CachedFleet {
    pub(crate) view: Option<FleetSnapshot>,
}

/// A view of the fleet and how old it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetSnapshot {
    pub(crate) view: FleetView,
    pub(crate) at: tokio::time::Instant,
    /// How many workers we had taken out of service by then.
    pub(crate) scale_down_epoch: u64,
}

impl Reconciler {
    pub(crate) async fn observe(&self, worker: &Worker, seen: Observation, mode: Mode, now: Timestamp) -> Observed {
        let mut observed = Observed { seen, fleet: None, scale_down: None };
        for _ in 0..MAX_STAGES {
            let due = queries(worker, &observed.seen, self.policy(), now);
            if due.is_empty() {
                break;
            }
            self.ask_all(due, worker, &mut observed, mode, now).await;
        }
        observed
    }

    async fn ask_all(&self, due: Queries, worker: &Worker, observed: &mut Observed, mode: Mode, now: Timestamp) {
        // The fleet needs a lock that is kept; everything else is asked together.
        if due.contains(Query::Fleet) {
            let (answer, guard, lock) = self.fleet(mode, now).await;
            observed.seen.fleet = answer;
            observed.fleet = Some(guard);
            observed.scale_down = lock;
        }
        let mut answers: FuturesUnordered<BoxFuture<'_, Given>> =
            due.iter().filter_map(|query| self.ask(query, worker, &observed.seen, now)).collect();
        let mut given = Vec::with_capacity(answers.len());
        while let Some(answer) = answers.next().await {
            given.push(answer);
        }
        drop(answers);
        for answer in given {
            answer(observed);
        }
    }

    fn ask<'a>(
        &'a self,
        query: Query,
        worker: &'a Worker,
        seen: &'a Observation,
        now: Timestamp,
    ) -> Option<BoxFuture<'a, Given>> {
        macro_rules! answer {
            ($field:ident, $call:expr) => {
                Some(Box::pin(async move {
                    let answer: Lookup<_> = $call.await;
                    Box::new(move |observed: &mut Observed| observed.seen.$field = answer) as Given
                }))
            };
        }
        let ports = self.ports();
        match query {
            Query::Instance => answer!(instance, async {
                match (self.region(worker), &worker.ec2_instance_id) {
                    (Ok(region), Some(id)) => ports.compute.instance(region, id).await,
                    (Err(failure), _) => Lookup::Unknown(failure),
                    (Ok(_), None) => Lookup::NotRequested,
                }
            }),
            Query::Tagged => answer!(tagged, async {
                match self.region(worker) {
                    Ok(region) => ports.compute.tagged(region, &worker.id).await.into(),
                    Err(failure) => Lookup::Unknown(failure),
                }
            }),
            Query::Template => answer!(template, async {
                match &worker.template_name {
                    Some(name) => ports.control_plane.template(name).await.into(),
                    None => Lookup::Absent,
                }
            }),
            Query::Images => answer!(images, async {
                match (self.region(worker), seen.template.found()) {
                    (Ok(region), Some(template)) => {
                        ports.compute.images(region, image_pattern(worker, template)).await.into()
                    }
                    (Err(failure), _) => Lookup::Unknown(failure),
                    (Ok(_), None) => Lookup::NotRequested,
                }
            }),
            Query::Sessions => answer!(sessions, async { ports.control_plane.sessions(&worker.id).await.into() }),
            Query::CloudMetrics => answer!(cloud_metrics, async {
                match (self.region(worker), seen.instance_of(worker)) {
                    (Ok(region), Some(instance)) => {
                        let ids = std::slice::from_ref(&instance.id);
                        ports.metrics.utilization(region, ids, now).await.pop().unwrap_or_default()
                    }
                    (Err(failure), _) => Lookup::Unknown(failure),
                    (Ok(_), None) => Lookup::NotRequested,
                }
            }),
            Query::Cml => answer!(cml, async {
                match self.target(worker, seen.instance_of(worker)) {
                    Some(target) => ports.cml.system(&target).await.into(),
                    None => Lookup::NotRequested,
                }
            }),
            Query::Registration => answer!(registration, async {
                match self.target(worker, seen.instance_of(worker)) {
                    Some(target) => ports.cml.registration(&target).await.into(),
                    None => Lookup::NotRequested,
                }
            }),
            Query::Telemetry => answer!(telemetry, async {
                match self.target(worker, seen.instance_of(worker)) {
                    Some(target) => ports.cml.telemetry(&target).await.into(),
                    None => Lookup::Absent,
                }
            }),
            // Asked apart.
            Query::Fleet => None,
        }
    }

    /// A view that is not quite fresh may keep a worker, which costs nothing; only a fresh one may let it go.
    async fn fleet(
        &self,
        mode: Mode,
        now: Timestamp,
    ) -> (Lookup<FleetView>, OwnedMutexGuard<CachedFleet>, Option<ScaleDownLock>) {
        let mut cached = Arc::clone(self.fleet_gate()).lock_owned().await;
        // Asked before the records are listed: whoever leaves meanwhile may or may not be in the listing.
        let scale_down_epoch = self.scale_down_epoch();
        let fresh = cached.view.filter(|seen| seen.at.elapsed() < self.fleet_freshness());
        let keeps = |view: &FleetView| fleet_guards(view, &self.policy().scale_down, now).is_some();
        if let Some(seen) = fresh.filter(|seen| seen.scale_down_epoch == scale_down_epoch && keeps(&seen.view)) {
            return (Lookup::Found(seen.view), cached, None);
        }
        // Before the records are listed: a member that counts meanwhile would count what we are about to let go.
        let lock = match (self.hold(), mode) {
            (Some(hold), Mode::Real) => match hold.scale_down().await {
                Ok(lock) => Some(lock),
                Err(failure) => return (Lookup::Unknown(failure), cached, None),
            },
            (Some(_), Mode::DryRun) | (None, _) => None,
        };
        let answer = match self.ports().control_plane.workers(&crate::ports::Scope::everything()).await {
            Ok(listing) => {
                let view = FleetView::from_workers(&listing.workers);
                cached.view = Some(FleetSnapshot { view, at: tokio::time::Instant::now(), scale_down_epoch });
                Lookup::Found(view)
            }
            Err(failure) => Lookup::Unknown(failure),
        };
        (answer, cached, lock)
    }

    /// Where the worker's CML is: only ever at the address EC2 showed in this pass.
    pub(crate) fn target(&self, worker: &Worker, instance: Option<&Instance>) -> Option<CmlTarget> {
        let address = instance?.address()?.to_owned();
        Some(self.target_at(worker, address))
    }

    pub(crate) fn target_at(&self, worker: &Worker, address: String) -> CmlTarget {
        let defaults = self.cml_defaults();
        CmlTarget {
            address,
            username: worker.cml_username.clone().unwrap_or_else(|| defaults.username.clone()),
            password: worker.cml_password.clone().unwrap_or_else(|| defaults.password.clone()),
        }
    }

    pub(crate) fn region<'a>(&'a self, worker: &'a Worker) -> Result<&'a str, CallFailure> {
        self.policy().regions.region_of(worker).ok_or_else(|| {
            CallFailure::new(FailureKind::Refused, crate::lifecycle::region::RegionError::NoRegion.to_string())
        })
    }
}

/// How to sign in to a CML whose record does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmlDefaults {
    /// User.
    pub username: String,
    /// Password.
    pub password: Secret,
}

impl Default for CmlDefaults {
    fn default() -> Self {
        Self { username: "admin".to_owned(), password: Secret::from("") }
    }
}
