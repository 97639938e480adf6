//! Applies injected faults to requests and reports every finished request, for all five services.
//!
//! # Flow
//! 1. `Middleware::begin` gets the faults of a request from the [`FaultPolicy`].
//! 2. `ActiveRequest::respond` waits for the injected delays, then either replaces the response, resets the
//!    connection, or runs the service's handler.
//! 3. The [`RequestObserver`] sees the outcome before the response leaves, so a client that has the response finds the
//!    request in the log. A request that is dropped halfway is reported as abandoned.
//!
//! All faults of a request apply: delays add up, and of several faults that replace the response the first one counts.

mod rules;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use chrono::{DateTime, Utc};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::faults::{Keys, WaitOn};
use crate::http_server::{CutConnection, cut_connection};
use crate::request_log::RequestOutcome;
use crate::service::Service;
use crate::world::{Hidden, PageLimit, SeededRng, View};

/// Request metadata for fault policies and observers. Contains no request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// Service that received the request.
    pub service: Service,
    /// Operation, as the service names it; `unknown` for a path that does not exist.
    pub operation: &'a str,
    /// AWS region; none for the other services.
    pub region: Option<&'a str>,
    /// Resources the request names: instances, a worker, a session, the instance of a CML server, or a key.
    pub subjects: Vec<String>,
    /// Parameters in wire order. Secrets are redacted by the request log only.
    pub parameters: Vec<(&'a str, Cow<'a, str>)>,
    /// Invocation id that all attempts of one SDK call share.
    pub call: Option<&'a str>,
    /// Attempt number, if the client sends one.
    pub attempt: Option<u32>,
    /// User agent of the client.
    pub client: Option<&'a str>,
}

impl<'a> RequestInfo<'a> {
    /// Creates the metadata of a request that names no resource and has no parameters.
    pub fn new(service: Service, operation: &'a str) -> Self {
        Self {
            service,
            operation,
            region: None,
            subjects: Vec::new(),
            parameters: Vec::new(),
            call: None,
            attempt: None,
            client: None,
        }
    }

    /// Adds the HTTP method and the path without its query.
    #[must_use]
    pub(crate) fn with_http(mut self, method: &str, path: &str) -> Self {
        self.parameters.extend([("method", method.to_owned().into()), ("path", path.to_owned().into())]);
        self
    }

    /// Adds the leader's fencing token, if the client sent one.
    #[must_use]
    pub(crate) fn with_fencing_token(mut self, token: Option<i64>) -> Self {
        self.parameters.extend(token.map(|token| ("fencing_token", token.to_string().into())));
        self
    }

    /// Returns the resources the request names, joined by commas.
    pub fn subject(&self) -> Option<Cow<'_, str>> {
        match &*self.subjects {
            [] => None,
            [one] => Some(one.as_str().into()),
            several => Some(several.join(",").into()),
        }
    }
}

/// A fault that is injected into one request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The request is handled after a delay on the given clock.
    Delay(Duration, WaitOn),
    /// The request is not handled; the service encodes this error as its response.
    Error(InjectedError),
    /// The request is not handled; the client gets this response.
    Respond(Response),
    /// The request is not handled and the connection is reset.
    Reset,
    /// The request is handled and the connection closed without a response.
    DropResponse,
    /// The request is handled, and the client gets this response instead of the real one.
    ReplaceResponse(Response),
    /// EC2 lists and lookups hide instances.
    Hide(Hidden),
    /// Pages of a list are cut.
    CutPage(PageLimit),
    /// Lists are returned in an order drawn from this source.
    Shuffle(SeededRng),
    /// A write that the original control plane makes in two steps fails between them.
    SplitWrite,
}

/// An error that replaces the response. Each service encodes it in its own protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedError {
    /// Error code, as the service names it.
    pub code: String,
    /// HTTP status; none for the usual status of the code.
    pub status: Option<u16>,
    /// Message; none for the usual message of the code.
    pub message: Option<String>,
}

/// Faults of one request, and the rules they come from.
#[derive(Debug, Default)]
pub struct InjectedFaults {
    /// Faults in the order of the rules.
    pub faults: Vec<Fault>,
    /// Ids of the rules.
    pub rules: Vec<u64>,
}

/// Chooses the faults of a request.
pub trait FaultPolicy: Send + Sync {
    /// Returns the faults of a request.
    ///
    /// A request that names etcd keys is evaluated twice: on arrival with no keys, and with its keys once it is decoded.
    fn evaluate(&self, request: &RequestInfo<'_>, keys: Keys<'_>) -> InjectedFaults;
}

/// Receives every finished request, before its response leaves.
pub trait RequestObserver: Send + Sync {
    /// Called once per request.
    fn observe(&self, request: CompletedRequest<'_>);
}

/// A finished request.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletedRequest<'a> {
    /// Metadata of the request.
    pub request: &'a RequestInfo<'a>,
    /// Arrival time on the service's clock.
    pub at: DateTime<Utc>,
    /// Ids of the fault rules that applied.
    pub rules: &'a [u64],
    /// Result of the request.
    pub outcome: RequestOutcome,
}

