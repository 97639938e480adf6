//! SEARCH expressions and queries of Metrics Insights: they select metrics by what they are, instead of naming them.

use crate::world::metrics::MetricKey;

/// `SEARCH('{Namespace,Dimension} terms', 'Statistic', period)`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Search {
    /// Namespace and the exact set of dimension names.
    schema: Option<(String, Vec<String>)>,
    condition: Condition,
    pub(super) statistic: String,
    /// Seconds of a period.
    pub(super) period: i64,
}

/// A condition on a metric.
#[derive(Debug, Clone, PartialEq)]
enum Condition {
    /// All of them hold; so does none.
    All(Vec<Condition>),
    /// One of them holds.
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Term(Term),
}

/// A search term.
#[derive(Debug, Clone, PartialEq)]
struct Term {
    /// `MetricName`, `Namespace` or a dimension; `None` for any name or value.
    property: Option<String>,
    value: String,
    /// Whether the whole text must be equal, because the term was in quotation marks.
    is_exact: bool,
}

/// Maximum depth of parentheses and negations.
const MAX_DEPTH: usize = 30;

impl Search {
    /// Parses the arguments of SEARCH.
    pub(super) fn parse(query: &str, statistic: &str, period: i64) -> Result<Self, String> {
        let mut rest = query.trim();
        let mut schema = None;
        if let Some(inside) = rest.strip_prefix('{') {
            let (names, terms) = inside.split_once('}').ok_or("the schema of SEARCH is not closed with '}'")?;
            let mut names = names.split(',').map(|name| name.trim().trim_matches('"').to_owned());
            let namespace =
                names.next().filter(|name| !name.is_empty()).ok_or("the schema of SEARCH has no namespace")?;
            let mut dimensions: Vec<String> = names.collect();
            dimensions.sort();
            schema = Some((namespace, dimensions));
            rest = terms;
        }
        let words = words(rest)?;
        let mut terms = Terms { words: &words, depth: 0 };
        let condition = if words.is_empty() { Condition::All(Vec::new()) } else { terms.any()? };
        if let Some(word) = terms.words.first() {
            return Err(format!("{word:?} is not expected in SEARCH"));
        }
        if schema.is_none() && words.is_empty() {
            return Err("SEARCH has neither a schema nor a term".to_owned());
        }
        Ok(Self { schema, condition, statistic: statistic.to_owned(), period })
    }

    /// Returns whether a metric is selected.
    pub(super) fn matches(&self, key: &MetricKey) -> bool {
        let has_schema = self.schema.as_ref().is_none_or(|(namespace, dimensions)| {
            *namespace == key.namespace && dimensions.iter().eq(key.dimensions.iter().map(|(name, _)| name))
        });
        has_schema && self.condition.holds(key)
    }
}

/// Words that are not parsed yet. AND, written or between two terms, binds tighter than OR.
struct Terms<'a> {
    words: &'a [String],
    depth: usize,
}

