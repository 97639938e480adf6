//! Labs and their nodes. Nodes boot on the world's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::links::Cabling;
use super::server::ADMIN_ID;
use super::system_stats::NodeCounts;

/// Fields of a lab to create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewLab {
    /// Title; defaults to one derived from the creation time.
    pub title: Option<String>,
    /// Free text, shown below the title.
    pub description: String,
    /// Free text in Markdown.
    pub notes: String,
}

/// Fields of a node to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewNode {
    /// Display name; need not be unique.
    pub label: String,
    /// Node definition, such as `iosv`.
    pub node_definition: String,
    /// All other fields of the request, returned unchanged.
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Defined,
    Stopped,
    On(DateTime<Utc>),
}

struct Node {
    spec: NewNode,
    power: Power,
}

pub(super) struct Lab {
    spec: NewLab,
    created: DateTime<Utc>,
    modified: DateTime<Utc>,
    nodes: BTreeMap<String, Node>,
    pub(super) cabling: Cabling,
}

/// Maximum number of nodes in a lab; adding more is rejected with 400.
const MAX_NODES: usize = 1000;

/// State change of a lab or a node.
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
            (Action::Stop, stopped) => stopped,
            (Action::Wipe, Power::On(_)) => {
                return Err(CmlError::bad_request(format!("Node is running: {}", self.spec.label)));
            }
            (Action::Wipe, Power::Defined | Power::Stopped) => Power::Defined,
        };
        Ok(())
    }

    fn to_json(&self, id: &str, lab: &str, boot: Duration, now: DateTime<Utc>) -> Map<String, Value> {
        let mut node = self.spec.rest.clone();
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
        node.insert("label".into(), self.spec.label.clone().into());
        node.insert("node_definition".into(), self.spec.node_definition.clone().into());
        let state = self.state(boot, now);
        node.insert("state".into(), state.into());
        node.insert("boot_progress".into(), if state == "BOOTED" { "Booted" } else { "Not running" }.into());
        node
    }
}

impl Lab {
    pub(super) fn new(spec: NewLab, now: DateTime<Utc>) -> Self {
        Self { spec, created: now, modified: now, nodes: BTreeMap::new(), cabling: Cabling::default() }
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
        let default_title = || format!("Lab at {}", self.created.format("%a %H:%M %p"));
        self.spec.title.clone().unwrap_or_else(default_title)
    }

    pub(super) fn update(&mut self, fields: &Map<String, Value>, now: DateTime<Utc>) {
        let text = |field: &str| fields.get(field).and_then(Value::as_str).map(str::to_owned);
        self.spec = NewLab {
            title: text("title").or(self.spec.title.take()),
            description: text("description").unwrap_or_else(|| self.spec.description.clone()),
            notes: text("notes").unwrap_or_else(|| self.spec.notes.clone()),
        };
        self.modified = now;
    }

    pub(super) fn state_json(&self) -> Value {
        self.state().into()
    }

    pub(super) fn to_json(&self, id: &str, username: &str) -> Value {
        let format_time = |moment: DateTime<Utc>| moment.to_rfc3339_opts(SecondsFormat::Secs, false);
        json!({
            "id": id, "created": format_time(self.created), "modified": format_time(self.modified),
            "lab_title": self.title(), "lab_description": self.spec.description, "lab_notes": self.spec.notes,
            "owner": ADMIN_ID, "owner_username": username, "owner_fullname": "", "state": self.state(),
            "node_count": self.nodes.len(), "link_count": self.cabling.link_count(), "groups": [],
            "effective_permissions": ["lab_view", "lab_edit", "lab_exec", "lab_admin"],
        })
    }

    pub(super) fn topology(&self, id: &str, boot: Duration, now: DateTime<Utc>) -> Value {
        json!({
            "lab": {
                "title": self.title(), "description": self.spec.description, "notes": self.spec.notes,
                "owner": ADMIN_ID, "version": "0.3.0",
            },
            "nodes": self.nodes(id, boot, now), "links": self.links_json(id), "annotations": [], "smart_annotations": [],
        })
    }

    pub(super) fn node_states(&self, boot: Duration, now: DateTime<Utc>) -> Map<String, Value> {
        self.nodes.iter().map(|(id, node)| (id.clone(), node.state(boot, now).into())).collect()
    }

    /// Whether a node is on; `None` if it does not exist.
    pub(super) fn node_is_on(&self, node: &str) -> Option<bool> {
        self.nodes.get(node).map(Node::is_on)
    }

    fn node_json(&self, id: &str, node: &str, found: &Node, boot: Duration, now: DateTime<Utc>) -> Value {
        let mut json = found.to_json(node, id, boot, now);
        json.insert("interfaces".into(), self.node_interfaces_json(id, node).into());
        json.into()
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

    pub(super) fn add_node(&mut self, id: String, spec: NewNode, now: DateTime<Utc>) -> Result<(), CmlError> {
        if self.nodes.len() >= MAX_NODES {
            return Err(CmlError::bad_request(format!("A lab has at most {MAX_NODES} nodes.")));
        }
        self.modified = now;
        self.nodes.insert(id, Node { spec, power: Power::Defined });
        Ok(())
    }

    pub(super) fn nodes(&self, id: &str, boot: Duration, now: DateTime<Utc>) -> Vec<Value> {
        self.nodes.iter().map(|(node_id, node)| self.node_json(id, node_id, node, boot, now)).collect()
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

    /// Applies an action to one node, or to all if `node` is `None`.
    pub(super) fn apply(&mut self, node: Option<&str>, action: Action, now: DateTime<Utc>) -> Result<(), CmlError> {
        if let Some(id) = node {
            return self.nodes.get_mut(id).ok_or_else(|| CmlError::not_found("Node", id))?.apply(action, now);
        }
        if action == Action::Wipe {
            self.check_stopped()?;
        }
        self.nodes.values_mut().try_for_each(|node| node.apply(action, now))
    }

    pub(super) fn check_stopped(&self) -> Result<(), CmlError> {
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
                    let given = node.spec.rest.get(field).and_then(Value::as_u64);
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
