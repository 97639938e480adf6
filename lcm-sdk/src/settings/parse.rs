//! Forms: how the text of a variable becomes a value, what is accepted, and how the value is shown.

use std::fmt::Display;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::lifecycle::secret::Secret;
use crate::lifecycle::wire_enum::Vocabulary;

/// What a setting that holds nothing shows.
pub(super) const NOT_SET: &str = "(not set)";

/// What a secret shows.
pub(super) const REDACTED: &str = "[redacted]";

/// Longest rendering of a bad value in an error; the rest is cut.
const SHOWN: usize = 80;

/// How the text of a variable becomes a value, and back. `read` ends for every text and never panics.
pub(super) trait Form {
    type Value;

    fn read(&self, text: &str) -> Result<Self::Value, Refusal>;

    /// What is accepted, to go on after "accepted: ".
    fn accepted(&self) -> String;

    /// The value for people. Secrets show that they are there, nothing more.
    fn show(&self, value: &Self::Value) -> String;

    /// What an empty default means.
    fn empty(&self) -> &'static str {
        "(empty)"
    }

    /// A text that was refused, as an error may show it.
    fn show_refused(&self, text: &str) -> String {
        quoted(text)
    }
}

/// Why a text is no value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// What is accepted says it all.
    NotAccepted,
    /// There is more to say.
    Because(String),
}

/// `true` or `false`, in the words people use.
pub(super) struct Switch;

impl Form for Switch {
    type Value = bool;

    fn read(&self, text: &str) -> Result<bool, Refusal> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(Refusal::NotAccepted),
        }
    }

    fn accepted(&self) -> String {
        "true, false, 1, 0, yes, no, on, off".to_owned()
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// A number within bounds.
pub(super) struct Number {
    pub(super) from: f64,
    pub(super) to: f64,
}

impl Form for Number {
    type Value = f64;

    fn read(&self, text: &str) -> Result<f64, Refusal> {
        let number: f64 = text.trim().parse().map_err(|_| Refusal::NotAccepted)?;
        // NaN is in no range.
        if (self.from..=self.to).contains(&number) { Ok(number) } else { Err(Refusal::NotAccepted) }
    }

    fn accepted(&self) -> String {
        format!("a number from {} to {}", self.from, self.to)
    }

    fn show(&self, value: &f64) -> String {
        value.to_string()
    }
}

/// A time in seconds or minutes, fractions allowed, within bounds.
pub(super) struct Span {
    unit: &'static str,
    seconds: f64,
    number: Number,
}

impl Span {
    pub(super) const fn seconds(from: f64, to: f64) -> Self {
        Self { unit: "seconds", seconds: 1.0, number: Number { from, to } }
    }

    pub(super) const fn minutes(from: f64, to: f64) -> Self {
        Self { unit: "minutes", seconds: 60.0, number: Number { from, to } }
    }
}

impl Form for Span {
    type Value = Duration;

    fn read(&self, text: &str) -> Result<Duration, Refusal> {
        let seconds = self.number.read(text)? * self.seconds;
        Duration::try_from_secs_f64(seconds).map_err(|_| Refusal::NotAccepted)
    }

    fn accepted(&self) -> String {
        format!("{} from {} to {}", self.unit, self.number.from, self.number.to)
    }

    fn show(&self, value: &Duration) -> String {
        (value.as_secs_f64() / self.seconds).to_string()
    }
}

/// A whole number within bounds.
pub(super) struct Whole<T> {
    pub(super) from: T,
    pub(super) to: T,
}

impl<T: Copy + Display + PartialOrd + std::str::FromStr> Form for Whole<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, Refusal> {
        let number = text.trim().parse().map_err(|_| Refusal::NotAccepted)?;
        if (self.from..=self.to).contains(&number) { Ok(number) } else { Err(Refusal::NotAccepted) }
    }

    fn accepted(&self) -> String {
        format!("a whole number from {} to {}", self.from, self.to)
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// Whole seconds, as etcd counts the life of a lease.
pub(super) struct WholeSeconds(pub(super) Whole<u32>);

impl Form for WholeSeconds {
    type Value = Duration;

    fn read(&self, text: &str) -> Result<Duration, Refusal> {
        self.0.read(text).map(|seconds| Duration::from_secs(seconds.into()))
    }

    fn accepted(&self) -> String {
        format!("whole seconds from {} to {}", self.0.from, self.0.to)
    }

    fn show(&self, value: &Duration) -> String {
        value.as_secs().to_string()
    }
}

/// A word of a closed vocabulary.
pub(super) struct Words<T>(PhantomData<T>);

impl<T> Words<T> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Vocabulary + Display> Form for Words<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, Refusal> {
        text.parse().map_err(|_| Refusal::NotAccepted)
    }

    fn accepted(&self) -> String {
        T::WORDS.join(", ")
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// One line of text for which something holds.
pub(super) struct Text {
    pub(super) accepted: &'static str,
    pub(super) holds: fn(&str) -> bool,
    pub(super) empty: &'static str,
}

impl Text {
    const LONGEST: usize = 1024;
}

impl Form for Text {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, Refusal> {
        let text = text.trim();
        // Control characters would let a value write lines of its own into a log.
        if text.len() > Self::LONGEST || text.contains(char::is_control) || !(self.holds)(text) {
            return Err(Refusal::NotAccepted);
        }
        Ok(text.to_owned())
    }

    fn accepted(&self) -> String {
        self.accepted.to_owned()
    }

    fn show(&self, value: &String) -> String {
        if value.is_empty() { self.empty.to_owned() } else { value.clone() }
    }

    fn empty(&self) -> &'static str {
        self.empty
    }
}

/// A setting that may hold nothing: an empty text.
pub(super) struct Optional<F>(pub(super) F);

impl<F: Form> Form for Optional<F> {
    type Value = Option<F::Value>;

    fn read(&self, text: &str) -> Result<Self::Value, Refusal> {
        if text.trim().is_empty() { Ok(None) } else { self.0.read(text).map(Some) }
    }

    fn accepted(&self) -> String {
        format!("{}; or nothing", self.0.accepted())
    }

    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| NOT_SET.to_owned(), |value| self.0.show(value))
    }

    fn empty(&self) -> &'static str {
        NOT_SET
    }

    fn show_refused(&self, text: &str) -> String {
        self.0.show_refused(text)
    }
}

