//! Forms of things that live on a network: URLs, etcd, AWS.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::parse::{Form, REDACTED, Refusal, Text};
use super::parse_file::read_small_file;
use crate::lifecycle::region::RegionConfigs;
use crate::lifecycle::secret::Secret;

/// The address of an HTTP service. User and password have settings of their own: here they would be printed.
pub(super) struct Url;

impl Form for Url {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, Refusal> {
        let url = text.trim().trim_end_matches('/');
        let authority = authority_of(url).ok_or(Refusal::NotAccepted)?;
        if authority.contains('@') {
            return Err(Refusal::Because("it carries a user or password".to_owned()));
        }
        if url.contains(['?', '#']) {
            return Err(Refusal::Because("it carries a query or fragment".to_owned()));
        }
        Ok(url.to_owned())
    }

    fn accepted(&self) -> String {
        "http:// or https://, a host, and perhaps a port and a path".to_owned()
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// The address of a webhook. Such addresses often carry a token, so the whole is a secret.
pub(super) struct HiddenUrl;

impl Form for HiddenUrl {
    type Value = Secret;

    fn read(&self, text: &str) -> Result<Secret, Refusal> {
        let url = text.trim();
        authority_of(url).map(|_| Secret::from(url)).ok_or(Refusal::NotAccepted)
    }

    fn accepted(&self) -> String {
        "http:// or https://, a host, and whatever follows".to_owned()
    }

    fn show(&self, _: &Secret) -> String {
        REDACTED.to_owned()
    }

    fn show_refused(&self, _: &str) -> String {
        REDACTED.to_owned()
    }
}

fn authority_of(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let odd = |letter: char| letter.is_whitespace() || letter.is_control();
    let named = !host.is_empty() && !host.starts_with(':');
    Some(authority).filter(|_| web && named && !url.contains(odd) && url.len() <= 2048)
}

/// Where etcd listens: a list of `host:port`, with or without a scheme.
pub(super) struct Endpoints;

impl Form for Endpoints {
    type Value = Vec<String>;

    fn read(&self, text: &str) -> Result<Vec<String>, Refusal> {
        let endpoints = list(text)?;
        for endpoint in &endpoints {
            if endpoint.contains('@') {
                return Err(Refusal::Because("an endpoint carries a user or password".to_owned()));
            }
            if !is_endpoint(endpoint) {
                return Err(Refusal::Because(format!("{endpoint:?} is no endpoint")));
            }
        }
        Ok(endpoints.into_iter().map(|endpoint| endpoint.trim_end_matches('/').to_owned()).collect())
    }

    fn accepted(&self) -> String {
        "host:port, http:// or https:// in front if you like, more after commas; empty for mock mode".to_owned()
    }

    fn show(&self, value: &Vec<String>) -> String {
        if value.is_empty() { self.empty().to_owned() } else { value.join(",") }
    }

    fn empty(&self) -> &'static str {
        "(none: mock mode)"
    }
}

fn is_endpoint(endpoint: &str) -> bool {
    let bare = endpoint.trim_end_matches('/');
    let bare = bare.strip_prefix("http://").or_else(|| bare.strip_prefix("https://")).unwrap_or(bare);
    let Some((host, port)) = bare.rsplit_once(':') else { return false };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    let named = !host.is_empty() && host.chars().all(plain);
    let numbered = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let numbered = numbered.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    (named || numbered) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// The beginning of etcd keys; kept without a slash at its end.
pub(super) enum KeyPrefix {
    /// Empty means the root.
    MayBeRoot,
    /// The root would be too much.
    BelowRoot,
}

impl Form for KeyPrefix {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, Refusal> {
        let prefix = text.trim().trim_end_matches('/');
        let rooted = prefix.starts_with('/') && !prefix.contains("//");
        let fits = match self {
            Self::MayBeRoot => rooted || prefix.is_empty(),
            Self::BelowRoot => rooted,
        };
        let odd = |letter: char| letter.is_whitespace() || letter.is_control();
        if fits && !prefix.contains(odd) { Ok(prefix.to_owned()) } else { Err(Refusal::NotAccepted) }
    }

    fn accepted(&self) -> String {
        match self {
            Self::MayBeRoot => "a path that begins with /; empty for the root".to_owned(),
            Self::BelowRoot => "a path that begins with / and names something".to_owned(),
        }
    }

    fn show(&self, value: &String) -> String {
        match self {
            Self::MayBeRoot if !value.is_empty() => value.clone(),
            Self::MayBeRoot | Self::BelowRoot => format!("{value}/"),
        }
    }
}

/// A list of texts, each of a form.
pub(super) struct List {
    pub(super) each: Text,
    pub(super) empty: &'static str,
}

impl Form for List {
    type Value = Vec<String>;

    fn read(&self, text: &str) -> Result<Vec<String>, Refusal> {
        list(text)?.iter().map(|item| self.each.read(item)).collect()
    }

    fn accepted(&self) -> String {
        format!("{}, more after commas; or nothing", self.each.accepted())
    }

    fn show(&self, value: &Vec<String>) -> String {
        if value.is_empty() { self.empty.to_owned() } else { value.join(",") }
    }

    fn empty(&self) -> &'static str {
        self.empty
    }
}

/// EC2 tags to look for; one without a value accepts any.
pub(super) struct Tags;

impl Form for Tags {
    type Value = Vec<(String, Option<String>)>;

