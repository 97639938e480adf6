//! Observe: sends the queries of a reconcile, stage by stage, those of one stage concurrently. Reads only.

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::context::{Context, FleetGuard};
use super::gate::credentials_changed;
use super::result::Mode;
use crate::lifecycle::drain::Operation;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::image_pattern;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::query::{Queries, Query, lacking_image, queries};
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::trust::{Doubt, Place, prove_absence, prove_refusal};
use crate::lifecycle::worker::Worker;

/// Upper bound on the stages of one observation. More would mean that `queries` repeats itself.
const MAX_STAGES: usize = 10;

/// An observation, the fleet if it was counted, and the operation that it is for if an operator requested one.
pub(super) struct Observed {
    pub(super) observation: Observation,
    pub(super) fleet: Option<FleetGuard>,
    pub(super) operation: Option<Operation>,
}

/// Stores the response to a query in its field.
type Store = Box<dyn FnOnce(&mut Observation) + Send>;

/// Completes an observation for the next decision.
pub(super) async fn observe(
    context: &Context,
    worker: &Worker,
    observation: Observation,
    mode: Mode,
    now: Timestamp,
) -> Observed {
    let mut observed = Observed { observation, fleet: None, operation: None };
    for _ in 0..MAX_STAGES {
        let due = queries(worker, &observed.observation, context.policy(), now);
        if due.is_empty() {
            break;
        }
        // The fleet comes with a lock that outlives the observation.
        if due.contains(Query::Fleet) {
            let (view, guard) = context.fleet(mode, now).await;
            observed.observation.fleet = view.into();
            observed.fleet = Some(guard);
        }
        fetch_all(context, due, worker, &mut observed.observation, now).await;
    }
    add_image(context, worker, &mut observed.observation, now).await;
    observed
}

/// Adds the AMI to the instance if the record lacks a part of it. A failed call is left to the next reconcile.
async fn add_image(context: &Context, worker: &Worker, observation: &mut Observation, now: Timestamp) {
    let Some(image_id) = lacking_image(worker, observation, context.policy(), now).map(str::to_owned) else { return };
    let Ok(region) = context.region(worker) else { return };
    if context.cache().image_written(&worker.id).as_ref() == Some(&image_id) {
        return;
    }
    // An instance that was found by its tag is described once the record names it.
    let Lookup::Found(instance) = &mut observation.instance else { return };
    if instance.image.is_some() {
        return;
    }
    match context.ports().compute.image_details(region, &[image_id]).await.pop() {
        Some(Lookup::Found(image)) => instance.image = Some(Box::new(image)),
        Some(Lookup::Unknown(failure)) => {
            tracing::debug!(target: "lcm::reconcile", worker = %worker.id, %failure, "the AMI could not be described");
        }
        Some(Lookup::Absent | Lookup::NotRequested) | None => {}
    }
}

async fn fetch_all(context: &Context, due: Queries, worker: &Worker, observation: &mut Observation, now: Timestamp) {
    let mut pending: FuturesUnordered<BoxFuture<'_, Store>> =
        due.iter().filter_map(|query| fetch(context, query, worker, observation, now)).collect();
    let mut responses = Vec::with_capacity(pending.len());
    while let Some(response) = pending.next().await {
        responses.push(response);
    }
    drop(pending);
    for store in responses {
        store(observation);
    }
}

/// The control plane's last verdict, which counts as a check.
async fn idle_status(context: &Context, worker: &Worker) -> Result<IdleReport, CallFailure> {
    let report = context.ports().control_plane.idle_status(&worker.id).await?;
    Ok(IdleReport { telemetry_fetched: true, idle_check_performed: true, ..report })
}

