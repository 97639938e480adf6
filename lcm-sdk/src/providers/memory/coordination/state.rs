//! What the etcd in memory holds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{Claim, LeaseId};

/// How many revisions are remembered; older ones are compacted away.
const HISTORY: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) keys: BTreeMap<Vec<u8>, Entry>,
    pub(super) leases: BTreeMap<LeaseId, Granted>,
    pub(super) history: VecDeque<(i64, Vec<u8>)>,
    pub(super) next_lease: i64,
    /// Watches that began in an earlier round were cut.
    pub(super) round: u64,
    pub(super) is_stalled: bool,
    pub(super) is_unavailable: bool,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) value: String,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: Option<LeaseId>,
}

#[derive(Debug)]
pub(super) struct Granted {
    pub(super) ttl: Duration,
    pub(super) ends: Instant,
}

impl State {
    pub(super) fn put(&mut self, key: &[u8], value: &str, lease: Option<LeaseId>) -> i64 {
        self.revision += 1;
        let created = self.keys.get(key).map_or(self.revision, |entry| entry.created);
        let entry = Entry { value: value.to_owned(), created, modified: self.revision, lease };
        self.keys.insert(key.to_vec(), entry);
        self.remember(key);
        self.revision
    }

    /// Deletes keys, all at one revision.
    pub(super) fn delete(&mut self, keys: &[Vec<u8>]) {
        if keys.is_empty() {
            return;
        }
        self.revision += 1;
        for key in keys {
            self.keys.remove(key);
            self.remember(key);
        }
    }

    pub(super) fn remember(&mut self, key: &[u8]) {
        self.history.push_back((self.revision, key.to_vec()));
        if self.history.len() > HISTORY
            && let Some((revision, _)) = self.history.pop_front()
        {
            self.compacted = self.compacted.max(revision + 1);
        }
    }

    pub(super) fn claim(&mut self, key: &[u8], value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        if let Some(entry) = self.keys.get(key) {
            return Ok(if entry.value == value && entry.lease == Some(lease) {
                Claim::Won { revision: entry.created }
            } else {
                Claim::Held { by: entry.value.clone(), revision: self.revision }
            });
        }
        if !self.leases.contains_key(&lease) {
            return Err(CallFailure::coded(FailureKind::Refused, "NotFound", "requested lease not found"));
        }
        Ok(Claim::Won { revision: self.put(key, value, Some(lease)) })
    }

    pub(super) fn end(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_some() {
            let held = self.keys.iter().filter(|(_, entry)| entry.lease == Some(lease));
            let held: Vec<_> = held.map(|(key, _)| key.clone()).collect();
            self.delete(&held);
        }
    }

    pub(super) fn expire(&mut self) {
        // A server that cannot be had cannot end leases either.
        if self.is_unavailable {
            return;
        }
        let now = Instant::now();
        let mut over: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, granted)| granted.ends <= now)
            .map(|(id, granted)| (granted.ends, id.0))
            .collect();
        over.sort_unstable();
        over.into_iter().for_each(|(_, id)| self.end(LeaseId(id)));
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.leases.values().map(|granted| granted.ends).min().filter(|_| !self.is_unavailable)
    }
}
