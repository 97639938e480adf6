//! Caches login tokens by system and user.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::secret::Secret;
use crate::ports::CmlTarget;

/// Maximum number of cached logins. Evicting one costs another login.
const MAX_LOGINS: usize = 4096;

/// Logins by address and user.
#[derive(Default)]
pub(super) struct Logins(Mutex<HashMap<(String, String), Arc<Login>>>);

impl Logins {
    /// The login for a target. Replaces one with another password.
    pub(super) fn get(&self, at: &CmlTarget) -> Arc<Login> {
        let key = (at.address.clone(), at.username.clone());
        let mut logins = self.0.lock();
        if let Some(login) = logins.get(&key).filter(|login| login.password == at.password) {
            return Arc::clone(login);
        }
        if logins.len() >= MAX_LOGINS {
            logins.retain(|_, login| Arc::strong_count(login) > 1);
        }
        let login = Arc::new(Login { password: at.password.clone(), current: tokio::sync::Mutex::new(None) });
        logins.insert(key, Arc::clone(&login));
        login
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logins").field("known", &self.0.lock().len()).finish()
    }
}

/// The login at one system. Concurrent callers wait for the one that logs in.
pub(super) struct Login {
    password: Secret,
    current: tokio::sync::Mutex<Option<Issued>>,
}

/// A token with its sequence number.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) token: Secret,
    number: u64,
}

impl Login {
    /// Returns the current token, or logs in.
    pub(super) async fn token<F>(&self, log_in: impl FnOnce() -> F) -> Result<Issued, CallFailure>
    where
        F: Future<Output = Result<Secret, CallFailure>>,
    {
        let mut current = self.current.lock().await;
        if let Some(issued) = &*current {
            return Ok(issued.clone());
        }
        let issued = Issued { token: log_in().await?, number: 0 };
        *current = Some(issued.clone());
        Ok(issued)
    }

    /// Replaces a rejected token, unless another caller already did.
    pub(super) async fn token_after<F>(
        &self,
        refused: &Issued,
        log_in: impl FnOnce() -> F,
    ) -> Result<Issued, CallFailure>
    where
        F: Future<Output = Result<Secret, CallFailure>>,
    {
        let mut current = self.current.lock().await;
        if let Some(newer) = current.as_ref().filter(|issued| issued.number > refused.number) {
            return Ok(newer.clone());
        }
        // If the login fails, the next call must not use the rejected token.
        *current = None;
        let issued = Issued { token: log_in().await?, number: refused.number + 1 };
        *current = Some(issued.clone());
        Ok(issued)
    }
}
