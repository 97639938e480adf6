//! Tags of resources: CreateTags, DeleteTags, DescribeTags.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::ec2::{Intent, Region};
use super::error::AwsError;
use super::page::{Page, PageRequest};
use super::resources::not_found;
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
    /// Type of the resource, such as `instance`.
    pub resource_type: &'static str,
    /// Key of the tag.
    pub key: String,
    /// Value of the tag.
    pub value: String,
}

/// Validates tags before any of them is written.
pub(crate) fn validate(existing: &Tags, added: &[(String, String)]) -> Result<(), AwsError> {
    for (key, value) in added {
        if key.is_empty() || key.chars().count() > 127 {
            return Err(AwsError::new("InvalidParameterValue", "Tag keys must have between 1 and 127 characters."));
        }
        if key.starts_with("aws:") {
            let message = "Tag keys starting with 'aws:' are reserved for internal use";
            return Err(AwsError::new("InvalidParameterValue", message));
        }
        if value.chars().count() > 256 {
            return Err(AwsError::new(
                "InvalidParameterValue",
                "Tag value exceeds the maximum length of 256 characters",
            ));
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
                let is_named = |removal: &TagRemoval| {
                    removal.key == *key && removal.value.as_ref().is_none_or(|only| only == value)
                };
                let is_removed = removals.is_empty() || removals.iter().any(is_named);
                // EC2's own tags stay.
                !is_removed || key.starts_with("aws:")
            });
        });
        Ok(())
    }

    /// Returns the tags of all resources of the region that pass a test.
    pub fn list_tags(
        &self,
        page: PageRequest,
        view: &View,
        now: DateTime<Utc>,
        test: impl Fn(&TaggedResource) -> bool,
    ) -> Page<TaggedResource> {
        let instances = self
            .instances()
            .filter(|instance| view.lists(instance, now))
            .flat_map(|instance| tagged(&instance.id, "instance", &instance.tags));
        let images = self.catalog.images.iter().filter(|image| view.is_owner(&image.owner));
        let images = images.flat_map(|image| tagged(&image.id, "image", &image.tags));
        let subnets = self.catalog.subnets.iter().filter(|subnet| view.is_owner(&subnet.owner));
        let subnets = subnets.flat_map(|subnet| tagged(&subnet.id, "subnet", &subnet.tags));
        let account = view.account.as_deref();
        let others = self.resources.tags.iter().filter_map(|(id, tags)| {
            let kind = self.resource_kind(id, account, now)?;
            Some(tagged(id, kind, tags))
        });
        let passing = instances.chain(images).chain(subnets).chain(others.flatten()).filter(|tag| test(tag));
        let page = page.cut(view.page);
        let numbered = passing.enumerate().map(|(position, tag)| (position as u64, tag));
        let mut selected = Page::collect(page, numbered.skip_while(|(position, _)| *position < page.from));
        view.shuffle_items(&mut selected.items);
        selected
    }

    fn resource_tags(&self, id: &str, view: &View, now: DateTime<Utc>) -> Result<&Tags, AwsError> {
        match id.split_once('-').map(|(prefix, _)| prefix) {
            Some("i") => {
                self.find_all(&[id.to_owned()], view, now)?;
                self.find(id).map(|instance| &*instance.tags).ok_or_else(|| AwsError::unknown_instances(&[id]))
            }
            Some("ami") => {
                let mut images = self.catalog.images.iter();
                images.find(|image| image.id == id).map(|image| &image.tags).ok_or_else(|| not_found(id))
            }
            Some("subnet") => {
                let mut subnets = self.catalog.subnets.iter();
                let own = subnets.find(|subnet| subnet.id == id && view.is_owner(&subnet.owner));
                own.map(|subnet| &subnet.tags).ok_or_else(|| not_found(id))
            }
            Some(_) | None => match self.resource_kind(id, view.account.as_deref(), now) {
                Some(_) => Ok(self.tags_of(id)),
                None => Err(not_found(id)),
            },
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
            } else {
                let tags = self.resources.tags.entry(id.clone()).or_default();
                change(tags);
                if tags.is_empty() {
                    self.resources.tags.remove(id);
                }
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