/// A fault policy and an observer for the requests of a service. Cheap to clone; the default injects and reports nothing.
#[derive(Clone, Default)]
pub struct Middleware {
    policy: Option<Arc<dyn FaultPolicy>>,
    observer: Option<Arc<dyn RequestObserver>>,
}

impl Middleware {
    /// Creates a middleware that injects the faults of `policy`.
    pub fn new(policy: impl FaultPolicy + 'static) -> Self {
        Self { policy: Some(Arc::new(policy)), observer: None }
    }

    /// Creates a middleware that injects at most one fault per request, chosen by `fault`.
    pub fn from_fn(fault: impl Fn(&RequestInfo<'_>) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Self::new(FnPolicy(fault))
    }

    /// Reports every finished request to `observer`. Replaces an earlier observer.
    #[must_use]
    pub fn observe(self, observer: impl RequestObserver + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Starts a request that arrived at `now`, and evaluates the faults that do not depend on keys.
    pub(crate) fn begin<'a>(&self, request: RequestInfo<'a>, now: DateTime<Utc>) -> ActiveRequest<'a> {
        let active = ActiveRequest {
            at: now,
            policy: self.policy.clone(),
            observer: self.observer.clone(),
            state: Mutex::new(State {
                request,
                rules: Vec::new(),
                faults: FaultOutcome::default(),
                is_finished: false,
            }),
        };
        active.evaluate(&mut active.state.lock(), &[]);
        active
    }

    /// Reports a request to the observer without evaluating faults.
    pub(crate) fn report(&self, request: &RequestInfo<'_>, now: DateTime<Utc>, outcome: RequestOutcome) {
        if let Some(observer) = &self.observer {
            observer.observe(CompletedRequest { request, at: now, rules: &[], outcome });
        }
    }

    /// Handles a request of an HTTP service. `work` is polled only if no fault replaces the response.
    pub(crate) async fn handle(
        &self,
        clock: &Clock,
        request: RequestInfo<'_>,
        protocol: &impl Protocol<Body = axum::body::Body>,
        work: impl Future<Output = Response>,
    ) -> Response {
        let active = self.begin(request, clock.now());
        active.respond(clock, protocol, work).await.unwrap_or_else(cut_connection)
    }
}

impl fmt::Debug for Middleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Middleware")
            .field("has_policy", &self.policy.is_some())
            .field("has_observer", &self.observer.is_some())
            .finish()
    }
}

struct FnPolicy<F>(F);

impl<F: Fn(&RequestInfo<'_>) -> Option<Fault> + Send + Sync> FaultPolicy for FnPolicy<F> {
    fn evaluate(&self, request: &RequestInfo<'_>, keys: Keys<'_>) -> InjectedFaults {
        let faults = if keys.is_empty() { (self.0)(request).into_iter().collect() } else { Vec::new() };
        InjectedFaults { faults, rules: Vec::new() }
    }
}

/// Encodes injected responses in the protocol of a service, and reads outcomes from its responses.
pub(crate) trait Protocol {
    type Body;

    fn encode_error(&self, error: InjectedError) -> Response<Self::Body>;

    fn encode_response(&self, response: Response) -> Response<Self::Body>;

    fn outcome(&self, response: &Response<Self::Body>) -> RequestOutcome {
        http_outcome(response)
    }
}

/// Response extension: the service's own code of an error.
#[derive(Debug, Clone)]
pub(crate) struct ErrorCode(pub(crate) Cow<'static, str>);

/// Reads the outcome from the status and the [`ErrorCode`] of a response.
fn http_outcome<B>(response: &Response<B>) -> RequestOutcome {
    if response.extensions().get::<CutConnection>().is_some() {
        return RequestOutcome::Reset;
    }
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return RequestOutcome::Served { status: status.as_u16() };
    }
    let code = match response.extensions().get::<ErrorCode>() {
        Some(code) => code.0.to_string(),
        None => status.canonical_reason().map_or_else(|| status.as_u16().to_string(), str::to_owned),
    };
    RequestOutcome::Refused { status: status.as_u16(), code }
}

/// All faults of a request, combined.
#[derive(Debug, Default)]
struct FaultOutcome {
    delays: Vec<(Duration, WaitOn)>,
    replacement: Option<Replacement>,
    lost: Option<LostResponse>,
    view: View,
    splits_write: bool,
    /// A reset by key, found after the request was decoded.
    is_reset: bool,
}

/// The response that replaces the handler's.
#[derive(Debug)]
pub(crate) enum Replacement {
    Error(InjectedError),
    Response(Response),
    Reset,
}

/// Fate of a response that must not reach the client.
#[derive(Debug)]
enum LostResponse {
    Closed,
    Replaced(Response),
}

