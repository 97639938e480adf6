//! The fleet at one moment, as it is shown.

use lcm_sdk::WorkerStatus;

/// Everything the table shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// Who leads, in a few words.
    pub(crate) leader: String,
    /// Requests that EC2 got so far.
    pub(crate) ec2_calls: usize,
    /// The workers.
    pub(crate) rows: Vec<Row>,
    /// Workers that have been terminated for so long that they are only named.
    pub(crate) folded: Vec<String>,
}

/// One worker.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Its id.
    pub(crate) worker: String,
    /// What its record says.
    pub(crate) status: WorkerStatus,
    /// What EC2 says about its instance.
    pub(crate) ec2: Ec2Says,
    /// Its instance, if it has one.
    pub(crate) instance: Option<String>,
    /// Sessions that need it.
    pub(crate) sessions: usize,
    /// What happens to it now.
    pub(crate) now: String,
}

/// What EC2 says about the instance of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ec2Says {
    /// The record names no instance.
    NotAsked,
    /// There is none of that id.
    NoSuchInstance,
    /// It is in this state.
    State(&'static str),
}

impl Ec2Says {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::NotAsked => "–",
            Self::NoSuchInstance => "not found",
            Self::State(name) => name,
        }
    }
}

/// A record that went from one status to another, or came into being.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whose.
    pub(crate) worker: String,
    /// The status before; none for a new record.
    pub(crate) from: Option<String>,
    /// The status after.
    pub(crate) to: String,
}
