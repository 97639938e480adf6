//! Login tokens: HS256 JWTs that expire on the world's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use super::error::CmlError;

/// Maximum number of valid tokens; the oldest is revoked beyond it.
const MAX_TOKENS: usize = 10_000;

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    iat: i64,
    exp: i64,
    sub: String,
    jti: String,
}

/// Id of a valid token, and of its user.
pub(super) struct Login {
    pub(super) token: String,
    pub(super) user: String,
}

/// Valid tokens of one server.
#[derive(Serialize, Deserialize)]
pub(super) struct Tokens {
    #[serde(with = "crate::serial::base64_bytes")]
    secret: Vec<u8>,
    lifetime: Duration,
    /// Expiry of each token (Unix seconds), by token id.
    expiry: BTreeMap<String, i64>,
}

impl Tokens {
    pub(super) fn new(secret: Vec<u8>, lifetime: Duration) -> Self {
        Self { secret, lifetime, expiry: BTreeMap::new() }
    }

    pub(super) fn issue(&mut self, id: String, user: &str, now: DateTime<Utc>) -> Result<String, CmlError> {
        let iat = now.timestamp();
        let exp = iat.saturating_add(i64::try_from(self.lifetime.as_secs()).unwrap_or(i64::MAX));
        self.expiry.retain(|_, expires| *expires > iat);
        if self.expiry.len() >= MAX_TOKENS {
            let oldest = self.expiry.iter().min_by_key(|(_, expires)| **expires).map(|(id, _)| id.clone());
            oldest.map(|oldest| self.expiry.remove(&oldest));
        }
        self.expiry.insert(id.clone(), exp);
        let claims = Claims { iss: "com.cisco.virl".into(), iat, exp, sub: user.to_owned(), jti: id };
        encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(&self.secret))
            .map_err(|error| CmlError::new(500, format!("cannot create a token: {error}")))
    }

    /// Returns the login behind a token that was issued here and is neither expired nor revoked.
    pub(super) fn check(&self, token: &str, now: DateTime<Utc>) -> Result<Login, CmlError> {
        let mut validation = Validation::new(Algorithm::HS256);
        // The library would compare with the system clock.
        validation.validate_exp = false;
        let claims = decode::<Claims>(token, &DecodingKey::from_secret(&self.secret), &validation)
            .map_err(|_| CmlError::unauthorized())?
            .claims;
        let expires = self.expiry.get(&claims.jti).copied().unwrap_or(i64::MIN);
        if now.timestamp() >= expires.min(claims.exp) {
            return Err(CmlError::unauthorized());
        }
        Ok(Login { token: claims.jti, user: claims.sub })
    }

    pub(super) fn revoke(&mut self, id: &str) {
        self.expiry.remove(id);
    }

    pub(super) fn revoke_all(&mut self) {
        self.expiry.clear();
    }
}
