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
    /// The store is marked as corrupt by an alarm.
    Corrupt,
    /// Authentication is not enabled.
    AuthNotEnabled,
    /// Authentication cannot be enabled without a user named root.
    RootUserMissing,
    /// Authentication cannot be enabled while the user root lacks the role root.
    RootRoleMissing,
    /// The user exists already.
    UserExists,
    /// The request names no user, or authentication is enabled and the caller sent no token.
    UserEmpty,
    /// The user does not exist.
    UserNotFound,
    /// The role exists already.
    RoleExists,
    /// The role does not exist.
    RoleNotFound,
    /// The request names no role.
    RoleEmpty,
    /// The user does not have the role.
    RoleNotGranted,
    /// The user or the password is wrong.
    AuthFailed,
    /// The user has no password and cannot log in with one.
    PasswordForPasswordless,
    /// The request to grant a permission has none.
    PermissionNotGiven,
    /// The role does not have the permission.
    PermissionNotGranted,
    /// The user may not do this.
    PermissionDenied,
    /// The token is unknown or expired.
    InvalidToken,
    /// The user root and the role root cannot be taken away while authentication is enabled.
    InvalidAuthManagement,
    /// The member does not exist.
    MemberNotFound,
    /// A peer URL of the request is malformed.
    BadMemberUrls,
    /// A peer URL of the request belongs to another member.
    PeerUrlExists,
    /// The change would leave fewer started members than a quorum.
    NotEnoughStartedMembers,
    /// The member to promote is no learner.
    MemberNotLearner,
    /// The learner to promote has not caught up with the leader.
    LearnerNotReady,
    /// The cluster has a learner already.
    TooManyLearners,
    /// The leadership cannot be moved to this member.
    BadTransferee,
    /// The member that the leadership is moved to did not take it over.
    TransferTimeout,
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
            Self::Corrupt => "etcdserver: corrupt cluster",
            Self::AuthNotEnabled => "etcdserver: authentication is not enabled",
            Self::RootUserMissing => "etcdserver: root user does not exist",
            Self::RootRoleMissing => "etcdserver: root user does not have root role",
            Self::UserExists => "etcdserver: user name already exists",
            Self::UserEmpty => "etcdserver: user name is empty",
            Self::UserNotFound => "etcdserver: user name not found",
            Self::RoleExists => "etcdserver: role name already exists",
            Self::RoleNotFound => "etcdserver: role name not found",
            Self::RoleEmpty => "etcdserver: role name is empty",
            Self::RoleNotGranted => "etcdserver: role is not granted to the user",
            Self::AuthFailed => "etcdserver: authentication failed, invalid user ID or password",
            Self::PasswordForPasswordless => "auth: authentication failed, password was given for no password user",
            Self::PermissionNotGiven => "etcdserver: permission not given",
            Self::PermissionNotGranted => "etcdserver: permission is not granted to the role",
            Self::PermissionDenied => "etcdserver: permission denied",
            Self::InvalidToken => "etcdserver: invalid auth token",
            Self::InvalidAuthManagement => "etcdserver: invalid auth management",
            Self::MemberNotFound => "etcdserver: member not found",
            Self::BadMemberUrls => "etcdserver: given member URLs are invalid",
            Self::PeerUrlExists => "etcdserver: Peer URLs already exists",
            Self::NotEnoughStartedMembers => "etcdserver: re-configuration failed due to not enough started members",
            Self::MemberNotLearner => "etcdserver: can only promote a learner member",
            Self::LearnerNotReady => "etcdserver: can only promote a learner member which is in sync with leader",
            Self::TooManyLearners => "etcdserver: too many learner members in cluster",
            Self::BadTransferee => "etcdserver: bad leader transferee",
            Self::TransferTimeout => "etcdserver: request timed out, leader transfer took too long",
            Self::Unavailable => "etcdserver: no leader",
            Self::Stopped => "etcdserver: server stopped",
        })
    }
}

impl std::error::Error for EtcdError {}
