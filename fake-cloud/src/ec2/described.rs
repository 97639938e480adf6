//! Lists of described resources: selection by id, filters, pages.
//!
//! A filter reads the encoded resource, so that filters and responses cannot disagree. `filters.txt` has the path of the
//! elements by filter name; `-` is a filter whose value no resource of this cloud has.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{AwsError, Page, PageRequest, Pattern, check_filter_values};

const TABLE: &str = include_str!("filters.txt");

/// Paths of elements by filter name, for every action.
type Names = HashMap<&'static str, Vec<Vec<&'static str>>>;

static ACTIONS: LazyLock<HashMap<&'static str, Names>> = LazyLock::new(|| {
    let mut actions: HashMap<&'static str, Names> = HashMap::new();
    let mut action = "";
    for line in TABLE.lines() {
        let Some((name, paths)) = line.strip_prefix("  ").and_then(|entry| entry.split_once(' ')) else {
            action = line;
            continue;
        };
        let paths = paths.split(' ').filter(|path| *path != "-").map(|path| path.split('/').collect()).collect();
        actions.entry(action).or_default().insert(name, paths);
    }
    actions
});

/// Filters that read encoded resources.
#[derive(Debug, Default)]
pub(super) struct Described(Vec<(Selector, Vec<Pattern>)>);

/// Elements that a filter reads.
#[derive(Debug)]
enum Selector {
    Elements(&'static [Vec<&'static str>]),
    /// The value of the tag with this key.
    Tag(String),
    /// `key=value` of any tag.
    TagPair,
}

const TAG_KEYS: &[&str] = &["tagSet", "item", "key"];
const TAG_VALUES: &[&str] = &["tagSet", "item", "value"];

impl Described {
    /// Parses the filters of a request.
    ///
    /// # Errors
    /// `InvalidParameterValue` for an unknown name, `FilterLimitExceeded` for too many values.
    pub(super) fn parse(action: &str, sent: &[(&str, Vec<String>)]) -> Result<Self, AwsError> {
        check_filter_values(sent.iter().map(|(_, values)| values.len()).sum())?;
        let mut filters = Vec::with_capacity(sent.len());
        for (name, values) in sent {
            let selector = Self::selector(action, name)
                .ok_or_else(|| AwsError::new("InvalidParameterValue", format!("The filter '{name}' is invalid")))?;
            filters.push((selector, values.iter().map(|value| Pattern::new(value)).collect()));
        }
        Ok(Self(filters))
    }

    fn selector(action: &str, name: &str) -> Option<Selector> {
        static KEYS: LazyLock<[Vec<&str>; 1]> = LazyLock::new(|| [TAG_KEYS.to_vec()]);
        static VALUES: LazyLock<[Vec<&str>; 1]> = LazyLock::new(|| [TAG_VALUES.to_vec()]);
        let names: Option<&'static Names> = ACTIONS.get(action);
        if let Some(paths) = names.and_then(|names| names.get(name)) {
            return Some(Selector::Elements(paths));
        }
        match name {
            "tag-key" => Some(Selector::Elements(&*KEYS)),
            "tag-value" => Some(Selector::Elements(&*VALUES)),
            "tag" => Some(Selector::TagPair),
            name => name.strip_prefix("tag:").map(|key| Selector::Tag(key.to_owned())),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an encoded resource passes all filters.
    pub(super) fn match_all(&self, encoded: &[u8]) -> bool {
        let Ok(encoded) = std::str::from_utf8(encoded) else { return false };
        self.0.iter().all(|(selector, patterns)| {
            let test = |value: &str| patterns.iter().any(|pattern| pattern.matches(value));
            match selector {
                Selector::Elements(paths) => paths.iter().any(|path| any_text(encoded, path, &test)),
                Selector::Tag(key) => any_tag(encoded, &|found, value| found == key && test(value)),
                Selector::TagPair => any_tag(encoded, &|key, value| test(&format!("{key}={value}"))),
            }
        })
    }
}

/// Returns whether any element at the path has a text that passes the test. The path starts at the children of `xml`.
fn any_text(xml: &str, path: &[&str], test: &dyn Fn(&str) -> bool) -> bool {
    match path {
        [] => test(&unescape(xml)),
        [name, rest @ ..] => children(xml).any(|(found, content)| found == *name && any_text(content, rest, test)),
    }
}

fn any_tag(xml: &str, test: &dyn Fn(&str, &str) -> bool) -> bool {
    let sets = children(xml).filter(|(name, _)| *name == "tagSet");
    let mut tags = sets.flat_map(|(_, tags)| children(tags));
    tags.any(|(_, tag)| {
        let part = |wanted: &str| {
            let found = children(tag).find(|(name, _)| *name == wanted);
            found.map(|(_, text)| unescape(text)).unwrap_or_default()
        };
        test(&part("key"), &part("value"))
    })
}

/// Returns the elements at the top level, with their content. The XML is our own: it has no attributes and comments.
fn children(xml: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, from_name) = rest.split_once('<')?;
        let (name, content) = from_name.split_once('>')?;
        if let Some(name) = name.strip_suffix('/') {
            rest = content;
            return Some((name, ""));
        }
        let mut depth = 1_usize;
        let mut at = 0;
        loop {
            let open = at + content[at..].find('<')?;
            let close = open + content[open..].find('>')?;
            let tag = &content[open + 1..close];
            if tag.starts_with('/') {
                depth -= 1;
            } else if !tag.ends_with('/') {
                depth += 1;
            }
            if depth == 0 {
                rest = &content[close + 1..];
                return Some((name, &content[..open]));
            }
            at = close + 1;
        }
    })
}

