//! Resources that a request sees: those of its account, subject to faults in its results.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::instance::Instance;
use super::rng::{SeededRng, hash_text, mix, to_fraction};

/// Account and result faults of a request. The default sees the resources of all accounts and has no faults.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Account of the caller; `None` sees the instances of all accounts.
    pub account: Option<Arc<str>>,
    /// Conditions that hide instances.
    pub hidden: Vec<Hidden>,
    /// Limit on the page size.
    pub page: PageLimit,
    /// Shuffles the items of the page, if set.
    pub shuffle: Option<SeededRng>,
}

/// A condition that hides instances.
#[derive(Debug, Clone, PartialEq)]
pub struct Hidden {
    /// Id of the hidden instance; `None` hides all instances that meet the condition.
    pub instance: Option<String>,
    /// The condition to meet.
    pub reason: HiddenReason,
}

/// Reason why an instance is hidden.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HiddenReason {
    /// The instance was launched less than this ago. Requests by id and lists omit it.
    VisibilityLag(Duration),
    /// Lists omit the instance; requests by id find it.
    Omitted {
        /// Probability from 0.0 to 1.0.
        probability: f64,
        /// Random number of the request, so that the choice differs between requests.
        roll: u64,
    },
}

/// Limit on the size of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageLimit {
    /// The requested size.
    #[default]
    AsRequested,
    /// An empty page with a next token.
    Empty,
    /// At most this many items, even if more are requested.
    AtMost(usize),
}

impl View {
    /// Returns whether a request by id finds the instance.
    pub fn finds(&self, instance: &Instance, now: DateTime<Utc>) -> bool {
        self.is_owner(&instance.owner)
            && !self.hidden.iter().any(|hidden| match hidden.reason {
                HiddenReason::VisibilityLag(lag) => hidden.applies_to(instance) && is_younger(instance, lag, now),
                HiddenReason::Omitted { .. } => false,
            })
    }

    /// Returns whether a list contains the instance.
    pub fn lists(&self, instance: &Instance, now: DateTime<Utc>) -> bool {
        self.is_owner(&instance.owner)
            && !self.hidden.iter().any(|hidden| {
                hidden.applies_to(instance)
                    && match hidden.reason {
                        HiddenReason::VisibilityLag(lag) => is_younger(instance, lag, now),
                        HiddenReason::Omitted { probability, roll } => {
                            to_fraction(mix(hash_text(&instance.id) ^ roll)) < probability
                        }
                    }
            })
    }

    /// Returns whether the caller has access to the resources of an account.
    pub(super) fn is_owner(&self, owner: &str) -> bool {
        self.account.as_deref().is_none_or(|account| account == owner)
    }

    pub(super) fn shuffle_items<T>(&self, items: &mut [T]) {
        if let Some(mut rng) = self.shuffle.clone() {
            rng.shuffle(items);
        }
    }
}

impl Hidden {
    fn applies_to(&self, instance: &Instance) -> bool {
        self.instance.as_ref().is_none_or(|id| *id == instance.id)
    }
}

fn is_younger(instance: &Instance, lag: Duration, now: DateTime<Utc>) -> bool {
    (now - instance.created_at).to_std().unwrap_or_default() < lag
}
