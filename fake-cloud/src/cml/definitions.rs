//! Definitions of nodes and images: those that CML ships with, and uploaded ones.
//!
//! The built-in definitions are a part of the reference platform, with the values that clients read: hardware,
//! interfaces, configuration files and images. Texts for people are our own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::fields::{self, Field};
use super::release::Release;

/// Maximum number of uploaded definitions of each kind.
const MAX_DEFINITIONS: usize = 1000;

/// Number of interfaces of a node without a definition.
const DEFAULT_SLOTS: u32 = 128;

/// Row of a built-in node definition.
struct BuiltIn {
    id: &'static str,
    since: Release,
    nature: &'static str,
    description: &'static str,
    domain: &'static str,
    driver: &'static str,
    hardware: Hardware,
    ports: Ports,
    /// Name of the main configuration file; none if the node has no configuration.
    file: Option<&'static str>,
    prefix: &'static str,
    icon: &'static str,
    label: &'static str,
    group: &'static str,
    /// Operating system for pyATS; none if the node has no CLI that pyATS knows.
    os: Option<&'static str>,
    images: &'static [(&'static str, &'static str)],
}

/// Memory in MiB and number of processors; zero for nodes without a machine.
struct Hardware(u32, u32);

/// Names of the physical interfaces, their number, the number of interfaces of a new node, and of serial ports.
struct Ports {
    /// Format with `{}` for the number, or `{/}` for slot and port in fours.
    name: &'static str,
    first: u32,
    count: u32,
    default: u32,
    serial: u32,
    loopback: Loopback,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Loopback {
    Zero,
    None,
}

const fn ports(name: &'static str, first: u32, count: u32, default: u32, serial: u32, loopback: Loopback) -> Ports {
    Ports { name, first, count, default, serial, loopback }
}

const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        id: "alpine",
        since: Release::FIRST,
        nature: "server",
        description: "Small Linux host",
        domain: "kvm",
        driver: "server",
        hardware: Hardware(512, 1),
        ports: ports("eth{}", 0, 4, 1, 1, Loopback::None),
        file: Some("node.cfg"),
        prefix: "alpine-",
        icon: "server",
        label: "Alpine",
        group: "Others",
        os: Some("linux"),
        images: &[("alpine-3-19-1-base", "Alpine 3.19.1 - Base")],
    },
    BuiltIn {
        id: "asav",
        since: Release::FIRST,
        nature: "firewall",
        description: "Adaptive Security Virtual Appliance",
        domain: "kvm",
        driver: "asav",
        hardware: Hardware(2048, 1),
        ports: ports("GigabitEthernet0/{}", 0, 9, 2, 1, Loopback::None),
        file: Some("day0-config"),
        prefix: "asav-",
        icon: "firewall",
        label: "ASAv",
        group: "Cisco",
        os: Some("asa"),
        images: &[("asav-9-20-2", "ASAv 9.20.2")],
    },
    BuiltIn {
        id: "cat8000v",
        since: Release::FIRST,
        nature: "router",
        description: "Catalyst 8000V Edge Software",
        domain: "kvm",
        driver: "csr1000v",
        hardware: Hardware(4096, 1),
        ports: ports("GigabitEthernet{}", 1, 25, 4, 2, Loopback::Zero),
        file: Some("iosxe_config.txt"),
        prefix: "cat8000v-",
        icon: "router",
        label: "Cat 8000v",
        group: "Cisco",
        os: Some("iosxe"),
        images: &[("cat8000v-17-13-01a", "Catalyst 8000V 17.13.01a")],
    },
    BuiltIn {
        id: "external_connector",
        since: Release::FIRST,
        nature: "external_connector",
        description: "Connects a lab with a network outside of it",
        domain: "none",
        driver: "external_connector",
        hardware: Hardware(0, 0),
        ports: ports("port", 0, 1, 1, 0, Loopback::None),
        file: Some("default"),
        prefix: "ext-conn-",
        icon: "cloud",
        label: "External Connector",
        group: "Others",
        os: None,
        images: &[],
    },
    BuiltIn {
        id: "frr",
        since: Release::V2_9,
        nature: "router",
        description: "Free Range Routing in a container",
        domain: "docker",
        driver: "server",
        hardware: Hardware(128, 1),
        ports: ports("eth{}", 0, 32, 4, 2, Loopback::None),
        file: Some("node.cfg"),
        prefix: "frr-",
        icon: "router",
        label: "FRR",
        group: "Others",
        os: None,
        images: &[("frr-10.2.1-r1", "FRR 10.2.1")],
    },
    BuiltIn {
        id: "iol-xe",
        since: Release::V2_8,
        nature: "router",
        description: "IOL XE router",
        domain: "iol",
        driver: "iol",
        hardware: Hardware(1024, 1),
        ports: ports("Ethernet{/}", 0, 64, 4, 1, Loopback::Zero),
        file: Some("ios_config.txt"),
        prefix: "iol-",
        icon: "router",
        label: "IOL XE",
        group: "Cisco",
        os: Some("iosxe"),
        images: &[("iol-xe-17-15-01", "IOL XE 17.15.01")],
    },
    BuiltIn {
        id: "ioll2-xe",
        since: Release::V2_8,
        nature: "switch",
        description: "IOL XE layer 2 switch",
        domain: "iol",
        driver: "iol_l2",
        hardware: Hardware(1024, 1),
        ports: ports("Ethernet{/}", 0, 64, 4, 1, Loopback::Zero),
        file: Some("ios_config.txt"),
        prefix: "ioll2-",
        icon: "switch",
        label: "IOL L2 XE",
        group: "Cisco",
        os: Some("iosxe"),
        images: &[("ioll2-xe-17-15-01", "IOL L2 XE 17.15.01")],
    },
    BuiltIn {
        id: "iosv",
        since: Release::FIRST,
        nature: "router",
        description: "IOSv router",
        domain: "kvm",
        driver: "iosv",
        hardware: Hardware(768, 1),
        ports: ports("GigabitEthernet0/{}", 0, 16, 4, 2, Loopback::Zero),
        file: Some("ios_config.txt"),
        prefix: "iosv-",
        icon: "router",
        label: "IOSv",
        group: "Cisco",
        os: Some("ios"),
        images: &[("iosv-159-3-m8", "IOSv 15.9(3) M8")],
    },
    BuiltIn {
        id: "iosvl2",
        since: Release::FIRST,
        nature: "switch",
        description: "IOSv layer 2 switch",
        domain: "kvm",
        driver: "iosvl2",
        hardware: Hardware(768, 1),
        ports: ports("GigabitEthernet{/}", 0, 16, 4, 2, Loopback::Zero),
        file: Some("ios_config.txt"),
        prefix: "iosvl2-",
        icon: "switch",
        label: "IOSvL2",
        group: "Cisco",
        os: Some("ios"),
        images: &[("iosvl2-2020", "IOSvL2 2020")],
    },
    BuiltIn {
        id: "nxosv9000",
        since: Release::FIRST,
        nature: "switch",
        description: "NX-OS 9000 switch",
        domain: "kvm",
        driver: "nxosv9000",
        hardware: Hardware(12288, 4),
        ports: ports("Ethernet1/{}", 1, 64, 5, 2, Loopback::Zero),
        file: Some("nxos_config.txt"),
        prefix: "nxos9000-",
        icon: "switch",
        label: "NX-OS 9000",
        group: "Cisco",
        os: Some("nxos"),
        images: &[("nxosv9300-10-4-2-f", "NX-OS 9300 10.4(2)F")],
    },
    BuiltIn {
        id: "server",
        since: Release::FIRST,
        nature: "server",
        description: "Tiny Linux server",
        domain: "kvm",
        driver: "server",
        hardware: Hardware(64, 1),
        ports: ports("eth{}", 0, 8, 1, 1, Loopback::None),
        file: Some("iosxe_config.txt"),
        prefix: "server-",
        icon: "server",
        label: "Server",
        group: "Others",
        os: None,
        images: &[("server-tcl-14-1", "Tiny Core Linux 14.1")],
    },
    BuiltIn {
        id: "ubuntu",
        since: Release::FIRST,
        nature: "server",
        description: "Ubuntu with cloud-init",
        domain: "kvm",
        driver: "ubuntu",
        hardware: Hardware(2048, 1),
        ports: ports("ens{}", 2, 8, 1, 1, Loopback::None),
        file: Some("user-data"),
        prefix: "ubuntu-",
        icon: "server",
        label: "Ubuntu",
        group: "Others",
        os: Some("linux"),
        images: &[("ubuntu-22-04", "Ubuntu 22.04")],
    },
    BuiltIn {
        id: "unmanaged_switch",
        since: Release::FIRST,
        nature: "switch",
        description: "Unmanaged switch without a machine",
        domain: "none",
        driver: "unmanaged_switch",
        hardware: Hardware(0, 0),
        ports: ports("port{}", 0, 32, 8, 0, Loopback::None),
        file: None,
        prefix: "unmanaged-switch-",
        icon: "switch",
        label: "Unmanaged Switch",
        group: "Others",
        os: None,
        images: &[],
    },
];

