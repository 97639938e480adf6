//! Errors of etcd, with the texts of a real server.

use std::fmt;

/// A rejected request. `Display` writes the text that real etcd sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdError {
    /// The request has no key.
    EmptyKey,
    /// The key to update does not exist, or an operation of a transaction is empty.
    KeyNotFound,
    /// The request has both a value and `ignore_value`.
    ValueProvided,
    /// The request has both a lease and `ignore_lease`.
    LeaseProvided,
    /// The transaction has more operations than allowed.
    TooManyOperations,
    /// The transaction writes one key twice.
    DuplicateKey,
    /// The revision is compacted.
    Compacted,
    /// The revision does not exist yet.
    FutureRevision,
    /// The lease does not exist.
    LeaseNotFound,
    /// The lease id is in use.
    LeaseExists,
    /// The TTL of the lease is longer than allowed.
    LeaseTooLong,
    /// The request is larger than a log entry may be.
    RequestTooLarge,
    /// The store has reached its quota.
    NoSpace,
    /// The election has no leader.
    NoLeader,
    /// The caller is not the leader of the election.
    NotLeader,
    /// The lease of a waiting lock request ended.
    SessionExpired,
    /// Authentication is not enabled.
    AuthNotEnabled,
    /// The server is made unavailable by a fault.
    Unavailable,
    /// The server is shutting down.
    Stopped,
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmptyKey => "etcdserver: key is not provided",
            Self::KeyNotFound => "etcdserver: key not found",
            Self::ValueProvided => "etcdserver: value is provided",
            Self::LeaseProvided => "etcdserver: lease is provided",
            Self::TooManyOperations => "etcdserver: too many operations in txn request",
            Self::DuplicateKey => "etcdserver: duplicate key given in txn request",
            Self::Compacted => "etcdserver: mvcc: required revision has been compacted",
            Self::FutureRevision => "etcdserver: mvcc: required revision is a future revision",
            Self::LeaseNotFound => "etcdserver: requested lease not found",
            Self::LeaseExists => "etcdserver: lease already exists",
            Self::LeaseTooLong => "etcdserver: too large lease TTL",
            Self::RequestTooLarge => "etcdserver: request is too large",
            Self::NoSpace => "etcdserver: mvcc: database space exceeded",
            Self::NoLeader => "election: no leader",
            Self::NotLeader => "election: not leader",
            Self::SessionExpired => "mutex: session is expired",
            Self::AuthNotEnabled => "etcdserver: authentication is not enabled",
            Self::Unavailable => "etcdserver: no leader",
            Self::Stopped => "etcdserver: server stopped",
        })
    }
}

impl std::error::Error for EtcdError {}
