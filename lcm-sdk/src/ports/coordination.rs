use std::time::Duration;

use async_trait::async_trait;

use crate::lifecycle::failure::CallFailure;

/// etcd, as far as electing a leader and watching keys need it.
#[async_trait]
pub trait Coordination: Send + Sync {
    /// Grants a lease. The server may give a longer time to live than asked for.
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure>;

    /// Renews a lease. [`Renewal::Gone`] if the server said that there is no such lease any more.
    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure>;

    /// Gives a lease and all its keys up. One that is gone already is a success.
    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure>;

    /// Creates a key only if it does not exist, in one transaction, bound to a lease.
    ///
    /// A key that holds this very value under this very lease is a claim that was won: the answer of an earlier call
    /// may have been lost.
    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure>;

    /// All keys under a prefix at one revision.
    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure>;

    /// Watches every key that starts with a prefix, from a revision on. The stream has no gap: if the revision is
    /// compacted, it says so instead of starting later.
    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure>;
}

/// A running watch.
#[async_trait]
pub trait WatchStream: Send {
    /// The next update.
    ///
    /// # Cancel safety
    /// Can be dropped and called again; no update is lost.
    async fn next(&mut self) -> WatchUpdate;

    /// Asks the server for a sign of life: a [`WatchUpdate::Progress`] follows if it is there.
    async fn probe(&mut self) -> Result<(), CallFailure>;
}

/// What a watch shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchUpdate {
    /// Keys changed or vanished, all up to a revision.
    Changed {
        /// The revision of the last of them.
        revision: i64,
        /// The keys, each as often as it changed.
        keys: Vec<Vec<u8>>,
    },
    /// Nothing changed up to a revision: the server is there.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The revision asked for is gone: list again.
    Compacted {
        /// The oldest revision that can be watched.
        revision: i64,
    },
    /// The stream is over.
    Ended(CallFailure),
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// How long it lives without renewal, as the server granted it.
    pub ttl: Duration,
}

/// The id of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// What the server said to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It lives on for this long.
    Renewed(Duration),
    /// There is no such lease any more.
    Gone,
}

/// Who holds a claimed key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// We do.
    Won {
        /// The revision at which the key was created: grows with every leader, so it can fence the earlier ones off.
        revision: i64,
    },
    /// Somebody else does.
    Held {
        /// The value they put there.
        by: String,
        /// The server's revision at that moment: watch the key from the next one on.
        revision: i64,
    },
}

/// All keys under a prefix at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The server's revision: a watch goes on from the next one.
    pub revision: i64,
    /// Each key with the revision of its last change.
    pub keys: Vec<(Vec<u8>, i64)>,
}
