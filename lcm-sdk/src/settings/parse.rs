//! Parses the text of a variable into a value, and shows values in reports and errors.
//!
//! Each function returns the [`Parser`] of one kind of value. Parsing terminates for every text and never panics.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use crate::lifecycle::instance::ImageOwners;
use crate::lifecycle::region::RegionConfigs;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::wire_enum::Vocabulary;

/// Shown for a setting without a value.
pub(super) const NOT_SET: &str = "(not set)";

/// Shown instead of a secret.
const REDACTED: &str = "[redacted]";

/// Longest rejected value in an error, in characters.
const MAX_SHOWN: usize = 80;

/// Longest text value, in bytes.
const MAX_TEXT: usize = 1024;

/// Largest configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;

type ParseFn<T> = Box<dyn Fn(&str) -> Result<T, ParseError>>;

/// Converts between the text of a variable and its value.
pub(super) struct Parser<T> {
    /// Accepted values, as they follow "accepted: " in an error.
    pub(super) accepted: String,
    /// Shown in the reference if the default is an empty text.
    pub(super) empty: &'static str,
    parse: ParseFn<T>,
    show: Box<dyn Fn(&T) -> String>,
    show_rejected: fn(&str) -> String,
    file_in: fn(&str) -> Option<&str>,
}

/// Reason why a text is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// The list of accepted values explains it.
    NotAccepted,
    /// A more specific reason.
    Because(String),
}

impl<T: 'static> Parser<T> {
    fn new(
        accepted: impl Into<String>,
        parse: impl Fn(&str) -> Result<T, ParseError> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self {
            accepted: accepted.into(),
            empty: "(empty)",
            parse: Box::new(parse),
            show: Box::new(show),
            show_rejected: quote,
            file_in: |_| None,
        }
    }

    /// Sets the placeholder of an empty value.
    pub(super) fn with_empty(self, empty: &'static str) -> Self {
        Self { empty, ..self }
    }

    /// Never shows a value, not even a rejected one.
    fn redacted(self) -> Self {
        Self { show: Box::new(|_| REDACTED.to_owned()), show_rejected: |_| REDACTED.to_owned(), ..self }
    }

    /// Accepts an empty text as no value.
    pub(super) fn optional(self) -> Parser<Option<T>> {
        let (parse, show) = (self.parse, self.show);
        Parser {
            accepted: format!("{}; or nothing", self.accepted),
            empty: NOT_SET,
            parse: Box::new(move |text| if text.trim().is_empty() { Ok(None) } else { parse(text).map(Some) }),
            show: Box::new(move |value| value.as_ref().map_or_else(|| NOT_SET.to_owned(), &show)),
            show_rejected: self.show_rejected,
            file_in: self.file_in,
        }
    }

    pub(super) fn parse(&self, text: &str) -> Result<T, ParseError> {
        (self.parse)(text)
    }

    /// The path of the file that a text names instead of holding the value itself.
    pub(super) fn file_in<'a>(&self, text: &'a str) -> Option<&'a str> {
        (self.file_in)(text)
    }

    /// Formats a value. A secret is shown as `[redacted]`.
    pub(super) fn show(&self, value: &T) -> String {
        (self.show)(value)
    }

    /// Formats a rejected text for an error.
    pub(super) fn show_rejected(&self, text: &str) -> String {
        (self.show_rejected)(text)
    }
}

fn in_range<T: PartialOrd>(value: T, from: &T, to: &T) -> Result<T, ParseError> {
    // NaN is in no range.
    if (from..=to).contains(&&value) { Ok(value) } else { Err(ParseError::NotAccepted) }
}

fn parse_in_range<T: PartialOrd + FromStr>(text: &str, from: &T, to: &T) -> Result<T, ParseError> {
    in_range(text.trim().parse().map_err(|_| ParseError::NotAccepted)?, from, to)
}

pub(super) fn boolean() -> Parser<bool> {
    let parse = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(ParseError::NotAccepted),
    };
    Parser::new("true, false, 1, 0, yes, no, on, off", parse, bool::to_string)
}

pub(super) fn number(from: f64, to: f64) -> Parser<f64> {
    let accepted = format!("a number from {from} to {to}");
    Parser::new(accepted, move |text| parse_in_range(text, &from, &to), f64::to_string)
}

pub(super) fn integer<T: Copy + Display + PartialOrd + FromStr + 'static>(from: T, to: T) -> Parser<T> {
    let accepted = format!("a whole number from {from} to {to}");
    Parser::new(accepted, move |text| parse_in_range(text, &from, &to), T::to_string)
}

