//! Observe: sends the queries of a reconcile, stage by stage, those of one stage concurrently. Reads only.

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::context::{Context, FleetGuard};
use super::result::Mode;
use crate::lifecycle::launch::image_pattern;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::query::{Queries, Query, queries};
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;

/// Upper bound on the stages of one observation. More would mean that `queries` repeats itself.
const MAX_STAGES: usize = 10;

/// An observation, and the fleet if it was counted.
pub(super) struct Observed {
    pub(super) observation: Observation,
    pub(super) fleet: Option<FleetGuard>,
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
    let mut observed = Observed { observation, fleet: None };
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
    observed
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
        Query::Template => store!(template, async {
            match &worker.template_name {
                Some(name) => ports.control_plane.template(name).await.into(),
                None => Lookup::Absent,
            }
        }),
        Query::Images => store!(images, async {
            match (context.region(worker), observation.template.found()) {
                (Ok(region), Some(template)) => {
                    ports.compute.images(region, image_pattern(worker, template)).await.into()
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
        // Counted by `observe`, together with its lock.
        Query::Fleet => None,
    }
}
