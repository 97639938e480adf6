//! Interfaces of nodes and links between them.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::fields::{self, Field};
use super::labs::{Host, Lab, Operational, derived_id, derived_number};
use super::release::Release;

/// Network interface of a node.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Interface {
    pub(super) node: String,
    pub(super) label: String,
    /// `None` for a loopback interface.
    pub(super) slot: Option<u32>,
    pub(super) is_up: bool,
    pub(super) mac_address: Option<String>,
}

/// Connection of two interfaces.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Link {
    pub(super) ends: [String; 2],
    pub(super) label: String,
    pub(super) is_up: bool,
    condition: Map<String, Value>,
    capture: Option<Capture>,
}

/// Packet capture of a link. No packets flow, so it captures none.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Capture {
    options: Map<String, Value>,
    started: DateTime<Utc>,
}

/// Interfaces and links of one lab.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Cabling {
    interfaces: BTreeMap<String, Interface>,
    links: BTreeMap<String, Link>,
}

const INTERFACE_FIELDS: &[Field] = &[Field::text("mac_address", 17).or_null()];

const CONDITION_FIELDS: &[Field] = &[
    Field::flag("enabled"),
    Field::integer("bandwidth", 0, 10_000_000).or_null(),
    Field::integer("latency", 0, 10_000).or_null(),
    Field::number("delay_corr", 0.0, 100.0).or_null(),
    Field::integer("limit", 0, 10_000).or_null(),
    Field::number("loss", 0.0, 100.0).or_null(),
    Field::number("loss_corr", 0.0, 100.0).or_null(),
    Field::integer("gap", 0, 10_000).or_null(),
    Field::number("duplicate", 0.0, 100.0).or_null(),
    Field::number("duplicate_corr", 0.0, 100.0).or_null(),
    Field::integer("jitter", 0, 10_000).or_null(),
    Field::number("reorder_prob", 0.0, 100.0).or_null(),
    Field::number("reorder_corr", 0.0, 100.0).or_null(),
    Field::number("corrupt_prob", 0.0, 100.0).or_null(),
    Field::number("corrupt_corr", 0.0, 100.0).or_null(),
];

/// Parameters of a link condition, without `enabled`.
const CONDITIONS: [&str; 14] = [
    "bandwidth",
    "latency",
    "delay_corr",
    "limit",
    "loss",
    "loss_corr",
    "gap",
    "duplicate",
    "duplicate_corr",
    "jitter",
    "reorder_prob",
    "reorder_corr",
    "corrupt_prob",
    "corrupt_corr",
];

const CAPTURE_FIELDS: &[Field] = &[
    Field::integer("maxpackets", 1, 1_000_000),
    Field::integer("maxtime", 1, 86_400),
    Field::text("bpfilter", 128),
    Field::text("encap", 32),
];

/// Checks a MAC address: six pairs of hexadecimal digits with colons between them.
fn check_mac_address(address: &str) -> Result<(), CmlError> {
    let parts: Vec<&str> = address.split(':').collect();
    let is_pair = |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    if parts.len() == 6 && parts.iter().all(is_pair) {
        return Ok(());
    }
    Err(CmlError::bad_request(format!("Invalid MAC address {address}: expected a form like 52:54:00:12:34:56.")))
}

/// Reads the MAC address of a request, which may be null.
pub(super) fn parse_mac_address(value: Option<&Value>) -> Result<Option<String>, CmlError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(address)) => check_mac_address(address).map(|()| Some(address.clone())),
        Some(_) => Err(CmlError::bad_request("Invalid value of mac_address: expected text, or null.")),
    }
}

impl Interface {
    pub(super) fn new(node: &str, label: String, slot: Option<u32>) -> Self {
        Self { node: node.to_owned(), label, slot, is_up: true, mac_address: None }
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.slot.is_some() { "physical" } else { "loopback" }
    }

    /// The interface in a topology, under an id of the topology.
    pub(super) fn topology(&self, id: &str) -> Value {
        let mut shown = json!({"id": id, "label": self.label, "type": self.kind()});
        if let Some(slot) = self.slot {
            shown["slot"] = slot.into();
        }
        if let Some(mac_address) = &self.mac_address {
            shown["mac_address"] = mac_address.clone().into();
        }
        shown
    }
}

