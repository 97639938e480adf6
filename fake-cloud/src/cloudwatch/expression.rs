//! Metric math as text: `m1 / m2 * 100`, `SUM(METRICS())`, `FILL(m1, 0)`. A small part of what CloudWatch reads; the
//! rest is refused by name.

use std::iter::Peekable;
use std::str::Chars;

/// More characters than this are no expression.
const LONGEST: usize = 2048;
/// Nobody nests deeper.
const DEEPEST: usize = 64;

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    /// A number.
    Number(f64),
    /// The result of the query with this id.
    Id(String),
    /// A sum, a difference…
    Pair(Operator, Box<Expression>, Box<Expression>),
    /// The opposite.
    Minus(Box<Expression>),
    /// All metrics of the request whose id or label contains this.
    Metrics(String),
    /// What many come to.
    Aggregate(Aggregate, Box<Expression>),
    /// Each value on its own.
    Map(Map, Box<Expression>),
    /// A series without gaps.
    Fill(Box<Expression>, Filling),
}

/// What stands between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
}

/// What many come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aggregate {
    Sum,
    Average,
    Minimum,
    Maximum,
}

/// What becomes of each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Map {
    Absolute,
    Ceiling,
    Floor,
}

/// What stands where there is nothing.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filling {
    /// The value before.
    Repeat,
    /// The line between its neighbours.
    Linear,
    /// This one.
    With(Box<Expression>),
}

impl Expression {
    /// Reads an expression.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} characters"));
        }
        let mut reader = Reader { tokens: tokens(text)?.into_iter().peekable(), depth: 0 };
        let expression = reader.sum()?;
        match reader.tokens.next() {
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
    Sign(char),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(&sign) = rest.peek() {
        match sign {
            sign if sign.is_whitespace() => drop(rest.next()),
            '+' | '-' | '*' | '/' | '^' | '(' | ')' | ',' => {
                rest.next();
                tokens.push(Token::Sign(sign));
            }
            '"' | '\'' => {
                rest.next();
                let inside: String = take_while(&mut rest, |inside| inside != sign);
                rest.next().ok_or("a quotation mark is not closed")?;
                tokens.push(Token::Text(inside));
            }
            sign if sign.is_ascii_digit() || sign == '.' => {
                let digits = take_while(&mut rest, |digit| digit.is_ascii_digit() || digit == '.');
                tokens.push(Token::Number(digits.parse().map_err(|_| format!("{digits:?} is no number"))?));
            }
            sign if sign.is_ascii_alphabetic() || sign == '_' => {
                let is_part = |part: char| part.is_ascii_alphanumeric() || part == '_';
                tokens.push(Token::Name(take_while(&mut rest, is_part)));
            }
            other => return Err(format!("{other:?} is not understood here; + - * / ^ and functions are")),
        }
    }
    Ok(tokens)
}

fn take_while(rest: &mut Peekable<Chars<'_>>, is_part: impl Fn(char) -> bool) -> String {
    std::iter::from_fn(|| rest.next_if(|sign| is_part(*sign))).collect()
}

struct Reader {
    tokens: Peekable<std::vec::IntoIter<Token>>,
    depth: usize,
}

impl Reader {
    fn sum(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("it is nested more than {DEEPEST} deep"));
        }
        let mut left = self.product()?;
        loop {
            let operator = match self.tokens.peek() {
                Some(Token::Sign('+')) => Operator::Add,
                Some(Token::Sign('-')) => Operator::Subtract,
                _ => break,
            };
            self.tokens.next();
            left = Expression::Pair(operator, Box::new(left), Box::new(self.product()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn product(&mut self) -> Result<Expression, String> {
        let mut left = self.opposite()?;
        loop {
            let operator = match self.tokens.peek() {
                Some(Token::Sign('*')) => Operator::Multiply,
                Some(Token::Sign('/')) => Operator::Divide,
                _ => return Ok(left),
            };
            self.tokens.next();
            left = Expression::Pair(operator, Box::new(left), Box::new(self.opposite()?));
        }
    }

    fn opposite(&mut self) -> Result<Expression, String> {
        let mut minuses = 0;
        while self.tokens.next_if_eq(&Token::Sign('-')).is_some() {
            minuses += 1;
        }
        let power = self.power()?;
        Ok(if minuses % 2 == 1 { Expression::Minus(Box::new(power)) } else { power })
    }

    fn power(&mut self) -> Result<Expression, String> {
        let base = self.atom()?;
        if self.tokens.next_if_eq(&Token::Sign('^')).is_none() {
            return Ok(base);
        }
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("it is nested more than {DEEPEST} deep"));
        }
        let exponent = self.opposite()?;
        self.depth -= 1;
        Ok(Expression::Pair(Operator::Power, Box::new(base), Box::new(exponent)))
    }

    fn atom(&mut self) -> Result<Expression, String> {
        match self.tokens.next() {
            Some(Token::Number(number)) => Ok(Expression::Number(number)),
            Some(Token::Sign('(')) => {
                let inside = self.sum()?;
                self.expect(')')?;
                Ok(inside)
            }
            Some(Token::Name(name)) if self.tokens.next_if_eq(&Token::Sign('(')).is_some() => {
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
            other => Err(format!(
                "the function {other} is not evaluated here; METRICS, SUM, AVG, MIN, MAX, ABS, CEIL, FLOOR and FILL are"
            )),
        }
    }

    fn expect(&mut self, sign: char) -> Result<(), String> {
        match self.tokens.next() {
            Some(Token::Sign(found)) if found == sign => Ok(()),
            Some(token) => Err(format!("{sign:?} is expected, not {token:?}")),
            None => Err(format!("{sign:?} is missing at its end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_bind_tighter_than_sums_and_powers_tighter_than_both() {
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
    fn what_is_no_expression_is_refused_and_named() {
        for (text, hint) in [
            ("", "ends too early"),
            ("m1 +", "ends too early"),
            ("(m1", "')' is missing"),
            ("m1 m2", "after its end"),
            ("1.2.3", "is no number"),
            ("m1 > 5", "'>' is not understood"),
            ("SEARCH('x', 'Average')", "SEARCH is not evaluated here"),
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
