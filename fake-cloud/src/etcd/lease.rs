//! Leases, ordered by their expiry.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};

use super::error::EtcdError;

/// The shortest lease a server with default settings grants, in seconds.
pub const MIN_TTL: i64 = 2;
/// The longest lease a server grants, in seconds.
pub const MAX_TTL: i64 = 9_000_000_000;

/// State of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The TTL it was granted with, in seconds.
    pub granted_ttl: i64,
    /// The remaining time, in whole seconds.
    pub ttl: i64,
    /// The attached keys, in key order.
    pub keys: Vec<Bytes>,
}

/// All leases of a store.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Leases {
    by_id: HashMap<i64, Lease>,
    #[serde(skip)]
    by_expiry: BTreeSet<(DateTime<Utc>, i64)>,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Lease {
    ttl: i64,
    expires: DateTime<Utc>,
    #[serde(with = "crate::serial::texts")]
    keys: BTreeSet<Bytes>,
}

impl Leases {
    /// Moves all expiries by the difference of two clocks, and builds the index of leases that were read.
    pub(super) fn rebase(&mut self, by: TimeDelta) {
        for lease in self.by_id.values_mut() {
            lease.expires = lease.expires.checked_add_signed(by).unwrap_or(lease.expires);
        }
        self.by_expiry = self.by_id.iter().map(|(id, lease)| (lease.expires, *id)).collect();
    }

    /// Grants a lease and returns its TTL, which is at least [`MIN_TTL`].
    pub(super) fn grant(&mut self, id: i64, ttl: i64, now: DateTime<Utc>) -> Result<i64, EtcdError> {
        if ttl > MAX_TTL {
            return Err(EtcdError::LeaseTooLong);
        }
        if self.by_id.contains_key(&id) {
            return Err(EtcdError::LeaseExists);
        }
        let ttl = ttl.max(MIN_TTL);
        let expires = add_seconds(now, ttl);
        self.by_id.insert(id, Lease { ttl, expires, keys: BTreeSet::new() });
        self.by_expiry.insert((expires, id));
        Ok(ttl)
    }

    /// The expiries of all leases, with their ids.
    pub(super) fn expiries(&self) -> impl Iterator<Item = (DateTime<Utc>, i64)> {
        self.by_expiry.iter().copied()
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Renews a lease and returns its TTL, if it exists.
    pub(super) fn keep_alive(&mut self, id: i64, now: DateTime<Utc>) -> Option<i64> {
        let lease = self.by_id.get_mut(&id)?;
        self.by_expiry.remove(&(lease.expires, id));
        lease.expires = add_seconds(now, lease.ttl);
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

    /// All lease ids, in order of expiry.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.by_expiry.iter().map(|(_, id)| *id).collect()
    }

    /// The ids of all leases and the TTLs they were granted with, in order of expiry.
    pub(super) fn granted(&self) -> Vec<(i64, i64)> {
        self.by_expiry.iter().filter_map(|(_, id)| self.by_id.get(id).map(|lease| (*id, lease.ttl))).collect()
    }

    /// The keys that are attached to a lease, in key order. None if the lease does not exist.
    pub(super) fn keys(&self, id: i64) -> Vec<Bytes> {
        self.by_id.get(&id).into_iter().flat_map(|lease| lease.keys.iter().cloned()).collect()
    }

    /// Attaches a key to a lease. Does nothing for lease 0.
    pub(super) fn attach(&mut self, id: i64, key: &Bytes) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.insert(key.clone());
        }
    }

    /// Detaches a key from a lease. Does nothing for lease 0.
    pub(super) fn detach(&mut self, id: i64, key: &[u8]) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    /// Removes a lease and returns its keys, in key order.
    pub(super) fn remove(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        let lease = self.by_id.remove(&id)?;
        self.by_expiry.remove(&(lease.expires, id));
        Some(lease.keys)
    }

    /// The time of the next expiry, and the lease that expires.
    pub(super) fn next_expiry(&self) -> Option<(DateTime<Utc>, i64)> {
        self.by_expiry.first().copied()
    }
}

fn add_seconds(now: DateTime<Utc>, seconds: i64) -> DateTime<Utc> {
    let length = TimeDelta::try_seconds(seconds).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(length).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