impl Terms<'_> {
    fn next_is(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if first == word => {
                self.words = rest;
                true
            }
            Some(_) | None => false,
        }
    }

    fn any(&mut self) -> Result<Condition, String> {
        let mut conditions = vec![self.all()?];
        while self.next_is("OR") {
            conditions.push(self.all()?);
        }
        Ok(Condition::Any(conditions))
    }

    fn all(&mut self) -> Result<Condition, String> {
        let mut conditions = vec![self.one()?];
        loop {
            let is_written = self.next_is("AND");
            let ends = self.words.first().is_none_or(|word| word == "OR" || word == ")");
            if ends && !is_written {
                return Ok(Condition::All(conditions));
            }
            conditions.push(self.one()?);
        }
    }

    fn one(&mut self) -> Result<Condition, String> {
        if self.depth == MAX_DEPTH {
            return Err("SEARCH is nested too deep".to_owned());
        }
        self.depth += 1;
        let condition = if self.next_is("NOT") {
            Condition::Not(Box::new(self.one()?))
        } else if self.next_is("(") {
            let inside = self.any()?;
            if !self.next_is(")") {
                return Err("a parenthesis in SEARCH is not closed".to_owned());
            }
            inside
        } else {
            self.term()?
        };
        self.depth -= 1;
        Ok(condition)
    }

    /// Reads a term, such as `cpu`, `"i-1"`, `InstanceId=i-1` or `InstanceId=(i-1 OR i-2)`.
    fn term(&mut self) -> Result<Condition, String> {
        let (word, rest) = self.words.split_first().ok_or("SEARCH ends where a term is expected")?;
        if matches!(word.as_str(), "AND" | "OR" | ")") {
            return Err(format!("{word} in SEARCH follows no term"));
        }
        self.words = rest;
        let (property, value) = match word.split_once('=').filter(|_| !word.starts_with('"')) {
            Some((property, value)) => (Some(property.trim_matches('"').to_owned()), value),
            None => match word.strip_prefix('"').and_then(|word| word.split_once("\"=")) {
                Some((property, value)) => (Some(property.to_owned()), value),
                None => (None, word.as_str()),
            },
        };
        if value.is_empty() && property.is_some() && self.next_is("(") {
            let mut inside = self.any()?;
            if !self.next_is(")") {
                return Err("a parenthesis in SEARCH is not closed".to_owned());
            }
            inside.limit_to(property.as_deref().unwrap_or_default());
            return Ok(inside);
        }
        let is_exact = value.starts_with('"');
        Ok(Condition::Term(Term { property, value: value.trim_matches('"').to_owned(), is_exact }))
    }
}

impl Condition {
    fn holds(&self, key: &MetricKey) -> bool {
        match self {
            Self::All(conditions) => conditions.iter().all(|condition| condition.holds(key)),
            Self::Any(conditions) => conditions.iter().any(|condition| condition.holds(key)),
            Self::Not(condition) => !condition.holds(key),
            Self::Term(term) => term.matches(key),
        }
    }

    /// Limits all terms that name no property to this one.
    fn limit_to(&mut self, name: &str) {
        match self {
            Self::All(conditions) | Self::Any(conditions) => {
                conditions.iter_mut().for_each(|condition| condition.limit_to(name));
            }
            Self::Not(condition) => condition.limit_to(name),
            Self::Term(term) => {
                term.property.get_or_insert_with(|| name.to_owned());
            }
        }
    }
}

impl Term {
    fn matches(&self, key: &MetricKey) -> bool {
        let test = |text: &str| {
            if self.is_exact { text == self.value } else { text.to_lowercase().contains(&self.value.to_lowercase()) }
        };
        match self.property.as_deref() {
            Some("MetricName") => test(&key.name),
            Some("Namespace") => test(&key.namespace),
            Some(name) => key.dimensions.iter().any(|(known, value)| known == name && test(value)),
            None => {
                test(&key.name)
                    || test(&key.namespace)
                    || key.dimensions.iter().any(|(name, value)| test(name) || test(value))
            }
        }
    }
}

/// Splits at spaces and parentheses outside of quotation marks. Parentheses are words of their own.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for character in text.chars() {
        if character == '"' {
            is_quoted = !is_quoted;
        }
        match words.last_mut() {
            _ if !is_quoted && matches!(character, '(' | ')') => {
                words.extend([character.to_string(), String::new()]);
            }
            Some(word) if !character.is_whitespace() || is_quoted => word.push(character),
            Some(_) | None => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    if is_quoted { Err("a quotation mark in SEARCH is not closed".to_owned()) } else { Ok(words) }
}

/// `SELECT AVG(CPUUtilization) FROM SCHEMA("AWS/EC2", InstanceId) WHERE … GROUP BY … ORDER BY … LIMIT …`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Insight {
    pub(super) statistic: &'static str,
    name: String,
    namespace: String,
    /// Exact set of dimension names, if the query has a schema.
    dimensions: Option<Vec<String>>,
    /// Dimension, value, and whether they must be equal.
    conditions: Vec<(String, String, bool)>,
    pub(super) groups: Vec<String>,
    /// Statistic of the order, and whether the largest comes first.
    pub(super) order: Option<(&'static str, bool)>,
    pub(super) limit: Option<usize>,
}

