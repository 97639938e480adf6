//! Tokens of users that logged in.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};

/// Time after its last use for which a server with default settings accepts a token.
const LIFETIME: TimeDelta = TimeDelta::seconds(300);

/// All tokens of a store.
#[derive(Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Tokens {
    by_token: HashMap<String, Token>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Token {
    user: String,
    expires: DateTime<Utc>,
}

impl Tokens {
    /// Moves all expiries by the difference of two clocks.
    pub(super) fn rebase(&mut self, by: TimeDelta) {
        for token in self.by_token.values_mut() {
            token.expires = token.expires.checked_add_signed(by).unwrap_or(token.expires);
        }
    }

    /// Accepts a token from now on.
    pub(super) fn insert(&mut self, token: String, user: &str, now: DateTime<Utc>) {
        self.by_token.retain(|_, token| now < token.expires);
        self.by_token.insert(token, Token { user: user.to_owned(), expires: now + LIFETIME });
    }

    /// The user of a token that has not expired. Its lifetime begins again.
    pub(super) fn renew(&mut self, token: &str, now: DateTime<Utc>) -> Option<String> {
        let found = self.by_token.get_mut(token).filter(|token| now < token.expires)?;
        found.expires = now + LIFETIME;
        Some(found.user.clone())
    }

    /// Forgets all tokens of a user.
    pub(super) fn remove_user(&mut self, user: &str) {
        self.by_token.retain(|_, token| token.user != user);
    }
}
