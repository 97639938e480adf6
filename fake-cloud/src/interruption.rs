//! What can come between a request and its answer, and who is told how it ended: the seam through which faults and the
//! recorder reach the services that are not AWS.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use chrono::{DateTime, Utc};

use crate::clock::Clock;
use crate::faults::WaitOn;
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
    /// The leader's fencing token, where the caller sent one.
    pub fencing_token: Option<i64>,
}

/// What happens instead of, before or after the usual answer.
#[derive(Debug)]
pub enum Interruption {
    /// The request is not carried out; this is the answer.
    Instead(Response),
    /// The request is carried out after a while, on one clock or the other.
    Late(Duration, WaitOn),
    /// The request is carried out, and its answer is lost: the caller gets this one.
    Afterwards(Response),
    /// The request is not carried out, and the connection is reset.
    Cut,
}

impl From<Response> for Interruption {
    fn from(response: Response) -> Self {
        Self::Instead(response)
    }
}

/// What is to happen to a request, and by which rules.
///
/// All of it happens: the waits add up; of several interruptions that end a request the first one counts; an answer
/// that is to be lost is lost whatever it says.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What comes in between, in order.
    pub interruptions: Vec<Interruption>,
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
pub(crate) struct RefusalCode(pub(crate) Cow<'static, str>);

impl Ending {
    /// How a request ended that was answered like this.
    pub(crate) fn of(response: &Response) -> Self {
        if response.extensions().get::<CutConnection>().is_some() {
            return Self::Cut;
        }
        let status = response.status();
        let failed = status.is_client_error() || status.is_server_error();
        let named = response.extensions().get::<RefusalCode>().map(|code| code.0.clone());
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

/// The keys a request turned out to name once it was decoded; none before that.
pub type Keys<'a> = &'a [&'a [u8]];

/// Asked before each request, told after it. Cheap to clone.
#[derive(Clone, Default)]
pub struct Hook {
    judge: Option<Arc<Judge>>,
    witness: Option<Arc<Witness>>,
}

type Judge = dyn Fn(&RequestInfo, Keys<'_>) -> Verdict + Send + Sync;
type Witness = dyn Fn(&Exchange<'_>) + Send + Sync;

impl Hook {
    /// A hook that asks `decide` about every request.
    pub fn new(decide: impl Fn(&RequestInfo) -> Option<Interruption> + Send + Sync + 'static) -> Self {
        Self::judging(move |request, keys| {
            let interruptions = if keys.is_empty() { decide(request).into_iter().collect() } else { Vec::new() };
            Verdict { interruptions, rules: Vec::new() }
        })
    }

    /// A hook that asks `judge` about every request, and learns which rules it went by. A request that names keys is
    /// judged twice: when it comes in, without them, and once they are known, with them.
    pub fn judging(judge: impl Fn(&RequestInfo, Keys<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        Self { judge: Some(Arc::new(judge)), witness: None }
    }

    /// The same hook, which also tells `witness` about every request that is over, before its answer leaves.
    #[must_use]
    pub fn witnessed(self, witness: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self { witness: Some(Arc::new(witness)), ..self }
    }

    /// Lets a request in: asks what is to happen to it, and sees to it that its end is told, whatever happens.
    pub(crate) fn admit(&self, request: RequestInfo, now: DateTime<Utc>) -> Admitted {
        let mut admitted = Admitted {
            request,
            fate: Fate::default(),
            at: now,
            rules: Vec::new(),
            judge: self.judge.clone(),
            witness: self.witness.clone(),
        };
        admitted.ask(&[]);
        admitted
    }

    /// Takes an HTTP request through: `work` is what answers it, unless something comes in between.
    pub(crate) async fn pass(
        &self,
        clock: &Clock,
        request: RequestInfo,
        work: impl Future<Output = Response>,
    ) -> Response {
        let mut admitted = self.admit(request, clock.now());
        let mut fate = admitted.take_fate();
        fate.wait(clock).await;
        let response = match fate.instead {
            Some(Instead::Cut) => {
                admitted.close(Ending::Cut);
                return cut_connection(CutConnection::Reset);
            }
            Some(Instead::Answer(response)) => response,
            None => work.await,
        };
        if let Some(lost) = fate.lost {
            admitted.close(Ending::Lost);
            return lost;
        }
        admitted.close(Ending::of(&response));
        response
    }
}

/// What becomes of a request, all rules taken together.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    waits: Vec<(Duration, WaitOn)>,
    /// What happens instead of it.
    pub(crate) instead: Option<Instead>,
    /// What the caller gets in place of the answer.
    pub(crate) lost: Option<Response>,
}

/// What happens instead of a request.
#[derive(Debug)]
pub(crate) enum Instead {
    /// This is the answer.
    Answer(Response),
    /// The connection is reset.
    Cut,
}

impl Fate {
    fn take(&mut self, interruption: Interruption) {
        match interruption {
            Interruption::Instead(response) => {
                self.instead.get_or_insert(Instead::Answer(response));
            }
            Interruption::Cut => {
                self.instead.get_or_insert(Instead::Cut);
            }
            Interruption::Late(delay, on) => self.waits.push((delay, on)),
            Interruption::Afterwards(response) => {
                self.lost.get_or_insert(response);
            }
        }
    }

    /// Waits for everything there is to wait for.
    pub(crate) async fn wait(&mut self, clock: &Clock) {
        for (delay, on) in std::mem::take(&mut self.waits) {
            match on {
                WaitOn::World => clock.sleep(delay).await,
                WaitOn::Real => tokio::time::sleep(delay).await,
            }
        }
    }
}

/// A request under way. Dropped without an ending, it was abandoned.
pub(crate) struct Admitted {
    pub(crate) request: RequestInfo,
    fate: Fate,
    at: DateTime<Utc>,
    rules: Vec<u64>,
    judge: Option<Arc<Judge>>,
    witness: Option<Arc<Witness>>,
}

impl Admitted {
    /// What becomes of it, as far as was known when it came in.
    pub(crate) fn take_fate(&mut self) -> Fate {
        std::mem::take(&mut self.fate)
    }

    /// What becomes of it by the rules that look at keys, now that they are known.
    pub(crate) fn meet(&mut self, keys: Keys<'_>) -> Fate {
        if !keys.is_empty() {
            self.ask(keys);
        }
        self.take_fate()
    }

    pub(crate) fn close(mut self, ending: Ending) {
        self.tell(ending);
    }

    fn ask(&mut self, keys: Keys<'_>) {
        let Some(judge) = &self.judge else { return };
        let verdict = judge(&self.request, keys);
        self.rules.extend(verdict.rules);
        for interruption in verdict.interruptions {
            self.fate.take(interruption);
        }
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
