//! The table of legal transitions.
//!
//! The table is data: [`TABLE`] can be listed, drawn with [`mermaid`] and [`dot`], and walked by a test. A
//! [`Transition`] can only be made from a row of it, so a decision cannot take any other edge.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::status::WorkerStatus::{
    self, Draining, Failed, Pending, Provisioning, Running, Starting, Stopped, Stopping, Terminated, Terminating,
    Unknown,
};

/// The cause of a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeKind {
    /// LCM, an operator or a drain moves the worker on.
    Commanded,
    /// EC2 is in another state and the record follows.
    Observed,
}

impl EdgeKind {
    /// The spelling used in listings and diagrams.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Commanded => "commanded",
            Self::Observed => "observed",
        }
    }
}

impl fmt::Display for EdgeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One legal edge and when it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Edge {
    /// The status left.
    pub from: WorkerStatus,
    /// The status entered.
    pub to: WorkerStatus,
    /// Whether the lifecycle or EC2 causes it.
    pub kind: EdgeKind,
    /// When it is taken, in a few words.
    pub when: &'static str,
}

const fn commanded(from: WorkerStatus, to: WorkerStatus, when: &'static str) -> Edge {
    Edge { from, to, kind: EdgeKind::Commanded, when }
}

const fn observed(from: WorkerStatus, to: WorkerStatus, when: &'static str) -> Edge {
    Edge { from, to, kind: EdgeKind::Observed, when }
}

/// Every legal transition. A pair may be listed twice, once for each kind.
pub static TABLE: &[Edge] = &[
    commanded(Pending, Provisioning, "launched or adopted"),
    commanded(Pending, Failed, "cannot be launched"),
    commanded(Pending, Terminated, "not wanted any more"),
    commanded(Provisioning, Starting, "up, no address yet"),
    commanded(Provisioning, Running, "up with an address"),
    commanded(Provisioning, Failed, "launch died or timed out"),
    observed(Provisioning, Stopped, "EC2 stopped"),
    observed(Provisioning, Terminated, "orphan"),
    commanded(Starting, Running, "up with an address"),
    commanded(Starting, Failed, "timed out"),
    commanded(Starting, Stopping, "stopped by an operator"),
    observed(Starting, Stopped, "EC2 stopped"),
    observed(Starting, Terminating, "EC2 shutting-down"),
    observed(Starting, Terminated, "gone"),
    commanded(Running, Draining, "drain"),
    commanded(Running, Stopping, "desired stopped"),
    commanded(Running, Terminating, "desired terminated"),
    commanded(Running, Failed, "failed by an operator"),
    observed(Running, Provisioning, "EC2 pending"),
    observed(Running, Stopping, "EC2 stopping"),
    observed(Running, Stopped, "EC2 stopped"),
    observed(Running, Terminating, "EC2 shutting-down"),
    observed(Running, Terminated, "gone"),
    observed(Running, Unknown, "EC2 state not known"),
    commanded(Draining, Running, "drain cancelled"),
    commanded(Draining, Stopping, "drained or timed out"),
    commanded(Draining, Terminating, "drained, desired terminated"),
    commanded(Draining, Failed, "failed by an operator"),
    observed(Draining, Stopping, "EC2 stopping"),
    observed(Draining, Stopped, "EC2 stopped"),
    observed(Draining, Terminating, "EC2 shutting-down"),
    observed(Draining, Terminated, "gone"),
    commanded(Stopping, Stopped, "EC2 stopped"),
    commanded(Stopping, Failed, "failed by an operator"),
    observed(Stopping, Running, "EC2 running, desired running"),
    observed(Stopping, Terminating, "EC2 shutting-down"),
    observed(Stopping, Terminated, "EC2 terminated"),
    commanded(Stopped, Pending, "no instance, desired running"),
    commanded(Stopped, Starting, "desired running"),
    commanded(Stopped, Terminating, "desired terminated"),
    observed(Stopped, Running, "EC2 running"),
    observed(Stopped, Terminating, "EC2 shutting-down"),
    observed(Stopped, Terminated, "gone"),
    commanded(Terminating, Terminated, "gone"),
    observed(Terminated, Provisioning, "EC2 pending"),
    observed(Terminated, Running, "EC2 running"),
    observed(Terminated, Stopping, "EC2 stopping"),
    observed(Terminated, Stopped, "EC2 stopped"),
    commanded(Failed, Pending, "reset by an operator"),
    commanded(Failed, Terminating, "desired terminated"),
    commanded(Failed, Terminated, "nothing left to clean up"),
    observed(Unknown, Provisioning, "EC2 pending"),
    observed(Unknown, Running, "EC2 running"),
    observed(Unknown, Stopping, "EC2 stopping"),
    observed(Unknown, Stopped, "EC2 stopped"),
    observed(Unknown, Terminating, "EC2 shutting-down"),
    observed(Unknown, Terminated, "gone"),
];

/// A legal change of status: proof that the edge is listed in [`TABLE`].
///
/// ```
/// use lcm_sdk::{EdgeKind, Transition, WorkerStatus};
///
/// let start = Transition::new(WorkerStatus::Stopped, WorkerStatus::Starting, EdgeKind::Commanded)?;
/// assert_eq!(start.to_string(), "stopped → starting (commanded)");
///
/// let illegal = Transition::new(WorkerStatus::Stopped, WorkerStatus::Draining, EdgeKind::Commanded);
/// assert_eq!(
///     illegal.unwrap_err().to_string(),
///     "a worker cannot go from stopped to draining (commanded); \
///      from stopped it can go to pending, starting, terminating",
/// );
/// # Ok::<(), lcm_sdk::InvalidTransition>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[must_use]
pub struct Transition {
    from: WorkerStatus,
    to: WorkerStatus,
    kind: EdgeKind,
}