impl Ports {
    fn names(&self) -> Vec<String> {
        let name = |slot: u32| {
            let port = self.first + slot;
            self.name.replace("{/}", &format!("{}/{}", port / 4, port % 4)).replace("{}", &port.to_string())
        };
        (0..self.count).map(name).collect()
    }
}

impl BuiltIn {
    fn to_json(&self) -> Value {
        let Hardware(ram, cpus) = self.hardware;
        let mut machine = Map::from_iter([
            ("libvirt_domain_driver".to_owned(), self.domain.into()),
            ("driver".to_owned(), self.driver.into()),
            ("cpu_limit".to_owned(), 100.into()),
            ("enable_rng".to_owned(), true.into()),
            ("enable_tpm".to_owned(), false.into()),
        ]);
        if ram > 0 {
            machine.insert("ram".to_owned(), ram.into());
            machine.insert("cpus".to_owned(), cpus.into());
        }
        if self.domain == "kvm" {
            machine.insert("disk_driver".to_owned(), "virtio".into());
            machine.insert("nic_driver".to_owned(), "virtio".into());
        }
        let mut interfaces = json!({
            "serial_ports": self.ports.serial, "physical": self.ports.names(), "default_count": self.ports.default,
            "has_loopback_zero": self.ports.loopback == Loopback::Zero,
        });
        if self.ports.loopback == Loopback::Zero {
            interfaces["loopback"] = json!(["Loopback0"]);
        }
        let configuration = match self.file {
            Some(name) => {
                let content = if self.nature == "external_connector" { "NAT" } else { "" };
                // Nodes with IOL take the configuration of the virtual machines with IOS.
                let generator = match self.driver {
                    "iol" => "iosv",
                    "iol_l2" => "iosvl2",
                    own => own,
                };
                json!({
                    "generator": {"driver": self.os.map(|_| generator)},
                    "provisioning": {
                        "files": [{"editable": true, "name": name, "content": content}],
                        "media_type": "iso", "volume_name": "disk",
                    },
                })
            }
            None => json!({"generator": {"driver": null}}),
        };
        let inherited = json!({
            "ram": ram > 0, "cpus": ram > 0, "data_volume": false, "boot_disk_size": false, "cpu_limit": ram > 0,
        });
        let mut definition = json!({
            "id": self.id,
            "boot": {"timeout": if ram > 0 { 300 } else { 5 }},
            "sim": {"linux_native": machine},
            "general": {"nature": self.nature, "description": self.description, "read_only": true},
            "configuration": configuration,
            "device": {"interfaces": interfaces},
            "ui": {
                "label_prefix": self.prefix, "icon": self.icon, "label": self.label, "visible": true,
                "group": self.group, "description": self.description,
            },
            "inherited": {"image": inherited, "node": inherited},
            "schema_version": "0.0.1",
        });
        if let Some(os) = self.os {
            definition["pyats"] = json!({
                "os": os, "use_in_testbed": true, "username": "cisco", "password": "cisco",
                "config_extract_command": "show running-config",
            });
        }
        definition
    }

