//! CreateTags, DeleteTags, DescribeTags.

use super::Request;
use super::form::Form;
use crate::answer::Answer;
use crate::world::{AwsError, TagRemoval};

pub(super) fn create_tags(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let ids = form.need_list("ResourceId")?;
    let mut tags = Vec::new();
    for tag in tag_members(form)? {
        let key = form.need(&format!("{tag}.Key"))?;
        tags.push((key.to_owned(), form.get(&format!("{tag}.Value")).unwrap_or_default().to_owned()));
    }
    let intent = form.intent()?;
    request
        .world
        .with_ec2(|ec2, now| ec2.region(request.region, now)?.create_tags(&ids, &tags, intent, request.view, now))?;
    Ok(request.done("CreateTags"))
}

pub(super) fn delete_tags(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let ids = form.need_list("ResourceId")?;
    let mut removals = Vec::new();
    for tag in form.members("Tag") {
        let key = form.need(&format!("{tag}.Key"))?.to_owned();
        removals.push(TagRemoval { key, value: form.get(&format!("{tag}.Value")).map(str::to_owned) });
    }
    let intent = form.intent()?;
    request.world.with_ec2(|ec2, now| {
        ec2.region(request.region, now)?.delete_tags(&ids, &removals, intent, request.view, now)
    })?;
    Ok(request.done("DeleteTags"))
}

pub(super) fn describe_tags(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let (filters, page, intent) = (form.filters()?, form.page()?, form.intent()?);
    let page = request.world.with_ec2(|ec2, now| {
        let page = ec2.region(request.region, now)?.list_tags(&filters, page, request.view, now);
        intent.proceed()?;
        Ok::<_, AwsError>(page)
    })?;
    Ok(request.answer("DescribeTags", page.items.len() * 192, |xml| {
        xml.element("tagSet", |xml| {
            for tag in &page.items {
                xml.element("item", |xml| {
                    xml.text("resourceId", &tag.resource_id);
                    xml.text("resourceType", tag.resource_type);
                    xml.text("key", &tag.key);
                    xml.text("value", &tag.value);
                });
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn tag_members(form: &Form<'_>) -> Result<Vec<String>, AwsError> {
    let members = form.members("Tag");
    if members.is_empty() { Err(AwsError::missing("Tag")) } else { Ok(members) }
}
