//! How a caller sees the world through the faults: what is hidden from it, how its pages are cut, in what order.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::instance::Instance;
use super::rng::{SeededRng, hash_text, mix, unit};

/// What a request sees. The default sees everything as it is.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// What is hidden.
    pub hidden: Vec<Hidden>,
    /// How pages are cut.
    pub page: PageCut,
    /// SeededRng to shuffle the answer with.
    pub shuffle: Option<SeededRng>,
}

/// A reason not to see an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Hidden {
    /// The only instance it is about; none for all.
    pub instance: Option<String>,
    /// Why it is not seen.
    pub reason: HiddenReason,
}

/// Why an instance is not seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HiddenReason {
    /// It was launched less than this ago; neither lists nor ids find it.
    Young(Duration),
    /// Lists leave it out, with this probability; ids find it.
    LeftOut {
        /// How likely.
        probability: f64,
        /// This request's own number, so that the choice differs from request to request.
        roll: u64,
    },
}

/// How a page is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageCut {
    /// As the caller asked.
    #[default]
    AsAsked,
    /// Nothing on it; the rest follows on the next one.
    Empty,
    /// At most this many, whatever the caller asked.
    AtMost(usize),
}

impl View {
    /// Whether an instance can be found by its id.
    pub fn finds(&self, instance: &Instance, now: DateTime<Utc>) -> bool {
        !self.hidden.iter().any(|hidden| match hidden.reason {
            HiddenReason::Young(lag) => hidden.is_about(instance) && is_younger(instance, lag, now),
            HiddenReason::LeftOut { .. } => false,
        })
    }

    /// Whether a list shows an instance.
    pub fn lists(&self, instance: &Instance, now: DateTime<Utc>) -> bool {
        !self.hidden.iter().any(|hidden| {
            hidden.is_about(instance)
                && match hidden.reason {
                    HiddenReason::Young(lag) => is_younger(instance, lag, now),
                    HiddenReason::LeftOut { probability, roll } => {
                        unit(mix(hash_text(&instance.id) ^ roll)) < probability
                    }
                }
        })
    }

    pub(super) fn arrange<T>(&self, items: &mut [T]) {
        if let Some(mut rng) = self.shuffle.clone() {
            rng.shuffle(items);
        }
    }
}

impl Hidden {
    fn is_about(&self, instance: &Instance) -> bool {
        self.instance.as_ref().is_none_or(|id| *id == instance.id)
    }
}

fn is_younger(instance: &Instance, lag: Duration, now: DateTime<Utc>) -> bool {
    (now - instance.created_at).to_std().unwrap_or_default() < lag
}
