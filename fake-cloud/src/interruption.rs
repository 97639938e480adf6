//! What can come between a request and its answer, and who is told how it ended: the seam through which faults and the
//! recorder reach the services that are not AWS.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use chrono::{DateTime, Utc};

use crate::clock::Clock;
use crate::http_server::{CutConnection, cut_connection};

/// A request, as far as a fault may want to know it. Nothing here is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// Which service is asked: `control-plane`, `cml` or `etcd`.
    pub service: &'static str,
    /// The operation's name in the service's own contract; `unknown` for a path that leads nowhere.
    pub operation: &'static str,
    /// The HTTP method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// Whom it is about: the worker's or session's id, the instance a CML runs on, a key or a lease.
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

/// What is to happen to a request, and by which rules.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What comes in between, if anything.
    pub interruption: Option<Interruption>,
    /// The numbers of the rules that struck.
    pub rules: Vec<u64>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With an answer.
    Answered {
        /// The HTTP status.
        status: u16,
        /// What was refused, in the service's own word for it; none when it was served.
        code: Option<Cow<'static, str>>,
    },
    /// It was carried out, and the answer lost.
    Lost,
    /// The connection ended before anything was done.
    Cut,
    /// The caller went away first.
    Abandoned,
}

/// Marks a refusal with the service's own word for it.
#[derive(Debug, Clone)]
pub(crate) struct RefusalCode(pub(crate) &'static str);

impl Ending {
    /// How a request ended that was answered like this.
    pub(crate) fn of(response: &Response) -> Self {
        if response.extensions().get::<CutConnection>().is_some() {
            return Self::Cut;
        }
        let status = response.status();
        let failed = status.is_client_error() || status.is_server_error();
        let named = response.extensions().get::<RefusalCode>().map(|code| Cow::Borrowed(code.0));
        let usual = || status.canonical_reason().map_or_else(|| status.as_u16().to_string().into(), Cow::Borrowed);
        Self::Answered { status: status.as_u16(), code: failed.then(|| named.unwrap_or_else(usual)) }
    }
}

/// A request that is over.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// What was asked.
    pub request: &'a RequestInfo,
    /// When it came in, on the world's clock.
    pub at: DateTime<Utc>,
    /// The rules that struck.
    pub rules: &'a [u64],
    /// How it ended.
    pub ending: Ending,
}

/// Asked before each request, told after it. Cheap to clone.
#[derive(Clone, Default)]
pub struct Hook {
    judge: Option<Arc<Judge>>,
    witness: Option<Arc<Witness>>,
}

type Judge = dyn Fn(&RequestInfo) -> Verdict + Send + Sync;
type Witness = dyn Fn(&Exchange<'_>) + Send + Sync;

impl Hook {
    /// A hook that asks `decide` about every request.
    pub fn new(decide: impl Fn(&RequestInfo) -> Option<Interruption> + Send + Sync + 'static) -> Self {
        Self::judging(move |request| Verdict { interruption: decide(request), rules: Vec::new() })
    }

    /// A hook that asks `judge` about every request, and learns which rules it went by.
    pub fn judging(judge: impl Fn(&RequestInfo) -> Verdict + Send + Sync + 'static) -> Self {
        Self { judge: Some(Arc::new(judge)), witness: None }
    }

    /// The same hook, which also tells `witness` about every request that is over, before its answer leaves.
    #[must_use]
    pub fn witnessed(self, witness: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self { witness: Some(Arc::new(witness)), ..self }
    }

    /// Lets a request in: asks what is to happen to it, and sees to it that its end is told, whatever happens.
    pub(crate) fn admit(&self, request: RequestInfo, now: DateTime<Utc>) -> Admitted {
        let verdict = self.judge.as_ref().map(|judge| judge(&request)).unwrap_or_default();
        Admitted {
            request,
            interruption: verdict.interruption,
            at: now,
            rules: verdict.rules,
            witness: self.witness.clone(),
        }
    }

    /// Takes an HTTP request through: `work` is what answers it, unless something comes in between.
    pub(crate) async fn pass(
        &self,
        clock: &Clock,
        request: RequestInfo,
        work: impl Future<Output = Response>,
    ) -> Response {
        let mut admitted = self.admit(request, clock.now());
        let response = match admitted.interruption.take() {
            Some(Interruption::Instead(response)) => response,
            Some(Interruption::Cut) => cut_connection(),
            Some(Interruption::Late(delay)) => {
                clock.sleep(delay).await;
                work.await
            }
            Some(Interruption::Afterwards(response)) => {
                drop(work.await);
                admitted.close(Ending::Lost);
                return response;
            }
            None => work.await,
        };
        admitted.close(Ending::of(&response));
        response
    }
}

/// A request under way. Dropped without an ending, it was abandoned.
pub(crate) struct Admitted {
    pub(crate) request: RequestInfo,
    pub(crate) interruption: Option<Interruption>,
    at: DateTime<Utc>,
    rules: Vec<u64>,
    witness: Option<Arc<Witness>>,
}

impl Admitted {
    pub(crate) fn close(mut self, ending: Ending) {
        self.tell(ending);
    }

    fn tell(&mut self, ending: Ending) {
        if let Some(witness) = self.witness.take() {
            witness(&Exchange { request: &self.request, at: self.at, rules: &self.rules, ending });
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.tell(Ending::Abandoned);
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("judges", &self.judge.is_some()).field("tells", &self.witness.is_some()).finish()
    }
}