    fn images(&self) -> impl Iterator<Item = Value> {
        self.images.iter().map(|(id, label)| {
            let (disk, tag) = match self.domain {
                "docker" => (Value::Null, json!(format!("{}:{id}", self.id))),
                _ => (json!(format!("{id}.qcow2")), Value::Null),
            };
            json!({
                "id": id, "node_definition_id": self.id, "label": label, "description": label, "disk_image": disk,
                "docker_tag": tag, "read_only": true, "schema_version": "0.0.1", "ram": null, "cpus": null,
                "cpu_limit": null, "data_volume": null, "boot_disk_size": null, "efi_boot": false,
            })
        })
    }
}

/// Kind of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Node,
    Image,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Node => "Node definition",
            Self::Image => "Image definition",
        }
    }
}

/// Node definitions and image definitions of one server.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Definitions {
    nodes: BTreeMap<String, Value>,
    images: BTreeMap<String, Value>,
    /// Uploaded disk images, which an image definition can name: sizes in bytes by file name.
    pub(super) drop_folder: BTreeMap<String, usize>,
}

impl Definitions {
    /// The definitions that a release ships with.
    pub(super) fn new(release: Release) -> Self {
        let rows = || BUILT_IN.iter().filter(|row| row.since <= release);
        let by_id = |value: Value| value["id"].as_str().map(str::to_owned).map(|id| (id, value.clone()));
        Self {
            nodes: rows().map(BuiltIn::to_json).filter_map(by_id).collect(),
            images: rows().flat_map(BuiltIn::images).filter_map(by_id).collect(),
            drop_folder: BTreeMap::new(),
        }
    }

