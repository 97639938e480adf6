//! Tags: what they may be, and what carries which.

use std::collections::BTreeMap;

use super::error::AwsError;

/// The tags of one resource.
pub type Tags = BTreeMap<String, String>;

/// How many tags a resource may carry.
const MOST: usize = 50;

/// A tag to remove: by key, or only while it has a certain value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRemoval {
    /// The key.
    pub key: String,
    /// The value it must have; none for any.
    pub value: Option<String>,
}

/// A tag and what carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedResource {
    /// The resource.
    pub resource_id: String,
    /// What it is: `instance`, `image`, `subnet`.
    pub resource_type: &'static str,
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Checks tags as EC2 does before it writes any.
pub(crate) fn check(existing: &Tags, added: &[(String, String)]) -> Result<(), AwsError> {
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
    if existing.len() + new > MOST {
        return Err(AwsError::new("TagLimitExceeded", format!("You have reached the limit of {MOST} tags.")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &str) -> (String, String) {
        (key.to_owned(), "value".to_owned())
    }

    #[test]
    fn reserved_empty_and_long_keys_are_refused() {
        for key in ["aws:name", "", &"k".repeat(128)] {
            assert_eq!(check(&Tags::new(), &[tag(key)]).expect_err("refused").code, "InvalidParameterValue");
        }
    }

    #[test]
    fn the_fifty_first_tag_is_refused_but_a_change_of_the_fiftieth_is_not() {
        let full: Tags = (0..50).map(|number| tag(&format!("key-{number}"))).collect();
        assert_eq!(check(&full, &[tag("one-more")]).expect_err("refused").code, "TagLimitExceeded");
        assert_eq!(check(&full, &[tag("key-49")]), Ok(()));
    }
}
