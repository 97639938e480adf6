//! CreateTags, DeleteTags, DescribeTags.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::ec2::{Intent, Region};
use super::error::AwsError;
use super::fields::TagListField;
use super::filter::Filters;
use super::page::{Page, PageRequest};
use super::tags::{self, TagRemoval, TaggedResource, Tags};
use super::view::View;

impl Region {
    /// Tags resources: all of them or, if one id or tag is wrong, none.
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
            tags::check(self.tags_of(id, view, now)?, added)?;
        }
        intent.proceed()?;
        self.change_tags(ids, |tags| tags.extend(added.iter().cloned()));
        Ok(())
    }

    /// Takes tags off resources; no removals means all tags. A tag that is not there is not missed.
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
            self.tags_of(id, view, now)?;
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

    /// The tags of everything in the region.
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
        let passing = instances.chain(images).chain(subnets).filter(|tag| filters.pass(tag, now));
        let page = page.cut(view.page);
        let numbered = passing.enumerate().map(|(place, tag)| (place as u64, tag));
        let mut selected = Page::collect(page, numbered.skip_while(|(place, _)| *place < page.from));
        view.arrange(&mut selected.items);
        selected
    }

    fn tags_of(&self, id: &str, view: &View, now: DateTime<Utc>) -> Result<&Tags, AwsError> {
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
                change(Arc::make_mut(instance).tags.make_mut());
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