    fn all(&self, kind: Kind) -> &BTreeMap<String, Value> {
        match kind {
            Kind::Node => &self.nodes,
            Kind::Image => &self.images,
        }
    }

    fn all_mut(&mut self, kind: Kind) -> &mut BTreeMap<String, Value> {
        match kind {
            Kind::Node => &mut self.nodes,
            Kind::Image => &mut self.images,
        }
    }

    /// A definition as JSON. A node definition lists its images.
    pub(super) fn get(&self, kind: Kind, id: &str) -> Result<Value, CmlError> {
        let found = self.all(kind).get(id).ok_or_else(|| CmlError::not_found(kind.name(), id))?;
        let mut shown = found.clone();
        if kind == Kind::Node {
            shown["image_definitions"] = self.images_of(id).map(|image| image["id"].clone()).collect();
        }
        Ok(shown)
    }

    /// All definitions of a kind, by id.
    pub(super) fn list(&self, kind: Kind) -> Vec<Value> {
        self.all(kind).keys().filter_map(|id| self.get(kind, id).ok()).collect()
    }

    /// Images of a node definition, by id.
    pub(super) fn images_of(&self, node_definition: &str) -> impl Iterator<Item = &Value> {
        self.images.values().filter(move |image| image["node_definition_id"] == node_definition)
    }

    /// The node definitions as the palette of the web interface needs them.
    pub(super) fn simplified(&self) -> Vec<Value> {
        let simplify = |definition: Value| {
            let machine = &definition["sim"]["linux_native"];
            let has_machine = machine["ram"].is_number();
            let mut ui = definition["ui"].clone();
            for (field, value) in [
                ("has_configuration", definition["configuration"]["provisioning"].is_object()),
                ("show_ram", has_machine),
                ("show_cpus", has_machine),
                ("show_cpu_limit", has_machine),
                ("show_data_volume", false),
                ("show_boot_disk_size", false),
                ("has_config_extraction", definition["pyats"]["config_extract_command"].is_string()),
            ] {
                ui[field] = value.into();
            }
            let serial = definition["device"]["interfaces"]["serial_ports"].as_u64().unwrap_or(0);
            let mut sim = json!({
                "parameters": {}, "console": serial > 0, "simulate": has_machine, "custom_mac": has_machine,
                "vnc": machine["video"].is_object(),
            });
            for field in ["ram", "cpus", "cpu_limit", "data_volume", "boot_disk_size"] {
                if machine[field].is_number() {
                    sim[field] = machine[field].clone();
                }
            }
            json!({
                "id": definition["id"], "general": definition["general"], "device": definition["device"], "ui": ui,
                "sim": sim, "image_definitions": definition["image_definitions"],
            })
        };
        self.list(Kind::Node).into_iter().map(simplify).collect()
    }

    /// Adds a definition, or replaces one that is not read-only.
    pub(super) fn add(&mut self, kind: Kind, body: Map<String, Value>) -> Result<(), CmlError> {
        let id = self.validate(kind, &body)?;
        if self.all(kind).contains_key(&id) {
            return Err(CmlError::conflict(format!("{} exists already: {id}", kind.name())));
        }
        if self.all(kind).len() >= MAX_DEFINITIONS {
            return Err(CmlError::bad_request(format!("There are at most {MAX_DEFINITIONS} definitions.")));
        }
        self.all_mut(kind).insert(id, body.into());
        Ok(())
    }

    /// Replaces a definition.
    pub(super) fn replace(&mut self, kind: Kind, body: Map<String, Value>) -> Result<(), CmlError> {
        let id = self.validate(kind, &body)?;
        *self.writable(kind, &id)? = body.into();
        Ok(())
    }