fn unescape(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&#13;", "\r").replace("&amp;", "&").into()
}

/// A resource of a list: its id, and its encoding without the enclosing element.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) xml: Vec<u8>,
}

impl Item {
    pub(super) fn new(id: impl Into<String>, write: impl FnOnce(&mut Xml)) -> Self {
        let mut xml = Xml::fragment();
        write(&mut xml);
        Self { id: id.into(), xml: xml.finish() }
    }
}

impl Request<'_> {
    /// Responds with the resources that the request selects by id and filters, as one page of `set`.
    ///
    /// # Errors
    /// The error of `missing` for an id that no resource has, and the errors of filters, pages and dry runs.
    pub(super) fn respond_items(
        &self,
        action: &str,
        set: &str,
        items: Vec<Item>,
        ids: &[String],
        missing: impl Fn(&str) -> AwsError,
    ) -> Result<ResponseBody, AwsError> {
        let filters = Described::parse(action, &self.form.sent_filters()?)?;
        let page = self.form.page()?;
        if let Some(unknown) = ids.iter().find(|id| !items.iter().any(|item| item.id == **id)) {
            return Err(missing(unknown));
        }
        self.form.intent()?.proceed()?;
        let page = select(items, ids, &filters, page.cut(self.view.page));
        let size = page.items.iter().map(|item| item.xml.len() + 16).sum();
        Ok(self.respond(action, size, |xml| {
            xml.element(set, |xml| {
                for item in &page.items {
                    xml.open("item");
                    xml.bytes(&item.xml);
                    xml.close("item");
                }
            });
            if let Some(token) = &page.next_token {
                xml.text("nextToken", token);
            }
        }))
    }
}

fn select(items: Vec<Item>, ids: &[String], filters: &Described, page: PageRequest) -> Page<Item> {
    let selected = items.into_iter().filter(|item| {
        (ids.is_empty() || ids.contains(&item.id)) && (filters.is_empty() || filters.match_all(&item.xml))
    });
    let numbered = selected.enumerate().map(|(position, item)| (position as u64, item));
    Page::collect(page, numbered.skip_while(|(position, _)| *position < page.from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(xml: &str, name: &str, values: &[&str]) -> bool {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let filters = Described::parse("DescribeVolumes", &[(name, values)]).expect("a filter");
        filters.match_all(xml.as_bytes())
    }

    #[test]
    fn filters_read_elements_and_tags() {
        let xml = "<volumeId>vol-1</volumeId><tagSet><item><key>a&amp;b</key><value>1</value></item><item><key>c</key>\
                   <value/></item></tagSet><attachmentSet><item><instanceId>i-1</instanceId></item><item><instanceId>\
                   i-2</instanceId></item></attachmentSet><size>8</size>";
        for (name, values, expected) in [
            ("volume-id", vec!["vol-?"], true),
            ("volume-id", vec!["vol-2", "VOL-1"], false),
            ("size", vec!["8"], true),
            ("attachment.instance-id", vec!["i-2"], true),
            ("tag:a&b", vec!["1"], true),
            ("tag:c", vec!["1"], false),
            ("tag:c", vec![""], true),
            ("tag", vec!["a&b=1"], true),
            ("tag-key", vec!["a*"], true),
            ("tag-value", vec!["2"], false),
            ("fast-restored", vec!["*"], false),
        ] {
            assert_eq!(matches(xml, name, &values), expected, "{name} {values:?}");
        }
    }

    #[test]
    fn unknown_filters_are_refused() {
        for name in ["banana", "Volume-Id", "tags"] {
            let error = Described::parse("DescribeVolumes", &[(name, Vec::new())]).expect_err("refused");
            assert_eq!(error.code, "InvalidParameterValue");
        }
    }
}
