//! What etcd refuses, in etcd's own words.

use std::fmt;

/// A refusal. Its `Display` is the text real etcd sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdError {
    /// A request without a key.
    EmptyKey,
    /// An operation in a transaction that is none.
    KeyNotFound,
    /// A value next to `ignore_value`.
    ValueProvided,
    /// A lease next to `ignore_lease`.
    LeaseProvided,
    /// A transaction with more operations than allowed.
    TooManyOperations,
    /// A transaction that writes one key twice.
    DuplicateKey,
    /// A revision that is compacted away.
    Compacted,
    /// A revision that is not there yet.
    FutureRevision,
    /// A lease that does not exist.
    LeaseNotFound,
    /// A lease id that is taken.
    LeaseExists,
    /// A lease longer than allowed.
    LeaseTooLong,
    /// A request larger than the log takes.
    RequestTooLarge,
    /// The store is full.
    NoSpace,
    /// Nobody leads the election.
    NoLeader,
    /// The caller does not lead the election.
    NotLeader,
    /// The lease of a waiting locker ended.
    SessionExpired,
    /// Passwords are not asked for here.
    AuthNotEnabled,
    /// The server does not answer at the moment.
    Unavailable,
    /// The server is going away.
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
