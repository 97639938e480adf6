//! The joints between the services: records mirrored into etcd, and the world's faults brought to HTTP services.

use std::borrow::Cow;
use std::sync::Arc;

use super::{etcd_faults, http_faults};
use crate::control_plane::EtcdMirror;
use crate::etcd::{Delete, EtcdStore, KeyRange, Put};
use crate::faults::{Action, Occasion};
use crate::interruption::{Ending, Exchange, Hook, Interruption, Keys, RequestInfo, Verdict};
use crate::recorder::{Outcome, Sketch};
use crate::service::Service;
use crate::world::World;

/// Every change of a record, as a key in etcd.
#[derive(Debug)]
pub(super) struct Mirror(pub(super) EtcdStore);

impl EtcdMirror for Mirror {
    fn put(&self, key: &str, value: &str) {
        // A put without a lease of a key that is not empty is never refused.
        drop(self.0.put(&Put::new(key.to_owned(), value.to_owned())));
    }

    fn delete(&self, key: &str) {
        drop(self.0.delete(&Delete { keys: KeyRange::One(key.to_owned().into()) }));
    }
}

/// Asks the world's fault rules about every request of the control plane, and has every request recorded.
pub(super) fn oversee_control_plane(world: &Arc<World>) -> Hook {
    oversee(world, Service::ControlPlane, http_faults::of_control_plane)
}

/// The same for every CML, which says it is of this version.
pub(super) fn oversee_cml(world: &Arc<World>, version: String) -> Hook {
    oversee(world, Service::Cml, move |action, request| http_faults::of_cml(&version, action, request))
}

/// The same for etcd, where some faults are about the store as a whole.
pub(super) fn oversee_etcd(world: &Arc<World>, store: &EtcdStore) -> Hook {
    let store = store.clone();
    oversee(world, Service::Etcd, move |action, _| etcd_faults::interruption(&store, action))
}

fn oversee(
    world: &Arc<World>,
    service: Service,
    meaning: impl Fn(&Action, &RequestInfo) -> Option<Interruption> + Send + Sync + 'static,
) -> Hook {
    let (rules, recorder) = (Arc::clone(world), Arc::clone(world));
    let judge = move |request: &RequestInfo, keys: Keys<'_>| {
        let instances: Vec<String> = request.subject.iter().cloned().collect();
        let operation = request.operation;
        let occasion = Occasion { service, operation, region: None, instances: &instances, keys, call: None };
        let strikes = rules.faults().consult(&occasion);
        Verdict {
            interruptions: strikes.iter().filter_map(|strike| meaning(&strike.action, request)).collect(),
            rules: strikes.into_iter().map(|strike| strike.rule).collect(),
        }
    };
    Hook::judging(judge).witnessed(move |exchange| record(&recorder, service, exchange))
}

/// Writes a request down. Neither bodies nor headers but the fencing token get this far, so there is nothing secret to
/// take out.
fn record(world: &World, service: Service, exchange: &Exchange<'_>) {
    let outcome = match &exchange.ending {
        Ending::Answered { status, code: None } => Outcome::Served { status: *status },
        Ending::Answered { status, code: Some(code) } => Outcome::Refused { status: *status, code: code.to_string() },
        Ending::Lost => Outcome::ResponseDropped,
        Ending::Cut => Outcome::Reset,
        Ending::Abandoned => Outcome::Abandoned,
    };
    let request = exchange.request;
    let mut parameters = vec![("method", Cow::Borrowed(&*request.method)), ("path", Cow::Borrowed(&*request.path))];
    parameters.extend(request.fencing_token.map(|token| ("fencing_token", token.to_string().into())));
    let sketch = Sketch {
        // etcd may count its leases on another clock than the world's; the record is in the world's time.
        at: if service == Service::Etcd { world.clock().now() } else { exchange.at },
        service,
        operation: request.operation,
        region: None,
        subject: request.subject.as_deref().map(Cow::Borrowed),
        parameters,
        call: None,
        attempt: None,
        client: None,
        faults: Cow::Borrowed(exchange.rules),
    };
    world.recorder().write(&sketch, &outcome);
}
