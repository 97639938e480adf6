//! Parses metric math expressions such as `m1 / m2 * 100`, `SUM(METRICS())` and `FILL(m1, 0)`. Functions of CloudWatch
//! that are not implemented are rejected by name.

use std::iter::Peekable;
use std::str::Chars;

use super::search::{Insight, Search};

/// Period of queries that name none, in seconds.
pub(super) const DEFAULT_PERIOD: i64 = 300;
/// Maximum length of an expression, in characters.
const MAX_LENGTH: usize = 2048;
/// Maximum nesting depth.
const MAX_DEPTH: usize = 64;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    /// A numeric literal.
    Number(f64),
    /// The result of the query with this id.
    Id(String),
    /// A binary operation.
    Binary(Operator, Box<Expression>, Box<Expression>),
    /// A unary minus.
    Negate(Box<Expression>),
    /// All metrics of the request whose id or label contains this.
    Metrics(String),
    /// SUM, AVG, MIN or MAX.
    Aggregate(Aggregate, Box<Expression>),
    /// A function of each value: ABS, CEIL or FLOOR.
    Map(Map, Box<Expression>),
    /// FILL: a series without gaps.
    Fill(Box<Expression>, Filling),
    /// SEARCH: all metrics that match.
    Search(Search),
    /// A query of Metrics Insights, with the seconds of its period.
    Insight(Insight, i64),
}

/// A binary operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
}

/// An aggregate function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aggregate {
    Sum,
    Average,
    Minimum,
    Maximum,
}

/// A function of a single value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Map {
    Absolute,
    Ceiling,
    Floor,
}

/// Replacement of missing data points.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filling {
    /// The previous value.
    Repeat,
    /// Linear interpolation between the neighbors.
    Linear,
    /// The value of this expression.
    With(Box<Expression>),
}

impl Expression {
    /// Parses an expression without a period of its own.
    #[cfg(test)]
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with_period(text, DEFAULT_PERIOD)
    }

    /// Parses an expression. The error is a clause that explains the problem.
    pub(super) fn parse_with_period(text: &str, period: i64) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("it is longer than {MAX_LENGTH} characters"));
        }
        if text.trim_start().get(..7).is_some_and(|word| word.eq_ignore_ascii_case("SELECT ")) {
            return Insight::parse(text).map(|insight| Self::Insight(insight, period));
        }
        let mut parser = Parser { tokens: tokens(text)?.into_iter().peekable(), depth: 0, period };
        let expression = parser.sum()?;
        match parser.tokens.next() {
            None => Ok(expression),
            Some(token) => Err(format!("{token:?} is not expected after its end")),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Text(String),
    Symbol(char),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(&symbol) = rest.peek() {
        match symbol {
            symbol if symbol.is_whitespace() => drop(rest.next()),
            '+' | '-' | '*' | '/' | '^' | '(' | ')' | ',' => {
                rest.next();
                tokens.push(Token::Symbol(symbol));
            }
            '"' | '\'' => {
                rest.next();
                let inside: String = take_while(&mut rest, |inside| inside != symbol);
                rest.next().ok_or("a quotation mark is not closed")?;
                tokens.push(Token::Text(inside));
            }
            symbol if symbol.is_ascii_digit() || symbol == '.' => {
                let digits = take_while(&mut rest, |digit| digit.is_ascii_digit() || digit == '.');
                tokens.push(Token::Number(digits.parse().map_err(|_| format!("{digits:?} is no number"))?));
            }
            symbol if symbol.is_ascii_alphabetic() || symbol == '_' => {
                let is_part = |part: char| part.is_ascii_alphanumeric() || part == '_';
                tokens.push(Token::Name(take_while(&mut rest, is_part)));
            }
            other => return Err(format!("{other:?} is not understood here; + - * / ^ and functions are")),
        }
    }
    Ok(tokens)
}

fn take_while(rest: &mut Peekable<Chars<'_>>, is_part: impl Fn(char) -> bool) -> String {
    std::iter::from_fn(|| rest.next_if(|symbol| is_part(*symbol))).collect()
}

struct Parser {
    tokens: Peekable<std::vec::IntoIter<Token>>,
    depth: usize,
    /// Seconds of the period of a SEARCH that names none.
    period: i64,
}

