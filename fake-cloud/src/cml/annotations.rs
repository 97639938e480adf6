//! Drawings on the canvas of a lab: annotations, and a smart annotation for each tag of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::fields::{self, Field, required};
use super::labs::derived_id;
use super::release::Release;

/// Maximum number of annotations of a lab.
const MAX_ANNOTATIONS: usize = 1000;

const TYPES: &[&str] = &["text", "rectangle", "ellipse", "line"];
const BORDERS: &[&str] = &["", "2,2", "4,2"];
const LINE_ENDS: &[&str] = &["arrow", "square", "circle"];

/// Fields of all annotations.
const COMMON: &[Field] = &[
    Field::text("id", 64),
    Field::word("type", TYPES),
    Field::text("border_color", 32),
    Field::word("border_style", BORDERS),
    Field::text("color", 32),
    Field::integer("thickness", 1, 32),
    Field::number("x1", -15_000.0, 15_000.0),
    Field::number("y1", -15_000.0, 15_000.0),
    Field::integer("z_index", -10_240, 10_240),
];

const CORNER: &[Field] = &[Field::number("x2", -15_000.0, 15_000.0), Field::number("y2", -15_000.0, 15_000.0)];
const ROTATION: &[Field] = &[Field::integer("rotation", 0, 360)];
const RECTANGLE: &[Field] = &[Field::integer("border_radius", 0, 128)];
const LINE: &[Field] = &[Field::word("line_start", LINE_ENDS).or_null(), Field::word("line_end", LINE_ENDS).or_null()];
const TEXT: &[Field] = &[
    Field::flag("text_bold"),
    Field::text("text_content", 8192),
    Field::text("text_font", 128),
    Field::flag("text_italic"),
    Field::integer("text_size", 1, 128),
    Field::word("text_unit", &["pt", "px", "em"]),
];

const SMART: &[Field] = &[
    Field::text("id", 64),
    Field::text("tag", 64),
    Field::flag("is_on"),
    Field::integer("padding", 1, 200),
    Field::text("label", 256),
    Field::integer("tag_offset_x", -1000, 1000),
    Field::integer("tag_offset_y", -1000, 1000),
    Field::integer("tag_size", 1, 128),
    Field::integer("group_distance", 0, 10_000),
    Field::integer("thickness", 1, 32),
    Field::word("border_style", BORDERS),
    Field::text("fill_color", 32).or_null(),
    Field::text("border_color", 32),
    Field::integer("z_index", -10_240, 10_240),
];

/// Annotations of one lab.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Annotations {
    drawn: BTreeMap<String, Map<String, Value>>,
    /// Changed properties of smart annotations, by tag.
    smart: BTreeMap<String, Map<String, Value>>,
}

fn check(body: &Map<String, Value>) -> Result<(), CmlError> {
    let kind = required(body, "type")?;
    let parts: &[&[Field]] = match kind {
        "text" => &[COMMON, ROTATION, TEXT],
        "rectangle" => &[COMMON, CORNER, ROTATION, RECTANGLE],
        "ellipse" => &[COMMON, CORNER, ROTATION],
        _ => &[COMMON, CORNER, LINE],
    };
    fields::check(body, &parts.concat(), Release::FIRST)
}

impl Annotations {
    /// Reads the annotations of a topology.
    pub(super) fn import(
        drawn: Vec<Map<String, Value>>,
        smart: Vec<Map<String, Value>>,
        mut id: impl FnMut() -> String,
    ) -> Result<Self, CmlError> {
        let mut annotations = Self::default();
        for mut annotation in drawn {
            annotation.remove("id");
            annotations.add(id(), annotation)?;
        }
        for annotation in smart {
            fields::check(&annotation, SMART, Release::FIRST)?;
            let tag = required(&annotation, "tag")?.to_owned();
            annotations.smart.insert(tag, annotation);
        }
        Ok(annotations)
    }

