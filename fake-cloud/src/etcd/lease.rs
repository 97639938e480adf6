//! Leases: keys that live as long as somebody keeps them alive.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};

use super::error::EtcdError;

/// The shortest lease a server with default settings grants, in seconds.
pub const MIN_TTL: i64 = 2;
/// The longest lease, in seconds.
pub const MAX_TTL: i64 = 9_000_000_000;

/// How a lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The seconds it was granted for.
    pub granted_ttl: i64,
    /// The whole seconds it has left.
    pub ttl: i64,
    /// The keys on it, in key order.
    pub keys: Vec<Bytes>,
}

/// All leases of a store.
#[derive(Debug, Default)]
pub(super) struct Leases {
    by_id: HashMap<i64, Lease>,
    by_expiry: BTreeSet<(DateTime<Utc>, i64)>,
}

#[derive(Debug)]
struct Lease {
    ttl: i64,
    expires: DateTime<Utc>,
    keys: BTreeSet<Bytes>,
}

impl Leases {
    /// Grants a lease and returns the seconds it really got.
    pub(super) fn grant(&mut self, id: i64, ttl: i64, now: DateTime<Utc>) -> Result<i64, EtcdError> {
        if ttl > MAX_TTL {
            return Err(EtcdError::LeaseTooLong);
        }
        if self.by_id.contains_key(&id) {
            return Err(EtcdError::LeaseExists);
        }
        let ttl = ttl.max(MIN_TTL);
        let expires = after(now, ttl);
        self.by_id.insert(id, Lease { ttl, expires, keys: BTreeSet::new() });
        self.by_expiry.insert((expires, id));
        Ok(ttl)
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Starts the lease's time anew and returns its length, if it exists.
    pub(super) fn keep_alive(&mut self, id: i64, now: DateTime<Utc>) -> Option<i64> {
        let lease = self.by_id.get_mut(&id)?;
        self.by_expiry.remove(&(lease.expires, id));
        lease.expires = after(now, lease.ttl);
        self.by_expiry.insert((lease.expires, id));
        Some(lease.ttl)
    }

    pub(super) fn status(&self, id: i64, now: DateTime<Utc>) -> Option<LeaseStatus> {
        let lease = self.by_id.get(&id)?;
        Some(LeaseStatus {
            granted_ttl: lease.ttl,
            ttl: (lease.expires - now).num_seconds().max(0),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    /// The ids, the one that expires first in front.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.by_expiry.iter().map(|(_, id)| *id).collect()
    }

    /// Puts a key on a lease. Lease 0 is none.
    pub(super) fn attach(&mut self, id: i64, key: &Bytes) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.insert(key.clone());
        }
    }

    /// Takes a key off a lease. Lease 0 is none.
    pub(super) fn detach(&mut self, id: i64, key: &[u8]) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    /// Ends a lease and returns the keys that lived on it, in key order.
    pub(super) fn remove(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        let lease = self.by_id.remove(&id)?;
        self.by_expiry.remove(&(lease.expires, id));
        Some(lease.keys)
    }

    /// When the next lease ends, and which it is.
    pub(super) fn next_expiry(&self) -> Option<(DateTime<Utc>, i64)> {
        self.by_expiry.first().copied()
    }
}

fn after(now: DateTime<Utc>, seconds: i64) -> DateTime<Utc> {
    let length = TimeDelta::try_seconds(seconds).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(length).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
