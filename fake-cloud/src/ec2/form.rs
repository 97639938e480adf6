//! Parameters of EC2 requests: a form with names such as `Filter.1.Value.2`.

use std::borrow::Cow;

use crate::world::{AwsError, Intent, PageRequest};

/// Maximum number of parameters in a request.
const MAX_PARAMETERS: usize = 20_000;

/// A decoded form. Values without escapes are borrowed from the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Form<'a> {
    /// Sorted by name, without duplicates.
    fields: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// A resource type and its tags, as in a tag specification.
pub(crate) type TaggedType<'a> = (&'a str, Vec<(String, String)>);

impl<'a> Form<'a> {
    /// Decodes a form. The last of several values with one name is used.
    ///
    /// # Errors
    /// `MalformedQueryString` for invalid escapes, invalid UTF-8, and characters that XML cannot represent.
    pub(crate) fn decode(body: &'a [u8]) -> Result<Self, AwsError> {
        let mut fields = Vec::with_capacity(16);
        for pair in body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
            let separator = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let (name, value) = pair.split_at(separator);
            fields.push((unescape(name)?, unescape(value.get(1..).unwrap_or_default())?));
            if fields.len() > MAX_PARAMETERS {
                return Err(malformed("The request has too many parameters."));
            }
        }
        // The sort is stable, so that the last value of a name stays the last.
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        fields.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Ok(Self { fields })
    }

    /// Returns a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let index = self.fields.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.fields.get(index).map(|(_, value)| &**value)
    }

    /// Returns a required parameter.
    ///
    /// # Errors
    /// `MissingParameter`.
    pub(crate) fn need(&self, name: &str) -> Result<&str, AwsError> {
        self.get(name).filter(|value| !value.is_empty()).ok_or_else(|| AwsError::missing(name))
    }

    /// Returns a required number.
    ///
    /// # Errors
    /// `MissingParameter`, `InvalidParameterValue`.
    pub(crate) fn need_count(&self, name: &str) -> Result<usize, AwsError> {
        let text = self.need(name)?;
        text.parse().map_err(|_| AwsError::invalid_value(text, name))
    }

    /// Returns a boolean parameter; `false` if it is missing.
    ///
    /// # Errors
    /// `InvalidParameterValue` for anything but true and false.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, AwsError> {
        match self.get(name) {
            None | Some("false" | "False") => Ok(false),
            Some("true" | "True") => Ok(true),
            Some(other) => Err(AwsError::invalid_value(other, name)),
        }
    }

    /// Returns the value of `DryRun`.
    ///
    /// # Errors
    /// The errors of [`Form::flag`].
    pub(crate) fn intent(&self) -> Result<Intent, AwsError> {
        Ok(if self.flag("DryRun")? { Intent::DryRun } else { Intent::Execute })
    }

    /// Returns the values of `name.1`, `name.2` and so on, ordered by number.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let mut numbered: Vec<(u32, &str)> =
            self.with_prefix(name).filter_map(|(rest, value)| Some((rest.parse().ok()?, value))).collect();
        numbered.sort_unstable_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, value)| value.to_owned()).collect()
    }

    /// Returns the values of a required list.
    ///
    /// # Errors
    /// `MissingParameter`.
    pub(crate) fn need_list(&self, name: &str) -> Result<Vec<String>, AwsError> {
        let list = self.list(name);
        if list.is_empty() { Err(AwsError::missing(name)) } else { Ok(list) }
    }

    /// Returns the prefixes `name.1`, `name.2` and so on of a list of structures.
    pub(crate) fn members(&self, name: &str) -> Vec<String> {
        let mut numbers: Vec<u32> =
            self.with_prefix(name).filter_map(|(rest, _)| rest.split('.').next()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| format!("{name}.{number}")).collect()
    }

    /// Returns the filter names of the request, with their values.
    ///
    /// # Errors
    /// `MissingParameter` for a filter without a name.
    pub(crate) fn sent_filters(&self) -> Result<Vec<(&str, Vec<String>)>, AwsError> {
        let mut sent = Vec::new();
        for member in self.members("Filter") {
            sent.push((self.need(&format!("{member}.Name"))?, self.list(&format!("{member}.Value"))));
        }
        Ok(sent)
    }

    /// Returns the requested page.
    ///
    /// # Errors
    /// The errors of [`PageRequest::parse`].
    pub(crate) fn page(&self) -> Result<PageRequest, AwsError> {
        PageRequest::parse(self.get("MaxResults"), self.get("NextToken"))
    }

    /// Returns a parameter that has a value.
    pub(crate) fn optional(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Returns a number.
    ///
    /// # Errors
    /// `InvalidParameterValue`.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, AwsError> {
        self.optional(name).map(|text| text.parse().map_err(|_| AwsError::invalid_value(text, name))).transpose()
    }

    /// Returns a boolean, if the request has it.
    ///
    /// # Errors
    /// The errors of [`Form::flag`].
    pub(crate) fn optional_flag(&self, name: &str) -> Result<Option<bool>, AwsError> {
        self.optional(name).map(|_| self.flag(name)).transpose()
    }

    /// Returns the tags in the tag specifications, by resource type.
    ///
    /// # Errors
    /// `MissingParameter`; `InvalidParameterValue` for another type than `accepted`, and for two tags with one key.
    pub(crate) fn tag_specifications(&self, accepted: &[&str]) -> Result<Vec<TaggedType<'_>>, AwsError> {
        let mut specifications: Vec<TaggedType<'_>> = Vec::new();
        for specification in self.members("TagSpecification") {
            let kind = self.need(&format!("{specification}.ResourceType"))?;
            if !accepted.contains(&kind) {
                let message = format!("'{kind}' is not a valid taggable resource type for this operation.");
                return Err(AwsError::new("InvalidParameterValue", message));
            }
            let position = match specifications.iter().position(|(known, _)| *known == kind) {
                Some(position) => position,
                None => {
                    specifications.push((kind, Vec::new()));
                    specifications.len() - 1
                }
            };
            let tags = &mut specifications[position].1;
            for tag in self.members(&format!("{specification}.Tag")) {
                let key = self.need(&format!("{tag}.Key"))?;
                if tags.iter().any(|(known, _)| known == key) {
                    let message = format!("Duplicate tag key '{key}' specified.");
                    return Err(AwsError::new("InvalidParameterValue", message));
                }
                tags.push((key.to_owned(), self.get(&format!("{tag}.Value")).unwrap_or_default().to_owned()));
            }
        }
        Ok(specifications)
    }

    /// Creates a form from decoded parameters.
    pub(crate) fn from_parameters(parameters: impl IntoIterator<Item = (String, String)>) -> Form<'static> {
        let mut fields: Vec<_> =
            parameters.into_iter().map(|(name, value)| (Cow::Owned(name), Cow::Owned(value))).collect();
        fields.sort();
        Form { fields }
    }

    /// Returns all parameters, ordered by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the parameters whose names start with `name.`, without that prefix.
    fn with_prefix<'b>(&'b self, name: &'b str) -> impl Iterator<Item = (&'b str, &'b str)> {
        let suffix = move |known: &'b str| known.strip_prefix(name)?.strip_prefix('.');
        // The fields are sorted, so all names with the prefix are adjacent.
        let from = self.fields.partition_point(|(known, _)| {
            let (known, name) = (known.as_bytes(), name.as_bytes());
            let length = known.len().min(name.len());
            known[..length].cmp(name).then_with(|| known[length..].cmp(b".")).is_lt()
        });
        self.fields[from..].iter().map_while(move |(known, value)| Some((suffix(known)?, &**value)))
    }
}

