//! Asking one member of a cluster, and the next one if that one is not there.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use super::failure::failure;
use super::options::EtcdOptions;
use crate::lifecycle::failure::{CallFailure, FailureKind};

/// The members of a cluster. One is asked until it fails.
///
/// The client could spread calls over all members itself, but then a dead one, which fails fastest, gets most of them.
pub(super) struct Members {
    members: Vec<Member>,
    current: AtomicUsize,
    options: ConnectOptions,
    call_timeout: Duration,
}

struct Member {
    endpoint: String,
    client: OnceCell<Client>,
}

impl Members {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, CallFailure> {
        options.check()?;
        let member = |endpoint: &String| Member { endpoint: endpoint.clone(), client: OnceCell::new() };
        Ok(Self {
            members: options.endpoints.iter().map(member).collect(),
            current: AtomicUsize::new(0),
            options: options.connect_options()?,
            call_timeout: options.call_timeout,
        })
    }

    /// Asks the current member, and the others if it certainly was not reached.
    pub(super) async fn call<T, A, F>(&self, what: &str, ask: A) -> Result<T, CallFailure>
    where
        A: Fn(Client) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + self.call_timeout;
        let mut asked = 0;
        loop {
            asked += 1;
            let chosen = self.current.load(Ordering::Relaxed) % self.members.len();
            let member = &self.members[chosen];
            let answer = timeout_at(deadline, async { ask(self.client(member).await?).await }).await;
            let failure = match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => failure(&error),
                Err(_) => CallFailure::new(
                    FailureKind::Unclear,
                    format!("no answer within {} s", self.call_timeout.as_secs_f64()),
                ),
            };
            if is_trouble_of_the_member(&failure) {
                let next = (chosen + 1) % self.members.len();
                // Somebody else may have moved on already.
                let _ = self.current.compare_exchange(chosen, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            if failure.kind != FailureKind::Unreachable || asked >= self.members.len() || Instant::now() >= deadline {
                let message = format!("could not {what} at {}: {}", member.endpoint, failure.message);
                return Err(CallFailure { message, ..failure });
            }
        }
    }

    async fn client(&self, member: &Member) -> Result<Client, Error> {
        let connect = || Client::connect([member.endpoint.as_str()], Some(self.options.clone()));
        member.client.get_or_try_init(connect).await.cloned()
    }
}

/// The password is among the client's options, which print everything they hold.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.endpoint)).finish()
    }
}

fn is_trouble_of_the_member(failure: &CallFailure) -> bool {
    match failure.kind {
        FailureKind::Unreachable | FailureKind::Unclear => true,
        FailureKind::Throttled
        | FailureKind::NoCapacity
        | FailureKind::Unparsable
        | FailureKind::Conflict
        | FailureKind::Refused
        | FailureKind::LaunchDied => false,
    }
}