/// Seconds with fractions.
pub(super) fn seconds(from: f64, to: f64) -> Parser<Duration> {
    duration("seconds", 1.0, from, to)
}

/// Minutes with fractions.
pub(super) fn minutes(from: f64, to: f64) -> Parser<Duration> {
    duration("minutes", 60.0, from, to)
}

fn duration(unit: &'static str, unit_seconds: f64, from: f64, to: f64) -> Parser<Duration> {
    let parse = move |text: &str| {
        let seconds = parse_in_range(text, &from, &to)? * unit_seconds;
        Duration::try_from_secs_f64(seconds).map_err(|_| ParseError::NotAccepted)
    };
    let show = move |value: &Duration| (value.as_secs_f64() / unit_seconds).to_string();
    Parser::new(format!("{unit} from {from} to {to}"), parse, show)
}

/// Whole seconds, the granularity of an etcd lease.
pub(super) fn whole_seconds(from: u32, to: u32) -> Parser<Duration> {
    let parse = move |text: &str| Ok(Duration::from_secs(parse_in_range(text, &from, &to)?.into()));
    Parser::new(format!("whole seconds from {from} to {to}"), parse, |value| value.as_secs().to_string())
}

/// A member of a wire enum.
pub(super) fn keyword<T: Vocabulary + Display + 'static>() -> Parser<T> {
    Parser::new(T::WORDS.join(", "), |text| text.parse().map_err(|_| ParseError::NotAccepted), T::to_string)
}

/// One line of text that satisfies `is_valid`.
pub(super) fn text(accepted: &'static str, is_valid: fn(&str) -> bool) -> Parser<String> {
    let parse = move |text: &str| {
        let text = text.trim();
        // Control characters would let a value forge log lines.
        if text.len() > MAX_TEXT || text.contains(char::is_control) || !is_valid(text) {
            return Err(ParseError::NotAccepted);
        }
        Ok(text.to_owned())
    };
    Parser::new(accepted, parse, String::clone)
}

/// A password or token, taken verbatim.
pub(super) fn secret() -> Parser<Secret> {
    // A line break, such as one left by reading a file, would end up inside a header.
    let parse = |text: &str| {
        if text.contains(char::is_control) { Err(ParseError::NotAccepted) } else { Ok(Secret::from(text)) }
    };
    Parser::new("one line of text", parse, |_| String::new()).redacted()
}

pub(super) fn ip_address() -> Parser<IpAddr> {
    let parse = |text: &str| match text.trim() {
        name if name.eq_ignore_ascii_case("localhost") => Ok(Ipv4Addr::LOCALHOST.into()),
        address => address.parse().map_err(|_| ParseError::NotAccepted),
    };
    Parser::new("an IP address (127.0.0.1, ::1, 0.0.0.0), localhost", parse, IpAddr::to_string)
}

/// The path of an existing file.
pub(super) fn file() -> Parser<PathBuf> {
    let parse = |text: &str| {
        let path = PathBuf::from(text.trim());
        check_file(&path).map_err(ParseError::Because)?;
        Ok(path)
    };
    Parser::new("the path of a file", parse, |path: &PathBuf| path.display().to_string())
}

/// A directory that exists or can be created.
pub(super) fn directory() -> Parser<PathBuf> {
    let parse = |text: &str| {
        let path = PathBuf::from(text.trim());
        // The parent of a relative name is empty.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if path.is_dir() || (!path.exists() && parent.is_none_or(Path::is_dir)) {
            return Ok(path);
        }
        Err(ParseError::Because(format!("{} is no directory and cannot become one", path.display())))
    };
    Parser::new("the path of a directory", parse, |path: &PathBuf| path.display().to_string())
}

/// Reads a small file. Pipes, devices and large files are rejected, because reading them might not end.
fn read_small_file(path: &Path) -> Result<String, String> {
    check_file(path)?;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("{} is larger than {MAX_FILE} bytes", path.display()));
    }
    Ok(text)
}

