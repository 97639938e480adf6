//! Labs and their nodes. Nodes boot on the world's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::links::Cabling;
use super::server::ADMIN_ID;
use super::system_stats::NodeCounts;

/// A lab to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewLab {
    /// Its title; made up from the time if there is none.
    pub title: Option<String>,
    /// What it is about.
    pub description: String,
    /// Notes.
    pub notes: String,
}

/// A node to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewNode {
    /// Its label.
    pub label: String,
    /// Its definition, such as `iosv`.
    pub node_definition: String,
    /// Everything else that was said about it.
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Defined,
    Stopped,
    On(DateTime<Utc>),
}

struct Node {
    made: NewNode,
    power: Power,
}

pub(super) struct Lab {
    made: NewLab,
    created: DateTime<Utc>,
    modified: DateTime<Utc>,
    nodes: BTreeMap<String, Node>,
    pub(super) cabling: Cabling,
}

/// More nodes than this in a lab are refused.
const MOST_NODES: usize = 1000;

/// What is done to a lab or a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Start,
    Stop,
    Wipe,
}

impl Node {
    fn is_on(&self) -> bool {
        matches!(self.power, Power::On(_))
    }

    fn state(&self, boot: Duration, now: DateTime<Utc>) -> &'static str {
        match self.power {
            Power::Defined => "DEFINED_ON_CORE",
            Power::Stopped => "STOPPED",
            Power::On(since) if now - since < TimeDelta::from_std(boot).unwrap_or(TimeDelta::MAX) => "STARTED",
            Power::On(_) => "BOOTED",
        }
    }

    fn apply(&mut self, action: Action, now: DateTime<Utc>) -> Result<(), CmlError> {
        self.power = match (action, self.power) {
            (Action::Start, Power::On(since)) => Power::On(since),
            (Action::Start, Power::Defined | Power::Stopped) => Power::On(now),
            (Action::Stop, Power::On(_)) => Power::Stopped,
            (Action::Stop, at_rest) => at_rest,
            (Action::Wipe, Power::On(_)) => {
                return Err(CmlError::bad_request(format!("Node is running: {}", self.made.label)));
            }
            (Action::Wipe, Power::Defined | Power::Stopped) => Power::Defined,
        };
        Ok(())
    }

    fn to_json(&self, id: &str, lab: &str, boot: Duration, now: DateTime<Utc>) -> Map<String, Value> {
        let mut node = self.made.rest.clone();
        for (field, default) in [
            ("x", json!(0)),
            ("y", json!(0)),
            ("configuration", Value::Null),
            ("image_definition", Value::Null),
            ("ram", Value::Null),
            ("cpus", Value::Null),
            ("tags", json!([])),
            ("hide_links", json!(false)),
        ] {
            node.entry(field).or_insert(default);
        }
        node.insert("id".into(), id.into());
        node.insert("lab_id".into(), lab.into());
        node.insert("label".into(), self.made.label.clone().into());
        node.insert("node_definition".into(), self.made.node_definition.clone().into());
        let state = self.state(boot, now);
        node.insert("state".into(), state.into());
        node.insert("boot_progress".into(), if state == "BOOTED" { "Booted" } else { "Not running" }.into());
        node
    }
}

impl Lab {
    pub(super) fn new(made: NewLab, now: DateTime<Utc>) -> Self {
        Self { made, created: now, modified: now, nodes: BTreeMap::new(), cabling: Cabling::default() }
    }

