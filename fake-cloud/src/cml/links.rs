//! Interfaces of nodes and links between them.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::labs::Lab;

/// Number of interface slots of a node.
const SLOTS: u32 = 128;
/// Number of interfaces of a node created with `populate_interfaces`.
pub(super) const POPULATED_INTERFACES: u32 = 4;

/// Network interface of a node.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) node: String,
    pub(super) label: String,
    /// `None` for a loopback interface.
    pub(super) slot: Option<u32>,
    pub(super) is_up: bool,
}

/// Connection of two interfaces.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) ends: [String; 2],
    pub(super) label: String,
    pub(super) is_up: bool,
}

/// Interfaces and links of one lab.
#[derive(Debug, Clone, Default)]
pub(super) struct Cabling {
    interfaces: BTreeMap<String, Interface>,
    links: BTreeMap<String, Link>,
}

impl Cabling {
    /// Interfaces of a node, in order of their slots.
    pub(super) fn node_interfaces(&self, node: &str) -> Vec<(&String, &Interface)> {
        let mut own: Vec<_> = self.interfaces.iter().filter(|(_, interface)| interface.node == node).collect();
        own.sort_by_key(|(_, interface)| interface.slot);
        own
    }

    pub(super) fn insert(&mut self, id: String, interface: Interface) {
        self.interfaces.insert(id, interface);
    }

    pub(super) fn interface_ids(&self) -> Vec<&String> {
        self.interfaces.keys().collect()
    }

    pub(super) fn link_ids(&self) -> Vec<&String> {
        self.links.keys().collect()
    }

    pub(super) fn link_count(&self) -> usize {
        self.links.len()
    }

    /// Adds an interface in the next free slot, or in each free slot up to `slot`. `id` generates their ids.
    pub(super) fn add_interfaces(
        &mut self,
        node: &str,
        slot: Option<u32>,
        mut id: impl FnMut() -> String,
    ) -> Result<Vec<String>, CmlError> {
        let taken: Vec<u32> = self.node_interfaces(node).iter().filter_map(|(_, interface)| interface.slot).collect();
        let mut free = (0..SLOTS).filter(|slot| !taken.contains(slot));
        let slots: Vec<u32> = match slot {
            None => free.next().into_iter().collect(),
            Some(slot) if taken.contains(&slot) => {
                return Err(CmlError::bad_request(format!("Interface slot {slot} is in use.")));
            }
            Some(slot) => free.take_while(|free| *free <= slot).collect(),
        };
        if slots.is_empty() || slot.is_some_and(|slot| slot >= SLOTS) {
            return Err(CmlError::bad_request(format!("A node has at most {SLOTS} interfaces.")));
        }
        let mut added = Vec::with_capacity(slots.len());
        for slot in slots {
            let id = id();
            let label = format!("eth{slot}");
            self.insert(id.clone(), Interface { node: node.to_owned(), label, slot: Some(slot), is_up: true });
            added.push(id);
        }
        Ok(added)
    }

    /// Connects two free interfaces of different nodes.
    pub(super) fn connect(&mut self, id: String, ends: [String; 2], label: Option<String>) -> Result<(), CmlError> {
        let mut found = Vec::with_capacity(2);
        for end in &ends {
            let interface = self.interfaces.get(end).ok_or_else(|| CmlError::not_found("Interface", end))?;
            if self.link_id(end).is_some() {
                return Err(CmlError::bad_request(format!("Interface is connected already: {end}")));
            }
            found.push(interface);
        }
        if found[0].node == found[1].node {
            return Err(CmlError::bad_request("A link needs two nodes."));
        }
        let label = label.unwrap_or_else(|| format!("{}<->{}", found[0].label, found[1].label));
        self.links.insert(id, Link { ends, label, is_up: true });
        Ok(())
    }

    pub(super) fn remove_link(&mut self, id: &str) -> Result<(), CmlError> {
        self.links.remove(id).map(drop).ok_or_else(|| CmlError::not_found("Link", id))
    }

    /// Removes an interface and its link.
    pub(super) fn remove_interface(&mut self, id: &str) -> Result<(), CmlError> {
        self.interfaces.remove(id).ok_or_else(|| CmlError::not_found("Interface", id))?;
        self.links.retain(|_, link| !link.ends.iter().any(|end| end == id));
        Ok(())
    }