fn check_file(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(format!("{} is not a file", path.display())),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// The base URL of an HTTP service. Credentials have settings of their own; inside a URL they would be printed.
pub(super) fn url() -> Parser<String> {
    let parse = |text: &str| {
        let url = text.trim().trim_end_matches('/');
        let authority = url_authority(url).ok_or(ParseError::NotAccepted)?;
        if authority.contains('@') {
            return Err(ParseError::Because("it carries a user or password".to_owned()));
        }
        if url.contains(['?', '#']) {
            return Err(ParseError::Because("it carries a query or fragment".to_owned()));
        }
        Ok(url.to_owned())
    };
    Parser::new("http:// or https://, a host, and perhaps a port and a path", parse, String::clone)
}

/// The URL of a webhook. Such URLs often contain a token, so all of it is a secret.
pub(super) fn secret_url() -> Parser<Secret> {
    let parse = |text: &str| {
        let url = text.trim();
        url_authority(url).map(|_| Secret::from(url)).ok_or(ParseError::NotAccepted)
    };
    Parser::new("http:// or https://, a host, and any path or query", parse, |_| String::new()).redacted()
}

fn url_authority(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let has_host = !host.is_empty() && !host.starts_with(':');
    Some(authority).filter(|_| is_http && has_host && !url.contains(is_blank) && url.len() <= 2048)
}

fn is_blank(character: char) -> bool {
    character.is_whitespace() || character.is_control()
}

/// A list of etcd endpoints: `host:port` with or without a scheme.
pub(super) fn endpoints() -> Parser<Vec<String>> {
    const EMPTY: &str = "(none: mock mode)";
    let parse = |text: &str| {
        let endpoints = split_list(text)?;
        for endpoint in &endpoints {
            if endpoint.contains('@') {
                return Err(ParseError::Because("an endpoint carries a user or password".to_owned()));
            }
            if !is_endpoint(endpoint) {
                return Err(ParseError::Because(format!("{endpoint:?} is no endpoint")));
            }
        }
        Ok(endpoints.into_iter().map(|endpoint| endpoint.trim_end_matches('/').to_owned()).collect())
    };
    let accepted = "host:port, http:// or https:// in front if you like, more after commas; empty for mock mode";
    Parser::new(accepted, parse, |value: &Vec<String>| join_or(value, EMPTY)).with_empty(EMPTY)
}

fn is_endpoint(endpoint: &str) -> bool {
    let bare = endpoint.trim_end_matches('/');
    let bare = bare.strip_prefix("http://").or_else(|| bare.strip_prefix("https://")).unwrap_or(bare);
    let Some((host, port)) = bare.rsplit_once(':') else { return false };
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-._".contains(character);
    let is_name = !host.is_empty() && host.chars().all(is_plain);
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_ipv6 = bracketed.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    (is_name || is_ipv6) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Whether an etcd key prefix may be the root.
#[derive(Clone, Copy)]
pub(super) enum Root {
    Allowed,
    Denied,
}

/// A prefix of etcd keys. The value has no trailing slash.
pub(super) fn key_prefix(root: Root) -> Parser<String> {
    let parse = move |text: &str| {
        let prefix = text.trim().trim_end_matches('/');
        let is_path = prefix.starts_with('/') && !prefix.contains("//");
        let is_valid = match root {
            Root::Allowed => is_path || prefix.is_empty(),
            Root::Denied => is_path,
        };
        if is_valid && !prefix.contains(is_blank) { Ok(prefix.to_owned()) } else { Err(ParseError::NotAccepted) }
    };
    let accepted = match root {
        Root::Allowed => "a path that begins with /; empty for the root",
        Root::Denied => "a path that begins with / and names something",
    };
    let show = move |value: &String| match root {
        Root::Allowed if !value.is_empty() => value.clone(),
        Root::Allowed | Root::Denied => format!("{value}/"),
    };
    Parser::new(accepted, parse, show)
}

/// A list of values, each parsed by `item`.
pub(super) fn list(item: Parser<String>, empty: &'static str) -> Parser<Vec<String>> {
    let accepted = format!("{}, more after commas; or nothing", item.accepted);
    let parse = move |text: &str| split_list(text)?.iter().map(|text| item.parse(text)).collect();
    Parser::new(accepted, parse, move |value: &Vec<String>| join_or(value, empty)).with_empty(empty)
}

/// Owners of AMIs. Accepting those of any account has to be said by name.
pub(super) fn image_owners(owner: Parser<String>) -> Parser<ImageOwners> {
    let accepted = format!("{}, more after commas; or any alone", owner.accepted);
    let parse = move |text: &str| match text.trim() {
        "any" => Ok(ImageOwners::Any),
        "" => Err(ParseError::NotAccepted),
        names => {
            let names: Result<_, _> = split_list(names)?.iter().map(|name| owner.parse(name)).collect();
            names.map(ImageOwners::Named)
        }
    };
    Parser::new(accepted, parse, ImageOwners::to_string)
}

/// EC2 tags to filter by. A key without a value matches any value.
pub(super) fn tags() -> Parser<Vec<(String, Option<String>)>> {
    const EMPTY: &str = "(none)";
    let parse = |text: &str| {
        if text.trim_start().starts_with('{') {
            let map: BTreeMap<String, String> = serde_json::from_str(text).map_err(json_error)?;
            return Ok(map.into_iter().map(|(key, value)| (key, Some(value))).collect());
        }
        let tag = |item: String| match item.split_once('=') {
            Some((key, _)) if key.trim().is_empty() => Err(ParseError::NotAccepted),
            Some((key, value)) => Ok((key.trim().to_owned(), Some(value.trim().to_owned()))),
            None => Ok((item, None)),
        };
        split_list(text)?.into_iter().map(tag).collect()
    };
    let show = |value: &Vec<(String, Option<String>)>| {
        let tag = |(key, value): &(String, Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        };
        join_or(&value.iter().map(tag).collect::<Vec<_>>(), EMPTY)
    };
    let accepted = "key=value, or a key alone, more after commas; a JSON object; or nothing";
    Parser::new(accepted, parse, show).with_empty(EMPTY)
}

/// Launch configuration by region: JSON, or `@` and the path of a file that contains YAML or JSON.
pub(super) fn regions() -> Parser<RegionConfigs> {
    const EMPTY: &str = "(none)";
    let parse = |text: &str| {
        let text = text.trim();
        if text.is_empty() {
            return Ok(RegionConfigs::default());
        }
        let value: Value = match file_reference(text) {
            Some(path) => yaml(&read_small_file(Path::new(path)).map_err(ParseError::Because)?)?,
            None => serde_json::from_str(text).map_err(json_error)?,
        };
        let Value::Object(fields) = &value else { return Err(ParseError::NotAccepted) };
        // Two shapes are in use: a map of regions, and that map beside the default region.
        if fields.contains_key("regions") || fields.contains_key("default_region") {
            serde_json::from_value(value).map_err(json_error)
        } else {
            let regions = serde_json::from_value(value).map_err(json_error)?;
            Ok(RegionConfigs { default_region: None, regions })
        }
    };
    let accepted = r#"JSON like {"us-east-1": {"subnet_id": "subnet-1", "security_group_ids": ["sg-1"], "key_name": "k", "default_tags": {}}}, or @ and the path of a file with it as YAML or JSON"#;
    let show = |value: &RegionConfigs| join_or(&value.regions.keys().cloned().collect::<Vec<_>>(), EMPTY);
    Parser { file_in: file_reference, ..Parser::new(accepted, parse, show).with_empty(EMPTY) }
}

fn file_reference(text: &str) -> Option<&str> {
    text.trim().strip_prefix('@').map(str::trim)
}

/// Parses YAML, of which JSON is a part.
fn yaml(text: &str) -> Result<Value, ParseError> {
    let yaml_error = |error: serde_yaml_ng::Error| ParseError::Because(error.to_string());
    let mut value: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).map_err(yaml_error)?;
    value.apply_merge().map_err(yaml_error)?;
    serde_json::to_value(value).map_err(json_error)
}

/// Splits a comma-separated or JSON list; pydantic-settings writes the latter. Only an empty text is an empty list:
/// a stray comma must not become one, because an empty list of etcd endpoints means to lead without an election.
fn split_list(text: &str) -> Result<Vec<String>, ParseError> {
    let text = text.trim();
    let items: Vec<String> = if text.starts_with('[') && text.ends_with(']') && !text.contains("]:") {
        serde_json::from_str(text).map_err(json_error)?
    } else if text.is_empty() {
        Vec::new()
    } else {
        text.strip_suffix(',').unwrap_or(text).split(',').map(str::to_owned).collect()
    };
    let items: Vec<String> = items.iter().map(|item| item.trim().to_owned()).collect();
    if items.iter().any(|item| item.is_empty() || item.contains(char::is_control)) {
        return Err(ParseError::NotAccepted);
    }
    Ok(items)
}

fn join_or(items: &[String], empty: &str) -> String {
    if items.is_empty() { empty.to_owned() } else { items.join(",") }
}

fn json_error(error: serde_json::Error) -> ParseError {
    ParseError::Because(error.to_string())
}

/// Quotes a text and truncates it. Redacts the part before an `@`, which may contain a password.
fn quote(text: &str) -> String {
    let shown = match text.rsplit_once('@') {
        Some((before, after)) if !before.is_empty() => format!("{REDACTED}@{after}"),
        Some(_) | None => text.to_owned(),
    };
    format!("{:?}", truncate(&shown, MAX_SHOWN))
}

/// Truncates a text to a number of characters, with an ellipsis where something was cut.
pub(super) fn truncate(text: &str, max_characters: usize) -> String {
    let mut characters = text.chars();
    let mut short: String = characters.by_ref().take(max_characters).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_case_insensitive() {
        for (text, expected) in
            [("TRUE", true), (" yes ", true), ("On", true), ("1", true), ("False", false), ("0", false)]
        {
            assert_eq!(boolean().parse(text), Ok(expected), "{text}");
        }
        assert_eq!(boolean().parse("maybe"), Err(ParseError::NotAccepted));
        assert_eq!(boolean().parse(""), Err(ParseError::NotAccepted));
    }

    #[test]
    fn durations_are_finite_and_in_range() {
        let parser = seconds(0.5, 3600.0);
        assert_eq!(parser.parse("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parser.parse("1e3"), Ok(Duration::from_secs(1000)));
        for text in ["nan", "NaN", "inf", "-inf", "-1", "0.4", "3600.1", "", "30s", "1e400"] {
            assert_eq!(parser.parse(text), Err(ParseError::NotAccepted), "{text}");
        }
        assert_eq!(minutes(0.0, 90.0).parse("1.5"), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn rejected_values_are_redacted_and_truncated() {
        assert_eq!(quote("ftp://admin:hunter2@cloud/x"), r#""[redacted]@cloud/x""#);
        assert_eq!(quote("@file"), r#""@file""#);
        assert_eq!(quote("a\nb"), r#""a\nb""#);
        assert!(quote(&"é".repeat(9_000)).chars().count() < 90);
        assert_eq!(secret().optional().show_rejected("hunter2"), REDACTED);
    }

    #[test]
    fn only_regular_files_are_opened() {
        for path in ["/dev/zero", "/", "/nowhere/at/all"] {
            assert!(matches!(file().parse(path), Err(ParseError::Because(_))), "{path}");
            assert!(read_small_file(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn only_an_empty_endpoint_list_is_mock_mode() {
        let parse = |text: &str| endpoints().parse(text).ok();
        let list = |items: &[&str]| Some(items.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(parse("localhost:2379"), list(&["localhost:2379"]));
        assert_eq!(parse(" http://a:1/ , https://b:2,"), list(&["http://a:1", "https://b:2"]));
        assert_eq!(parse(r#"["http://a:1"]"#), list(&["http://a:1"]));
        assert_eq!(parse("[::1]:2379"), list(&["[::1]:2379"]));
        assert_eq!((parse(""), parse("[]")), (list(&[]), list(&[])));
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
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn urls_have_a_host_and_no_password() {
        assert_eq!(url().parse("https://cp.example:8080/base/"), Ok("https://cp.example:8080/base".to_owned()));
        for bad in
            ["", "cp.example", "http://", "http://:80", "ftp://a", "http://u:hunter2@a", "http://a?key=1", "http://a b"]
        {
            assert!(url().parse(bad).is_err(), "{bad}");
        }
        assert!(secret_url().parse("https://u:p@hooks.example/T0/B0?token=1").is_ok());
    }

    #[test]
    fn regions_are_accepted_in_both_shapes() {
        let alone =
            regions().parse(r#"{"eu-west-1": {"region": "eu-west-1", "subnet_id": "s", "security_group_ids": ["g"]}}"#);
        assert_eq!(alone.expect("a map of regions").regions["eu-west-1"].subnet_id, "s");
        let with_default = regions().parse(r#"{"default_region": "eu-west-1", "regions": {"eu-west-1": {}}}"#);
        assert_eq!(with_default.expect("valid").default_region.as_deref(), Some("eu-west-1"));
        for bad in [
            "[]",
            "{",
            "us-east-1",
            r#"{"us-east-1": 3}"#,
            r#"{"us-east-1": {"subnet_id": 3}}"#,
            "@/nowhere",
            "@/dev/zero",
        ] {
            assert!(regions().parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_have_an_optional_value() {
        let expected = vec![("cml-managed".to_owned(), Some("true".to_owned())), ("team".to_owned(), None)];
        assert_eq!(tags().parse("cml-managed=true, team"), Ok(expected));
        assert_eq!(tags().parse(r#"{"a": "b"}"#), Ok(vec![("a".to_owned(), Some("b".to_owned()))]));
        assert!(tags().parse("=x").is_err());
    }

    #[test]
    fn key_prefixes_have_no_trailing_slash() {
        assert_eq!(key_prefix(Root::Denied).parse("/workers/"), Ok("/workers".to_owned()));
        assert_eq!(key_prefix(Root::Allowed).parse("/"), Ok(String::new()));
        for bad in ["", "/", "workers", "/a//b", "/a b"] {
            assert!(key_prefix(Root::Denied).parse(bad).is_err(), "{bad}");
        }
    }
}
