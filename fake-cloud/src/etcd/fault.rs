//! Faults of the whole server, by the names that the admin API and fault rules use.

use serde_json::Value;

use super::store::EtcdStore;

/// A fault of the etcd server, or the end of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Revokes a lease as if it had expired; without an id, every lease.
    LeaseLost(Option<i64>),
    /// Compacts the store at its newest revision.
    Compact,
    /// Holds back all watch events.
    WatchStall,
    /// Delivers the events that [`WatchStall`](Self::WatchStall) held back, and those that follow.
    WatchResume,
    /// Closes all watch streams.
    WatchCut,
    /// Forgets the tokens of all users, who must log in again.
    TokensLost,
    /// Rejects every call over the wire. Open streams stay open.
    Unavailable,
    /// Accepts calls again after [`Unavailable`](Self::Unavailable).
    Available,
}

impl Fault {
    /// The names that [`from_name`](Self::from_name) accepts.
    pub const NAMES: [&str; 8] = [
        "lease-lost",
        "compact",
        "watch-stall",
        "watch-resume",
        "watch-cut",
        "tokens-lost",
        "unavailable",
        "available",
    ];

    /// Parses a fault. Only `lease-lost` uses `lease`: a number, or a hexadecimal string as etcdctl prints it.
    ///
    /// # Errors
    /// Returns a message that lists the accepted values.
    pub fn from_name(name: &str, lease: Option<&Value>) -> Result<Self, String> {
        Ok(match name {
            "lease-lost" => Self::LeaseLost(lease.map(parse_lease).transpose()?),
            "compact" => Self::Compact,
            "watch-stall" => Self::WatchStall,
            "watch-resume" => Self::WatchResume,
            "watch-cut" => Self::WatchCut,
            "tokens-lost" => Self::TokensLost,
            "unavailable" => Self::Unavailable,
            "available" => Self::Available,
            other => return Err(format!("unknown etcd fault {other:?}: expected one of {}", Self::NAMES.join(", "))),
        })
    }
}

impl EtcdStore {
    /// Injects a fault. Returns false if it names a lease that does not exist, and true otherwise.
    pub fn inject(&self, fault: Fault) -> bool {
        match fault {
            Fault::LeaseLost(Some(id)) => return self.lease_revoke(id).is_ok(),
            Fault::LeaseLost(None) => {
                for id in self.leases() {
                    // Fails only if the lease expired in the meantime.
                    let _ = self.lease_revoke(id);
                }
            }
            Fault::Compact => {
                // Fails only if the newest revision is already compacted.
                let _ = self.with(|store, _| store.compact(store.revision()));
            }
            Fault::WatchStall => self.with(|store, _| store.watch_stall()),
            Fault::WatchResume => self.with(|store, _| store.watch_resume()),
            Fault::WatchCut => self.with(|store, _| store.watch_close_all()),
            Fault::TokensLost => self.with_auth_unchecked(|auth, _| auth.forget_tokens()),
            Fault::Unavailable => self.make_unavailable(),
            Fault::Available => self.make_available(),
        }
        true
    }
}

fn parse_lease(value: &Value) -> Result<i64, String> {
    let id = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => i64::from_str_radix(text, 16).ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    id.ok_or_else(|| format!("invalid lease {value}: expected a number or a hexadecimal string as etcdctl prints it"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::{Clock, Pace};

    #[test]
    fn every_listed_name_is_accepted() {
        for name in Fault::NAMES {
            assert!(Fault::from_name(name, None).is_ok(), "{name}");
        }
        assert_eq!(Fault::from_name("lease-lost", Some(&json!("1f"))), Ok(Fault::LeaseLost(Some(31))));
    }

    #[test]
    fn unknown_names_are_rejected_with_the_list() {
        let error = Fault::from_name("meteor", None).expect_err("no such fault");
        assert!(error.contains("\"meteor\"") && error.contains("watch-stall"), "{error}");
        assert!(Fault::from_name("lease-lost", Some(&json!("zz"))).is_err());
    }

    #[test]
    fn only_existing_leases_can_be_lost() {
        let store = EtcdStore::new(Clock::new(Pace::Manual));
        store.lease_grant(7, 60).expect("granted");
        store.lease_grant(8, 60).expect("granted");
        assert!(!store.inject(Fault::LeaseLost(Some(9))));
        assert!(store.inject(Fault::LeaseLost(Some(7))));
        assert_eq!(store.leases(), [8]);
        assert!(store.inject(Fault::LeaseLost(None)));
        assert!(store.leases().is_empty());
    }
}