    /// Removes a definition. A node definition with images stays.
    pub(super) fn remove(&mut self, kind: Kind, id: &str) -> Result<(), CmlError> {
        self.writable(kind, id)?;
        if kind == Kind::Node && self.images_of(id).next().is_some() {
            return Err(CmlError::bad_request(format!("Node definition has image definitions: {id}")));
        }
        self.all_mut(kind).remove(id);
        Ok(())
    }

    /// Protects a definition from changes, or allows them.
    pub(super) fn set_read_only(&mut self, kind: Kind, id: &str, read_only: &Value) -> Result<Value, CmlError> {
        if !read_only.is_boolean() {
            return Err(CmlError::bad_request("Expected true or false."));
        }
        let found = self.all_mut(kind).get_mut(id).ok_or_else(|| CmlError::not_found(kind.name(), id))?;
        match kind {
            Kind::Node => found["general"]["read_only"] = read_only.clone(),
            Kind::Image => found["read_only"] = read_only.clone(),
        }
        self.get(kind, id)
    }

    fn writable(&mut self, kind: Kind, id: &str) -> Result<&mut Value, CmlError> {
        let found = self.all_mut(kind).get_mut(id).ok_or_else(|| CmlError::not_found(kind.name(), id))?;
        let read_only = match kind {
            Kind::Node => &found["general"]["read_only"],
            Kind::Image => &found["read_only"],
        };
        if read_only == true {
            return Err(CmlError::new(403, format!("{} is read-only: {id}", kind.name())));
        }
        Ok(found)
    }

    fn validate(&self, kind: Kind, body: &Map<String, Value>) -> Result<String, CmlError> {
        let (known, needed) = match kind {
            Kind::Node => (NODE_FIELDS, ["boot", "sim", "general", "configuration", "device", "ui"].as_slice()),
            Kind::Image => (IMAGE_FIELDS, ["node_definition_id", "label"].as_slice()),
        };
        fields::check(body, known, Release::FIRST)?;
        let id = fields::required(body, "id")?;
        if let Some(missing) = needed.iter().find(|field| !body.contains_key(**field)) {
            return Err(CmlError::bad_request(format!("Field {missing} is required.")));
        }
        match kind {
            Kind::Node => {
                let interfaces = &body["device"]["interfaces"];
                let has_ports =
                    interfaces["physical"].as_array().is_some_and(|ports| ports.iter().all(Value::is_string));
                if !has_ports || !interfaces["serial_ports"].is_u64() {
                    let message = "device.interfaces needs physical, a list of names, and serial_ports, a number.";
                    return Err(CmlError::bad_request(message));
                }
                if !body["general"].is_object() {
                    return Err(CmlError::bad_request("general must be an object."));
                }
            }
            Kind::Image => {
                let node_definition = fields::required(body, "node_definition_id")?;
                self.get(Kind::Node, node_definition)?;
                if !["disk_image", "docker_tag"].iter().any(|source| body.get(*source).is_some_and(Value::is_string)) {
                    return Err(CmlError::bad_request("An image definition needs disk_image or docker_tag."));
                }
            }
        }
        Ok(id.to_owned())
    }
}

const NODE_FIELDS: &[Field] = &[
    Field::text("id", 250),
    Field::object("boot"),
    Field::object("sim"),
    Field::object("general"),
    Field::object("configuration"),
    Field::object("device"),
    Field::object("ui"),
    Field::object("inherited"),
    Field::object("pyats"),
    Field::text("schema_version", 32),
    Field::texts("image_definitions"),
];

const IMAGE_FIELDS: &[Field] = &[
    Field::text("id", 250),
    Field::text("node_definition_id", 250),
    Field::text("label", 64),
    Field::text("description", 4096),
    Field::text("disk_image", 255).or_null(),
    Field::text("disk_image_2", 255).or_null(),
    Field::text("disk_image_3", 255).or_null(),
    Field::text("disk_image_4", 255).or_null(),
    Field::text("docker_tag", 255).or_null(),
    Field::text("sha256", 64).or_null(),
    Field::text("schema_version", 32),
    Field::flag("read_only"),
    Field::flag("efi_boot"),
    Field::any("configuration").or_null(),
    Field::object("pyats").or_null(),
    Field::integer("ram", 1, 1_048_576).or_null(),
    Field::integer("cpus", 1, 128).or_null(),
    Field::integer("cpu_limit", 20, 100).or_null(),
    Field::integer("data_volume", 0, 4096).or_null(),
    Field::integer("boot_disk_size", 0, 4096).or_null(),
];

