//! Imports a lab from a topology in YAML or JSON, as exported by CML.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::annotations::Annotations;
use super::error::CmlError;
use super::labs::{Host, Lab, NewLab, NewNode};
use super::links::{Interface, parse_mac_address};
use crate::yaml;

/// Limits of one topology; a larger one is rejected with 400.
const MAX_NODES: usize = 1000;
const MAX_LINKS: usize = 10_000;
const MAX_INTERFACES: usize = 128;

/// Topology file. Unknown fields of a node are kept with it; other unknown fields are dropped.
#[derive(Debug, Deserialize)]
struct Topology {
    lab: LabEntry,
    nodes: Vec<NodeEntry>,
    #[serde(default)]
    links: Vec<LinkEntry>,
    #[serde(default)]
    annotations: Vec<Map<String, Value>>,
    #[serde(default)]
    smart_annotations: Vec<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct LabEntry {
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    notes: Option<String>,
    #[serde(default)]
    node_staging: Option<Map<String, Value>>,
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
    mac_address: Option<Value>,
}

/// Ends of a link. The two file format versions use different names for them; some files contain both.
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
    #[serde(default)]
    conditioning: Map<String, Value>,
}

/// A lab, and what of its topology this server does not know.
pub(super) struct Imported {
    pub(super) lab: Lab,
    pub(super) warnings: Vec<String>,
}

/// Parses a topology. `id` generates the ids of the lab's elements; ids in the file are only local references.
///
/// # Errors
/// 400 if the text is not a topology or its references are inconsistent.
pub(super) fn parse_topology(
    text: &[u8],
    title: Option<String>,
    owner: &str,
    host: &Host<'_>,
    mut id: impl FnMut() -> String,
) -> Result<Imported, CmlError> {
    // Every JSON document is a YAML document.
    yaml::check_depth(text).map_err(|why| CmlError::bad_request(format!("Invalid topology: {why}")))?;
    let topology: Topology = serde_yaml_ng::from_slice(text)
        .map_err(|error| CmlError::bad_request(format!("Topology cannot be read: {error}")))?;
    if topology.nodes.len() > MAX_NODES || topology.links.len() > MAX_LINKS {
        let message = format!("Topology is too large: at most {MAX_NODES} nodes and {MAX_LINKS} links.");
        return Err(CmlError::bad_request(message));
    }
    let lab_entry = topology.lab;
    let mut lab = Lab::new(
        NewLab {
            title: title.or(lab_entry.title),
            description: lab_entry.description.unwrap_or_default(),
            notes: lab_entry.notes.unwrap_or_default(),
        },
        owner,
        host.now,
    );
    if let Some(staging) = lab_entry.node_staging {
        lab.update(&Map::from_iter([("node_staging".to_owned(), staging.into())]), host.now);
    }
    let mut warnings = Vec::new();
    // Interface ids in the file are unique within their node only.
    let mut interface_ids: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut node_ids: BTreeMap<String, String> = BTreeMap::new();
    for entry in topology.nodes {
        if entry.interfaces.len() > MAX_INTERFACES {
            let message = format!("Node {} has more than {MAX_INTERFACES} interfaces.", entry.label);
            return Err(CmlError::bad_request(message));
        }
        if !host.definitions.has_node(&entry.node_definition) {
            warnings.push(format!("Node definition not found: {}", entry.node_definition));
        }
        let node = id();
        if node_ids.insert(entry.id.clone(), node.clone()).is_some() {
            return Err(CmlError::bad_request(format!("Node id is used twice: {}", entry.id)));
        }
        let spec = NewNode { label: entry.label, node_definition: entry.node_definition, rest: entry.rest };
        lab.add_node(node.clone(), spec, host)?;
        for interface in entry.interfaces {
            let interface_id = id();
            let label = interface.label.unwrap_or_else(|| interface.id.clone());
            interface_ids.insert((entry.id.clone(), interface.id), interface_id.clone());
            let mac_address = parse_mac_address(interface.mac_address.as_ref())?;
            let wired = Interface { mac_address, ..Interface::new(&node, label, interface.slot) };
            lab.cabling.insert(interface_id, wired);
        }
    }
    for link in topology.links {
        let end = |node: Option<String>, interface: Option<String>| {
            let (node, interface) = node.zip(interface).ok_or_else(|| {
                CmlError::bad_request("A link needs n1, i1, n2 and i2: the nodes and interfaces at its ends.")
            })?;
            let name = format!("{node}/{interface}");
            interface_ids.get(&(node, interface)).cloned().ok_or_else(|| CmlError::not_found("Interface", &name))
        };
        let ends = [
            end(link.n1.or(link.node_a), link.i1.or(link.interface_a))?,
            end(link.n2.or(link.node_b), link.i2.or(link.interface_b))?,
        ];
        let link_id = id();
        lab.cabling.connect(link_id.clone(), ends, link.label)?;
        if !link.conditioning.is_empty() {
            lab.cabling.set_condition(&link_id, link.conditioning)?;
        }
    }
    lab.annotations = Annotations::import(topology.annotations, topology.smart_annotations, id)?;
    Ok(Imported { lab, warnings })
}
