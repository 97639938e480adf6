//! etcd: leases, claims and watches with its own client, which worker a key speaks of, and what its errors mean.

mod call;
mod failure;
mod options;
mod watch;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use parking_lot::Mutex;

use self::call::Members;
use self::watch::EtcdWatch;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream};

pub use self::failure::failure;
pub use self::options::{ClientCertificate, EtcdOptions, EtcdTls, EtcdUser};

/// How many keys one answer of a listing holds: far below what fits into a message.
const PAGE: i64 = 5_000;
/// Of how many leases the time to live is remembered. One elector has one.
const LEASES_REMEMBERED: usize = 1_000;

/// An etcd cluster.
///
/// # Guarantees
/// - Connects when it is first asked something, and again by itself. Making one never waits.
/// - Stays with one member and moves to the next when that one cannot be reached or does not answer. A call that
///   certainly reached nobody is tried on every member before it fails.
/// - Every call ends within [`EtcdOptions::call_timeout`].
///
/// ```
/// use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
///
/// let etcd = Etcd::new(EtcdOptions::new(["127.0.0.1:2379"]))?;
/// # drop(etcd);
/// assert!(Etcd::new(EtcdOptions::new(["http://root:hunter2@127.0.0.1:2379"])).is_err());
/// # Ok::<(), lcm_sdk::CallFailure>(())
/// ```
#[derive(Debug)]
pub struct Etcd {
    members: Members,
    /// What the server granted. Its answer to a renewal repeats it, but the client keeps that to itself.
    granted: Mutex<HashMap<LeaseId, Duration>>,
}

impl Etcd {
    /// A cluster that is not asked anything yet.
    ///
    /// # Errors
    /// When the options cannot be meant, or a file they name cannot be read.
    pub fn new(options: EtcdOptions) -> Result<Self, CallFailure> {
        Ok(Self { members: Members::new(&options)?, granted: Mutex::default() })
    }

    fn remember(&self, lease: Lease) {
        let mut granted = self.granted.lock();
        // Leases whose end nobody told us about. Whoever renews one of them asks the server once more.
        if granted.len() >= LEASES_REMEMBERED {
            granted.clear();
        }
        granted.insert(lease.id, lease.ttl);
    }

    async fn granted(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        if let Some(ttl) = self.granted.lock().get(&lease) {
            return Ok(Renewal::Renewed(*ttl));
        }
        let ask = move |client: Client| async move { client.lease_client().time_to_live(lease.0, None).await };
        let answer = self.members.call("ask for a lease", ask).await?;
        match seconds(answer.granted_ttl()) {
            Some(ttl) => {
                self.remember(Lease { id: lease, ttl });
                Ok(Renewal::Renewed(ttl))
            }
            None => Ok(Renewal::Gone),
        }
    }
}

#[async_trait]
impl Coordination for Etcd {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        // etcd counts in whole seconds: a lease is never shorter than asked for.
        let whole = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX);
        let ask = move |client: Client| async move { client.lease_client().grant(whole.max(1), None).await };
        let answer = self.members.call("grant a lease", ask).await?;
        let Some(ttl) = seconds(answer.ttl()) else {
            return Err(unparsable(format!("a lease was granted for {} s", answer.ttl())));
        };
        let lease = Lease { id: LeaseId(answer.id()), ttl };
        self.remember(lease);
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        let ask = move |client: Client| async move {
            match client.lease_client().keep_alive(lease.0).await {
                Ok(_) => Ok(true),
                // The client's words for an answer with no time left; it has no type of its own.
                Err(Error::LeaseKeepAliveError(reason)) if reason == "lease not found" => Ok(false),
                Err(error) => Err(error),
            }
        };
        if self.members.call("renew a lease", ask).await? {
            self.granted(lease).await
        } else {
            self.granted.lock().remove(&lease);
            Ok(Renewal::Gone)
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        let ask = move |client: Client| async move {
            match client.lease_client().revoke(lease.0).await {
                Ok(_) => Ok(()),
                Err(Error::GRpcStatus(status)) if status.code() == tonic::Code::NotFound => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.members.call("revoke a lease", ask).await?;
        self.granted.lock().remove(&lease);
        Ok(())
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        let ask = move |client: Client| async move {
            let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease.0)));
            let txn = Txn::new()
                .when([Compare::create_revision(key, CompareOp::Equal, 0)])
                .and_then([put])
                .or_else([TxnOp::get(key, None)]);
            client.kv_client().txn(txn).await
        };
        let answer = self.members.call("claim a key", ask).await?;
        let revision = revision(answer.header())?;
        if answer.succeeded() {
            return Ok(Claim::Won { revision });
        }
        let responses = answer.op_responses();
        let Some(TxnOpResponse::Get(found)) = responses.first() else {
            return Err(unparsable("the answer to a claim does not say who holds the key".to_owned()));
        };
        let Some(holder) = found.kvs().first() else {
            return Err(unparsable("the key exists and does not exist".to_owned()));
        };
        if holder.lease() == lease.0 && holder.value() == value.as_bytes() {
            return Ok(Claim::Won { revision: holder.create_revision() });
        }
        Ok(Claim::Held { by: String::from_utf8_lossy(holder.value()).into_owned(), revision })
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        let end = end_of_prefix(prefix.as_bytes());
        let mut from = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        let mut listing = Listing::default();
        loop {
            let at = listing.revision;
            let page = GetOptions::new().with_range(end.clone()).with_keys_only().with_limit(PAGE).with_revision(at);
            let (first, page) = (&from, &page);
            let ask =
                move |client: Client| async move { client.kv_client().get(first.clone(), Some(page.clone())).await };
            let answer = self.members.call("list keys", ask).await?;
            if listing.revision == 0 {
                listing.revision = revision(answer.header())?;
            }
            let keys = answer.kvs().iter().map(|found| (found.key().to_vec(), found.mod_revision()));
            listing.keys.extend(keys);
            match (answer.more(), listing.keys.last()) {
                // The smallest key after the last one.
                (true, Some((last, _))) => from = [last.as_slice(), &[0]].concat(),
                (true, None) | (false, _) => return Ok(listing),
            }
        }
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        let ask = move |client: Client| EtcdWatch::open(client, prefix, from_revision);
        Ok(Box::new(self.members.call("watch keys", ask).await?))
    }
}

/// The first key behind all keys that start with a prefix.
fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < 0xff);
    match kept {
        Some(last) => prefix[..last].iter().copied().chain([prefix[last] + 1]).collect(),
        // There is no such key: etcd reads this as "all the rest".
        None => vec![0],
    }
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> Result<i64, CallFailure> {
    header.map(etcd_client::ResponseHeader::revision).ok_or_else(|| unparsable("an answer has no header".to_owned()))
}

fn seconds(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

fn unparsable(message: String) -> CallFailure {
    CallFailure::new(FailureKind::Unparsable, format!("etcd: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_next_one_begins() {
        assert_eq!(end_of_prefix(b"/a/"), b"/a0");
        assert_eq!(end_of_prefix(b"a\xff\xff"), b"b");
        assert_eq!(end_of_prefix(b"\xff"), b"\0");
        assert_eq!(end_of_prefix(b""), b"\0");
    }
}
