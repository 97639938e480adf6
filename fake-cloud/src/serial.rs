//! Forms of state in a snapshot that serde does not derive: maps with compound keys, bytes, and texts of fixed lists.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map as a sorted list of pairs, because a key of a JSON object is a text.
pub(crate) mod pairs {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<'a, S, M, K, V>(map: &'a M, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        &'a M: IntoIterator<Item = (&'a K, &'a V)>,
        K: Serialize + Ord + 'a,
        V: Serialize + 'a,
    {
        let mut all: Vec<(&K, &V)> = map.into_iter().collect();
        all.sort_by(|one, other| one.0.cmp(other.0));
        serializer.collect_seq(all)
    }

    pub(crate) fn deserialize<'de, D, M, K, V>(deserializer: D) -> Result<M, D::Error>
    where
        D: Deserializer<'de>,
        M: FromIterator<(K, V)>,
        K: Deserialize<'de>,
        V: Deserialize<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Bytes as a text, or in base64 if they are none.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Binary { base64: String },
}

impl Text {
    fn from_bytes(bytes: &bytes::Bytes) -> Self {
        use base64::Engine as _;
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text.to_owned()),
            Err(_) => Self::Binary { base64: base64::engine::general_purpose::STANDARD.encode(bytes) },
        }
    }

    fn into_bytes<E: serde::de::Error>(self) -> Result<bytes::Bytes, E> {
        use base64::Engine as _;
        match self {
            Self::Utf8(text) => Ok(text.into()),
            Self::Binary { base64 } => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(&base64);
                bytes.map(Into::into).map_err(|error| E::custom(format!("invalid base64 {base64:?}: {error}")))
            }
        }
    }
}

/// [`bytes::Bytes`] as a text.
pub(crate) mod text {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Text};

    pub(crate) fn serialize<S: Serializer>(bytes: &bytes::Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        Text::from_bytes(bytes).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bytes::Bytes, D::Error> {
        Text::deserialize(deserializer)?.into_bytes()
    }
}

/// A set of [`bytes::Bytes`] as texts.
pub(crate) mod texts {
    use std::collections::BTreeSet;

    use super::{Deserialize, Deserializer, Serializer, Text};

    pub(crate) fn serialize<S: Serializer>(all: &BTreeSet<bytes::Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(all.iter().map(Text::from_bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<bytes::Bytes>, D::Error> {
        Vec::<Text>::deserialize(deserializer)?.into_iter().map(Text::into_bytes).collect()
    }
}

/// Bytes that are no text, in base64.
pub(crate) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(&text).map_err(|error| serde::de::Error::custom(format!("invalid base64: {error}")))
    }
}