impl Link {
    /// Conditions as they were requested.
    pub(super) fn conditioning(&self) -> Value {
        self.condition.clone().into()
    }

    fn is_conditioned(&self) -> bool {
        self.condition.get("enabled").is_some_and(|enabled| *enabled == true)
    }

    fn condition_json(&self) -> Value {
        let parameters: Map<_, _> = CONDITIONS
            .iter()
            .map(|field| ((*field).to_owned(), self.condition.get(*field).cloned().unwrap_or_default()))
            .collect();
        let mut shown = parameters.clone();
        shown.insert("enabled".to_owned(), self.is_conditioned().into());
        let operational = if self.is_conditioned() { parameters.into() } else { Value::Null };
        shown.insert("operational".to_owned(), operational);
        shown.into()
    }

    /// The capture, unless its time is over.
    fn capture(&self, now: DateTime<Utc>) -> Option<&Capture> {
        self.capture.as_ref().filter(|capture| {
            let seconds = capture.options.get("maxtime").and_then(Value::as_i64).unwrap_or(86_400);
            now - capture.started < TimeDelta::try_seconds(seconds).unwrap_or(TimeDelta::MAX)
        })
    }

    fn capture_json(&self, id: &str, now: DateTime<Utc>) -> Value {
        let capture = self.capture(now);
        let option = |field: &str, default: Value| {
            capture.map(|capture| capture.options.get(field).cloned().unwrap_or(default)).unwrap_or_default()
        };
        json!({
            "config": {
                "maxpackets": option("maxpackets", Value::Null), "maxtime": option("maxtime", json!(86_400)),
                "bpfilter": option("bpfilter", json!("")), "encap": option("encap", json!("ethernet")),
                "link_capture_key": capture.map(|_| id),
            },
            "starttime": capture.map(|capture| capture.started.to_rfc3339_opts(SecondsFormat::Secs, true)),
            "packetscaptured": capture.map(|_| 0),
        })
    }
}

impl Cabling {
    /// Interfaces of a node, in order of their slots.
    pub(super) fn node_interfaces(&self, node: &str) -> Vec<(&String, &Interface)> {
        let mut own: Vec<_> = self.interfaces.iter().filter(|(_, interface)| interface.node == node).collect();
        own.sort_by_key(|(_, interface)| interface.slot);
        own
    }