impl FaultOutcome {
    fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Delay(delay, clock) => self.delays.push((delay, clock)),
            Fault::Error(error) => drop(self.replacement.get_or_insert(Replacement::Error(error))),
            Fault::Respond(response) => drop(self.replacement.get_or_insert(Replacement::Response(response))),
            Fault::Reset => drop(self.replacement.get_or_insert(Replacement::Reset)),
            Fault::DropResponse => drop(self.lost.get_or_insert(LostResponse::Closed)),
            Fault::ReplaceResponse(response) => drop(self.lost.get_or_insert(LostResponse::Replaced(response))),
            Fault::Hide(hidden) => self.view.hidden.push(hidden),
            Fault::CutPage(cut) => self.view.page = cut,
            Fault::Shuffle(rng) => self.view.shuffle = Some(rng),
            Fault::SplitWrite => self.splits_write = true,
        }
    }
}

/// A request in progress. Dropped before [`ActiveRequest::respond`] completes, it is reported as abandoned.
pub(crate) struct ActiveRequest<'a> {
    at: DateTime<Utc>,
    policy: Option<Arc<dyn FaultPolicy>>,
    observer: Option<Arc<dyn RequestObserver>>,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    request: RequestInfo<'a>,
    rules: Vec<u64>,
    faults: FaultOutcome,
    is_finished: bool,
}

impl ActiveRequest<'_> {
    /// Responds to the request. `work` is polled after the injected delays, and only if no fault replaces the response.
    ///
    /// # Errors
    /// How the connection ends if the client gets no response.
    pub(crate) async fn respond<P: Protocol>(
        &self,
        clock: &Clock,
        protocol: &P,
        work: impl Future<Output = Response<P::Body>>,
    ) -> Result<Response<P::Body>, CutConnection> {
        self.wait(clock).await;
        let replacement = self.state.lock().faults.replacement.take();
        let response = match replacement {
            Some(Replacement::Reset) => return Err(self.reset()),
            Some(Replacement::Error(error)) => protocol.encode_error(error),
            Some(Replacement::Response(response)) => protocol.encode_response(response),
            None => work.await,
        };
        let (is_reset, lost) = {
            let mut state = self.state.lock();
            (state.faults.is_reset, state.faults.lost.take())
        };
        if is_reset {
            return Err(self.reset());
        }
        match lost {
            None => {
                self.finish(protocol.outcome(&response));
                Ok(response)
            }
            Some(lost) => {
                self.finish(RequestOutcome::ResponseDropped);
                match lost {
                    LostResponse::Closed => Err(CutConnection::Closed),
                    LostResponse::Replaced(response) => Ok(protocol.encode_response(response)),
                }
            }
        }
    }

    /// Returns the view that the faults leave of lists and instances.
    pub(crate) fn view(&self) -> View {
        self.state.lock().faults.view.clone()
    }

    /// Returns whether a write in two steps fails between them.
    pub(crate) fn splits_write(&self) -> bool {
        self.state.lock().faults.splits_write
    }

    /// Sets the resource the request names, for requests that are decoded after they are admitted.
    pub(crate) fn set_subject(&self, subject: Option<String>) {
        self.state.lock().request.subjects = subject.into_iter().collect();
    }

    /// Evaluates and applies the faults that depend on keys. Call it before the request changes anything.
    ///
    /// # Errors
    /// The response that replaces the handler's.
    pub(crate) async fn check_keys(&self, clock: &Clock, keys: Keys<'_>) -> Result<(), Replacement> {
        if keys.is_empty() {
            return Ok(());
        }
        self.evaluate(&mut self.state.lock(), keys);
        self.wait(clock).await;
        let mut state = self.state.lock();
        match state.faults.replacement.take() {
            None => Ok(()),
            Some(replacement) => {
                state.faults.is_reset = matches!(replacement, Replacement::Reset);
                Err(replacement)
            }
        }
    }

    fn evaluate(&self, state: &mut State<'_>, keys: Keys<'_>) {
        let Some(policy) = &self.policy else { return };
        let injected = policy.evaluate(&state.request, keys);
        state.rules.extend(injected.rules);
        injected.faults.into_iter().for_each(|fault| state.faults.add(fault));
    }

    async fn wait(&self, clock: &Clock) {
        let delays = std::mem::take(&mut self.state.lock().faults.delays);
        for (delay, on) in delays {
            match on {
                WaitOn::World => clock.sleep(delay).await,
                WaitOn::Real => tokio::time::sleep(delay).await,
            }
        }
    }

    fn reset(&self) -> CutConnection {
        self.finish(RequestOutcome::Reset);
        CutConnection::Reset
    }

    fn finish(&self, outcome: RequestOutcome) {
        let mut state = self.state.lock();
        let is_finished = std::mem::replace(&mut state.is_finished, true);
        if let (Some(observer), false) = (&self.observer, is_finished) {
            let State { request, rules, .. } = &*state;
            observer.observe(CompletedRequest { request, at: self.at, rules, outcome });
        }
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.finish(RequestOutcome::Abandoned);
    }
}
