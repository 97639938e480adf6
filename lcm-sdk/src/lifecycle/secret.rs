//! Passwords and tokens: a type that cannot be printed or serialized by accident.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A password or token. `Debug` and `Display` show `[redacted]`; there is no `Serialize`; memory is wiped on drop.
///
/// ```
/// use lcm_sdk::Secret;
///
/// let password = Secret::from("hunter2");
/// assert_eq!(format!("{password} {password:?}"), "[redacted] [redacted]");
/// assert_eq!(password.expose(), "hunter2");
/// ```
///
/// ```compile_fail
/// serde_json::to_string(&lcm_sdk::Secret::from("hunter2")).unwrap();
/// ```
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// The secret itself. Reviews check every call of this method.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