    pub(super) fn interface(&self, id: &str) -> Option<&Interface> {
        self.interfaces.get(id)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
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
        ports: &Ports<'_>,
        mut id: impl FnMut() -> String,
    ) -> Result<Vec<String>, CmlError> {
        let slots = ports.count;
        let taken: Vec<u32> = self.node_interfaces(node).iter().filter_map(|(_, interface)| interface.slot).collect();
        let mut free = (0..slots).filter(|slot| !taken.contains(slot));
        let wanted: Vec<u32> = match slot {
            None => free.next().into_iter().collect(),
            Some(slot) if taken.contains(&slot) => {
                return Err(CmlError::bad_request(format!("Interface slot {slot} is in use.")));
            }
            Some(slot) => free.take_while(|free| *free <= slot).collect(),
        };
        if wanted.is_empty() || slot.is_some_and(|slot| slot >= slots) {
            return Err(CmlError::bad_request(format!("The node has at most {slots} interfaces.")));
        }
        let mut added = Vec::with_capacity(wanted.len());
        for slot in wanted {
            let id = id();
            self.insert(id.clone(), Interface::new(node, (ports.name)(slot), Some(slot)));
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
        self.links.insert(id, Link { ends, label, is_up: true, condition: Map::new(), capture: None });
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

    pub(super) fn link_id(&self, interface: &str) -> Option<&String> {
        self.links.iter().find(|(_, link)| link.ends.iter().any(|end| end == interface)).map(|(id, _)| id)
    }

    fn find_link(&self, id: &str) -> Result<&Link, CmlError> {
        self.links.get(id).ok_or_else(|| CmlError::not_found("Link", id))
    }

    fn find_link_mut(&mut self, id: &str) -> Result<&mut Link, CmlError> {
        self.links.get_mut(id).ok_or_else(|| CmlError::not_found("Link", id))
    }

    /// Changes the condition of a link. A change without `enabled` enables it.
    pub(super) fn set_condition(&mut self, id: &str, body: Map<String, Value>) -> Result<Value, CmlError> {
        fields::check(&body, CONDITION_FIELDS, Release::FIRST)?;
        let link = self.find_link_mut(id)?;
        link.condition.insert("enabled".to_owned(), true.into());
        link.condition.extend(body);
        Ok(link.condition_json())
    }

    /// Removes the condition of a link.
    pub(super) fn clear_condition(&mut self, id: &str) -> Result<(), CmlError> {
        self.find_link_mut(id)?.condition.clear();
        Ok(())
    }

    /// Condition of a link as JSON.
    pub(super) fn condition(&self, id: &str) -> Result<Value, CmlError> {
        Ok(self.find_link(id)?.condition_json())
    }

    /// Starts a packet capture. It ends after `maxtime`.
    pub(super) fn start_capture(
        &mut self,
        id: &str,
        options: Map<String, Value>,
        now: DateTime<Utc>,
    ) -> Result<Value, CmlError> {
        fields::check(&options, CAPTURE_FIELDS, Release::FIRST)?;
        if !["maxpackets", "maxtime"].iter().any(|limit| options.contains_key(*limit)) {
            return Err(CmlError::bad_request("Either maxpackets or maxtime is required."));
        }
        let link = self.find_link_mut(id)?;
        if link.capture(now).is_some() {
            return Err(CmlError::bad_request(format!("A packet capture runs already: {id}")));
        }
        link.capture = Some(Capture { options, started: now });
        Ok(link.capture_json(id, now))
    }

    /// Stops the packet capture of a link.
    pub(super) fn stop_capture(&mut self, id: &str, now: DateTime<Utc>) -> Result<(), CmlError> {
        let link = self.find_link_mut(id)?;
        if link.capture(now).is_none() {
            return Err(CmlError::bad_request(format!("No packet capture runs: {id}")));
        }
        link.capture = None;
        Ok(())
    }

    /// Options and progress of the packet capture of a link; null fields if none runs.
    pub(super) fn capture(&self, id: &str, now: DateTime<Utc>) -> Result<Value, CmlError> {
        Ok(self.find_link(id)?.capture_json(id, now))
    }
}

/// Names and number of the physical interfaces of a node.
pub(super) struct Ports<'a> {
    pub(super) name: &'a dyn Fn(u32) -> String,
    pub(super) count: u32,
}

impl Lab {
    fn is_on(&self, node: &str) -> bool {
        self.find_node(node).is_ok_and(super::labs::Node::is_on)
    }

