//! Labs and their nodes. Nodes boot on the world's clock.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use super::annotations::Annotations;
use super::definitions::Definitions;
use super::error::CmlError;
use super::fields::{self, Field, text, texts};
use super::links::Cabling;
use super::options::Options;
use super::release::Release;
use super::system_stats::NodeCounts;
use super::users::{Caller, Users};

/// Fields of a lab to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// Optional fields, such as `x` or `ram`. Unknown ones are left out of responses.
    pub rest: Map<String, Value>,
}

/// Data of the server that labs refer to.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) options: &'a Options,
    pub(super) definitions: &'a Definitions,
    pub(super) users: &'a Users,
    pub(super) compute_id: &'a str,
    pub(super) now: DateTime<Utc>,
}

impl Host<'_> {
    pub(super) fn release(&self) -> Release {
        self.options.release()
    }
}

/// Parts of a node in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) operational: Operational,
    pub(super) configurations: Configurations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operational {
    Shown,
    Hidden,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Configurations {
    /// The content of the main file.
    Main,
    /// All files.
    Files,
    Excluded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Power {
    Defined,
    Stopped,
    On(DateTime<Utc>),
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct ConfigurationFile {
    name: String,
    content: Option<String>,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Node {
    label: String,
    pub(super) node_definition: String,
    fields: Map<String, Value>,
    configuration: Vec<ConfigurationFile>,
    power: Power,
    /// Disk image with the changes of this node, as if it had run before.
    has_disk: HasDisk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum HasDisk {
    Yes,
    No,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Lab {
    spec: NewLab,
    pub(super) owner: String,
    /// Automatic start and staging of nodes, from release 2.10 on.
    settings: Map<String, Value>,
    pub(super) created: DateTime<Utc>,
    modified: DateTime<Utc>,
    nodes: BTreeMap<String, Node>,
    pub(super) cabling: Cabling,
    pub(super) annotations: Annotations,
    /// Devices of external connectors by their name in this lab.
    mappings: BTreeMap<String, Value>,
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

/// Fields that change only while a node has no disk, which is before its first start and after a wipe.
const HARDWARE: [&str; 7] =
    ["image_definition", "configuration", "ram", "cpus", "cpu_limit", "data_volume", "boot_disk_size"];

const NODE_FIELDS: &[Field] = &[
    Field::text("label", 128),
    Field::integer("x", -15_000, 15_000),
    Field::integer("y", -15_000, 15_000),
    Field::text("image_definition", 250).or_null(),
    Field::texts("tags"),
    Field::any("configuration").or_null(),
    Field::object("parameters"),
    Field::integer("ram", 1, 1_048_576).or_null(),
    Field::integer("cpus", 1, 128).or_null(),
    Field::integer("cpu_limit", 20, 100).or_null(),
    Field::integer("data_volume", 0, 4096).or_null(),
    Field::integer("boot_disk_size", 0, 4096).or_null(),
    Field::flag("hide_links"),
    Field::text("pinned_compute_id", 64).or_null(),
    Field::integer("priority", 0, 10_000).or_null().since(Release::V2_10),
    Field::object("pyats").since(Release::V2_10),
];

const LAB_FIELDS: &[Field] = &[
    Field::text("title", 64),
    Field::text("description", 4096),
    Field::text("notes", 32_768),
    Field::text("owner", 64),
    Field::objects("groups"),
    Field::object("associations").since(Release::V2_9),
    Field::object("autostart").since(Release::V2_10),
    Field::object("node_staging").since(Release::V2_10),
];

const AUTOSTART: &[Field] = &[
    Field::flag("enabled"),
    Field::integer("priority", 0, 10_000).or_null(),
    Field::integer("delay", 0, 86_400).or_null(),
];

const NODE_STAGING: &[Field] =
    &[Field::flag("enabled"), Field::flag("start_remaining"), Field::flag("abort_on_failure")];

/// Checks the fields of a lab in a request.
pub(super) fn check_lab(body: &Map<String, Value>, release: Release) -> Result<(), CmlError> {
    fields::check(body, LAB_FIELDS, release)?;
    for (name, known) in [("autostart", AUTOSTART), ("node_staging", NODE_STAGING)] {
        if let Some(Value::Object(settings)) = body.get(name) {
            fields::check(settings, known, release)?;
        }
    }
    Ok(())
}

/// Time without fractions of a second, as CML writes it on labs and users.
pub(super) fn format_time(moment: DateTime<Utc>) -> String {
    moment.to_rfc3339_opts(SecondsFormat::Secs, false)
}

impl Node {
    fn new(spec: NewNode, host: &Host<'_>) -> Result<Self, CmlError> {
        let NewNode { label, node_definition, rest: mut fields } = spec;
        let main = host.definitions.main_file(&node_definition);
        let configuration = parse_configuration(&fields.remove("configuration").unwrap_or_default(), main)?;
        let power = Power::Defined;
        Ok(Self { label, node_definition, fields, configuration, power, has_disk: HasDisk::No })
    }

    pub(super) fn is_on(&self) -> bool {
        matches!(self.power, Power::On(_))
    }

    fn is_booted(&self, host: &Host<'_>) -> bool {
        self.state(host) == "BOOTED"
    }

    fn state(&self, host: &Host<'_>) -> &'static str {
        match self.power {
            Power::Defined => "DEFINED_ON_CORE",
            Power::Stopped => "STOPPED",
            Power::On(since) => {
                let boot = TimeDelta::from_std(host.options.node_boot).unwrap_or(TimeDelta::MAX);
                if host.now - since < boot { "STARTED" } else { "BOOTED" }
            }
        }
    }

    fn boot_progress(&self, host: &Host<'_>) -> &'static str {
        match self.state(host) {
            "BOOTED" => "Booted",
            "STARTED" => "Booting",
            _ => "Not running",
        }
    }

    fn apply(&mut self, action: Action, now: DateTime<Utc>) -> Result<(), CmlError> {
        self.power = match (action, self.power) {
            (Action::Start, Power::On(since)) => Power::On(since),
            (Action::Start, Power::Defined | Power::Stopped) => {
                self.has_disk = HasDisk::Yes;
                Power::On(now)
            }
            (Action::Stop, Power::On(_)) => Power::Stopped,
            (Action::Stop, stopped) => stopped,
            (Action::Wipe, Power::On(_)) => {
                return Err(CmlError::bad_request(format!("Node is running: {}", self.label)));
            }
            (Action::Wipe, Power::Defined | Power::Stopped) => {
                self.has_disk = HasDisk::No;
                Power::Defined
            }
        };
        Ok(())
    }

    fn update(&mut self, mut body: Map<String, Value>, host: &Host<'_>) -> Result<(), CmlError> {
        check_node(&body, &self.node_definition, host)?;
        if self.has_disk == HasDisk::Yes
            && let Some(field) = HARDWARE.iter().find(|field| body.contains_key(**field))
        {
            let message = format!("Field {field} cannot change before the node is wiped: {}", self.label);
            return Err(CmlError::bad_request(message));
        }
        if let Some(given) = body.remove("configuration") {
            let changed = parse_configuration(&given, host.definitions.main_file(&self.node_definition))?;
            // A list replaces all files, anything else the file that it names.
            if given.is_array() || given.is_null() {
                self.configuration = changed;
            } else {
                for file in changed {
                    match self.configuration.iter_mut().find(|found| found.name == file.name) {
                        Some(found) => *found = file,
                        None => self.configuration.push(file),
                    }
                }
            }
        }
        self.label = text(&body, "label").unwrap_or_else(|| std::mem::take(&mut self.label));
        body.remove("label");
        if let Some(Value::Object(parameters)) = body.remove("parameters") {
            // Null removes a parameter.
            let mut all = self.fields.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default();
            all.extend(parameters);
            all.retain(|_, value| !value.is_null());
            self.fields.insert("parameters".to_owned(), all.into());
        }
        self.fields.extend(body);
        Ok(())
    }

    /// Takes over the configuration of the running node: the main file as it was given, or a host name.
    fn extract_configuration(&mut self, host: &Host<'_>) -> Result<(), CmlError> {
        if !host.definitions.is_extractable(&self.node_definition) {
            let message = format!("Configuration extraction is not supported: {}", self.node_definition);
            return Err(CmlError::bad_request(message));
        }
        if !self.is_booted(host) {
            return Err(CmlError::bad_request(format!("Node is not booted: {}", self.label)));
        }
        self.bootstrap(host);
        Ok(())
    }

    /// Gives the node its first configuration, unless it has one.
    fn bootstrap(&mut self, host: &Host<'_>) {
        let main = host.definitions.main_file(&self.node_definition);
        let content = format!("hostname {}\n", self.label);
        match self.configuration.iter_mut().find(|file| file.name == main) {
            Some(ConfigurationFile { content: Some(given), .. }) if !given.is_empty() => {}
            Some(file) => file.content = Some(content),
            None => self.configuration.push(ConfigurationFile { name: main.to_owned(), content: Some(content) }),
        }
    }

    fn to_json(&self, id: &str, lab: &str, host: &Host<'_>, details: Details) -> Map<String, Value> {
        let mut node = Map::new();
        for (field, default) in [
            ("x", json!(0)),
            ("y", json!(0)),
            ("image_definition", Value::Null),
            ("ram", Value::Null),
            ("cpus", Value::Null),
            ("cpu_limit", Value::Null),
            ("data_volume", Value::Null),
            ("boot_disk_size", Value::Null),
            ("tags", json!([])),
            ("parameters", json!({})),
            ("hide_links", json!(false)),
            ("pinned_compute_id", Value::Null),
        ] {
            node.insert(field.to_owned(), self.fields.get(field).cloned().unwrap_or(default));
        }
        node.insert("id".into(), id.into());
        node.insert("lab_id".into(), lab.into());
        node.insert("label".into(), self.label.clone().into());
        node.insert("node_definition".into(), self.node_definition.clone().into());
        node.insert("state".into(), self.state(host).into());
        node.insert("boot_progress".into(), self.boot_progress(host).into());
        if details.configurations != Configurations::Excluded {
            node.insert("configuration".into(), self.configuration_json(host, details.configurations));
        }
        let operational = self.operational(id, host);
        if host.release() >= Release::V2_10 {
            node.insert("priority".into(), self.fields.get("priority").cloned().unwrap_or_default());
            node.insert("pyats".into(), self.pyats());
        } else {
            // Before release 2.10, these are fields of the node as well.
            for field in ["compute_id", "vnc_key", "resource_pool", "iol_app_id"] {
                node.insert(field.into(), operational[field].clone());
            }
            let consoles = &operational["serial_consoles"];
            node.insert("serial_consoles".into(), if consoles.is_array() { consoles.clone() } else { json!([]) });
        }
        // Clients before 2.10 read fields of the object even while the node is off.
        let is_shown = details.operational == Operational::Shown;
        let operational = match operational {
            Value::Null if is_shown && host.release() < Release::V2_10 => not_operational(),
            shown if is_shown => shown,
            _ => Value::Null,
        };
        node.insert("operational".into(), operational);
        node
    }

    fn pyats(&self) -> Value {
        let mut pyats = json!({"username": null, "password": null, "enable_password": null});
        if let (Some(given), Some(all)) = (self.fields.get("pyats").and_then(Value::as_object), pyats.as_object_mut()) {
            all.extend(given.clone());
        }
        pyats
    }

    fn configuration_json(&self, host: &Host<'_>, shown: Configurations) -> Value {
        if shown == Configurations::Files {
            let files = self.configuration.iter();
            return files.map(|file| json!({"name": file.name, "content": file.content})).collect();
        }
        let main = host.definitions.main_file(&self.node_definition);
        let file = self.configuration.iter().find(|file| file.name == main);
        file.and_then(|file| file.content.clone()).into()
    }

    fn number(&self, field: &str, host: &Host<'_>) -> Value {
        let own = self.fields.get(field).filter(|value| value.is_number()).cloned();
        own.unwrap_or_else(|| host.definitions.machine(&self.node_definition, self.image(), field))
    }

    fn image(&self) -> Option<&str> {
        self.fields.get("image_definition").and_then(Value::as_str)
    }

    /// Values resolved when the node was started; null while it is off.
    fn operational(&self, id: &str, host: &Host<'_>) -> Value {
        if !self.is_on() {
            return Value::Null;
        }
        let consoles = (0..host.definitions.serial_consoles(&self.node_definition)).map(|number| {
            let key = derived_id(id, &format!("console {number}"));
            json!({"console_key": key, "label": format!("serial{number}"), "device_number": number})
        });
        let is_iol = host.definitions.machine(&self.node_definition, None, "driver");
        let is_iol = is_iol.as_str().is_some_and(|driver| driver.starts_with("iol"));
        let image = self.image().or_else(|| host.definitions.default_image(&self.node_definition));
        json!({
            "boot_disk_size": self.number("boot_disk_size", host), "cpu_limit": self.number("cpu_limit", host),
            "cpus": self.number("cpus", host), "data_volume": self.number("data_volume", host),
            "ram": self.number("ram", host), "compute_id": host.compute_id, "image_definition": image,
            "vnc_key": null, "resource_pool": null,
            "iol_app_id": if is_iol { json!(1 + derived_number(id, "iol") % 1022) } else { Value::Null },
            "serial_consoles": consoles.collect::<Vec<_>>(),
        })
    }
}

/// Operational data of a node that is off, before release 2.10.
fn not_operational() -> Value {
    json!({
        "boot_disk_size": null, "cpu_limit": null, "cpus": null, "data_volume": null, "ram": null, "compute_id": null,
        "image_definition": null, "vnc_key": null, "resource_pool": null, "iol_app_id": null, "serial_consoles": [],
    })
}

/// Checks the optional fields of a node in a request.
fn check_node(body: &Map<String, Value>, node_definition: &str, host: &Host<'_>) -> Result<(), CmlError> {
    fields::check(body, NODE_FIELDS, host.release())?;
    if let Some(image) = body.get("image_definition").and_then(Value::as_str) {
        host.definitions.check_image(node_definition, image)?;
    }
    if let Some(Value::Object(pyats)) = body.get("pyats") {
        let known = ["username", "password", "enable_password"].map(|field| Field::text(field, 128).or_null());
        fields::check(pyats, &known, host.release())?;
    }
    if body.get("pinned_compute_id").and_then(Value::as_str).is_some_and(|id| id != host.compute_id) {
        return Err(CmlError::not_found("Compute host", body["pinned_compute_id"].as_str().unwrap_or_default()));
    }
    Ok(())
}

/// Reads a configuration: the content of the main file, one file, or a list of files.
fn parse_configuration(given: &Value, main: &str) -> Result<Vec<ConfigurationFile>, CmlError> {
    let file = |value: &Value| match value {
        Value::Object(file) => {
            fields::check(
                file,
                &[Field::text("name", 64), Field::text("content", 20 << 20).or_null()],
                Release::FIRST,
            )?;
            let name = fields::required(file, "name")?;
            // `Main` is the main file of any definition.
            let name = if name == "Main" { main } else { name };
            Ok(ConfigurationFile { name: name.to_owned(), content: text(file, "content") })
        }
        _ => Err(CmlError::bad_request("A configuration file is an object with name and content.")),
    };
    match given {
        Value::Null => Ok(Vec::new()),
        Value::String(content) => Ok(vec![ConfigurationFile { name: main.to_owned(), content: Some(content.clone()) }]),
        Value::Object(_) => Ok(vec![file(given)?]),
        Value::Array(files) => files.iter().map(file).collect(),
        _ => Err(CmlError::bad_request("Invalid value of configuration: expected text, a file or a list of files.")),
    }
}

/// UUID that always belongs to the same purpose of the same element.
pub(super) fn derived_id(element: &str, purpose: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{element} {purpose}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Number that always belongs to the same purpose of the same element.
pub(super) fn derived_number(element: &str, purpose: &str) -> u32 {
    let id = derived_id(element, purpose);
    u32::from_str_radix(&id[..8], 16).unwrap_or_default()
}

impl Lab {
    pub(super) fn new(spec: NewLab, owner: &str, now: DateTime<Utc>) -> Self {
        Self {
            spec,
            owner: owner.to_owned(),
            settings: Map::new(),
            created: now,
            modified: now,
            nodes: BTreeMap::new(),
            cabling: Cabling::default(),
            annotations: Annotations::default(),
            mappings: BTreeMap::new(),
        }
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

    pub(super) fn title(&self) -> String {
        let default_title = || format!("Lab at {}", self.created.format("%a %H:%M %p"));
        self.spec.title.clone().unwrap_or_else(default_title)
    }

    /// Changes the lab. The caller has checked the fields with [`check_lab`].
    pub(super) fn update(&mut self, fields: &Map<String, Value>, now: DateTime<Utc>) {
        self.spec = NewLab {
            title: text(fields, "title").or(self.spec.title.take()),
            description: text(fields, "description").unwrap_or_else(|| self.spec.description.clone()),
            notes: text(fields, "notes").unwrap_or_else(|| self.spec.notes.clone()),
        };
        self.owner = text(fields, "owner").unwrap_or_else(|| std::mem::take(&mut self.owner));
        for name in ["autostart", "node_staging"] {
            if let Some(Value::Object(change)) = fields.get(name) {
                let mut settings = self.setting(name);
                settings.extend(change.clone());
                self.settings.insert(name.to_owned(), settings.into());
            }
        }
        self.modified = now;
    }

    fn setting(&self, name: &str) -> Map<String, Value> {
        let default = match name {
            "autostart" => json!({"enabled": false, "priority": null, "delay": null}),
            _ => json!({"enabled": false, "start_remaining": true, "abort_on_failure": false}),
        };
        let shown = self.settings.get(name).unwrap_or(&default);
        shown.as_object().cloned().unwrap_or_default()
    }

    pub(super) fn state_json(&self) -> Value {
        self.state().into()
    }

    pub(super) fn to_json(&self, id: &str, host: &Host<'_>, caller: &Caller) -> Value {
        let (username, fullname) = host.users.names_of(&self.owner).unwrap_or_default();
        let mut lab = json!({
            "id": id, "created": format_time(self.created), "modified": format_time(self.modified),
            "lab_title": self.title(), "lab_description": self.spec.description, "lab_notes": self.spec.notes,
            "owner": self.owner, "owner_username": username, "owner_fullname": fullname, "state": self.state(),
            "node_count": self.nodes.len(), "link_count": self.cabling.link_count(),
            "groups": host.users.groups_of_lab(id),
            "effective_permissions": host.users.effective_permissions(caller, id, &self.owner),
        });
        if host.release() >= Release::V2_10 {
            for name in ["autostart", "node_staging"] {
                lab[name] = self.setting(name).into();
            }
        }
        lab
    }

    /// The topology for clients of the API, with ids of the lab.
    pub(super) fn topology(&self, id: &str, host: &Host<'_>, configurations: Configurations) -> Value {
        let mut topology = self.header(host);
        topology["lab"]["owner"] = self.owner.clone().into();
        let details = Details { operational: Operational::Hidden, configurations };
        let nodes = self.nodes.iter().map(|(node_id, node)| {
            let mut shown = node.to_json(node_id, id, host, details);
            for field in ["lab_id", "state", "boot_progress", "operational", "pinned_compute_id", "compute_id"] {
                shown.remove(field);
            }
            for field in ["vnc_key", "resource_pool", "iol_app_id", "serial_consoles"] {
                shown.remove(field);
            }
            let interfaces = self.cabling.node_interfaces(node_id).into_iter();
            let interfaces = interfaces.map(|(id, interface)| interface.topology(id));
            shown.insert("interfaces".into(), interfaces.collect());
            Value::from(shown)
        });
        topology["nodes"] = nodes.collect();
        topology["links"] = self.links_json(id, host);
        topology["annotations"] = self.annotations.list();
        topology["smart_annotations"] = self.annotations.smart(&self.tags());
        topology
    }

    /// The topology as a file: elements are numbered, and states and ids are left out.
    pub(super) fn export(&self, host: &Host<'_>) -> Value {
        let mut topology = self.header(host);
        let node_names: BTreeMap<&String, String> =
            (0..).zip(self.nodes.keys()).map(|(n, id)| (id, format!("n{n}"))).collect();
        let mut interface_names: BTreeMap<String, String> = BTreeMap::new();
        let details = Details { operational: Operational::Hidden, configurations: Configurations::Files };
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|(id, node)| {
                let shown = node.to_json(id, "", host, details);
                let is_kept = |field: &str| !NOT_EXPORTED.contains(&field);
                let mut file: Map<String, Value> = shown.into_iter().filter(|(field, _)| is_kept(field)).collect();
                file.insert("id".into(), node_names[id].clone().into());
                let interfaces =
                    (0..).zip(self.cabling.node_interfaces(id)).map(|(number, (interface_id, interface))| {
                        let name = format!("i{number}");
                        interface_names.insert(interface_id.clone(), name.clone());
                        interface.topology(&name)
                    });
                file.insert("interfaces".into(), interfaces.collect());
                file.into()
            })
            .collect();
        let ends = |interface: &String| {
            let node = self.cabling.interface(interface).and_then(|found| node_names.get(&found.node));
            (node, interface_names.get(interface))
        };
        let links = (0..).zip(self.cabling.links()).map(|(number, link)| {
            let ((n1, i1), (n2, i2)) = (ends(&link.ends[0]), ends(&link.ends[1]));
            json!({
                "id": format!("l{number}"), "n1": n1, "n2": n2, "i1": i1, "i2": i2, "label": link.label,
                "conditioning": link.conditioning(),
            })
        });
        topology["links"] = links.collect();
        topology["nodes"] = nodes.into();
        topology["annotations"] = self.annotations.export();
        topology["smart_annotations"] = self.annotations.export_smart(&self.tags());
        topology
    }

    fn header(&self, host: &Host<'_>) -> Value {
        let mut lab = json!({
            "title": self.title(), "description": self.spec.description, "notes": self.spec.notes,
            "version": host.release().topology_format(),
        });
        if host.release() >= Release::V2_10 {
            lab["node_staging"] = self.setting("node_staging").into();
        }
        json!({"lab": lab})
    }

    /// Tags of all nodes.
    pub(super) fn tags(&self) -> BTreeSet<String> {
        self.nodes.values().flat_map(|node| texts(node.fields.get("tags"))).collect()
    }

    pub(super) fn node_states(&self, host: &Host<'_>) -> Map<String, Value> {
        self.nodes.iter().map(|(id, node)| (id.clone(), node.state(host).into())).collect()
    }

    pub(super) fn find_node(&self, node: &str) -> Result<&Node, CmlError> {
        self.nodes.get(node).ok_or_else(|| CmlError::not_found("Node", node))
    }

    pub(super) fn simulation_stats(&self, host: &Host<'_>) -> Value {
        let node = |(id, node): (&String, &Node)| {
            let Power::On(since) = node.power else {
                return (id.clone(), json!({"times": {}, "is_running": false}));
            };
            let started = since.timestamp();
            let mut times = json!({"QUEUED": started, "STARTED": started});
            if node.is_booted(host) {
                let boot = TimeDelta::from_std(host.options.node_boot).unwrap_or_default();
                times["BOOTED"] = (since + boot).timestamp().into();
            }
            let stats = json!({
                "times": times, "is_running": true, "cpu_usage": 3.5, "ram_usage": 40.0, "disk_usage": 128,
                "block0_rd_bytes": 0, "block0_wr_bytes": 0, "cpu_limit": node.number("cpu_limit", host),
                "cpus": node.number("cpus", host), "ram": node.number("ram", host),
            });
            (id.clone(), stats)
        };
        let nodes: Map<_, _> = self.nodes.iter().map(node).collect();
        json!({"nodes": nodes, "links": self.link_stats()})
    }

    pub(super) fn has_converged(&self, host: &Host<'_>) -> bool {
        self.nodes.values().all(|node| node.state(host) != "STARTED")
    }

    /// Adds a node without checking its fields, as an import does.
    pub(super) fn add_node(&mut self, id: String, spec: NewNode, host: &Host<'_>) -> Result<(), CmlError> {
        if self.nodes.len() >= MAX_NODES {
            return Err(CmlError::bad_request(format!("A lab has at most {MAX_NODES} nodes.")));
        }
        self.modified = host.now;
        self.nodes.insert(id, Node::new(spec, host)?);
        Ok(())
    }

    /// Checks the fields of a new node.
    pub(super) fn check_new_node(spec: &NewNode, host: &Host<'_>) -> Result<(), CmlError> {
        host.definitions.check_node(&spec.node_definition)?;
        check_node(&spec.rest, &spec.node_definition, host)
    }

    /// Changes a node.
    pub(super) fn update_node(&mut self, id: &str, body: Map<String, Value>, host: &Host<'_>) -> Result<(), CmlError> {
        let node = self.nodes.get_mut(id).ok_or_else(|| CmlError::not_found("Node", id))?;
        node.update(body, host)?;
        self.modified = host.now;
        Ok(())
    }

    /// Takes over the configuration of a running node.
    pub(super) fn extract_configuration(&mut self, id: &str, host: &Host<'_>) -> Result<(), CmlError> {
        let node = self.nodes.get_mut(id).ok_or_else(|| CmlError::not_found("Node", id))?;
        node.extract_configuration(host)
    }

    /// Gives each node without a configuration its first one, if it takes one.
    pub(super) fn bootstrap(&mut self, host: &Host<'_>) {
        let is_bare =
            |node: &&mut Node| node.has_disk == HasDisk::No && host.definitions.is_extractable(&node.node_definition);
        self.nodes.values_mut().filter(is_bare).for_each(|node| node.bootstrap(host));
    }

    pub(super) fn nodes(&self, id: &str, host: &Host<'_>, details: Details) -> Vec<Value> {
        self.nodes.iter().map(|(node_id, node)| node.to_json(node_id, id, host, details).into()).collect()
    }

    pub(super) fn node_ids(&self) -> Vec<&String> {
        self.nodes.keys().collect()
    }

    pub(super) fn node(&self, id: &str, node: &str, host: &Host<'_>, details: Details) -> Result<Value, CmlError> {
        Ok(self.find_node(node)?.to_json(node, id, host, details).into())
    }

    pub(super) fn node_state(&self, node: &str, host: &Host<'_>) -> Result<Value, CmlError> {
        let found = self.find_node(node)?;
        Ok(json!({"state": found.state(host), "progress": found.boot_progress(host)}))
    }

    /// Key of a serial console of a running node.
    pub(super) fn console_key(&self, node: &str, line: u64, host: &Host<'_>) -> Result<Value, CmlError> {
        let consoles = &self.find_node(node)?.operational(node, host)["serial_consoles"];
        let console = usize::try_from(line).ok().and_then(|line| consoles.get(line));
        let key = console.map(|console| console["console_key"].clone());
        key.ok_or_else(|| CmlError::not_found("Console", &format!("{node}/{line}")))
    }

    /// Keys of all serial consoles.
    pub(super) fn console_keys(&self, id: &str, host: &Host<'_>) -> Map<String, Value> {
        let consoles = self.nodes.iter().flat_map(|(node_id, node)| {
            let operational = node.operational(node_id, host);
            let consoles = operational["serial_consoles"].as_array().cloned().unwrap_or_default();
            consoles.into_iter().filter_map(move |console| {
                let details = json!({
                    "node_id": node_id, "lab_id": id, "compute_id": host.compute_id, "label": node.label,
                    "line": console["device_number"], "driver": "KVM",
                });
                console["console_key"].as_str().map(|key| (key.to_owned(), details))
            })
        });
        consoles.collect()
    }

    /// Addresses of a node on its interfaces: none, because no packets flow.
    pub(super) fn layer3_addresses(&self, node: &str) -> Result<Value, CmlError> {
        Ok(json!({"name": self.find_node(node)?.label, "interfaces": {}}))
    }

    /// Addresses of all running nodes.
    pub(super) fn all_layer3_addresses(&self) -> Value {
        let running = self.nodes.iter().filter(|(_, node)| node.is_on());
        let nodes: Map<_, _> =
            running.map(|(id, node)| (id.clone(), json!({"name": node.label, "interfaces": {}}))).collect();
        nodes.into()
    }

    /// Devices that the external connectors of the lab stand for.
    pub(super) fn connector_mappings(&self) -> Value {
        let mut keys: BTreeSet<String> = self.mappings.keys().cloned().collect();
        for node in self.nodes.values().filter(|node| node.node_definition == "external_connector") {
            let content = node.configuration.first().and_then(|file| file.content.clone());
            keys.insert(content.unwrap_or_else(|| "NAT".to_owned()));
        }
        let mapping = |key: String| {
            let default = if key == "NAT" { json!("virbr0") } else { Value::Null };
            let device = self.mappings.get(&key).cloned().unwrap_or(default);
            json!({"key": key, "device_name": device, "label": key, "tags": [key], "allowed": true})
        };
        keys.into_iter().map(mapping).collect()
    }

    /// Changes devices of external connectors.
    pub(super) fn update_connector_mappings(&mut self, changes: &Value) -> Result<(), CmlError> {
        let changes = changes.as_array().ok_or_else(|| CmlError::bad_request("A list of mappings is needed."))?;
        for change in changes {
            let change = change.as_object().ok_or_else(|| CmlError::bad_request("A mapping is a JSON object."))?;
            let known = [Field::text("key", 128), Field::text("device_name", 64).or_null()];
            fields::check(change, &known, Release::FIRST)?;
            let device = change.get("device_name").cloned().unwrap_or_default();
            self.mappings.insert(fields::required(change, "key")?.to_owned(), device);
        }
        Ok(())
    }

    /// Testbed of pyATS, which connects to the consoles of the server.
    pub(super) fn testbed(&self, host: &Host<'_>, hostname: &str) -> Value {
        let mut devices = Map::new();
        let mut topology = Map::new();
        for (id, node) in &self.nodes {
            let Some((pyats, nature)) = host.definitions.testbed(&node.node_definition) else { continue };
            let own = node.pyats();
            let credential =
                |field: &str| if own[field].is_string() { own[field].clone() } else { pyats[field].clone() };
            let login = json!({"username": credential("username"), "password": credential("password")});
            let command = format!("open /{}/{}/0", self.title(), node.label);
            devices.insert(
                node.label.clone(),
                json!({
                    "os": pyats["os"], "type": nature, "credentials": {"default": login},
                    "connections": {
                        "defaults": {"class": "unicon.Unicon"},
                        "a": {"protocol": "telnet", "proxy": "terminal_server", "command": command},
                    },
                }),
            );
            let interfaces = self.cabling.node_interfaces(id).into_iter().map(|(interface_id, interface)| {
                let kind = if interface.slot.is_some() { "ethernet" } else { "loopback" };
                (interface.label.clone(), json!({"link": self.cabling.link_id(interface_id), "type": kind}))
            });
            topology.insert(node.label.clone(), json!({"interfaces": interfaces.collect::<Map<_, _>>()}));
        }
        json!({
            "testbed": {
                "name": self.title(),
                "servers": {
                    "terminal_server": {
                        "type": "server", "address": hostname, "custom": {"port": 22},
                        "credentials": {"default": {"username": "change_me", "password": "change_me"}},
                    },
                },
            },
            "devices": devices,
            "topology": topology,
        })
    }

    pub(super) fn remove_node(&mut self, node: &str) -> Result<(), CmlError> {
        if self.find_node(node)?.is_on() {
            return Err(CmlError::bad_request(format!("Node is running: {node}")));
        }
        self.nodes.remove(node);
        self.cabling.remove_node(node);
        Ok(())
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
                    let given = node.fields.get(field).and_then(Value::as_u64);
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

/// Fields of a node that describe this server or this run, not the topology.
const NOT_EXPORTED: [&str; 11] = [
    "lab_id",
    "state",
    "boot_progress",
    "operational",
    "pinned_compute_id",
    "compute_id",
    "vnc_key",
    "resource_pool",
    "iol_app_id",
    "serial_consoles",
    "pyats",
];