impl Parser {
    fn sum(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        let mut left = self.product()?;
        loop {
            let operator = match self.tokens.peek() {
                Some(Token::Symbol('+')) => Operator::Add,
                Some(Token::Symbol('-')) => Operator::Subtract,
                _ => break,
            };
            self.tokens.next();
            left = Expression::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn product(&mut self) -> Result<Expression, String> {
        let mut left = self.negation()?;
        loop {
            let operator = match self.tokens.peek() {
                Some(Token::Symbol('*')) => Operator::Multiply,
                Some(Token::Symbol('/')) => Operator::Divide,
                _ => return Ok(left),
            };
            self.tokens.next();
            left = Expression::Binary(operator, Box::new(left), Box::new(self.negation()?));
        }
    }

    fn negation(&mut self) -> Result<Expression, String> {
        let mut minuses = 0;
        while self.tokens.next_if_eq(&Token::Symbol('-')).is_some() {
            minuses += 1;
        }
        let power = self.power()?;
        Ok(if minuses % 2 == 1 { Expression::Negate(Box::new(power)) } else { power })
    }

    fn power(&mut self) -> Result<Expression, String> {
        let base = self.atom()?;
        if self.tokens.next_if_eq(&Token::Symbol('^')).is_none() {
            return Ok(base);
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        let exponent = self.negation()?;
        self.depth -= 1;
        Ok(Expression::Binary(Operator::Power, Box::new(base), Box::new(exponent)))
    }

    fn atom(&mut self) -> Result<Expression, String> {
        match self.tokens.next() {
            Some(Token::Number(number)) => Ok(Expression::Number(number)),
            Some(Token::Symbol('(')) => {
                let inside = self.sum()?;
                self.expect(')')?;
                Ok(inside)
            }
            Some(Token::Name(name)) if self.tokens.next_if_eq(&Token::Symbol('(')).is_some() => {
                let call = self.call(&name)?;
                self.expect(')')?;
                Ok(call)
            }
            Some(Token::Name(name)) if name.starts_with(|first: char| first.is_ascii_lowercase()) => {
                Ok(Expression::Id(name))
            }
            Some(token) => Err(format!("{token:?} is not expected here")),
            None => Err("it ends too early".to_owned()),
        }
    }

    fn call(&mut self, name: &str) -> Result<Expression, String> {
        let aggregate = |aggregate| move |inside| Expression::Aggregate(aggregate, Box::new(inside));
        let map = |map| move |inside| Expression::Map(map, Box::new(inside));
        match name {
            "METRICS" => match self.tokens.next_if(|token| matches!(token, Token::Text(_))) {
                Some(Token::Text(part)) => Ok(Expression::Metrics(part)),
                _ => Ok(Expression::Metrics(String::new())),
            },
            "SUM" => self.sum().map(aggregate(Aggregate::Sum)),
            "AVG" => self.sum().map(aggregate(Aggregate::Average)),
            "MIN" => self.sum().map(aggregate(Aggregate::Minimum)),
            "MAX" => self.sum().map(aggregate(Aggregate::Maximum)),
            "ABS" => self.sum().map(map(Map::Absolute)),
            "CEIL" => self.sum().map(map(Map::Ceiling)),
            "FLOOR" => self.sum().map(map(Map::Floor)),
            "FILL" => {
                let series = self.sum()?;
                self.expect(',')?;
                let is = |word: &str| Token::Name(word.to_owned());
                let filling = if self.tokens.next_if_eq(&is("REPEAT")).is_some() {
                    Filling::Repeat
                } else if self.tokens.next_if_eq(&is("LINEAR")).is_some() {
                    Filling::Linear
                } else {
                    Filling::With(Box::new(self.sum()?))
                };
                Ok(Expression::Fill(Box::new(series), filling))
            }
            "SEARCH" => {
                let query = self.text()?;
                self.expect(',')?;
                let statistic = self.text()?;
                let period = if self.tokens.next_if_eq(&Token::Symbol(',')).is_some() {
                    match self.tokens.next() {
                        Some(Token::Number(seconds)) if seconds >= 1.0 && seconds.fract() == 0.0 => seconds as i64,
                        other => return Err(format!("{other:?} is no period of SEARCH")),
                    }
                } else {
                    self.period
                };
                Search::parse(&query, &statistic, period).map(Expression::Search)
            }
            other => Err(format!(
                "the function {other} is not evaluated here; METRICS, SUM, AVG, MIN, MAX, ABS, CEIL, FLOOR, FILL and \
                 SEARCH are"
            )),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        match self.tokens.next() {
            Some(Token::Text(text)) => Ok(text),
            Some(token) => Err(format!("a text is expected, not {token:?}")),
            None => Err("it ends too early".to_owned()),
        }
    }

    fn expect(&mut self, symbol: char) -> Result<(), String> {
        match self.tokens.next() {
            Some(Token::Symbol(found)) if found == symbol => Ok(()),
            Some(token) => Err(format!("{symbol:?} is expected, not {token:?}")),
            None => Err(format!("{symbol:?} is missing at its end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_the_usual_precedence() {
        let text = |expression: &Expression| format!("{expression:?}");
        let parse = |text: &str| Expression::parse(text).expect(text);
        assert_eq!(text(&parse("a+b*c")), text(&parse("a + (b * c)")));
        assert_eq!(text(&parse("a-b-c")), text(&parse("(a - b) - c")));
        assert_eq!(text(&parse("a/b*100")), text(&parse("(a / b) * 100")));
        assert_eq!(text(&parse("-a^2")), text(&parse("-(a^2)")));
        assert_eq!(text(&parse("a^b^c")), text(&parse("a^(b^c)")));
        assert_eq!(parse("METRICS(\"cpu\")"), Expression::Metrics("cpu".to_owned()));
    }

    #[test]
    fn syntax_errors_name_the_cause() {
        for (text, hint) in [
            ("", "ends too early"),
            ("m1 +", "ends too early"),
            ("(m1", "')' is missing"),
            ("m1 m2", "after its end"),
            ("1.2.3", "is no number"),
            ("m1 > 5", "'>' is not understood"),
            ("SEARCH('{x', 'Average')", "not closed"),
            ("RATE(m1)", "RATE is not evaluated here"),
            ("METRICS('a", "not closed"),
            ("M1", "is not expected"),
            ("FILL(m1)", "',' is expected"),
        ] {
            let error = Expression::parse(text).expect_err(text);
            assert!(error.contains(hint), "{text}: {error}");
        }
        assert!(Expression::parse(&"(".repeat(2000)).is_err());
        assert!(Expression::parse(&"2^".repeat(1000)).is_err());
        assert!(Expression::parse(&"-".repeat(2000)).is_err());
        assert!(Expression::parse(&"1+".repeat(4000)).is_err());
    }
}