    fn interface_state(&self, interface: &Interface) -> &'static str {
        match self.is_on(&interface.node) {
            true if interface.is_up => "STARTED",
            true => "STOPPED",
            false => "DEFINED_ON_CORE",
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

    /// Traffic of all links: none, because no packets flow.
    pub(super) fn link_stats(&self) -> Value {
        let stats = json!({"readpackets": 0, "readbytes": 0, "writepackets": 0, "writebytes": 0, "drops": 0});
        self.cabling.links.keys().map(|id| (id.clone(), stats.clone())).collect::<Map<_, _>>().into()
    }

    pub(super) fn interface(&self, lab: &str, id: &str, operational: Operational) -> Result<Value, CmlError> {
        let interface = self.cabling.interfaces.get(id).ok_or_else(|| CmlError::not_found("Interface", id))?;
        Ok(self.interface_json(lab, id, interface, operational))
    }

    fn interface_json(&self, lab: &str, id: &str, interface: &Interface, shown: Operational) -> Value {
        let operational = if shown == Operational::Shown { self.deployed(id, interface) } else { Value::Null };
        json!({
            "id": id, "lab_id": lab, "node": interface.node, "label": interface.label, "slot": interface.slot,
            "type": interface.kind(), "mac_address": interface.mac_address, "operational": operational,
            "is_connected": self.cabling.link_id(id).is_some(), "state": self.interface_state(interface),
        })
    }

    /// Values resolved when the node of an interface was started; null while it is off.
    fn deployed(&self, id: &str, interface: &Interface) -> Value {
        if !self.is_on(&interface.node) || interface.slot.is_none() {
            return Value::Null;
        }
        let number = derived_number(id, "interface");
        let [_, _, a, b] = number.to_be_bytes();
        let given = interface.mac_address.clone();
        let mac = given.unwrap_or_else(|| format!("52:54:00:{:02x}:{a:02x}:{b:02x}", number >> 24));
        let port = |purpose: &str| 20_000 + derived_number(id, purpose) % 40_000;
        json!({
            "device_name": format!("tap{}", &derived_id(id, "device")[..8]), "mac_address": mac,
            "src_udp_port": port("source"), "dst_udp_port": port("destination"),
        })
    }

    pub(super) fn node_interfaces_json(&self, lab: &str, node: &str, operational: Operational) -> Vec<Value> {
        let interfaces = self.cabling.node_interfaces(node).into_iter();
        interfaces.map(|(id, one)| self.interface_json(lab, id, one, operational)).collect()
    }

    pub(super) fn interfaces_json(&self, lab: &str, operational: Operational) -> Vec<Value> {
        let interfaces = self.cabling.interfaces.iter();
        interfaces.map(|(id, one)| self.interface_json(lab, id, one, operational)).collect()
    }

    /// Changes the MAC address of an interface, while its node is off.
    pub(super) fn update_interface(&mut self, id: &str, body: &Map<String, Value>) -> Result<(), CmlError> {
        fields::check(body, INTERFACE_FIELDS, Release::FIRST)?;
        let mac_address = parse_mac_address(body.get("mac_address"))?;
        let node = self.cabling.interface(id).map(|interface| interface.node.clone());
        let node = node.ok_or_else(|| CmlError::not_found("Interface", id))?;
        if self.is_on(&node) {
            return Err(CmlError::bad_request(format!("Node is running: {node}")));
        }
        if let Some(interface) = self.cabling.interfaces.get_mut(id)
            && body.contains_key("mac_address")
        {
            interface.mac_address = mac_address;
        }
        Ok(())
    }

    pub(super) fn link(&self, lab: &str, id: &str, host: &Host<'_>) -> Result<Value, CmlError> {
        Ok(self.link_json(lab, id, self.cabling.find_link(id)?, host))
    }

    fn link_json(&self, lab: &str, id: &str, link: &Link, host: &Host<'_>) -> Value {
        let [one, other] = &link.ends;
        let node = |end: &String| self.cabling.interfaces.get(end).map(|interface| interface.node.clone());
        let capture = link.capture(host.now).map(|_| id);
        let no_capture = if host.release() >= Release::V2_10 { Value::Null } else { "".into() };
        json!({
            "id": id, "lab_id": lab, "label": link.label, "state": self.link_state(link),
            "link_capture_key": capture.map_or(no_capture, Value::from),
            "interface_a": one, "interface_b": other, "node_a": node(one), "node_b": node(other),
        })
    }

    /// Links of the topology, with their conditions.
    pub(super) fn links_json(&self, lab: &str, host: &Host<'_>) -> Value {
        let links = self.cabling.links.iter().map(|(id, link)| {
            let mut shown = self.link_json(lab, id, link, host);
            if let Some(fields) = shown.as_object_mut() {
                for field in ["lab_id", "state", "link_capture_key"] {
                    fields.remove(field);
                }
                fields.insert("conditioning".to_owned(), link.conditioning());
            }
            shown
        });
        links.collect()
    }

    pub(super) fn all_links_json(&self, lab: &str, host: &Host<'_>) -> Vec<Value> {
        self.cabling.links.iter().map(|(id, link)| self.link_json(lab, id, link, host)).collect()
    }

    pub(super) fn element_states(&self, host: &Host<'_>) -> Value {
        let interfaces: Map<_, _> = self
            .cabling
            .interfaces
            .iter()
            .map(|(id, interface)| (id.clone(), self.interface_state(interface).into()))
            .collect();
        let links: Map<_, _> =
            self.cabling.links.iter().map(|(id, link)| (id.clone(), self.link_state(link).into())).collect();
        json!({"nodes": self.node_states(host), "links": links, "interfaces": interfaces})
    }
}