    fn read(&self, text: &str) -> Result<Self::Value, Refusal> {
        if text.trim_start().starts_with('{') {
            let map: BTreeMap<String, String> = serde_json::from_str(text).map_err(because)?;
            return Ok(map.into_iter().map(|(key, value)| (key, Some(value))).collect());
        }
        let tag = |item: String| match item.split_once('=') {
            Some((key, _)) if key.trim().is_empty() => Err(Refusal::NotAccepted),
            Some((key, value)) => Ok((key.trim().to_owned(), Some(value.trim().to_owned()))),
            None => Ok((item, None)),
        };
        list(text)?.into_iter().map(tag).collect()
    }

    fn accepted(&self) -> String {
        "key=value, or a key alone, more after commas; a JSON object; or nothing".to_owned()
    }

    fn show(&self, value: &Self::Value) -> String {
        if value.is_empty() {
            return self.empty().to_owned();
        }
        let tag = |(key, value): &(String, Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        };
        value.iter().map(tag).collect::<Vec<_>>().join(",")
    }

    fn empty(&self) -> &'static str {
        "(none)"
    }
}

/// Configuration by region, as JSON or in a file.
pub(super) struct Regions;

impl Form for Regions {
    type Value = RegionConfigs;

    fn read(&self, text: &str) -> Result<RegionConfigs, Refusal> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(RegionConfigs::default());
        }
        let contents = text.strip_prefix('@').map(|path| read_small_file(Path::new(path.trim()))).transpose();
        let contents = contents.map_err(Refusal::Because)?;
        let value: Value = serde_json::from_str(contents.as_deref().unwrap_or(text)).map_err(because)?;
        let Value::Object(fields) = &value else { return Err(Refusal::NotAccepted) };
        // Both shapes are in use: regions alone, and regions beside the default one.
        if fields.contains_key("regions") || fields.contains_key("default_region") {
            serde_json::from_value(value).map_err(because)
        } else {
            let regions = serde_json::from_value(value).map_err(because)?;
            Ok(RegionConfigs { default_region: None, regions })
        }
    }

    fn accepted(&self) -> String {
        r#"JSON like {"us-east-1": {"subnet_id": "subnet-1", "security_group_ids": ["sg-1"], "key_name": "k", "default_tags": {}}}, or @ and the path of a file with it"#
            .to_owned()
    }

    fn show(&self, value: &RegionConfigs) -> String {
        let names: Vec<&str> = value.regions.keys().map(String::as_str).collect();
        if names.is_empty() { self.empty().to_owned() } else { names.join(",") }
    }

    fn empty(&self) -> &'static str {
        "(none)"
    }
}