    fn state(&self) -> &'static str {
        if self.nodes.values().any(Node::is_on) {
            "STARTED"
        } else if self.nodes.values().any(|node| node.power == Power::Stopped) {
            "STOPPED"
        } else {
            "DEFINED_ON_CORE"
        }
    }

    fn title(&self) -> String {
        let made_up = || format!("Lab at {}", self.created.format("%a %H:%M %p"));
        self.made.title.clone().unwrap_or_else(made_up)
    }

    pub(super) fn update(&mut self, fields: &Map<String, Value>, now: DateTime<Utc>) {
        let text = |field: &str| fields.get(field).and_then(Value::as_str).map(str::to_owned);
        self.made = NewLab {
            title: text("title").or(self.made.title.take()),
            description: text("description").unwrap_or_else(|| self.made.description.clone()),
            notes: text("notes").unwrap_or_else(|| self.made.notes.clone()),
        };
        self.modified = now;
    }

    pub(super) fn state_json(&self) -> Value {
        self.state().into()
    }

    pub(super) fn to_json(&self, id: &str, username: &str) -> Value {
        let written = |moment: DateTime<Utc>| moment.to_rfc3339_opts(SecondsFormat::Secs, false);
        json!({
            "id": id, "created": written(self.created), "modified": written(self.modified),
            "lab_title": self.title(), "lab_description": self.made.description, "lab_notes": self.made.notes,
            "owner": ADMIN_ID, "owner_username": username, "owner_fullname": "", "state": self.state(),
            "node_count": self.nodes.len(), "link_count": self.cabling.link_count(), "groups": [],
            "effective_permissions": ["lab_view", "lab_edit", "lab_exec", "lab_admin"],
        })
    }

    pub(super) fn topology(&self, id: &str, boot: Duration, now: DateTime<Utc>) -> Value {
        json!({
            "lab": {
                "title": self.title(), "description": self.made.description, "notes": self.made.notes,
                "owner": ADMIN_ID, "version": "0.3.0",
            },
            "nodes": self.nodes(id, boot, now), "links": self.links_json(id), "annotations": [], "smart_annotations": [],
        })
    }

    pub(super) fn node_states(&self, boot: Duration, now: DateTime<Utc>) -> Map<String, Value> {
        self.nodes.iter().map(|(id, node)| (id.clone(), node.state(boot, now).into())).collect()
    }

    /// Whether a node is on; none if there is no such node.
    pub(super) fn node_is_on(&self, node: &str) -> Option<bool> {
        self.nodes.get(node).map(Node::is_on)
    }

    fn node_json(&self, id: &str, node: &str, it: &Node, boot: Duration, now: DateTime<Utc>) -> Value {
        let mut shown = it.to_json(node, id, boot, now);
        shown.insert("interfaces".into(), self.interfaces_of(id, node).into());
        shown.into()
    }

    pub(super) fn simulation_stats(&self) -> Value {
        let running = self.nodes.iter().filter(|(_, node)| node.is_on());
        let nodes: Map<_, _> = running
            .map(|(id, _)| (id.clone(), json!({"cpu_usage": 3.5, "block0_rd_bytes": 0, "block0_wr_bytes": 0})))
            .collect();
        json!({"nodes": nodes, "links": {}})
    }

    pub(super) fn has_converged(&self, boot: Duration, now: DateTime<Utc>) -> bool {
        self.nodes.values().all(|node| node.state(boot, now) != "STARTED")
    }

    pub(super) fn add_node(&mut self, id: String, made: NewNode, now: DateTime<Utc>) -> Result<(), CmlError> {
        if self.nodes.len() >= MOST_NODES {
            return Err(CmlError::bad_request(format!("A lab has at most {MOST_NODES} nodes.")));
        }
        self.modified = now;
        self.nodes.insert(id, Node { made, power: Power::Defined });
        Ok(())
    }

    pub(super) fn nodes(&self, id: &str, boot: Duration, now: DateTime<Utc>) -> Vec<Value> {
        self.nodes.iter().map(|(node, it)| self.node_json(id, node, it, boot, now)).collect()
    }

    pub(super) fn node_ids(&self) -> Vec<&String> {
        self.nodes.keys().collect()
    }

    pub(super) fn node(&self, id: &str, node: &str, boot: Duration, now: DateTime<Utc>) -> Result<Value, CmlError> {
        let found = self.nodes.get(node).ok_or_else(|| CmlError::not_found("Node", node))?;
        Ok(self.node_json(id, node, found, boot, now))
    }

    pub(super) fn remove_node(&mut self, node: &str) -> Result<(), CmlError> {
        match self.nodes.get(node) {
            None => Err(CmlError::not_found("Node", node)),
            Some(found) if found.is_on() => Err(CmlError::bad_request(format!("Node is running: {node}"))),
            Some(_) => {
                self.nodes.remove(node);
                self.cabling.remove_node(node);
                Ok(())
            }
        }
    }

    /// Does something to one node, or to all if none is named. All or nothing.
    pub(super) fn apply(&mut self, node: Option<&str>, action: Action, now: DateTime<Utc>) -> Result<(), CmlError> {
        if let Some(id) = node {
            return self.nodes.get_mut(id).ok_or_else(|| CmlError::not_found("Node", id))?.apply(action, now);
        }
        if action == Action::Wipe {
            self.check_is_at_rest()?;
        }
        self.nodes.values_mut().try_for_each(|node| node.apply(action, now))
    }

    pub(super) fn check_is_at_rest(&self) -> Result<(), CmlError> {
        if self.nodes.values().any(Node::is_on) {
            return Err(CmlError::bad_request("Lab has running nodes: stop it first."));
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for node in self.nodes.values() {
            counts.total += 1;
            if node.is_on() {
                let number = |field: &str, default: u32| {
                    let given = node.made.rest.get(field).and_then(Value::as_u64);
                    given.and_then(|given| u32::try_from(given).ok()).unwrap_or(default)
                };
                counts.running += 1;
                counts.cpus = counts.cpus.saturating_add(number("cpus", 1));
                counts.memory_mib = counts.memory_mib.saturating_add(number("ram", 512));
            }
        }
        counts
    }
}