fn unescape(text: &[u8]) -> Result<Cow<'_, str>, AwsError> {
    let not_utf8 = |_| malformed("The request is not valid UTF-8.");
    let decoded = if has(text, |byte| matches!(byte, b'+' | b'%')) {
        Cow::Owned(String::from_utf8(decode(text)?).map_err(|error| not_utf8(error.utf8_error()))?)
    } else {
        Cow::Borrowed(std::str::from_utf8(text).map_err(not_utf8)?)
    };
    // XML 1.0 cannot represent these characters, so a response could not contain the value.
    let is_control = |byte| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    let has_noncharacter = || decoded.contains(['\u{fffe}', '\u{ffff}']);
    if has(decoded.as_bytes(), is_control) || has(decoded.as_bytes(), |byte| byte == 0xef) && has_noncharacter() {
        return Err(malformed("The request has a character that is not allowed."));
    }
    Ok(decoded)
}

/// Returns whether any byte matches. A fold without an early exit is vectorized.
fn has(bytes: &[u8], matches: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(false, |found, byte| found | matches(*byte))
}

fn decode(text: &[u8]) -> Result<Vec<u8>, AwsError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(*byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err(malformed("The request has an incomplete escape sequence."));
                };
                (high * 16 + low) as u8
            }
            other => *other,
        });
    }
    Ok(bytes)
}