impl Insight {
    /// Parses a query, whose text begins with SELECT.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Words { words: tokens(text)?, at: 0 };
        parser.keyword("SELECT")?;
        let (statistic, name) = parser.call()?;
        let name = name.ok_or("the function after SELECT has no metric")?;
        parser.keyword("FROM")?;
        let (namespace, dimensions) = if parser.next_is("SCHEMA") {
            parser.symbol("(")?;
            let namespace = parser.name()?;
            let mut dimensions = Vec::new();
            while parser.next_is(",") {
                dimensions.push(parser.name()?);
            }
            parser.symbol(")")?;
            dimensions.sort();
            (namespace, Some(dimensions))
        } else {
            (parser.name()?, None)
        };
        let mut insight = Self {
            statistic,
            name,
            namespace,
            dimensions,
            conditions: Vec::new(),
            groups: Vec::new(),
            order: None,
            limit: None,
        };
        if parser.next_is("WHERE") {
            loop {
                let dimension = parser.name()?;
                let is_equal = if parser.next_is("=") {
                    true
                } else {
                    parser.symbol("!=")?;
                    false
                };
                insight.conditions.push((dimension, parser.name()?, is_equal));
                if !parser.next_is("AND") {
                    break;
                }
            }
        }
        if parser.next_is("GROUP") {
            parser.keyword("BY")?;
            insight.groups.push(parser.name()?);
            while parser.next_is(",") {
                insight.groups.push(parser.name()?);
            }
        }
        if parser.next_is("ORDER") {
            parser.keyword("BY")?;
            let (statistic, _) = parser.call()?;
            let is_descending = parser.next_is("DESC");
            if !is_descending {
                parser.next_is("ASC");
            }
            insight.order = Some((statistic, is_descending));
        }
        if parser.next_is("LIMIT") {
            let number = parser.name()?;
            insight.limit = Some(number.parse().map_err(|_| format!("{number:?} is no limit"))?);
        }
        match parser.words.get(parser.at) {
            None => Ok(insight),
            Some(word) => Err(format!("{word:?} is not expected in the query")),
        }
    }

    /// Returns whether a metric is selected.
    pub(super) fn matches(&self, key: &MetricKey) -> bool {
        let value = |name: &str| key.dimensions.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        key.name == self.name
            && key.namespace == self.namespace
            && self.dimensions.as_ref().is_none_or(|names| names.iter().eq(key.dimensions.iter().map(|(name, _)| name)))
            && self
                .conditions
                .iter()
                .all(|(name, wanted, is_equal)| value(name).is_some_and(|value| (value == wanted) == *is_equal))
            && self.groups.iter().all(|name| value(name).is_some())
    }

    /// Returns the values of the dimensions by which the metric is grouped.
    pub(super) fn group(&self, key: &MetricKey) -> String {
        let value = |name: &String| key.dimensions.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        self.groups.iter().filter_map(value).cloned().collect::<Vec<_>>().join(" ")
    }
}

struct Words {
    words: Vec<String>,
    at: usize,
}