/// A password or token: taken as it is, never shown.
pub(super) struct Hidden;

impl Form for Hidden {
    type Value = Secret;

    fn read(&self, text: &str) -> Result<Secret, Refusal> {
        // A line break, such as one left by reading a file, would end up inside a header.
        if text.contains(char::is_control) { Err(Refusal::NotAccepted) } else { Ok(Secret::from(text)) }
    }

    fn accepted(&self) -> String {
        "one line of text".to_owned()
    }

    fn show(&self, _: &Secret) -> String {
        REDACTED.to_owned()
    }

    fn show_refused(&self, _: &str) -> String {
        REDACTED.to_owned()
    }
}

/// An IP address to listen on.
pub(super) struct Address;

impl Form for Address {
    type Value = IpAddr;

    fn read(&self, text: &str) -> Result<IpAddr, Refusal> {
        match text.trim() {
            name if name.eq_ignore_ascii_case("localhost") => Ok(Ipv4Addr::LOCALHOST.into()),
            address => address.parse().map_err(|_| Refusal::NotAccepted),
        }
    }

    fn accepted(&self) -> String {
        "an IP address (127.0.0.1, ::1, 0.0.0.0), localhost".to_owned()
    }

    fn show(&self, value: &IpAddr) -> String {
        value.to_string()
    }
}

/// A text in quotes, cut where it is long, without what stands before an `@`: addresses may carry a password there.
fn quoted(text: &str) -> String {
    let shown = match text.rsplit_once('@') {
        Some((before, after)) if !before.is_empty() => format!("{REDACTED}@{after}"),
        Some(_) | None => text.to_owned(),
    };
    format!("{:?}", cut(&shown, SHOWN))
}

/// The beginning of a text, as much of it as an error should hold.
pub(super) fn cut(text: &str, longest: usize) -> String {
    let mut letters = text.chars();
    let mut cut: String = letters.by_ref().take(longest).collect();
    if letters.next().is_some() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_understand_the_words_people_use_in_any_case() {
        for (text, expected) in
            [("TRUE", true), (" yes ", true), ("On", true), ("1", true), ("False", false), ("0", false)]
        {
            assert_eq!(Switch.read(text), Ok(expected), "{text}");
        }
        assert_eq!(Switch.read("maybe"), Err(Refusal::NotAccepted));
        assert_eq!(Switch.read(""), Err(Refusal::NotAccepted));
    }

    #[test]
    fn times_are_bounded_and_always_numbers() {
        let span = Span::seconds(0.5, 3600.0);
        assert_eq!(span.read("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(span.read("1e3"), Ok(Duration::from_secs(1000)));
        for text in ["nan", "NaN", "inf", "-inf", "-1", "0.4", "3600.1", "", "30s", "1e400"] {
            assert_eq!(span.read(text), Err(Refusal::NotAccepted), "{text}");
        }
        assert_eq!(Span::minutes(0.0, 90.0).read("1.5"), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn a_refused_value_shows_neither_a_password_nor_its_full_length() {
        assert_eq!(quoted("ftp://admin:hunter2@cloud/x"), r#""[redacted]@cloud/x""#);
        assert_eq!(quoted("@file"), r#""@file""#);
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert!(quoted(&"é".repeat(9_000)).chars().count() < 90);
        assert_eq!(Optional(Hidden).show_refused("hunter2"), REDACTED);
    }
}
