use std::time::Duration;

use async_trait::async_trait;

use crate::lifecycle::failure::CallFailure;

/// etcd, as needed for leader election and watches.
///
/// # Promises
/// - Leases live until they are revoked.
/// - Keys are claimed once.
/// - Claims need a live lease.
/// - Expired leases remove their keys.
/// - Lists are consistent: one revision, and only keys with the prefix.
/// - Watches have no gaps, and report changes in order.
/// - Watch calls are cancel safe.
/// - Compacted revisions are reported.
/// - Probes return progress.
#[async_trait]
pub trait Coordination: Send + Sync {
    /// Grants a lease. The server may grant a longer time to live than requested, but not a shorter one.
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure>;

    /// Renews a lease. Returns [`Renewal::Gone`] if the server reported that it does not exist.
    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure>;

    /// Revokes a lease and deletes its keys. Succeeds if it does not exist.
    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure>;

    /// Creates a key with a lease, if it does not exist, in one transaction.
    ///
    /// Also won if the key holds this value with this lease: the response to an earlier call may have been lost.
    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure>;

    /// Lists the keys with a prefix at one revision.
    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure>;

    /// Watches the keys with a prefix, from a revision on. If that revision is compacted, the stream reports it instead of
    /// starting later.
    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure>;

    /// Reads the value of a key; `None` if it does not exist, which is the default.
    async fn value(&self, key: &str) -> Result<Option<String>, CallFailure> {
        let _ = key;
        Ok(None)
    }

    /// Address of the service for operators, without credentials. By default returns `None`.
    fn url(&self) -> Option<String> {
        None
    }
}

/// A watch in progress.
#[async_trait]
pub trait WatchStream: Send {
    /// Waits for the next update.
    ///
    /// # Cancel safety
    /// No update is lost if the future is dropped.
    async fn next(&mut self) -> WatchUpdate;

    /// Requests a [`WatchUpdate::Progress`], which shows that the server is alive.
    async fn probe(&mut self) -> Result<(), CallFailure>;
}

/// An update of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchUpdate {
    /// Keys were written or deleted.
    Changed {
        /// Revision up to which the changes are complete.
        revision: i64,
        /// Changed keys, once per change.
        keys: Vec<Vec<u8>>,
    },
    /// The server is alive and has sent all changes up to a revision.
    Progress {
        /// Current revision of the server.
        revision: i64,
    },
    /// The requested revision is compacted. The keys must be listed again.
    Compacted {
        /// Oldest revision that can be watched.
        revision: i64,
    },
    /// The stream has ended.
    Ended(CallFailure),
}

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Identifier of the lease.
    pub id: LeaseId,
    /// Time to live without renewal, as granted by the server.
    pub ttl: Duration,
}

/// Identifier of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// Result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lives for this long.
    Renewed(Duration),
    /// The lease does not exist.
    Gone,
}

/// Result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The caller holds the key.
    Won {
        /// Revision at which the key was created. It grows with every leader, so it is the fencing token.
        revision: i64,
    },
    /// Another client holds the key.
    Held {
        /// Value of the key.
        by: String,
        /// Revision of the server. A watch from the next revision sees the release of the key.
        revision: i64,
    },
}

/// Keys with a prefix at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Revision of the server. A watch continues with the next one.
    pub revision: i64,
    /// Each key with the revision of its last change.
    pub keys: Vec<(Vec<u8>, i64)>,
}