impl Words {
    fn next_is(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at).is_some_and(|next| next.eq_ignore_ascii_case(word));
        self.at += usize::from(found);
        found
    }

    fn keyword(&mut self, word: &str) -> Result<(), String> {
        if self.next_is(word) { Ok(()) } else { Err(format!("{word} is expected in the query")) }
    }

    fn symbol(&mut self, symbol: &str) -> Result<(), String> {
        self.keyword(symbol)
    }

    /// Reads a name or a quoted text.
    fn name(&mut self) -> Result<String, String> {
        let word = self.words.get(self.at).ok_or("the query ends too early")?;
        self.at += 1;
        Ok(word.trim_matches(['"', '\'']).to_owned())
    }

    /// Reads a function such as `AVG(CPUUtilization)` or `MAX()`.
    fn call(&mut self) -> Result<(&'static str, Option<String>), String> {
        let statistic = match self.name()?.to_ascii_uppercase().as_str() {
            "AVG" => "Average",
            "SUM" => "Sum",
            "MIN" => "Minimum",
            "MAX" => "Maximum",
            "COUNT" => "SampleCount",
            other => return Err(format!("{other} is no function: expected AVG, SUM, MIN, MAX or COUNT")),
        };
        self.symbol("(")?;
        if self.next_is(")") {
            return Ok((statistic, None));
        }
        let name = self.name()?;
        self.symbol(")")?;
        Ok((statistic, Some(name)))
    }
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(symbol) = rest.next() {
        match symbol {
            symbol if symbol.is_whitespace() => {}
            '(' | ')' | ',' | '=' => tokens.push(symbol.to_string()),
            '!' if rest.next_if_eq(&'=').is_some() => tokens.push("!=".to_owned()),
            '"' | '\'' => {
                let inside: String = std::iter::from_fn(|| rest.next_if(|inside| *inside != symbol)).collect();
                rest.next().ok_or("a quotation mark is not closed")?;
                tokens.push(format!("{symbol}{inside}{symbol}"));
            }
            symbol => {
                let is_part = |part: &char| !part.is_whitespace() && !"(),=!\"'".contains(*part);
                let more: String = std::iter::from_fn(|| rest.next_if(is_part)).collect();
                tokens.push(format!("{symbol}{more}"));
            }
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str, dimensions: &[(&str, &str)]) -> MetricKey {
        MetricKey::new(namespace, name, dimensions.iter().copied())
    }

    #[test]
    fn search_selects_by_schema_and_terms() {
        let cpu = key("AWS/EC2", "CPUUtilization", &[("InstanceId", "i-1")]);
        for (query, expected) in [
            ("{AWS/EC2,InstanceId}", true),
            ("{AWS/EC2}", false),
            ("{AWS/EC2,InstanceId} cpu", true),
            ("{AWS/EC2,InstanceId} MetricName=\"CPUUtilization\"", true),
            ("{AWS/EC2,InstanceId} MetricName=\"CPU\"", false),
            ("{AWS/EC2,InstanceId} NOT InstanceId=i-1", false),
            ("network", false),
            ("CPUUtilization AND i-1", true),
            ("network OR i-1", true),
            ("network OR disk", false),
            ("{AWS/EC2,InstanceId} MetricName=(network OR \"CPUUtilization\")", true),
            ("{AWS/EC2,InstanceId} InstanceId=(i-2 OR i-3)", false),
            ("(network OR cpu) AND (i-1 OR i-2)", true),
            ("(network OR cpu) i-2", false),
            ("network OR cpu i-2", false),
            ("network i-1 OR cpu i-1", true),
            ("NOT (network OR disk)", true),
            ("NOT (cpu OR disk)", false),
            ("NOT NOT cpu", true),
            ("\"InstanceId\"=\"i-1\"", true),
        ] {
            assert_eq!(Search::parse(query, "Average", 60).expect(query).matches(&cpu), expected, "{query}");
        }
        assert!(Search::parse("{AWS/EC2", "Average", 60).is_err());
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        for bad in ["a OR", "OR a", "a AND", "(a", "a)", "()", "NOT", "", "\"a", "a OR OR b", &deep] {
            assert!(Search::parse(bad, "Average", 60).is_err(), "{bad}");
        }
    }

    #[test]
    fn insight_selects_and_groups() {
        let text = "SELECT MAX(CPUUtilization) FROM SCHEMA(\"AWS/EC2\", InstanceId) WHERE InstanceId != 'i-2' GROUP BY \
                    InstanceId ORDER BY AVG() DESC LIMIT 3";
        let insight = Insight::parse(text).expect("a query");
        assert_eq!((insight.statistic, insight.order, insight.limit), ("Maximum", Some(("Average", true)), Some(3)));
        assert!(insight.matches(&key("AWS/EC2", "CPUUtilization", &[("InstanceId", "i-1")])));
        assert!(!insight.matches(&key("AWS/EC2", "CPUUtilization", &[("InstanceId", "i-2")])));
        assert!(!insight.matches(&key("AWS/EC2", "CPUUtilization", &[("InstanceId", "i-1"), ("a", "b")])));
        assert_eq!(insight.group(&key("AWS/EC2", "CPUUtilization", &[("InstanceId", "i-1")])), "i-1");
        for bad in ["SELECT", "SELECT MEDIAN(a) FROM b", "SELECT AVG(a) FROM b HAVING c", "SELECT AVG() FROM b"] {
            assert!(Insight::parse(bad).is_err(), "{bad}");
        }
    }
}