/// Properties that nodes take from their definition. An unknown definition, which an imported topology may name, has
/// generic ones.
impl Definitions {
    /// Whether a node definition exists.
    pub(super) fn has_node(&self, id: &str) -> bool {
        self.nodes.contains_key(id)
    }

    fn interfaces(&self, node_definition: &str) -> Option<&Value> {
        self.nodes.get(node_definition).map(|definition| &definition["device"]["interfaces"])
    }

    /// Name of an interface by its slot.
    pub(super) fn interface_name(&self, node_definition: &str, slot: u32) -> String {
        let physical = self.interfaces(node_definition).and_then(|it| it["physical"].as_array());
        let name = physical.and_then(|names| names.get(slot as usize)).and_then(Value::as_str);
        name.map_or_else(|| format!("eth{slot}"), str::to_owned)
    }

    /// Maximum number of physical interfaces.
    pub(super) fn slots(&self, node_definition: &str) -> u32 {
        let physical = self.interfaces(node_definition).and_then(|it| it["physical"].as_array());
        physical.map_or(DEFAULT_SLOTS, |names| u32::try_from(names.len()).unwrap_or(DEFAULT_SLOTS).min(DEFAULT_SLOTS))
    }

    /// Number of physical interfaces of a node that is created with its interfaces.
    pub(super) fn default_interfaces(&self, node_definition: &str) -> u32 {
        let count = self.interfaces(node_definition).and_then(|it| it["default_count"].as_u64());
        let count = count.and_then(|count| u32::try_from(count).ok());
        count.unwrap_or(4).min(self.slots(node_definition))
    }

    /// Name of the loopback interface, if the node has one.
    pub(super) fn loopback(&self, node_definition: &str) -> Option<&str> {
        let interfaces = self.interfaces(node_definition)?;
        (interfaces["has_loopback_zero"] == true).then_some("Loopback0")
    }

    /// Number of serial consoles.
    pub(super) fn serial_consoles(&self, node_definition: &str) -> u64 {
        self.interfaces(node_definition).and_then(|it| it["serial_ports"].as_u64()).unwrap_or(1).min(4)
    }

    /// Name of the main configuration file.
    pub(super) fn main_file(&self, node_definition: &str) -> &str {
        let files = self.nodes.get(node_definition).map(|it| &it["configuration"]["provisioning"]["files"]);
        files.and_then(|files| files[0]["name"].as_str()).unwrap_or("node.cfg")
    }

    /// Whether the configuration of a running node can be extracted.
    pub(super) fn is_extractable(&self, node_definition: &str) -> bool {
        let definition = self.nodes.get(node_definition);
        definition.is_none_or(|definition| definition["pyats"]["config_extract_command"].is_string())
    }

    /// Credentials, operating system and kind of device for a testbed of pyATS, if the node is in testbeds.
    pub(super) fn testbed(&self, node_definition: &str) -> Option<(&Value, &Value)> {
        let definition = self.nodes.get(node_definition)?;
        (definition["pyats"]["use_in_testbed"] == true)
            .then_some((&definition["pyats"], &definition["general"]["nature"]))
    }

    /// A number of the simulated machine, such as `ram`. The image of the node overrides it.
    pub(super) fn machine(&self, node_definition: &str, image: Option<&str>, field: &str) -> Value {
        let image = image.and_then(|image| self.images.get(image)).map(|image| &image[field]);
        let definition = || self.nodes.get(node_definition).map(|it| &it["sim"]["linux_native"][field]);
        image.filter(|value| value.is_number()).or_else(definition).cloned().unwrap_or_default()
    }

    /// Image of a node that names none: the last one of its definition.
    pub(super) fn default_image(&self, node_definition: &str) -> Option<&str> {
        let mut own = self.images.values().filter(|image| image["node_definition_id"] == node_definition);
        own.next_back().and_then(|image| image["id"].as_str())
    }

    /// Whether an image belongs to a node definition.
    pub(super) fn check_image(&self, node_definition: &str, image: &str) -> Result<(), CmlError> {
        if self.images_of(node_definition).any(|found| found["id"] == image) {
            return Ok(());
        }
        Err(CmlError::not_found(Kind::Image.name(), image))
    }

    /// 404 for an unknown node definition.
    pub(super) fn check_node(&self, id: &str) -> Result<(), CmlError> {
        if self.has_node(id) { Ok(()) } else { Err(CmlError::not_found(Kind::Node.name(), id)) }
    }
}
