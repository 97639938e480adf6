//! EC2's requests: a form of flat names, `Filter.1.Value.2` and the like.

use std::borrow::Cow;

use crate::world::{AwsError, Field, Filters, Intent, PageRequest};

/// More parameters than this are no request.
const MOST_PARAMETERS: usize = 20_000;

/// A decoded form: what needs no decoding stays where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Form<'a> {
    /// By name, each name once.
    fields: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Form<'a> {
    /// Decodes a form. Of a name that was sent twice the last one counts.
    ///
    /// # Errors
    /// `MalformedQueryString` for escapes that are none, text that is not UTF-8, characters that no answer could carry.
    pub(crate) fn decode(body: &'a [u8]) -> Result<Self, AwsError> {
        let mut fields = Vec::with_capacity(16);
        for pair in body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
            let middle = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let (name, value) = pair.split_at(middle);
            fields.push((unescape(name)?, unescape(value.get(1..).unwrap_or_default())?));
            if fields.len() > MOST_PARAMETERS {
                return Err(malformed("The request has too many parameters."));
            }
        }
        // Stable, so that the last one of a name stays the last.
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

    /// A parameter, if it was sent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let place = self.fields.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.fields.get(place).map(|(_, value)| &**value)
    }

    /// A parameter that must be there.
    ///
    /// # Errors
    /// `MissingParameter`.
    pub(crate) fn need(&self, name: &str) -> Result<&str, AwsError> {
        self.get(name).filter(|value| !value.is_empty()).ok_or_else(|| AwsError::missing(name))
    }

    /// A number that must be there.
    ///
    /// # Errors
    /// `MissingParameter`, `InvalidParameterValue`.
    pub(crate) fn need_count(&self, name: &str) -> Result<usize, AwsError> {
        let text = self.need(name)?;
        text.parse().map_err(|_| AwsError::invalid_value(text, name))
    }

    /// Whether a flag is set.
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

    /// Whether the request is meant or a rehearsal.
    ///
    /// # Errors
    /// As [`Form::flag`].
    pub(crate) fn intent(&self) -> Result<Intent, AwsError> {
        Ok(if self.flag("DryRun")? { Intent::DryRun } else { Intent::Execute })
    }

    /// The values of `name.1`, `name.2`… in the order of their numbers.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let mut numbered: Vec<(u32, &str)> =
            self.below(name).filter_map(|(rest, value)| Some((rest.parse().ok()?, value))).collect();
        numbered.sort_unstable_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, value)| value.to_owned()).collect()
    }

    /// As [`Form::list`], and there must be at least one.
    ///
    /// # Errors
    /// `MissingParameter`.
    pub(crate) fn need_list(&self, name: &str) -> Result<Vec<String>, AwsError> {
        let list = self.list(name);
        if list.is_empty() { Err(AwsError::missing(name)) } else { Ok(list) }
    }

    /// The prefixes `name.1`, `name.2`… of structures in a list.
    pub(crate) fn members(&self, name: &str) -> Vec<String> {
        let mut numbers: Vec<u32> =
            self.below(name).filter_map(|(rest, _)| rest.split('.').next()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| format!("{name}.{number}")).collect()
    }

    /// The filters.
    ///
    /// # Errors
    /// What [`Filters::parse`] refuses; a filter without a name.
    pub(crate) fn filters<F: Field>(&self) -> Result<Filters<F>, AwsError> {
        let mut sent = Vec::new();
        for member in self.members("Filter") {
            sent.push((self.need(&format!("{member}.Name"))?, self.list(&format!("{member}.Value"))));
        }
        Filters::parse(sent.iter().map(|(name, values)| (*name, values.iter().map(String::as_str).collect())))
    }

    /// The part of the listing that is asked for.
    ///
    /// # Errors
    /// What [`PageRequest::parse`] refuses.
    pub(crate) fn page(&self) -> Result<PageRequest, AwsError> {
        PageRequest::parse(self.get("MaxResults"), self.get("NextToken"))
    }

    /// All parameters, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (&**name, &**value))
    }

    /// What comes after `name.` in the names that begin with it, and the values.
    fn below<'b>(&'b self, name: &'b str) -> impl Iterator<Item = (&'b str, &'b str)> {
        let rest_of = move |known: &'b str| known.strip_prefix(name)?.strip_prefix('.');
        // Everything that begins with `name.` is in one piece, because a piece of text sorts before what it begins.
        let from = self.fields.partition_point(|(known, _)| {
            let (known, name) = (known.as_bytes(), name.as_bytes());
            let length = known.len().min(name.len());
            known[..length].cmp(name).then_with(|| known[length..].cmp(b".")).is_lt()
        });
        self.fields[from..].iter().map_while(move |(known, value)| Some((rest_of(known)?, &**value)))
    }
}

