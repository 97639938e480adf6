//! Who is signed in where.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::secret::Secret;
use crate::ports::CmlTarget;

/// How many systems are remembered. Forgetting one costs a sign-in.
const REMEMBERED: usize = 4096;

/// The logins of a fleet, by address and user.
#[derive(Default)]
pub(super) struct Logins(Mutex<HashMap<(String, String), Arc<Login>>>);

impl Logins {
    /// The login at a target. One that was made with another password is forgotten.
    pub(super) fn of(&self, at: &CmlTarget) -> Arc<Login> {
        let key = (at.address.clone(), at.username.clone());
        let mut logins = self.0.lock();
        if let Some(login) = logins.get(&key).filter(|login| login.password == at.password) {
            return Arc::clone(login);
        }
        if logins.len() >= REMEMBERED {
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

/// A login at one system. Whoever needs a token while somebody signs in waits for that one.
pub(super) struct Login {
    password: Secret,
    current: tokio::sync::Mutex<Option<Issued>>,
}

/// A token, and which one it is.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) token: Secret,
    number: u64,
}

impl Login {
    /// The token in use, or a first one.
    pub(super) async fn token<F>(&self, sign_in: impl FnOnce() -> F) -> Result<Issued, CallFailure>
    where
        F: Future<Output = Result<Secret, CallFailure>>,
    {
        let mut current = self.current.lock().await;
        if let Some(issued) = &*current {
            return Ok(issued.clone());
        }
        let issued = Issued { token: sign_in().await?, number: 0 };
        *current = Some(issued.clone());
        Ok(issued)
    }

    /// The token after one that was not accepted: another caller may have got it meanwhile.
    pub(super) async fn token_after<F>(
        &self,
        refused: &Issued,
        sign_in: impl FnOnce() -> F,
    ) -> Result<Issued, CallFailure>
    where
        F: Future<Output = Result<Secret, CallFailure>>,
    {
        let mut current = self.current.lock().await;
        if let Some(newer) = current.as_ref().filter(|issued| issued.number > refused.number) {
            return Ok(newer.clone());
        }
        // A sign-in that fails must not leave the refused token behind for the next call.
        *current = None;
        let issued = Issued { token: sign_in().await?, number: refused.number + 1 };
        *current = Some(issued.clone());
        Ok(issued)
    }
}
