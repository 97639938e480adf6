//! Logging in: HS256 tokens that expire on the world's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use super::error::CmlError;
use super::server::ADMIN_ID;

/// More logins than this at once, and the oldest is forgotten.
const MOST: usize = 10_000;

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    iat: i64,
    exp: i64,
    sub: String,
    jti: String,
}

/// The logins of one system.
pub(super) struct Tokens {
    secret: Vec<u8>,
    lifetime: Duration,
    /// When each login ends, by the token's id.
    live: BTreeMap<String, i64>,
}

impl Tokens {
    pub(super) fn new(secret: Vec<u8>, lifetime: Duration) -> Self {
        Self { secret, lifetime, live: BTreeMap::new() }
    }

    pub(super) fn issue(&mut self, id: String, now: DateTime<Utc>) -> Result<String, CmlError> {
        let iat = now.timestamp();
        let exp = iat.saturating_add(i64::try_from(self.lifetime.as_secs()).unwrap_or(i64::MAX));
        self.live.retain(|_, ends| *ends > iat);
        if self.live.len() >= MOST {
            let oldest = self.live.iter().min_by_key(|(_, ends)| **ends).map(|(id, _)| id.clone());
            oldest.map(|oldest| self.live.remove(&oldest));
        }
        self.live.insert(id.clone(), exp);
        let claims = Claims { iss: "com.cisco.virl".into(), iat, exp, sub: ADMIN_ID.into(), jti: id };
        encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(&self.secret))
            .map_err(|error| CmlError::new(500, format!("no token could be made: {error}")))
    }

    /// The id of a token that is ours, has not expired and was not logged out.
    pub(super) fn check(&self, token: &str, now: DateTime<Utc>) -> Result<String, CmlError> {
        let mut validation = Validation::new(Algorithm::HS256);
        // The library would go by the clock on the wall.
        validation.validate_exp = false;
        let claims = decode::<Claims>(token, &DecodingKey::from_secret(&self.secret), &validation)
            .map_err(|_| CmlError::unauthorized())?
            .claims;
        let ends = self.live.get(&claims.jti).copied().unwrap_or(i64::MIN);
        if now.timestamp() >= ends.min(claims.exp) {
            return Err(CmlError::unauthorized());
        }
        Ok(claims.jti)
    }

    pub(super) fn revoke(&mut self, id: &str) {
        self.live.remove(id);
    }

    pub(super) fn revoke_all(&mut self) {
        self.live.clear();
    }
}
