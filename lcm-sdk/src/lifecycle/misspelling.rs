//! Finds fields of a record whose names are probably misspelled.

use std::sync::LazyLock;

use super::json::FieldWarning;
use super::worker::Worker;

/// Other names for fields, without separators. Servers and scripts use them; LCM does not read them.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("ec2instance", "ec2_instance_id"),
    ("awsinstance", "ec2_instance_id"),
    ("ec2id", "ec2_instance_id"),
    ("desiredstate", "desired_status"),
    ("desired", "desired_status"),
    ("region", "aws_region"),
    ("template", "template_name"),
    ("tags", "aws_tags"),
];

/// Names shorter than this match only exactly: short words differ by one letter too often.
const MIN_TYPO_LENGTH: usize = 6;

/// Longer names are never compared.
const MAX_LENGTH: usize = 40;

/// Known names without separators, with their fields.
static KNOWN: LazyLock<Vec<(Vec<u8>, &'static str)>> = LazyLock::new(|| {
    let aliases = [("instanceid", "ec2_instance_id"), ("awsinstanceid", "ec2_instance_id")];
    let own = Worker::fields().map(|field| (field.bytes().filter(u8::is_ascii_alphanumeric).collect(), field));
    let others = aliases.iter().chain(&OTHER_NAMES).map(|(name, field)| (name.as_bytes().to_vec(), *field));
    own.chain(others).collect()
});

/// Warns of each unknown field that resembles a known one which the record lacks.
pub(super) fn warn_of_misspellings(worker: &mut Worker) {
    let resembling = worker.extra.keys().filter_map(|name| Some((name, resembled(name)?)));
    let resembling: Vec<(String, &str)> = resembling.map(|(name, meant)| (name.clone(), meant)).collect();
    if resembling.is_empty() {
        return;
    }
    let record = worker.to_json();
    let is_set =
        |field: &str| record.get(field).is_some_and(|value| !value.is_null() && *value != serde_json::json!({}));
    let record = format!("worker {:?}", worker.id.as_str());
    let missing = resembling.into_iter().filter(|(_, meant)| !is_set(meant));
    worker.warnings.extend(missing.map(|(field, meant)| FieldWarning::Misspelled {
        record: record.clone(),
        field,
        meant,
    }));
}

/// The known field that an unknown name resembles: equal but for case and separators, one letter off, or another common
/// name for it.
fn resembled(name: &str) -> Option<&'static str> {
    let mut letters = [0; MAX_LENGTH];
    let mut length = 0;
    for letter in name.bytes().filter(u8::is_ascii_alphanumeric) {
        *letters.get_mut(length)? = letter.to_ascii_lowercase();
        length += 1;
    }
    let letters = letters.get(..length)?;
    let (_, field) = KNOWN.iter().find(|(known, _)| is_close(letters, known))?;
    // An unreadable value keeps its name, which is spelled correctly.
    Worker::fields().all(|known| known != name).then_some(*field)
}

/// Whether two names are equal or differ by one letter: added, left out, replaced, or swapped with the next.
fn is_close(name: &[u8], known: &[u8]) -> bool {
    if name.first() != known.first() || name.len().abs_diff(known.len()) > 1 {
        return false;
    }
    let same = name.iter().zip(known).take_while(|(left, right)| left == right).count();
    let (name, known) = (&name[same..], &known[same..]);
    let is_typo = match (name, known) {
        ([], []) => return true,
        ([_, name @ ..], [_, known @ ..]) if name.len() == known.len() && name == known => true,
        ([a, b, name @ ..], [c, d, known @ ..]) if (a, b) == (d, c) => name == known,
        ([_, name @ ..], known) if name == known => true,
        (name, [_, known @ ..]) => name == known,
        (_, []) => false,
    };
    is_typo && same + known.len() >= MIN_TYPO_LENGTH
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resembling_names_are_recognized() {
        for (name, meant) in [
            ("desiredstatus", "desired_status"),
            ("desiredStatus", "desired_status"),
            ("desird_status", "desired_status"),
            ("desired_sttaus", "desired_status"),
            ("desired_state", "desired_status"),
            ("ec2_instance", "ec2_instance_id"),
            ("instanceId", "ec2_instance_id"),
            ("Region", "aws_region"),
            ("public_ipp", "public_ip"),
        ] {
            assert_eq!(resembled(name), Some(meant), "{name}");
        }
    }

    #[test]
    fn fields_of_the_existing_server_resemble_none() {
        for name in [
            "state_version",
            "service_status",
            "ami_id",
            "ami_description",
            "ami_creation_date",
            "cml_version",
            "cml_labs_count",
            "cpu_utilization",
            "declared_capacity",
            "session_ids",
            "origin",
            "last_activity_at",
            "license_status",
            "license_token",
            "next_refresh_at",
            "is_idle",
            "paused_at",
            "rack",
            "",
        ] {
            assert_eq!(resembled(name), None, "{name}");
        }
        assert_eq!(resembled(&"desired_status".repeat(9)), None);
    }

    #[test]
    fn misspelled_fields_are_warned_about_only_if_the_known_one_is_missing() {
        let warnings = |record| Worker::try_from(record).expect("valid").warnings;
        let warned = warnings(json!({"id": "w-1", "status": "running", "desiredstatus": "stopped", "rack": 9}));
        assert_eq!(
            warned.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["worker \"w-1\": field `desiredstatus` is unknown and has no effect; probably meant: `desired_status`"]
        );
        let both = json!({"id": "w", "status": "running", "region": "a", "aws_region": "b", "instance_id": "i-1"});
        assert_eq!(warnings(both), []);
    }
}