    /// Adds an annotation.
    pub(super) fn add(&mut self, id: String, mut body: Map<String, Value>) -> Result<Value, CmlError> {
        check(&body)?;
        if self.drawn.len() >= MAX_ANNOTATIONS {
            return Err(CmlError::bad_request(format!("A lab has at most {MAX_ANNOTATIONS} annotations.")));
        }
        body.insert("id".to_owned(), id.clone().into());
        self.drawn.insert(id, body.clone());
        Ok(body.into())
    }

    /// Changes an annotation. Its type stays.
    pub(super) fn update(&mut self, id: &str, body: Map<String, Value>) -> Result<Value, CmlError> {
        let found = self.drawn.get_mut(id).ok_or_else(|| CmlError::not_found("Annotation", id))?;
        if body.get("type").is_some_and(|kind| *kind != found["type"]) {
            return Err(CmlError::bad_request("The type of an annotation cannot change."));
        }
        let mut changed = found.clone();
        changed.extend(body);
        changed.insert("id".to_owned(), id.into());
        check(&changed)?;
        found.clone_from(&changed);
        Ok(changed.into())
    }

    pub(super) fn get(&self, id: &str) -> Result<Value, CmlError> {
        self.drawn.get(id).cloned().map(Value::from).ok_or_else(|| CmlError::not_found("Annotation", id))
    }

    pub(super) fn remove(&mut self, id: &str) -> Result<(), CmlError> {
        self.drawn.remove(id).map(drop).ok_or_else(|| CmlError::not_found("Annotation", id))
    }

    pub(super) fn list(&self) -> Value {
        self.drawn.values().cloned().map(Value::from).collect()
    }

    /// Annotations without their ids.
    pub(super) fn export(&self) -> Value {
        without_ids(self.list())
    }

    /// Smart annotations: one for each tag.
    pub(super) fn smart(&self, tags: &BTreeSet<String>) -> Value {
        tags.iter().map(|tag| self.smart_one(tag)).collect()
    }

    /// Smart annotations without their ids.
    pub(super) fn export_smart(&self, tags: &BTreeSet<String>) -> Value {
        without_ids(self.smart(tags))
    }

    fn smart_one(&self, tag: &str) -> Value {
        let mut shown = json!({
            "tag": tag, "is_on": true, "padding": 35, "label": tag, "tag_offset_x": 0, "tag_offset_y": 0,
            "tag_size": 14, "group_distance": 400, "thickness": 1, "border_style": "", "fill_color": "#00FF0080",
            "border_color": "#00000080", "z_index": 0,
        });
        if let (Some(all), Some(changed)) = (shown.as_object_mut(), self.smart.get(tag)) {
            all.extend(changed.clone());
        }
        shown["id"] = derived_id(tag, "smart annotation").into();
        shown
    }

    /// Smart annotation of an id.
    pub(super) fn find_smart(&self, id: &str, tags: &BTreeSet<String>) -> Result<Value, CmlError> {
        let mut all = tags.iter().map(|tag| self.smart_one(tag));
        all.find(|found| found["id"] == id).ok_or_else(|| CmlError::not_found("Smart annotation", id))
    }

    /// Changes a smart annotation. Its tag stays.
    pub(super) fn update_smart(
        &mut self,
        id: &str,
        mut body: Map<String, Value>,
        tags: &BTreeSet<String>,
    ) -> Result<Value, CmlError> {
        let found = self.find_smart(id, tags)?;
        fields::check(&body, SMART, Release::FIRST)?;
        let tag = found["tag"].as_str().unwrap_or_default().to_owned();
        if body.get("tag").is_some_and(|given| *given != tag) {
            return Err(CmlError::bad_request("The tag of a smart annotation cannot change."));
        }
        body.remove("id");
        self.smart.entry(tag).or_default().extend(body);
        self.find_smart(id, tags)
    }
}

fn without_ids(mut annotations: Value) -> Value {
    for annotation in annotations.as_array_mut().into_iter().flatten() {
        if let Some(fields) = annotation.as_object_mut() {
            fields.remove("id");
        }
    }
    annotations
}