/// A list as people write it, or as JSON, which is how pydantic-settings wants it. Only a text with nothing in it is
/// an empty list: stray commas must not become one, because for etcd that means to lead without asking anybody.
fn list(text: &str) -> Result<Vec<String>, Refusal> {
    let text = text.trim();
    let items: Vec<String> = if text.starts_with('[') && text.ends_with(']') && !text.contains("]:") {
        serde_json::from_str(text).map_err(because)?
    } else if text.is_empty() {
        Vec::new()
    } else {
        text.strip_suffix(',').unwrap_or(text).split(',').map(str::to_owned).collect()
    };
    let items: Vec<String> = items.iter().map(|item| item.trim().to_owned()).collect();
    if items.iter().any(|item| item.is_empty() || item.contains(char::is_control)) {
        return Err(Refusal::NotAccepted);
    }
    Ok(items)
}

fn because(error: serde_json::Error) -> Refusal {
    Refusal::Because(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_with_or_without_scheme_and_only_nothing_at_all_is_mock_mode() {
        let read = |text: &str| Endpoints.read(text).ok();
        let list = |items: &[&str]| Some(items.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(read("localhost:2379"), list(&["localhost:2379"]));
        assert_eq!(read(" http://a:1/ , https://b:2,"), list(&["http://a:1", "https://b:2"]));
        assert_eq!(read(r#"["http://a:1"]"#), list(&["http://a:1"]));
        assert_eq!(read("[::1]:2379"), list(&["[::1]:2379"]));
        assert_eq!((read(""), read("[]")), (list(&[]), list(&[])));
        for bad in [
            ",",
            " , ",
            "localhost",
            "localhost:x",
            "a:0",
            ":2379",
            "a b:1",
            "ftp://a:1",
            "http://u:p@a:1",
            "[::1]",
            "[\"\"]",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn urls_name_a_host_and_no_password() {
        assert_eq!(Url.read("https://cp.example:8080/base/"), Ok("https://cp.example:8080/base".to_owned()));
        for bad in
            ["", "cp.example", "http://", "http://:80", "ftp://a", "http://u:hunter2@a", "http://a?key=1", "http://a b"]
        {
            assert!(Url.read(bad).is_err(), "{bad}");
        }
        assert!(HiddenUrl.read("https://u:p@hooks.example/T0/B0?token=1").is_ok());
    }

    #[test]
    fn regions_are_read_in_both_shapes() {
        let alone =
            Regions.read(r#"{"eu-west-1": {"region": "eu-west-1", "subnet_id": "s", "security_group_ids": ["g"]}}"#);
        assert_eq!(alone.expect("regions alone").regions["eu-west-1"].subnet_id, "s");
        let whole = Regions.read(r#"{"default_region": "eu-west-1", "regions": {"eu-west-1": {}}}"#);
        assert_eq!(whole.expect("with a default").default_region.as_deref(), Some("eu-west-1"));
        for bad in [
            "[]",
            "{",
            "us-east-1",
            r#"{"us-east-1": 3}"#,
            r#"{"us-east-1": {"subnet_id": 3}}"#,
            "@/nowhere",
            "@/dev/zero",
        ] {
            assert!(Regions.read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_have_a_value_or_accept_any() {
        let expected = vec![("cml-managed".to_owned(), Some("true".to_owned())), ("team".to_owned(), None)];
        assert_eq!(Tags.read("cml-managed=true, team"), Ok(expected));
        assert_eq!(Tags.read(r#"{"a": "b"}"#), Ok(vec![("a".to_owned(), Some("b".to_owned()))]));
        assert!(Tags.read("=x").is_err());
    }

    #[test]
    fn a_key_prefix_is_kept_without_its_last_slash() {
        assert_eq!(KeyPrefix::BelowRoot.read("/workers/"), Ok("/workers".to_owned()));
        assert_eq!(KeyPrefix::MayBeRoot.read("/"), Ok(String::new()));
        for bad in ["", "/", "workers", "/a//b", "/a b"] {
            assert!(KeyPrefix::BelowRoot.read(bad).is_err(), "{bad}");
        }
    }
}
