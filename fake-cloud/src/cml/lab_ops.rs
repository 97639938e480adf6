//! What people do on a system: labs, nodes, links.

use chrono::{DateTime, Utc};
use serde_json::json;

use super::error::CmlError;
use super::import;
use super::labs::{Action, Lab, NewLab, NewNode};
use super::server::{CmlServer, State};

/// More labs than this are refused.
const MOST_LABS: usize = 1000;
/// A node has no slot beyond this.
const MOST_AT_ONCE: u32 = 128;

impl CmlServer {
    /// Makes a lab; the answer is its id.
    ///
    /// # Errors
    /// 400 when there are too many.
    pub fn create_lab(&self, lab: NewLab) -> Result<String, CmlError> {
        self.with(|state, now| state.keep(Lab::new(lab, now), now))
    }

    /// Makes a lab of a topology in YAML or JSON; the answer is its id.
    ///
    /// # Errors
    /// 400 for text that is no topology, or when there are too many labs.
    pub fn import_lab(&self, topology: &[u8], title: Option<String>) -> Result<String, CmlError> {
        self.with(|state, now| {
            let lab = import::read(topology, title, now, || state.id())?;
            state.keep(lab, now)
        })
    }

    /// Adds a node to a lab; the answer is its id.
    ///
    /// # Errors
    /// 404.
    pub fn add_node(&self, lab: &str, node: NewNode) -> Result<String, CmlError> {
        self.with(|state, now| {
            let id = state.id();
            state.lab(lab)?.add_node(id.clone(), node, now)?;
            Ok(id)
        })
    }

    /// Adds interfaces to a node: one in the next free slot, or all up to the slot that is named. The answer is their
    /// ids.
    ///
    /// # Errors
    /// 404, 400 for a slot that is in use or does not exist.
    pub fn add_interfaces(&self, lab: &str, node: &str, slot: Option<u32>) -> Result<Vec<String>, CmlError> {
        self.with(|state, _| {
            // Ids first: a lab and the generator of its system cannot be held at the same time.
            let mut ids: Vec<String> = (0..=slot.unwrap_or(0).min(MOST_AT_ONCE)).map(|_| state.id()).collect();
            let lab = state.lab(lab)?;
            lab.node_is_on(node).ok_or_else(|| CmlError::not_found("Node", node))?;
            lab.cabling.add_interfaces(node, slot, || ids.pop().unwrap_or_default())
        })
    }

    /// Connects two interfaces; the answer is the link's id.
    ///
    /// # Errors
    /// 404, 400 when one is connected already or both are of one node.
    pub fn add_link(&self, lab: &str, ends: [String; 2]) -> Result<String, CmlError> {
        self.with(|state, _| {
            let id = state.id();
            state.lab(lab)?.cabling.connect(id.clone(), ends, None)?;
            Ok(id)
        })
    }

    pub(super) fn remove_lab(&self, id: &str) -> Result<(), CmlError> {
        self.with(|state, _| {
            state.lab(id)?.check_is_at_rest()?;
            state.labs.remove(id);
            Ok(())
        })
    }

    /// Starts, stops or wipes a lab or one of its nodes, and remembers it.
    pub(super) fn apply(&self, lab: &str, node: Option<&str>, action: Action) -> Result<(), CmlError> {
        self.with(|state, now| {
            state.lab(lab)?.apply(node, action, now)?;
            let category = match (node, action) {
                (None, Action::Start) => "start_lab",
                (None, Action::Stop) => "stop_lab",
                (None, Action::Wipe) => "wipe_lab",
                (Some(_), Action::Start) => "start_node",
                (Some(_), Action::Stop) => "stop_node",
                (Some(_), Action::Wipe) => "wipe_node",
            };
            state.telemetry.note(category, json!({"lab_id": lab, "node_id": node}), now);
            Ok(())
        })
    }

    /// Looks at one lab.
    pub(super) fn with_lab<T>(
        &self,
        id: &str,
        look: impl FnOnce(&mut Lab, DateTime<Utc>) -> Result<T, CmlError>,
    ) -> Result<T, CmlError> {
        self.with(|state, now| look(state.lab(id)?, now))
    }
}

impl State {
    /// Takes a lab in, and remembers that somebody made it.
    fn keep(&mut self, lab: Lab, now: DateTime<Utc>) -> Result<String, CmlError> {
        if self.labs.len() >= MOST_LABS {
            return Err(CmlError::bad_request(format!("There are at most {MOST_LABS} labs.")));
        }
        let id = self.id();
        self.labs.insert(id.clone(), lab);
        self.telemetry.note("import_lab", json!({"lab_id": id}), now);
        Ok(id)
    }
}
