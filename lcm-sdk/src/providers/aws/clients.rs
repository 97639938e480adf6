//! One client per region, made when it is first needed and kept.

use std::collections::HashMap;
use std::fmt;

use parking_lot::Mutex;

/// More regions than AWS has. Beyond that somebody makes names up, and their clients are not kept.
const MOST_KEPT: usize = 64;

/// The clients of one service.
pub(super) struct Clients<C>(Mutex<HashMap<String, C>>);

impl<C> fmt::Debug for Clients<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The clients know the credentials; their regions are enough.
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl<C> Default for Clients<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Clone> Clients<C> {
    pub(super) fn get(&self, region: &str, make: impl FnOnce() -> C) -> C {
        let mut clients = self.0.lock();
        if let Some(client) = clients.get(region) {
            return client.clone();
        }
        let client = make();
        if clients.len() < MOST_KEPT {
            clients.insert(region.to_owned(), client.clone());
        }
        client
    }
}
