//! Names that a mistyped one was probably meant to be.

/// Returns the candidate that is most similar to a mistyped name, or `None` if no candidate is similar.
pub(crate) fn closest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.trim().to_lowercase();
    // One typing error per four characters. Longer names are truncated, because the distance is quadratic.
    let limit = (typed.chars().count() / 4).clamp(1, 4);
    if typed.is_empty() || typed.len() > 128 {
        return None;
    }
    let distances = candidates.into_iter().map(|candidate| {
        let distance = strsim::damerau_levenshtein(&typed, &candidate.to_lowercase());
        (distance, candidate)
    });
    distances.filter(|(distance, _)| *distance <= limit).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns `; did you mean 'name'?`, or nothing if no candidate is similar.
pub(crate) fn did_you_mean<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    closest(typed, candidates).map(|name| format!("; did you mean '{name}'?")).unwrap_or_default()
}

/// Adds the similar name to an error of a parser that lists a rejected name and the accepted ones in backticks.
///
/// ```
/// let message = "unknown field `servce`, expected `service` or `operation`".to_owned();
/// assert!(fake_cloud::with_suggestion(message).ends_with("did you mean 'service'?"));
/// ```
pub fn with_suggestion(mut message: String) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let is_of_names = ["unknown field `", "unknown variant `"].iter().any(|start| message.contains(start));
    let hint = match names.next() {
        Some(typed) if is_of_names => did_you_mean(typed, names),
        Some(_) | None => String::new(),
    };
    message.push_str(&hint);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        let names = ["DescribeInstances", "DescribeImages", "RunInstances"];
        for (typed, meant) in [
            ("DescribeInstance", Some("DescribeInstances")),
            ("describeimages", Some("DescribeImages")),
            ("RunInstnaces", Some("RunInstances")),
            ("CreateBucket", None),
            ("", None),
        ] {
            assert_eq!(closest(typed, names), meant, "{typed}");
        }
    }

    #[test]
    fn parser_errors_gain_a_suggestion() {
        let message = |text: &str| with_suggestion(text.to_owned());
        assert_eq!(
            message("unknown field `servce`, expected one of `service`, `operation`"),
            "unknown field `servce`, expected one of `service`, `operation`; did you mean 'service'?"
        );
        assert_eq!(message("unknown variant `s3`, expected `ec2`"), "unknown variant `s3`, expected `ec2`");
        assert_eq!(message("missing field `action`"), "missing field `action`");
    }
}