    /// Removes the interfaces and links of a node.
    pub(super) fn remove_node(&mut self, node: &str) {
        let ids: Vec<String> = self.node_interfaces(node).into_iter().map(|(id, _)| id.clone()).collect();
        for id in ids {
            // The id was just listed, so it exists.
            drop(self.remove_interface(&id));
        }
    }

    pub(super) fn set_interface(&mut self, id: &str, is_up: bool) -> Result<(), CmlError> {
        self.interfaces.get_mut(id).ok_or_else(|| CmlError::not_found("Interface", id))?.is_up = is_up;
        Ok(())
    }

    pub(super) fn set_link(&mut self, id: &str, is_up: bool) -> Result<(), CmlError> {
        self.links.get_mut(id).ok_or_else(|| CmlError::not_found("Link", id))?.is_up = is_up;
        Ok(())
    }

    fn link_id(&self, interface: &str) -> Option<&String> {
        self.links.iter().find(|(_, link)| link.ends.iter().any(|end| end == interface)).map(|(id, _)| id)
    }
}

impl Lab {
    fn interface_state(&self, interface: &Interface) -> &'static str {
        match self.node_is_on(&interface.node) {
            Some(true) if interface.is_up => "STARTED",
            Some(true) => "STOPPED",
            Some(false) | None => "DEFINED_ON_CORE",
        }
    }

    fn link_state(&self, link: &Link) -> &'static str {
        let mut states = link.ends.iter().filter_map(|end| self.cabling.interfaces.get(end));
        if !link.is_up {
            "STOPPED"
        } else if states.all(|interface| self.interface_state(interface) == "STARTED") {
            "STARTED"
        } else {
            "DEFINED_ON_CORE"
        }
    }

    pub(super) fn interface(&self, lab: &str, id: &str) -> Result<Value, CmlError> {
        let interface = self.cabling.interfaces.get(id).ok_or_else(|| CmlError::not_found("Interface", id))?;
        Ok(self.interface_json(lab, id, interface))
    }

    pub(super) fn interface_json(&self, lab: &str, id: &str, interface: &Interface) -> Value {
        json!({
            "id": id, "lab_id": lab, "node": interface.node, "label": interface.label, "slot": interface.slot,
            "type": if interface.slot.is_some() { "physical" } else { "loopback" }, "mac_address": null,
            "is_connected": self.cabling.link_id(id).is_some(), "state": self.interface_state(interface),
        })
    }

    pub(super) fn node_interfaces_json(&self, lab: &str, node: &str) -> Vec<Value> {
        self.cabling.node_interfaces(node).into_iter().map(|(id, one)| self.interface_json(lab, id, one)).collect()
    }

    pub(super) fn link(&self, lab: &str, id: &str) -> Result<Value, CmlError> {
        let link = self.cabling.links.get(id).ok_or_else(|| CmlError::not_found("Link", id))?;
        Ok(self.link_json(lab, id, link))
    }

    fn link_json(&self, lab: &str, id: &str, link: &Link) -> Value {
        let [one, other] = &link.ends;
        let node = |end: &String| self.cabling.interfaces.get(end).map(|interface| interface.node.clone());
        // The two client generations use different names for the same fields.
        json!({
            "id": id, "lab_id": lab, "label": link.label, "link_capture_key": "", "conditioning": {},
            "interface_a": one, "interface_b": other, "node_a": node(one), "node_b": node(other),
            "i1": one, "i2": other, "n1": node(one), "n2": node(other), "state": self.link_state(link),
        })
    }

    pub(super) fn links_json(&self, lab: &str) -> Vec<Value> {
        self.cabling.links.iter().map(|(id, link)| self.link_json(lab, id, link)).collect()
    }

    pub(super) fn element_states(&self, boot: Duration, now: DateTime<Utc>) -> Value {
        let interfaces: Map<_, _> = self
            .cabling
            .interfaces
            .iter()
            .map(|(id, interface)| (id.clone(), self.interface_state(interface).into()))
            .collect();
        let links: Map<_, _> =
            self.cabling.links.iter().map(|(id, link)| (id.clone(), self.link_state(link).into())).collect();
        json!({"nodes": self.node_states(boot, now), "links": links, "interfaces": interfaces})
    }
}
