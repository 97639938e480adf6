//! Conversions between SDK types and lifecycle types.

use aws_sdk_ec2::types;

use crate::lifecycle::instance::{Image, ImageDetails, Instance};
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::time::Timestamp;

/// Converts an instance of a reservation's owner; `None` without an ID.
pub(super) fn instance(described: &types::Instance, owner_id: Option<&str>) -> Option<Instance> {
    let id = described.instance_id()?;
    // A missing state is unknown, neither live nor terminated.
    let state = described
        .state()
        .and_then(|state| state.name())
        .map_or(Ec2State::Other, |name| Ec2State::from_wire(name.as_str()));
    let launched_at = described.launch_time().and_then(|at| Timestamp::from_timestamp(at.secs(), at.subsec_nanos()));
    let reason = described.state_reason().and_then(|reason| reason.message());
    let tags = described.tags().iter().filter_map(|tag| {
        let key = tag.key()?;
        Some((key.to_owned(), tag.value().unwrap_or_default().to_owned()))
    });
    Some(Instance {
        public_ip: text(described.public_ip_address()),
        private_ip: text(described.private_ip_address()),
        launched_at,
        client_token: text(described.client_token()),
        state_reason: text(reason).or_else(|| text(described.state_transition_reason())),
        instance_type: text(described.instance_type().map(types::InstanceType::as_str)),
        image_id: text(described.image_id()),
        account_id: text(owner_id),
        tags: tags.collect(),
        ..Instance::new(id, state)
    })
}

/// Converts an AMI; `None` without an ID.
pub(super) fn image(described: &types::Image) -> Option<Image> {
    Some(Image {
        id: described.image_id()?.to_owned(),
        name: described.name().unwrap_or_default().to_owned(),
        creation_date: described.creation_date().unwrap_or_default().to_owned(),
    })
}

/// Converts the details of an AMI, by its ID; `None` without one.
pub(super) fn image_details(described: &types::Image) -> Option<(String, ImageDetails)> {
    let id = described.image_id()?.to_owned();
    let details = ImageDetails {
        id: id.clone(),
        name: text(described.name()),
        description: text(described.description()),
        creation_date: text(described.creation_date()),
    };
    Some((id, details))
}

/// A filter with the wildcards `*` and `?`.
pub(super) fn pattern(name: &str, pattern: &str) -> types::Filter {
    types::Filter::builder().name(name).values(pattern).build()
}

/// A filter for one value. Escapes wildcards and backslashes.
pub(super) fn exact(name: &str, value: &str) -> types::Filter {
    let mut escaped = String::with_capacity(value.len());
    for letter in value.chars() {
        if matches!(letter, '*' | '?' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    pattern(name, &escaped)
}

/// A filter for a tag with one value, or with any value.
pub(super) fn tag(key: &str, value: Option<&str>) -> types::Filter {
    match value {
        Some(value) => exact(&format!("tag:{key}"), value),
        None => exact("tag-key", key),
    }
}

/// Converts an optional string. EC2 sends empty elements for missing values.
fn text(value: Option<&str>) -> Option<String> {
    value.filter(|value| !value.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::primitives::DateTime;

    use super::*;

    #[test]
    fn all_fields_are_converted() {
        let state = types::InstanceState::builder().name(types::InstanceStateName::ShuttingDown).build();
        let reason = types::StateReason::builder().code("x").message("Client.UserInitiatedShutdown").build();
        let described = types::Instance::builder()
            .instance_id("i-1")
            .state(state)
            .state_reason(reason)
            .public_ip_address("")
            .private_ip_address("10.0.0.1")
            .launch_time(DateTime::from_secs_and_nanos(1_770_364_800, 5))
            .client_token("once")
            .instance_type(types::InstanceType::from("m99.metal"))
            .image_id("ami-1")
            .tags(types::Tag::builder().key("lcm:protect").build())
            .build();
        let converted = instance(&described, Some("123456789012")).expect("it has an id");
        assert_eq!((converted.id.as_str(), converted.state), ("i-1", Ec2State::ShuttingDown));
        assert_eq!((converted.public_ip.as_deref(), converted.private_ip.as_deref()), (None, Some("10.0.0.1")));
        assert_eq!(
            converted.launched_at.map(|at| at.to_rfc3339()),
            Some("2026-02-06T08:00:00.000000005+00:00".to_owned())
        );
        assert_eq!(converted.state_reason.as_deref(), Some("Client.UserInitiatedShutdown"));
        assert_eq!((converted.client_token.as_deref(), converted.image_id.as_deref()), (Some("once"), Some("ami-1")));
        assert_eq!(converted.instance_type.as_deref(), Some("m99.metal"));
        assert_eq!(converted.account_id.as_deref(), Some("123456789012"));
        assert!(converted.is_protected(), "a tag may have no value");
    }

    #[test]
    fn unknown_or_missing_state_is_other() {
        let state = types::InstanceState::builder().name(types::InstanceStateName::from("hibernating")).build();
        let described = types::Instance::builder().instance_id("i-1").state(state).build();
        assert_eq!(instance(&described, None).map(|converted| converted.state), Some(Ec2State::Other));
        let silent = types::Instance::builder().instance_id("i-1").build();
        assert_eq!(instance(&silent, None).map(|converted| converted.state), Some(Ec2State::Other));
        assert_eq!(instance(&types::Instance::builder().build(), None), None);
    }

    #[test]
    fn exact_values_are_escaped() {
        assert_eq!(tag("lcm:worker_id", Some("w-*?\\")).values(), ["w-\\*\\?\\\\"]);
        assert_eq!(tag("lcm:worker_id", None).name(), Some("tag-key"));
        assert_eq!(pattern("name", "cml*").values(), ["cml*"]);
    }
}
