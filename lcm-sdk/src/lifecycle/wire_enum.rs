//! Enums whose members are words on the wire.

use thiserror::Error;

/// A word that is no member of the enum it was parsed as.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{value:?} is not a {vocabulary}; accepted: {accepted}")]
#[non_exhaustive]
pub struct ParseEnumError {
    /// The word as given.
    pub value: String,
    /// The name of the enum in errors, such as `worker status`.
    pub vocabulary: &'static str,
    /// Every accepted word, comma-separated.
    pub accepted: String,
}

/// An enum with a fixed set of words.
pub trait Vocabulary: std::str::FromStr<Err = ParseEnumError> {
    /// Its name in errors.
    const NAME: &'static str;
    /// Every accepted word, aliases included.
    const WORDS: &'static [&'static str];
    /// Documentation of the enum, in Markdown.
    const DOC: &'static str;
    /// Each member's word and documentation, in order of declaration.
    const MEMBERS: &'static [(&'static str, &'static str)];
}

/// Declares an enum with its words on the wire, case-insensitive parsing and serde.
///
/// `non_exhaustive` after the name in errors becomes an attribute of the enum.
macro_rules! vocabulary {
    (
        $(#[doc = $about:literal])*
        $name:ident, $what:literal $(, $attribute:ident)? {
            $( $(#[doc = $doc:literal])* $variant:ident = $word:literal $(| $alias:literal)* ),+ $(,)?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $(#[$attribute])?
        pub enum $name { $( $(#[doc = $doc])* $variant ),+ }

        impl $name {
            /// Every member, in order of declaration.
            pub const ALL: &'static [Self] = &[ $( Self::$variant ),+ ];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $word ),+ }
            }
        }

        impl $crate::lifecycle::wire_enum::Vocabulary for $name {
            const NAME: &'static str = $what;
            const WORDS: &'static [&'static str] = &[ $( $word $(, $alias)* ),+ ];
            const DOC: &'static str = concat!($($about, "\n"),*);
            const MEMBERS: &'static [(&'static str, &'static str)] = &[ $( ($word, concat!($($doc, "\n"),*)) ),+ ];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::lifecycle::wire_enum::ParseEnumError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                // An exact match is by far the most frequent; other cases and surrounding blanks are tried only after
                // that.
                match text {
                    $( $word => return Ok(Self::$variant), )+
                    _ => {}
                }
                let word = text.trim_ascii();
                $( if word.eq_ignore_ascii_case($word) $(|| word.eq_ignore_ascii_case($alias))* {
                    return Ok(Self::$variant);
                } )+
                Err($crate::lifecycle::wire_enum::ParseEnumError {
                    value: text.to_owned(),
                    vocabulary: $what,
                    accepted: <Self as $crate::lifecycle::wire_enum::Vocabulary>::WORDS.join(", "),
                })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                word.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use vocabulary;
