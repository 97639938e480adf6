//! The joints between the services: records mirrored into etcd, and the world's faults brought to HTTP services.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::IntoResponse;
use http::StatusCode;
use serde_json::json;

use super::etcd_faults;
use crate::cml::bad_gateway_page;
use crate::control_plane::Projection;
use crate::etcd::{Delete, EtcdStore, KeyRange, Put};
use crate::faults::{Action, Occasion};
use crate::interruption::{Ending, Exchange, Hook, Interruption, RequestInfo, Verdict};
use crate::recorder::{Outcome, Record};
use crate::service::Service;
use crate::world::World;

/// Every change of a record, as a key in etcd.
#[derive(Debug)]
pub(super) struct Mirror(pub(super) EtcdStore);

impl Projection for Mirror {
    fn put(&self, key: &str, value: &str) {
        // A put without a lease of a key that is not empty is never refused.
        drop(self.0.put(&Put::new(key.to_owned(), value.to_owned())));
    }

    fn delete(&self, key: &str) {
        drop(self.0.delete(&Delete { keys: KeyRange::One(key.to_owned().into()) }));
    }
}

/// Asks the world's fault rules about every request of an HTTP service, and has every request recorded.
pub(super) fn oversee(world: &Arc<World>, service: Service) -> Hook {
    let (rules, recorder) = (Arc::clone(world), Arc::clone(world));
    let judge = move |request: &RequestInfo| {
        let (interruptions, rules) = consult(&rules, service, request, interruption);
        Verdict { interruption: interruptions.into_iter().next(), rules }
    };
    Hook::judging(judge).witnessed(move |exchange| record(&recorder, service, exchange))
}

/// The same for etcd, where some faults are about the store as a whole.
pub(super) fn oversee_etcd(world: &Arc<World>, store: &EtcdStore) -> Hook {
    let (rules, recorder, store) = (Arc::clone(world), Arc::clone(world), store.clone());
    let judge = move |request: &RequestInfo| {
        let (interruptions, rules) =
            consult(&rules, Service::Etcd, request, |action| etcd_faults::interruption(&store, action));
        Verdict { interruption: interruptions.into_iter().next(), rules }
    };
    Hook::judging(judge).witnessed(move |exchange| record(&recorder, Service::Etcd, exchange))
}

fn consult(
    world: &World,
    service: Service,
    request: &RequestInfo,
    meaning: impl Fn(&Action) -> Option<Interruption>,
) -> (Vec<Interruption>, Vec<u64>) {
    let instances: Vec<String> = request.subject.iter().cloned().collect();
    let occasion = Occasion { service, operation: request.operation, region: None, instances: &instances, call: None };
    let strikes = world.faults().consult(&occasion);
    let interruptions = strikes.iter().filter_map(|strike| meaning(&strike.action)).collect();
    (interruptions, strikes.into_iter().map(|strike| strike.rule).collect())
}

/// Writes a request down. Neither bodies nor headers get this far, so there is nothing secret to take out.
fn record(world: &World, service: Service, exchange: &Exchange<'_>) {
    let outcome = match &exchange.ending {
        Ending::Answered { status, code: None } => Outcome::Served { status: *status },
        Ending::Answered { status, code: Some(code) } => Outcome::Refused { status: *status, code: code.to_string() },
        Ending::Lost => Outcome::ResponseDropped,
        Ending::Cut => Outcome::Reset,
        Ending::Abandoned => Outcome::Abandoned,
    };
    let request = exchange.request;
    world.recorder().record(Record {
        number: 0,
        at: exchange.at,
        service,
        operation: request.operation.to_owned(),
        region: None,
        subject: request.subject.clone(),
        parameters: vec![("method".to_owned(), request.method.clone()), ("path".to_owned(), request.path.clone())],
        call: None,
        attempt: None,
        client: None,
        faults: exchange.rules.to_vec(),
        outcome,
    });
}

/// What an action means to an HTTP service; those about lists of instances mean nothing to it.
fn interruption(action: &Action) -> Option<Interruption> {
    match action {
        Action::Error { code, status, message } => {
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let words = message.clone().unwrap_or_else(|| code.clone());
            let body = json!({"code": status.as_u16(), "detail": words, "description": words});
            Some(Interruption::Instead((status, Json(body)).into_response()))
        }
        Action::Latency { seconds, .. } => Duration::try_from_secs_f64(*seconds).ok().map(Interruption::Late),
        Action::Reset => Some(Interruption::Cut),
        Action::DropResponse => Some(Interruption::Afterwards(bad_gateway_page())),
        Action::Custom { name, .. } if name == "bad-gateway" => Some(Interruption::Instead(bad_gateway_page())),
        Action::VisibilityLag { .. }
        | Action::Omit { .. }
        | Action::EmptyPage
        | Action::PartialPage { .. }
        | Action::Shuffle
        | Action::Custom { .. } => None,
    }
}