fn malformed(message: &str) -> AwsError {
    AwsError::new("MalformedQueryString", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ec2::described::Described;

    #[test]
    fn escapes_are_decoded() {
        let form = Form::decode(b"Tag.1.Value=a%20b%2Bc+d&Tag.1.Key=%C3%A4").expect("a good form");
        assert_eq!(form.get("Tag.1.Value"), Some("a b+c d"));
        assert_eq!(form.get("Tag.1.Key"), Some("ä"));
    }

    #[test]
    fn lists_are_ordered_by_number() {
        let body: Vec<String> = (1..=12).rev().map(|number| format!("InstanceId.{number}=i-{number}")).collect();
        let body = body.join("&");
        let form = Form::decode(body.as_bytes()).expect("a good form");
        assert_eq!(form.list("InstanceId")[..3], ["i-1", "i-2", "i-3"]);
        assert_eq!(form.list("InstanceId").len(), 12);
        assert!(form.list("Instance").is_empty());
    }

    #[test]
    fn lists_ignore_names_with_similar_prefixes() {
        let form =
            Form::decode(b"Ta=1&Tag.2.Key=b&Tag-x=3&Tag.1.Key=a&Tag=4&Tags.1=5&Tag.2.Key=c&T=6").expect("a good form");
        assert_eq!(form.members("Tag"), ["Tag.1", "Tag.2"]);
        assert_eq!(form.get("Tag.2.Key"), Some("c"));
        assert_eq!(form.with_prefix("Tag").collect::<Vec<_>>(), [("1.Key", "a"), ("2.Key", "c")]);
        assert_eq!(form.with_prefix("Tags").collect::<Vec<_>>(), [("1", "5")]);
        assert_eq!(form.with_prefix("Zag").count() + form.with_prefix("A").count(), 0);
        assert_eq!(form.iter().count(), 7);
    }

    #[test]
    fn malformed_forms_are_rejected() {
        for body in [&b"a=%4"[..], b"a=%zz", b"a=%ff", b"a=\xff", b"a=%00", b"%"] {
            assert_eq!(Form::decode(body).expect_err("rejected").code, "MalformedQueryString");
        }
    }

    #[test]
    fn invalid_filters_are_rejected() {
        let read = |body: &str| {
            let form = Form::decode(body.as_bytes())?;
            Described::parse("DescribeVpcs", &form.sent_filters()?)
        };
        assert!(read("Filter.1.Name=tag:a&Filter.1.Value.1=b").is_ok());
        assert_eq!(read("Filter.1.Name=banana").expect_err("rejected").message, "The filter 'banana' is invalid");
        assert_eq!(read("Filter.1.Value.1=b").expect_err("rejected").code, "MissingParameter");
        let many: String = (1..=201).map(|number| format!("&Filter.1.Value.{number}=x")).collect();
        assert_eq!(read(&format!("Filter.1.Name=vpc-id{many}")).expect_err("rejected").code, "FilterLimitExceeded");
    }
}
