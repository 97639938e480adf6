//! A request, decoded as far as every endpoint needs it.

use axum::body::Bytes;
use axum::extract::Query;
use axum::http::header::IF_MATCH;
use axum::http::request::Parts;

use crate::control_plane::input::Input;
use crate::control_plane::problem::Problem;

/// A request to an endpoint.
pub struct Call {
    subject: Option<String>,
    query: Vec<(String, String)>,
    if_match: Option<u64>,
    body: Bytes,
}

impl Call {
    /// Decodes path, query and headers; the body is read when somebody asks for it.
    ///
    /// # Errors
    /// [`Problem::Invalid`] for a query or an `If-Match` that cannot be read.
    pub fn new(subject: Option<String>, parts: &Parts, body: Bytes) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|error| Problem::invalid("(query)", &error.to_string().into(), "name=value pairs in UTF-8"))?;
        let if_match = match parts.headers.get(IF_MATCH) {
            None => None,
            Some(value) => {
                let text = value.to_str().unwrap_or_default().trim();
                let version = text.strip_prefix("W/").unwrap_or(text).trim_matches('"').parse().ok();
                if version.is_none() && text != "*" {
                    return Err(Problem::invalid("If-Match", &text.into(), "a version in quotes such as \"3\", or *"));
                }
                version
            }
        };
        Ok(Self { subject, query: query.0, if_match, body })
    }

    /// Whom the path names.
    pub fn subject(&self) -> &str {
        self.subject.as_deref().unwrap_or_default()
    }

    /// The body.
    ///
    /// # Errors
    /// [`Problem::Invalid`] unless it is a JSON object or empty.
    pub fn input(&self) -> Result<Input, Problem> {
        Input::parse(&self.body)
    }

    /// The first value of a query parameter; an empty one counts as absent.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// All values of a query parameter: repeated, separated by commas, or both.
    pub fn query_list(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.query.iter().filter(move |(key, _)| key == name).flat_map(|(_, value)| value.split(','));
        values.map(str::trim).filter(|value| !value.is_empty())
    }

    /// A query parameter that is yes or no.
    ///
    /// # Errors
    /// [`Problem::Invalid`] for any other word.
    pub fn query_switch(&self, name: &str) -> Result<bool, Problem> {
        match self.query(name).map(str::to_ascii_lowercase).as_deref() {
            None | Some("false" | "0" | "no") => Ok(false),
            Some("true" | "1" | "yes") => Ok(true),
            Some(other) => Err(Problem::invalid(name, &other.into(), "true, false")),
        }
    }

    /// The version the caller has read: `If-Match`, or `expected_version` in the body. `None` is unconditional.
    ///
    /// # Errors
    /// [`Problem::Invalid`] if the two disagree.
    pub fn expected_version(&self, input: &Input) -> Result<Option<u64>, Problem> {
        let in_body = input.whole("expected_version")?;
        match (self.if_match, in_body) {
            (Some(header), Some(body)) if header != body => {
                Err(Problem::invalid("expected_version", &body.into(), &format!("{header}, as `If-Match` says")))
            }
            (header, body) => Ok(header.or(body)),
        }
    }

    /// A text that may be in the query or in the body.
    ///
    /// # Errors
    /// [`Problem::Invalid`] if the body's is not text.
    pub fn text<'a>(&'a self, input: &'a Input, name: &str) -> Result<Option<&'a str>, Problem> {
        let in_body = input.text(name)?;
        Ok(self.query(name).or(in_body))
    }
}
