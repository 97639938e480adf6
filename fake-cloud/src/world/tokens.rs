//! Client tokens: what makes a launch that is asked for twice happen once.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};

use super::launch::LaunchRequest;

/// The tokens of a region.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    used: HashMap<String, UsedToken>,
    expiries: BTreeSet<(DateTime<Utc>, String)>,
}

/// A token that was used.
#[derive(Debug)]
pub(super) struct UsedToken {
    /// What was asked with it.
    pub(super) request: LaunchRequest,
    /// What came of it.
    pub(super) reservation_id: String,
    /// The instances, by their place in the order of launches.
    pub(super) sequences: Vec<u64>,
}

impl Tokens {
    pub(super) fn get(&self, token: &str) -> Option<&UsedToken> {
        self.used.get(token)
    }

    /// Whether nothing that a token launched is there any more.
    pub(super) fn is_last(&self, token: &str, is_there: impl Fn(u64) -> bool) -> bool {
        self.used.get(token).is_none_or(|used| !used.sequences.iter().any(|sequence| is_there(*sequence)))
    }

    pub(super) fn remember(&mut self, token: &str, used: UsedToken) {
        self.used.insert(token.to_owned(), used);
    }

    pub(super) fn forget_at(&mut self, token: &str, moment: DateTime<Utc>) {
        self.expiries.insert((moment, token.to_owned()));
    }

    pub(super) fn forget_due(&mut self, now: DateTime<Utc>) {
        while self.expiries.first().is_some_and(|(moment, _)| *moment <= now) {
            if let Some((_, token)) = self.expiries.pop_first() {
                self.used.remove(&token);
            }
        }
    }
}
