//! Tags of resources: CreateTags, DeleteTags, DescribeTags.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::ec2::{Intent, Region};
use super::error::AwsError;
use super::fields::TagListField;
use super::filter::Filters;
use super::page::{Page, PageRequest};
use super::view::View;

/// Tags of one resource, by key.
pub type Tags = BTreeMap<String, String>;

/// Maximum number of tags per resource.
const MAX_TAGS: usize = 50;

/// A tag to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRemoval {
    /// Key of the tag.
    pub key: String,
    /// Value required for the removal; `None` accepts any value.
    pub value: Option<String>,
}

/// A tag of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedResource {
    /// Id of the resource.
    pub resource_id: String,
    /// `instance`, `image` or `subnet`.
    pub resource_type: &'static str,
    /// Key of the tag.
    pub key: String,
    /// Value of the tag.
    pub value: String,
}

/// Validates tags before any of them is written.
pub(super) fn validate(existing: &Tags, added: &[(String, String)]) -> Result<(), AwsError> {
    for (key, value) in added {
        if key.is_empty() || key.chars().count() > 127 {
            return Err(AwsError::new("InvalidParameterValue", "Tag keys must have between 1 and 127 characters."));
        }
        if key.starts_with("aws:") {
            let message = "Tag keys starting with 'aws:' are reserved for internal use";
            return Err(AwsError::new("InvalidParameterValue", message));
        }
        if value.chars().count() > 255 {
            return Err(AwsError::new("InvalidParameterValue", "Tag values must have at most 255 characters."));
        }
    }
    let new = added.iter().filter(|(key, _)| !existing.contains_key(key)).count();
    if existing.len() + new > MAX_TAGS {
        return Err(AwsError::new("TagLimitExceeded", format!("You have reached the limit of {MAX_TAGS} tags.")));
    }
    Ok(())
}

impl Region {
    /// Adds tags to all resources, or to none of them if one id or tag is invalid.
    ///
    /// # Errors
    /// Unknown and malformed ids, reserved or oversized tags.
    pub fn create_tags(
        &mut self,
        ids: &[String],
        added: &[(String, String)],
        intent: Intent,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<(), AwsError> {
        for id in ids {
            validate(self.resource_tags(id, view, now)?, added)?;
        }
        intent.proceed()?;
        self.change_tags(ids, |tags| tags.extend(added.iter().cloned()));
        Ok(())
    }

    /// Removes tags from resources; an empty list removes all tags. Missing tags are ignored.
    ///
    /// # Errors
    /// Unknown and malformed ids.
    pub fn delete_tags(
        &mut self,
        ids: &[String],
        removals: &[TagRemoval],
        intent: Intent,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<(), AwsError> {
        for id in ids {
            self.resource_tags(id, view, now)?;
        }
        intent.proceed()?;
        self.change_tags(ids, |tags| {
            tags.retain(|key, value| {
                !removals.is_empty()
                    && !removals
                        .iter()
                        .any(|removal| removal.key == *key && removal.value.as_ref().is_none_or(|only| only == value))
            });
        });
        Ok(())
    }

    /// Returns the tags of all resources of the region.
    pub fn list_tags(
        &self,
        filters: &Filters<TagListField>,
        page: PageRequest,
        view: &View,
        now: DateTime<Utc>,
    ) -> Page<TaggedResource> {
        let instances = self
            .instances()
            .filter(|instance| view.lists(instance, now))
            .flat_map(|instance| tagged(&instance.id, "instance", &instance.tags));
        let images = self.catalog.images.iter().flat_map(|image| tagged(&image.id, "image", &image.tags));
        let subnets = self.catalog.subnets.iter().flat_map(|subnet| tagged(&subnet.id, "subnet", &subnet.tags));
        let passing = instances.chain(images).chain(subnets).filter(|tag| filters.match_all(tag, now));
        let page = page.cut(view.page);
        let numbered = passing.enumerate().map(|(position, tag)| (position as u64, tag));
        let mut selected = Page::collect(page, numbered.skip_while(|(position, _)| *position < page.from));
        view.shuffle_items(&mut selected.items);
        selected
    }

    fn resource_tags(&self, id: &str, view: &View, now: DateTime<Utc>) -> Result<&Tags, AwsError> {
        let missing = |code: &'static str, kind: &str| AwsError::new(code, format!("The {kind} '{id}' does not exist"));
        match id.split_once('-').map(|(prefix, _)| prefix) {
            Some("i") => {
                self.find_all(&[id.to_owned()], view, now)?;
                self.find(id).map(|instance| &*instance.tags).ok_or_else(|| AwsError::unknown_instances(&[id]))
            }
            Some("ami") => {
                self.catalog.image(id).map(|image| &image.tags).ok_or_else(|| {
                    AwsError::new("InvalidAMIID.NotFound", format!("The image id '[{id}]' does not exist"))
                })
            }
            Some("subnet") => self
                .catalog
                .subnet(id)
                .map(|subnet| &subnet.tags)
                .ok_or_else(|| missing("InvalidSubnetID.NotFound", "subnet ID")),
            Some(_) | None => Err(AwsError::new("InvalidID", format!("The ID '{id}' is not valid"))),
        }
    }

    fn change_tags(&mut self, ids: &[String], mut change: impl FnMut(&mut Tags)) {
        for id in ids {
            if let Some(instance) = self.by_id.get(id).and_then(|sequence| self.instances.get_mut(sequence)) {
                change(Arc::make_mut(&mut Arc::make_mut(instance).tags));
            } else if let Some(image) = self.catalog.images.iter_mut().find(|image| image.id == *id) {
                change(&mut image.tags);
            } else if let Some(subnet) = self.catalog.subnets.iter_mut().find(|subnet| subnet.id == *id) {
                change(&mut subnet.tags);
            }
        }
    }
}

fn tagged(id: &str, resource_type: &'static str, tags: &Tags) -> impl Iterator<Item = TaggedResource> {
    tags.iter().map(move |(key, value)| TaggedResource {
        resource_id: id.to_owned(),
        resource_type,
        key: key.clone(),
        value: value.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &str) -> (String, String) {
        (key.to_owned(), "value".to_owned())
    }

    #[test]
    fn reserved_empty_and_long_keys_are_rejected() {
        for key in ["aws:name", "", &"k".repeat(128)] {
            assert_eq!(validate(&Tags::new(), &[tag(key)]).expect_err("rejected").code, "InvalidParameterValue");
        }
    }

    #[test]
    fn tag_limit_does_not_apply_to_changed_values() {
        let full: Tags = (0..50).map(|number| tag(&format!("key-{number}"))).collect();
        assert_eq!(validate(&full, &[tag("one-more")]).expect_err("rejected").code, "TagLimitExceeded");
        assert_eq!(validate(&full, &[tag("key-49")]), Ok(()));
    }
}
