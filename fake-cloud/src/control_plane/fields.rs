//! The fields of a record, and how they are written: once, however often they are listed.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use serde_json::{Map, Value};

/// The fields of a record. They look like a map; whoever may have changed it has them written anew.
#[derive(Default)]
pub(super) struct Fields {
    map: Map<String, Value>,
    json: OnceLock<Box<[u8]>>,
}

impl Fields {
    /// As JSON.
    pub(super) fn json(&self) -> &[u8] {
        // Maps with text keys always serialise.
        self.json.get_or_init(|| serde_json::to_vec(&self.map).unwrap_or_default().into())
    }

    /// The same fields in less memory: a map that grew field by field is half empty.
    pub(super) fn gathered(self) -> Self {
        self.map.into_iter().collect::<Map<_, _>>().into()
    }
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Self {
        Self { map, json: OnceLock::new() }
    }
}

impl Deref for Fields {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl DerefMut for Fields {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.json.take();
        &mut self.map
    }
}

impl Clone for Fields {
    fn clone(&self) -> Self {
        // A copy is made to be changed.
        self.map.clone().into()
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_written_whatever_was_written_before() {
        let mut fields = Fields::from(Map::from_iter([("status".to_owned(), Value::from("running"))]));
        assert_eq!(fields.json(), br#"{"status":"running"}"#);
        fields.insert("status".into(), "stopped".into());
        assert_eq!(fields.json(), br#"{"status":"stopped"}"#);
        let mut copy = fields.clone();
        copy.entry("name").or_insert("blue".into());
        assert_eq!(copy.gathered().json(), br#"{"name":"blue","status":"stopped"}"#);
        assert_eq!(fields.json(), br#"{"status":"stopped"}"#);
    }
}
