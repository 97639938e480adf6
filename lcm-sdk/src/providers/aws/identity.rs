//! The identity behind EC2 calls: access key and account.
//!
//! Credentials are replaced while the process runs, and every client of the SDK notices that at another time. The access
//! key is therefore read from the requests that were sent; STS is called once per key.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::access_key::LastKey;
use super::account::Account;
use super::api::Api;
use crate::lifecycle::trust::Caller;

/// Time before STS is called again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Identities by region, and accounts by access key.
#[derive(Debug, Default)]
pub(super) struct Identities {
    regions: Mutex<HashMap<String, LastKey>>,
    accounts: Mutex<HashMap<u64, KnownAccount>>,
}

#[derive(Debug, Clone)]
enum KnownAccount {
    Id(String),
    FailedAt(Instant),
}

impl Identities {
    /// The key of the last request in a region, noted by the client of the region.
    pub(super) fn last_key(&self, region: &str) -> LastKey {
        self.regions.lock().entry(region.to_owned()).or_default().clone()
    }

    /// The caller of the last EC2 request in a region; before the first one, the caller that STS reports. Without a
    /// response from STS, the account is not known.
    pub(super) async fn caller(&self, account: &Account, region: &str) -> Caller {
        let last_key = self.last_key(region);
        let key = last_key.get();
        let known = key.and_then(|key| self.accounts.lock().get(&key).cloned());
        match known {
            Some(KnownAccount::Id(id)) => return Caller { account_id: Some(id), key_fingerprint: key },
            Some(KnownAccount::FailedAt(at)) if at.elapsed() < RETRY_INTERVAL => {
                return Caller { account_id: None, key_fingerprint: key };
            }
            Some(KnownAccount::FailedAt(_)) | None => {}
        }
        let sts_key = LastKey::default();
        let client = account.sts(region, sts_key.clone());
        let response =
            account.caller().call(Api::GetCallerIdentity, region, || client.get_caller_identity().send()).await;
        let sts_key = sts_key.get();
        let id = match response {
            Ok(identity) => identity.account.filter(|id| !id.is_empty()),
            Err(failure) => {
                tracing::warn!(target: "lcm::aws", region, %failure, "STS does not report the account of the credentials");
                None
            }
        };
        let found = id.clone().map_or_else(|| KnownAccount::FailedAt(Instant::now()), KnownAccount::Id);
        self.accounts.lock().extend(sts_key.map(|key| (key, found)));
        match key {
            // The response is about other credentials than those of the EC2 requests.
            Some(_) if key != sts_key => Caller { account_id: None, key_fingerprint: key },
            Some(_) | None => Caller { account_id: id, key_fingerprint: sts_key },
        }
    }
}
