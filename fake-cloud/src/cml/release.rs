//! Releases of CML, which differ in the shapes of their responses.

use crate::world::Image;

/// Version of a server without an image.
pub(super) const DEFAULT_VERSION: &str = "2.9.1+build.7";

/// Major and minor number of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(u32, u32);

impl Release {
    /// Every release that is served.
    pub(super) const FIRST: Self = Self(0, 0);
    /// IOL nodes; topologies in format 0.3.0.
    pub(super) const V2_8: Self = Self(2, 8);
    /// Permissions per user and group instead of `read_only` and `read_write`; diagnostics by category; containers.
    pub(super) const V2_9: Self = Self(2, 9);
    /// Operational data apart from the node; `opt_in` as a word; automatic start; `authentication` instead of `authok`.
    pub(super) const V2_10: Self = Self(2, 10);

    /// Reads the first two numbers of a version such as `2.9.1+build.7`. A missing number is 0.
    pub(super) fn from_version(version: &str) -> Self {
        let mut numbers = version.split(|sign: char| !sign.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        Self(numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Version of the topology files that the release writes.
    pub(super) fn topology_format(self) -> &'static str {
        if self >= Self::V2_10 {
            "0.3.1"
        } else if self >= Self::V2_8 {
            "0.3.0"
        } else {
            "0.2.2"
        }
    }
}

/// Version of the CML in an image, read off its name (`cisco-cml2.9.1-lablet`) or its description (`Cisco Modeling Labs
/// 2.9.1`). The build numbers of other versions than 2.9.0 and 2.9.1 are made up.
pub(crate) fn version_of_image(image: &Image) -> Option<String> {
    let numbers = version_after(&image.name, "cml").or_else(|| version_after(&image.description, "modeling labs"))?;
    let build = match numbers {
        "2.9.1" => 7,
        "2.9.0" => 3,
        _ => 1,
    };
    Some(format!("{numbers}+build.{build}"))
}

/// Returns the first `major.minor.patch` that follows a word, with at most one sign or space between.
fn version_after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let start = text.to_ascii_lowercase().find(word)? + word.len();
    let rest = text.get(start..)?;
    let rest = rest.strip_prefix(['-', '_', ' ', 'v']).unwrap_or(rest);
    let end = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.').unwrap_or(rest.len());
    let numbers = rest[..end].trim_end_matches('.');
    let parts: Vec<&str> = numbers.split('.').collect();
    (parts.len() == 3 && parts.iter().all(|part| part.parse::<u16>().is_ok())).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_off_the_name_of_an_image() {
        for (name, version) in [
            ("cisco-cml2.7.2-lablet-v0.1.2", Some("2.7.2")),
            ("CML-2.10.0", Some("2.10.0")),
            ("my cml_v2.9.1", None),
            ("cml2.9", None),
            ("cml2.9.1.4", None),
            ("ubuntu-22.04.1", None),
            ("cml", None),
        ] {
            assert_eq!(version_after(name, "cml"), version, "{name}");
        }
    }

    #[test]
    fn topology_format_follows_the_release() {
        for (version, format) in
            [("2.7.2+build.1", "0.2.2"), ("2.8.1", "0.3.0"), ("2.9.1", "0.3.0"), ("2.10.0", "0.3.1")]
        {
            assert_eq!(Release::from_version(version).topology_format(), format);
        }
    }
}