fn fetch<'a>(
    context: &'a Context,
    query: Query,
    worker: &'a Worker,
    observation: &'a Observation,
    now: Timestamp,
) -> Option<BoxFuture<'a, Store>> {
    macro_rules! store {
        ($field:ident, $call:expr) => {
            Some(Box::pin(async move {
                let response: Lookup<_> = $call.await;
                Box::new(move |observation: &mut Observation| observation.$field = response) as Store
            }))
        };
    }
    let ports = context.ports();
    let cml_target = || context.cml_target(worker, observation.instance_of(worker));
    match query {
        Query::Instance => store!(instance, async {
            match (context.region(worker), &worker.ec2_instance_id) {
                (Ok(region), Some(id)) => ports.compute.instance(region, id).await,
                (Err(failure), _) => Lookup::Unknown(failure),
                (Ok(_), None) => Lookup::NotRequested,
            }
        }),
        Query::Tagged => store!(tagged, async {
            match context.region(worker) {
                Ok(region) => ports.compute.tagged(region, &worker.id).await.into(),
                Err(failure) => Lookup::Unknown(failure),
            }
        }),
        Query::Place => Some(Box::pin(async move {
            let Verified { place, again } = verify_place(context, worker, observation, now).await;
            Box::new(move |observation: &mut Observation| {
                observation.place = place;
                match again {
                    Some(SecondLookup::Instance(response)) => observation.instance = response,
                    Some(SecondLookup::Tagged(response)) => observation.tagged = response,
                    Some(SecondLookup::Images(response)) => observation.images = response,
                    None => {}
                }
            }) as Store
        })),
        Query::Template => store!(template, async {
            match &worker.template_name {
                Some(name) => ports.control_plane.template(name).await.into(),
                None => Lookup::Absent,
            }
        }),
        Query::Images => store!(images, async {
            match (context.region(worker), observation.template.found()) {
                (Ok(region), Some(template)) => {
                    list_images(context, region, image_pattern(worker, template), observation).await
                }
                (Err(failure), _) => Lookup::Unknown(failure),
                (Ok(_), None) => Lookup::NotRequested,
            }
        }),
        Query::Sessions => store!(sessions, async { ports.control_plane.sessions(&worker.id).await.into() }),
        Query::CloudMetrics => store!(cloud_metrics, async {
            match (context.region(worker), observation.instance_of(worker)) {
                (Ok(region), Some(instance)) => {
                    let ids = std::slice::from_ref(&instance.id);
                    ports.metrics.utilization(region, ids, now).await.pop().unwrap_or_default()
                }
                (Err(failure), _) => Lookup::Unknown(failure),
                (Ok(_), None) => Lookup::NotRequested,
            }
        }),
        Query::Cml => store!(cml, async {
            match cml_target() {
                Some(target) => ports.cml.system(&target).await.into(),
                None => Lookup::NotRequested,
            }
        }),
        Query::Registration => store!(registration, async {
            match cml_target() {
                Some(target) => ports.cml.registration(&target).await.into(),
                None => Lookup::NotRequested,
            }
        }),
        Query::Telemetry => store!(telemetry, async {
            match cml_target() {
                Some(target) => ports.cml.telemetry(&target).await.into(),
                None => Lookup::Absent,
            }
        }),
        Query::Idle => store!(idle, async { idle_status(context, worker).await.into() }),
        // Counted by `observe`, together with its lock.
        Query::Fleet => None,
    }
}

/// Lists the AMIs. That there are none is believed only from the caller of an earlier lookup of the place.
async fn list_images(context: &Context, region: &str, pattern: &str, seen: &Observation) -> Lookup<Vec<Image>> {
    let compute = &context.ports().compute;
    let images = match compute.images(region, pattern).await {
        Ok(images) => images,
        Err(failure) => return Lookup::Unknown(failure),
    };
    let Lookup::Found(place) = &seen.place else { return Lookup::Found(images) };
    if images.is_empty() && compute.caller(region).await.is_ok_and(|caller| caller != place.caller) {
        return Lookup::Unknown(credentials_changed());
    }
    Lookup::Found(images)
}

/// The place of an absence, and a second lookup by the same caller.
struct Verified {
    place: Lookup<Place>,
    /// `None` if nothing is proved, so that a second lookup would change nothing.
    again: Option<SecondLookup>,
}

enum SecondLookup {
    Instance(Lookup<Instance>),
    Tagged(Lookup<Vec<Instance>>),
    Images(Lookup<Vec<Image>>),
}

/// Collects the facts about the place of an absence or a launch, and repeats the lookup that showed nothing with the
/// credentials that the facts are about: those of the first lookup may have been replaced since.
async fn verify_place(context: &Context, worker: &Worker, seen: &Observation, now: Timestamp) -> Verified {
    let unknown = |failure| Verified { place: Lookup::Unknown(failure), again: None };
    let region = match context.region(worker) {
        Ok(region) => region,
        Err(failure) => return unknown(failure),
    };
    let compute = &context.ports().compute;
    let caller = match compute.caller(region).await {
        Ok(caller) => caller,
        Err(failure) => return unknown(failure),
    };
    let mut place = Place::new(caller.clone());
    // An instance that was last found in another region is not absent from this one.
    let last_found = context.guards().last_found(&worker.id, worker.ec2_instance_id.as_ref());
    place.last_found = last_found.filter(|found| found.region == region);
    let expected = context.policy().aws_account_id.as_deref();
    let prove = |place: &Place| match seen.images {
        Lookup::NotRequested => prove_absence(worker, place, expected, now),
        Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_) => prove_refusal(place, expected, now),
    };
    match prove(&place) {
        Ok(()) | Err(Doubt::RegionUnknown) => {}
        Err(_) => place = context.with_evidence(region, place).await,
    }
    if prove(&place).is_err() {
        return Verified { place: Lookup::Found(place), again: None };
    }
    let again = match (&seen.images, seen.template.found()) {
        (Lookup::Found(images), _) if !images.is_empty() => None,
        (Lookup::NotRequested, _) | (_, None) => Some(match &worker.ec2_instance_id {
            Some(id) => SecondLookup::Instance(compute.instance(region, id).await),
            None => SecondLookup::Tagged(compute.tagged(region, &worker.id).await.into()),
        }),
        (Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_), Some(template)) => {
            Some(SecondLookup::Images(compute.images(region, image_pattern(worker, template)).await.into()))
        }
    };
    match compute.caller(region).await {
        Ok(after) if after == caller => Verified { place: Lookup::Found(place), again },
        Ok(_) => unknown(credentials_changed()),
        Err(failure) => unknown(failure),
    }
}
