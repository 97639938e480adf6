//! [`Coordination`] with etcd: leases, claims, lists and watches. [`NotesStore`](crate::ports::NotesStore) with etcd.

mod client;
mod notes;
mod options;
mod watch;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use parking_lot::Mutex;

use self::client::Members;
use self::watch::EtcdWatch;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream};

pub use self::notes::EtcdNotes;
pub use self::options::{ClientCertificate, EtcdOptions, EtcdTls, EtcdUser};

/// Keys per page of a list, far below the size limit of a gRPC message.
const PAGE: i64 = 5_000;
/// Maximum number of cached leases. An elector has one.
const MAX_LEASES: usize = 1_000;

/// A [`Coordination`] backed by an etcd cluster.
///
/// # Guarantees
/// - Connects on the first call and reconnects on its own.
/// - Uses one member until it is unreachable or does not respond, then the next. A call that was certainly not sent is
///   tried on every member before it fails.
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
    /// Time to live by lease. The response to a renewal holds it, but the client does not expose it.
    granted: Mutex<HashMap<LeaseId, Duration>>,
}

impl Etcd {
    /// Creates a client. Makes no connection.
    ///
    /// # Errors
    /// [`FailureKind::Refused`] if the options are invalid or a file is unreadable.
    pub fn new(options: EtcdOptions) -> Result<Self, CallFailure> {
        Ok(Self { members: Members::new(&options)?, granted: Mutex::default() })
    }

    fn cache(&self, lease: Lease) {
        let mut granted = self.granted.lock();
        // Leases that expired without a call. Renewing one that was evicted costs one more request.
        if granted.len() >= MAX_LEASES {
            granted.clear();
        }
        granted.insert(lease.id, lease.ttl);
    }

    async fn granted(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        if let Some(ttl) = self.granted.lock().get(&lease) {
            return Ok(Renewal::Renewed(*ttl));
        }
        let send = move |client: Client| async move { client.lease_client().time_to_live(lease.0, None).await };
        let response = self.members.call("read a lease", send).await?;
        match seconds(response.granted_ttl()) {
            Some(ttl) => {
                self.cache(Lease { id: lease, ttl });
                Ok(Renewal::Renewed(ttl))
            }
            None => Ok(Renewal::Gone),
        }
    }
}

#[async_trait]
impl Coordination for Etcd {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        // Rounded up: etcd counts in seconds, and a lease must not be shorter than requested.
        let seconds_up = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX);
        let send = move |client: Client| async move { client.lease_client().grant(seconds_up.max(1), None).await };
        let response = self.members.call("grant a lease", send).await?;
        let Some(ttl) = seconds(response.ttl()) else {
            return Err(unparsable(format!("a lease was granted for {} s", response.ttl())));
        };
        let lease = Lease { id: LeaseId(response.id()), ttl };
        self.cache(lease);
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        let send = move |client: Client| async move {
            match client.lease_client().keep_alive(lease.0).await {
                Ok(_) => Ok(true),
                // The client reports an expired lease with this text only.
                Err(Error::LeaseKeepAliveError(reason)) if reason == "lease not found" => Ok(false),
                Err(error) => Err(error),
            }
        };
        if self.members.call("renew a lease", send).await? {
            self.granted(lease).await
        } else {
            self.granted.lock().remove(&lease);
            Ok(Renewal::Gone)
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        let send = move |client: Client| async move {
            match client.lease_client().revoke(lease.0).await {
                Ok(_) => Ok(()),
                Err(Error::GRpcStatus(status)) if status.code() == tonic::Code::NotFound => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.members.call("revoke a lease", send).await?;
        self.granted.lock().remove(&lease);
        Ok(())
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        let send = move |client: Client| async move {
            let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease.0)));
            let txn = Txn::new()
                .when([Compare::create_revision(key, CompareOp::Equal, 0)])
                .and_then([put])
                .or_else([TxnOp::get(key, None)]);
            client.kv_client().txn(txn).await
        };
        let response = self.members.call("claim a key", send).await?;
        let revision = revision(response.header())?;
        if response.succeeded() {
            return Ok(Claim::Won { revision });
        }
        let responses = response.op_responses();
        let Some(TxnOpResponse::Get(found)) = responses.first() else {
            return Err(unparsable("the response to a claim does not name the holder".to_owned()));
        };
        let Some(holder) = found.kvs().first() else {
            return Err(unparsable("the response to a claim contradicts itself".to_owned()));
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
            let send =
                move |client: Client| async move { client.kv_client().get(first.clone(), Some(page.clone())).await };
            let response = self.members.call("list keys", send).await?;
            if listing.revision == 0 {
                listing.revision = revision(response.header())?;
            }
            let keys = response.kvs().iter().map(|found| (found.key().to_vec(), found.mod_revision()));
            listing.keys.extend(keys);
            match (response.more(), listing.keys.last()) {
                // The key right after the last one.
                (true, Some((last, _))) => from = [last.as_slice(), &[0]].concat(),
                (true, None) | (false, _) => return Ok(listing),
            }
        }
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        let send = move |client: Client| EtcdWatch::open(client, prefix, from_revision);
        Ok(Box::new(self.members.call("watch keys", send).await?))
    }

    async fn value(&self, key: &str) -> Result<Option<String>, CallFailure> {
        let send = move |client: Client| async move { client.kv_client().get(key, None).await };
        let response = self.members.call("read a key", send).await?;
        Ok(response.kvs().first().map(|found| String::from_utf8_lossy(found.value()).into_owned()))
    }

    fn url(&self) -> Option<String> {
        Some(self.members.endpoints())
    }
}

/// The first key after all keys with a prefix.
fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < 0xff);
    match kept {
        Some(last) => prefix[..last].iter().copied().chain([prefix[last] + 1]).collect(),
        // No such key exists; for etcd this means all remaining keys.
        None => vec![0],
    }
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> Result<i64, CallFailure> {
    header.map(etcd_client::ResponseHeader::revision).ok_or_else(|| unparsable("a response has no header".to_owned()))
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
    fn prefix_ends_before_its_successor() {
        assert_eq!(end_of_prefix(b"/a/"), b"/a0");
        assert_eq!(end_of_prefix(b"a\xff\xff"), b"b");
        assert_eq!(end_of_prefix(b"\xff"), b"\0");
        assert_eq!(end_of_prefix(b""), b"\0");
    }
}
