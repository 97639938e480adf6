//! Parameters of every action that is served. A known parameter is honored or refused, an unknown one is refused; none is
//! dropped.
//!
//! `parameters.txt` has the names of EC2's API model. A name alone is honored, `= a b` is honored for these values, and
//! `! Code` is refused with that code. `tests/python/test_fake_ec2_parameters.py` compares it with the model of botocore.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use super::form::Form;
use crate::world::AwsError;

const TABLE: &str = include_str!("parameters.txt");

/// Treatment of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Treatment {
    /// The action reads the parameter.
    Honored,
    /// The cloud behaves like one of these values, and refuses all others.
    HonoredFor(Vec<&'static str>),
    /// The parameter is refused with this error code.
    Refused(&'static str),
}

type Parameters = HashMap<&'static str, Treatment>;

static ACTIONS: LazyLock<HashMap<&'static str, Parameters>> = LazyLock::new(|| parse(TABLE));

fn parse(table: &'static str) -> HashMap<&'static str, Parameters> {
    let mut actions: HashMap<&'static str, Parameters> = HashMap::new();
    let mut action = "";
    for line in table.lines() {
        let Some(entry) = line.strip_prefix("  ") else {
            action = line;
            actions.entry(action).or_default();
            continue;
        };
        let (name, treatment) = match entry.split_once(' ') {
            None => (entry, Treatment::Honored),
            Some((name, rule)) => match rule.split_once(' ') {
                Some(("!", code)) => (name, Treatment::Refused(code)),
                Some((_, values)) => (name, Treatment::HonoredFor(values.split(' ').collect())),
                None => (name, Treatment::Honored),
            },
        };
        actions.entry(action).or_default().insert(name, treatment);
    }
    actions
}

/// Returns the names of all actions that are served.
pub(crate) fn actions() -> impl Iterator<Item = &'static str> {
    ACTIONS.keys().copied()
}

/// Returns whether every action has this parameter: the action, the version and the signature in a URL.
pub(crate) fn is_common_parameter(name: &str) -> bool {
    matches!(name, "Action" | "Version") || name.starts_with("X-Amz-")
}

/// Refuses parameters that the action does not have, or that this cloud does not model.
///
/// # Errors
/// `UnknownParameter`, and the codes of the table.
pub(super) fn check(action: &str, form: &Form<'_>) -> Result<(), AwsError> {
    let Some(known) = ACTIONS.get(action) else { return Ok(()) };
    for (name, value) in form.iter().filter(|(name, _)| !is_common_parameter(name)) {
        let numberless = without_numbers(name);
        match known.get(&*numberless) {
            Some(Treatment::Honored) => {}
            Some(Treatment::HonoredFor(values)) => {
                if !values.iter().any(|accepted| accepted.eq_ignore_ascii_case(value)) {
                    return Err(unsupported_value(name, value, values));
                }
            }
            Some(Treatment::Refused(code)) => {
                let message = if code.ends_with(".NotFound") {
                    format!("The resource '{value}' of the parameter {name} does not exist")
                } else {
                    format!("The parameter {name} is not supported by this cloud.")
                };
                return Err(AwsError::new(*code, message));
            }
            // Some clients send an empty list as an empty value.
            None if value.is_empty() && known.contains_key(format!("{numberless}.N").as_str()) => {}
            None => {
                return Err(AwsError::new("UnknownParameter", format!("The parameter {name} is not recognized")));
            }
        }
    }
    Ok(())
}

fn unsupported_value(name: &str, value: &str, accepted: &[&str]) -> AwsError {
    let message = format!(
        "The value '{value}' of parameter {name} is not supported by this cloud: expected {}",
        accepted.join(" or ")
    );
    AwsError::new("UnsupportedOperation", message)
}

/// Replaces the numbers in a name, such as `Filter.1.Value.2`, by `N`.
fn without_numbers(name: &str) -> Cow<'_, str> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !name.split('.').any(is_number) {
        return Cow::Borrowed(name);
    }
    let mut text = String::with_capacity(name.len());
    for part in name.split('.') {
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(if is_number(part) { "N" } else { part });
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(action: &str, body: &str) -> Option<String> {
        let form = Form::decode(body.as_bytes()).expect("a good form");
        check(action, &form).err().map(|error| error.code.into_owned())
    }

    #[test]
    fn parameters_are_honored_or_refused() {
        for (body, code) in [
            ("ImageId=ami-1&Filter=&X-Amz-Signature=0", Some("UnknownParameter")),
            ("Action=RunInstances&Version=1&ImageId=ami-1&X-Amz-Signature=0", None),
            ("TagSpecification.12.Tag.3.Key=a", None),
            ("TagSpecification.Tag.3.Key=a", Some("UnknownParameter")),
            ("SecurityGroupId=", None),
            ("KernelId=aki-1", Some("InvalidAMIID.NotFound")),
            ("RamdiskId=ari-1", Some("UnsupportedOperation")),
            ("EnclaveOptions.Enabled=false", None),
            ("EnclaveOptions.Enabled=true", Some("UnsupportedOperation")),
        ] {
            assert_eq!(refusal("RunInstances", body).as_deref(), code, "{body}");
        }
    }

    #[test]
    fn every_action_that_is_served_is_in_the_table() {
        for action in
            ["RunInstances", "DescribeInstances", "CreateTags", "DescribeVolumes", "CancelSpotInstanceRequests"]
        {
            assert!(ACTIONS.contains_key(action), "{action}");
        }
    }
}
