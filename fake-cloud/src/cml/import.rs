//! A topology that was written down, as a lab: YAML or JSON, as CML exports it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::CmlError;
use super::labs::{Lab, NewLab, NewNode};
use super::links::Interface;
use crate::yaml;

/// More than this in one topology is refused.
const MOST_NODES: usize = 1000;
const MOST_LINKS: usize = 10_000;
const MOST_INTERFACES: usize = 128;

/// What a file says. What else it says is kept with its node, or not needed.
#[derive(Debug, Deserialize)]
struct Topology {
    lab: Heading,
    nodes: Vec<NodeEntry>,
    #[serde(default)]
    links: Vec<LinkEntry>,
}

#[derive(Debug, Deserialize)]
struct Heading {
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    notes: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NodeEntry {
    id: String,
    label: String,
    node_definition: String,
    #[serde(default)]
    interfaces: Vec<InterfaceEntry>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct InterfaceEntry {
    id: String,
    label: Option<String>,
    slot: Option<u32>,
}

/// Two generations of files call the ends of a link by different names, and some by both.
#[derive(Debug, Deserialize)]
struct LinkEntry {
    label: Option<String>,
    n1: Option<String>,
    n2: Option<String>,
    i1: Option<String>,
    i2: Option<String>,
    node_a: Option<String>,
    node_b: Option<String>,
    interface_a: Option<String>,
    interface_b: Option<String>,
}

/// Reads a topology as a lab; `id` makes ids, since those of the file are only its own.
///
/// # Errors
/// 400 for text that is no topology, or one that contradicts itself.
pub(super) fn read(
    text: &[u8],
    title: Option<String>,
    now: DateTime<Utc>,
    mut id: impl FnMut() -> String,
) -> Result<Lab, CmlError> {
    // JSON is YAML as well.
    yaml::check_depth(text).map_err(|why| CmlError::bad_request(format!("Invalid topology: {why}")))?;
    let topology: Topology = serde_yaml_ng::from_slice(text)
        .map_err(|error| CmlError::bad_request(format!("Topology cannot be read: {error}")))?;
    if topology.nodes.len() > MOST_NODES || topology.links.len() > MOST_LINKS {
        let most = format!("Topology is too large: at most {MOST_NODES} nodes and {MOST_LINKS} links.");
        return Err(CmlError::bad_request(most));
    }
    let heading = topology.lab;
    let mut lab = Lab::new(
        NewLab {
            title: title.or(heading.title),
            description: heading.description.unwrap_or_default(),
            notes: heading.notes.unwrap_or_default(),
        },
        now,
    );
    // The file's names of interfaces are its nodes' own.
    let mut known: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut nodes: BTreeMap<String, String> = BTreeMap::new();
    for mut entry in topology.nodes {
        if entry.interfaces.len() > MOST_INTERFACES {
            let many = format!("Node {} has more than {MOST_INTERFACES} interfaces.", entry.label);
            return Err(CmlError::bad_request(many));
        }
        for own in ["state", "lab_id", "boot_progress"] {
            entry.rest.remove(own);
        }
        let node = id();
        if nodes.insert(entry.id.clone(), node.clone()).is_some() {
            return Err(CmlError::bad_request(format!("Node id is used twice: {}", entry.id)));
        }
        let made = NewNode { label: entry.label, node_definition: entry.node_definition, rest: entry.rest };
        lab.add_node(node.clone(), made, now)?;
        for interface in entry.interfaces {
            let fresh = id();
            let label = interface.label.unwrap_or_else(|| interface.id.clone());
            known.insert((entry.id.clone(), interface.id), fresh.clone());
            lab.cabling.insert(fresh, Interface { node: node.clone(), label, slot: interface.slot, is_up: true });
        }
    }
    for link in topology.links {
        let end = |node: Option<String>, interface: Option<String>| {
            let (node, interface) = node.zip(interface).ok_or_else(|| {
                CmlError::bad_request("A link needs n1, i1, n2 and i2: the nodes and interfaces at its ends.")
            })?;
            let name = format!("{node}/{interface}");
            known.get(&(node, interface)).cloned().ok_or_else(|| CmlError::not_found("Interface", &name))
        };
        let ends = [
            end(link.n1.or(link.node_a), link.i1.or(link.interface_a))?,
            end(link.n2.or(link.node_b), link.i2.or(link.interface_b))?,
        ];
        lab.cabling.connect(id(), ends, link.label)?;
    }
    Ok(lab)
}