impl Transition {
    /// Looks the edge up.
    /// # Errors
    /// [`InvalidTransition`] if it is not in the table.
    pub fn new(from: WorkerStatus, to: WorkerStatus, kind: EdgeKind) -> Result<Self, InvalidTransition> {
        if TABLE.iter().any(|edge| edge.from == from && edge.to == to && edge.kind == kind) {
            Ok(Self { from, to, kind })
        } else {
            Err(InvalidTransition { from, to, kind })
        }
    }

    /// The status left.
    pub const fn from(self) -> WorkerStatus {
        self.from
    }

    /// The status entered.
    pub const fn to(self) -> WorkerStatus {
        self.to
    }

    /// Whether the lifecycle or EC2 causes it.
    pub const fn kind(self) -> EdgeKind {
        self.kind
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {} ({})", self.from, self.to, self.kind)
    }
}

/// An edge that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub struct InvalidTransition {
    /// The status the worker is in.
    pub from: WorkerStatus,
    /// The requested status.
    pub to: WorkerStatus,
    /// The requested kind of edge.
    pub kind: EdgeKind,
}

impl InvalidTransition {
    /// The statuses that an edge of this kind leads to.
    pub fn accepted(&self) -> impl Iterator<Item = WorkerStatus> + use<> {
        let (from, kind) = (self.from, self.kind);
        TABLE.iter().filter(move |edge| edge.from == from && edge.kind == kind).map(|edge| edge.to)
    }
}

impl fmt::Display for InvalidTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, kind } = self;
        write!(f, "a worker cannot go from {from} to {to} ({kind}); ")?;
        let accepted: Vec<_> = self.accepted().map(WorkerStatus::as_str).collect();
        if accepted.is_empty() {
            write!(f, "from {from} there is no {kind} way on")
        } else {
            write!(f, "from {from} it can go to {}", accepted.join(", "))
        }
    }
}

/// The whole table as a Mermaid state diagram; observed edges are marked as such.
///
/// ```
/// assert!(lcm_sdk::lifecycle::transition::mermaid().contains("stopped --> starting: desired running"));
/// ```
pub fn mermaid() -> String {
    draw_mermaid(TABLE)
}

/// The commanded edges alone, as a Mermaid state diagram.
pub fn mermaid_commanded() -> String {
    draw_mermaid(TABLE.iter().filter(|edge| edge.kind == EdgeKind::Commanded))
}

fn draw_mermaid<'a>(edges: impl IntoIterator<Item = &'a Edge>) -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> pending: record created\n");
    for edge in edges {
        let note = match edge.kind {
            EdgeKind::Commanded => "",
            EdgeKind::Observed => " (observed)",
        };
        let _ = writeln!(text, "    {} --> {}: {}{note}", edge.from, edge.to, edge.when);
    }
    text.push_str("    terminated --> [*]\n");
    text
}

/// The table as a Graphviz digraph: solid lines are commanded, dashed ones observed.
///
/// ```
/// assert!(lcm_sdk::lifecycle::transition::dot().starts_with("digraph worker {"));
/// ```
pub fn dot() -> String {
    let mut text = String::from("digraph worker {\n    rankdir=LR;\n    node [shape=box, style=rounded];\n");
    for edge in TABLE {
        let style = match edge.kind {
            EdgeKind::Commanded => "solid",
            EdgeKind::Observed => "dashed",
        };
        let Edge { from, to, when, .. } = edge;
        let _ = writeln!(text, "    \"{from}\" -> \"{to}\" [label=\"{when}\", style={style}];");
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn edges_are_unique_and_not_loops() {
        let mut seen = HashSet::new();
        for edge in TABLE {
            assert!(seen.insert((edge.from, edge.to, edge.kind)), "{edge:?} stands twice");
            assert_ne!(edge.from, edge.to);
        }
    }

    #[test]
    fn illegal_transitions_name_the_legal_ones() {
        for &from in WorkerStatus::ALL {
            for &to in WorkerStatus::ALL {
                for kind in [EdgeKind::Commanded, EdgeKind::Observed] {
                    let listed = TABLE.iter().any(|edge| (edge.from, edge.to, edge.kind) == (from, to, kind));
                    match Transition::new(from, to, kind) {
                        Ok(made) => assert!(listed && made.from() == from && made.to() == to),
                        Err(error) => assert!(!listed && error.to_string().contains(from.as_str())),
                    }
                }
            }
        }
    }

    #[test]
    fn only_cancelling_leads_from_draining_to_running() {
        let edges: Vec<_> = TABLE.iter().filter(|edge| edge.from == Draining && edge.to == Running).collect();
        assert!(matches!(edges[..], [Edge { kind: EdgeKind::Commanded, .. }]));
        // An observed edge back would undo a drain in two steps.
        for edge in TABLE.iter().filter(|edge| edge.from == Draining) {
            assert!(!matches!(edge.to, Unknown | Provisioning | Starting), "{edge:?}");
        }
    }

    #[test]
    fn both_diagrams_show_every_edge_once() {
        let (mermaid, dot) = (mermaid(), dot());
        assert_eq!(mermaid.lines().count(), TABLE.len() + 3);
        assert_eq!(dot.matches(" -> ").count(), TABLE.len());
    }
}
