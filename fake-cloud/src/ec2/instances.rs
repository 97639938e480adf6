//! DescribeInstances.

use super::instance_list::InstanceList;
use super::{Request, Xml};
use crate::answer::Answer;
use crate::world::{AwsError, InstanceQuery};

pub(super) fn describe_instances(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let query = InstanceQuery { ids: form.list("InstanceId"), filters: form.filters()?, page: form.page()? };
    if !query.ids.is_empty() && form.get("MaxResults").is_some() {
        return Err(ids_with_page());
    }
    let intent = form.intent()?;
    let (page, now) = request.world.with_ec2(|ec2, now| {
        let page = ec2.region(request.region, now)?.select(&query, request.view, now)?;
        intent.proceed()?;
        Ok::<_, AwsError>((page, now))
    })?;
    let after = |xml: &mut Xml| {
        xml.close("reservationSet");
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    };
    let before = |xml: &mut Xml| xml.open("reservationSet");
    Ok(request.answer_with("DescribeInstances", before, InstanceList::by_reservation(page.items, now), after))
}

pub(super) fn ids_with_page() -> AwsError {
    let message = "The parameter instancesSet cannot be used with the parameter maxResults";
    AwsError::new("InvalidParameterCombination", message)
}