fn unescape(text: &[u8]) -> Result<Cow<'_, str>, AwsError> {
    let not_utf8 = |_| malformed("The request is not valid UTF-8.");
    let decoded = if has(text, |byte| matches!(byte, b'+' | b'%')) {
        Cow::Owned(String::from_utf8(decode(text)?).map_err(|error| not_utf8(error.utf8_error()))?)
    } else {
        Cow::Borrowed(std::str::from_utf8(text).map_err(not_utf8)?)
    };
    // XML 1.0 cannot carry these, so a value with one could never be given back.
    let is_control = |byte| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    let is_odd = || decoded.contains(['\u{fffe}', '\u{ffff}']);
    if has(decoded.as_bytes(), is_control) || has(decoded.as_bytes(), |byte| byte == 0xef) && is_odd() {
        return Err(malformed("The request has a character that is not allowed."));
    }
    Ok(decoded)
}

/// Whether there is such a byte. Without a way out in the middle, many bytes are looked at in one go.
fn has(bytes: &[u8], is_one: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(false, |found, byte| found | is_one(*byte))
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
    use crate::world::InstanceField;

    #[test]
    fn escapes_pluses_and_umlauts_are_decoded() {
        let form = Form::decode(b"Tag.1.Value=a%20b%2Bc+d&Tag.1.Key=%C3%A4").expect("a good form");
        assert_eq!(form.get("Tag.1.Value"), Some("a b+c d"));
        assert_eq!(form.get("Tag.1.Key"), Some("ä"));
    }

    #[test]
    fn lists_are_ordered_by_number_not_by_text() {
        let body: Vec<String> = (1..=12).rev().map(|number| format!("InstanceId.{number}=i-{number}")).collect();
        let body = body.join("&");
        let form = Form::decode(body.as_bytes()).expect("a good form");
        assert_eq!(form.list("InstanceId")[..3], ["i-1", "i-2", "i-3"]);
        assert_eq!(form.list("InstanceId").len(), 12);
        assert!(form.list("Instance").is_empty());
    }

    #[test]
    fn a_list_is_found_between_names_that_look_alike_and_the_last_of_two_counts() {
        let form =
            Form::decode(b"Ta=1&Tag.2.Key=b&Tag-x=3&Tag.1.Key=a&Tag=4&Tags.1=5&Tag.2.Key=c&T=6").expect("a good form");
        assert_eq!(form.members("Tag"), ["Tag.1", "Tag.2"]);
        assert_eq!(form.get("Tag.2.Key"), Some("c"));
        assert_eq!(form.below("Tag").collect::<Vec<_>>(), [("1.Key", "a"), ("2.Key", "c")]);
        assert_eq!(form.below("Tags").collect::<Vec<_>>(), [("1", "5")]);
        assert_eq!(form.below("Zag").count() + form.below("A").count(), 0);
        assert_eq!(form.iter().count(), 7);
    }

    #[test]
    fn what_is_no_form_is_refused() {
        for body in [&b"a=%4"[..], b"a=%zz", b"a=%ff", b"a=\xff", b"a=%00", b"%"] {
            assert_eq!(Form::decode(body).expect_err("refused").code, "MalformedQueryString");
        }
    }

    #[test]
    fn filters_need_a_name_that_is_known_and_not_too_many_values() {
        let read = |body: &str| Form::decode(body.as_bytes()).and_then(|form| form.filters::<InstanceField>());
        assert!(read("Filter.1.Name=tag:a&Filter.1.Value.1=b").is_ok());
        assert_eq!(read("Filter.1.Name=banana").expect_err("refused").message, "The filter 'banana' is invalid");
        assert_eq!(read("Filter.1.Value.1=b").expect_err("refused").code, "MissingParameter");
        let many: String = (1..=201).map(|number| format!("&Filter.1.Value.{number}=x")).collect();
        assert_eq!(read(&format!("Filter.1.Name=vpc-id{many}")).expect_err("refused").code, "FilterLimitExceeded");
    }
}
