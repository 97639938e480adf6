//! The joints between the services: records mirrored into etcd, and the world's faults brought to HTTP services.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::IntoResponse;
use http::StatusCode;
use serde_json::json;

use crate::cml::bad_gateway_page;
use crate::control_plane::Projection;
use crate::etcd::{Delete, EtcdStore, KeyRange, Put};
use crate::faults::{Action, Occasion};
use crate::interruption::{Hook, Interruption};
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

/// Asks the world's fault rules about every request of a service.
pub(super) fn faults(world: &Arc<World>, service: Service) -> Hook {
    let world = Arc::clone(world);
    Hook::new(move |request| {
        let instances: Vec<String> = request.subject.iter().cloned().collect();
        let occasion =
            Occasion { service, operation: request.operation, region: None, instances: &instances, call: None };
        let strikes = world.faults().consult(&occasion);
        strikes.into_iter().find_map(|strike| interruption(&strike.action))
    })
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
