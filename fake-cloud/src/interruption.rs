//! What can come between a request and its answer: the seam through which faults enter the HTTP services.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;

/// A request, as far as a fault may want to know it. Nothing here is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// Which service is asked: `control-plane` or `cml`.
    pub service: &'static str,
    /// The operation's name in the service's own contract; `unknown` for a path that leads nowhere.
    pub operation: &'static str,
    /// The HTTP method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// Whom it is about: the worker's or session's id, or the instance a CML runs on.
    pub subject: Option<String>,
}

/// What happens instead of, before or after the usual answer.
#[derive(Debug)]
pub enum Interruption {
    /// The request is not carried out; this is the answer.
    Instead(Response),
    /// The request is carried out after a while on the world's clock.
    Late(Duration),
    /// The request is carried out, and its answer is lost: the caller gets this one.
    Afterwards(Response),
    /// The request is not carried out, and the connection ends without an answer.
    Cut,
}

impl From<Response> for Interruption {
    fn from(response: Response) -> Self {
        Self::Instead(response)
    }
}

/// Asked before each request. Cheap to clone.
#[derive(Clone, Default)]
pub struct Hook(Option<Arc<HookFunction>>);

type HookFunction = dyn Fn(&RequestInfo) -> Option<Interruption> + Send + Sync;

impl Hook {
    /// A hook that asks `decide` about every request.
    pub fn new(decide: impl Fn(&RequestInfo) -> Option<Interruption> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(decide)))
    }

    /// What comes between this request and its answer, if anything.
    pub fn ask(&self, request: &RequestInfo) -> Option<Interruption> {
        self.0.as_ref().and_then(|decide| decide(request))
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hook(set)" } else { "Hook(none)" })
    }
}
