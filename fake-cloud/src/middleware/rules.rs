//! Connects the middleware to a world: faults come from its rules, requests go to its log.

use std::sync::Arc;
use std::time::Duration;

use super::{
    CompletedRequest, Fault, FaultPolicy, InjectedError, InjectedFaults, Middleware, RequestInfo, RequestObserver,
};
use crate::faults::{Action, Keys, RequestContext, TriggeredRule};
use crate::service::Service;
use crate::world::{Hidden, HiddenReason, PageLimit, SeededRng, World};

impl Middleware {
    /// Creates a middleware that applies the world's fault rules and logs every request in the world.
    pub(crate) fn for_world(world: &Arc<World>) -> Self {
        Self::for_world_with(world, |action, _| match action {
            Action::Error { code, status, message } => {
                Some(Fault::Error(InjectedError { code: code.clone(), status: *status, message: message.clone() }))
            }
            // AWS defines no actions of its own.
            _ => None,
        })
    }

    /// As [`Middleware::for_world`], for a service that translates `error` and `custom` actions itself.
    pub(crate) fn for_world_with(
        world: &Arc<World>,
        translate: impl Fn(&Action, &RequestInfo<'_>) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let policy = RulePolicy { world: Arc::clone(world), translate };
        Self::new(policy).observe(WorldLog(Arc::clone(world)))
    }
}

/// Evaluates the fault rules of a world.
struct RulePolicy<T> {
    world: Arc<World>,
    /// Translates actions that differ between services: `error` and `custom`.
    translate: T,
}

impl<T> FaultPolicy for RulePolicy<T>
where
    T: Fn(&Action, &RequestInfo<'_>) -> Option<Fault> + Send + Sync,
{
    fn evaluate(&self, request: &RequestInfo<'_>, keys: Keys<'_>) -> InjectedFaults {
        let context = RequestContext {
            service: request.service,
            operation: request.operation,
            region: request.region,
            instances: &request.subjects,
            keys,
            call: request.call,
        };
        let mut injected = InjectedFaults::default();
        for triggered in self.world.faults().evaluate(&context) {
            injected.rules.push(triggered.rule);
            injected.faults.extend(self.translate(triggered, request));
        }
        injected
    }
}

impl<T> RulePolicy<T>
where
    T: Fn(&Action, &RequestInfo<'_>) -> Option<Fault>,
{
    fn translate(&self, triggered: TriggeredRule, request: &RequestInfo<'_>) -> Option<Fault> {
        let TriggeredRule { action, instance, roll, .. } = triggered;
        Some(match action {
            Action::Error { .. } | Action::Custom { .. } => return (self.translate)(&action, request),
            Action::Credentials { problem } => {
                let code = problem.code(request.service).to_owned();
                Fault::Error(InjectedError { code, status: None, message: None })
            }
            Action::Latency { seconds, on } => Fault::Delay(duration(seconds), on),
            Action::Reset => Fault::Reset,
            Action::DropResponse => Fault::DropResponse,
            Action::VisibilityLag { seconds } => {
                Fault::Hide(Hidden { instance, reason: HiddenReason::VisibilityLag(duration(seconds)) })
            }
            Action::Omit { fraction } => {
                Fault::Hide(Hidden { instance, reason: HiddenReason::Omitted { probability: fraction, roll } })
            }
            Action::EmptyPage => Fault::CutPage(PageLimit::Empty),
            Action::PartialPage { limit } => Fault::CutPage(PageLimit::AtMost(limit)),
            Action::Shuffle => Fault::Shuffle(SeededRng::new(roll, "shuffle")),
        })
    }
}

/// Durations are checked when a rule is added; an invalid one is zero.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Logs requests in a world.
struct WorldLog(Arc<World>);

impl RequestObserver for WorldLog {
    fn observe(&self, completed: CompletedRequest<'_>) {
        let CompletedRequest { request, at, rules, outcome } = completed;
        // The store of etcd may run on another clock than the world.
        let at = if request.service == Service::Etcd { self.0.clock().now() } else { at };
        self.0.request_log().append(request, at, rules, outcome);
    }
}
