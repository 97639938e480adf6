//! What can go wrong with an etcd as a whole, by name: for the admin API and for fault rules.

use serde_json::Value;

use super::handle::EtcdStore;

/// Something that goes wrong with etcd, or is put right again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A lease ends as if nobody had kept it alive; without an id, every lease does.
    LeaseLost(Option<i64>),
    /// Everything but the newest revision is compacted away.
    Compact,
    /// Watchers hear nothing.
    WatchStall,
    /// Watchers hear what they missed.
    WatchResume,
    /// All watch streams end.
    WatchCut,
    /// Every call is refused.
    Unavailable,
    /// Calls are answered again.
    Available,
}

impl Fault {
    /// The names that are understood.
    pub const NAMES: [&str; 7] =
        ["lease-lost", "compact", "watch-stall", "watch-resume", "watch-cut", "unavailable", "available"];

    /// The fault of a name. `lease` counts for `lease-lost` only: a number, or text in hexadecimal as etcdctl prints it.
    ///
    /// # Errors
    /// Says what would have been understood.
    pub fn named(name: &str, lease: Option<&Value>) -> Result<Self, String> {
        Ok(match name {
            "lease-lost" => Self::LeaseLost(lease.map(read_lease).transpose()?),
            "compact" => Self::Compact,
            "watch-stall" => Self::WatchStall,
            "watch-resume" => Self::WatchResume,
            "watch-cut" => Self::WatchCut,
            "unavailable" => Self::Unavailable,
            "available" => Self::Available,
            other => return Err(format!("etcd knows no fault {other:?}; accepted: {}", Self::NAMES.join(", "))),
        })
    }
}

impl EtcdStore {
    /// Makes it go wrong. Says whether there was anything to do it to: false only for a lease that does not exist.
    pub fn inflict(&self, fault: Fault) -> bool {
        match fault {
            Fault::LeaseLost(Some(id)) => return self.lose_lease(id),
            Fault::LeaseLost(None) => {
                for id in self.leases() {
                    // One that ended by itself in between is lost as well.
                    let _ = self.lease_revoke(id);
                }
            }
            Fault::Compact => self.compact_now(),
            Fault::WatchStall => self.stall_watches(true),
            Fault::WatchResume => self.stall_watches(false),
            Fault::WatchCut => self.cut_watches(),
            Fault::Unavailable => self.set_unavailable(true),
            Fault::Available => self.set_unavailable(false),
        }
        true
    }
}

fn read_lease(value: &Value) -> Result<i64, String> {
    let read = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => i64::from_str_radix(text, 16).ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    read.ok_or_else(|| format!("lease is {value}; accepted: a number, or text in hexadecimal as etcdctl prints it"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::{Clock, Pace};

    #[test]
    fn every_name_is_a_fault_and_others_are_refused_with_the_list() {
        for name in Fault::NAMES {
            assert!(Fault::named(name, None).is_ok(), "{name}");
        }
        let error = Fault::named("meteor", None).expect_err("no such fault");
        assert!(error.contains("\"meteor\"") && error.contains("watch-stall"), "{error}");
        assert_eq!(Fault::named("lease-lost", Some(&json!("1f"))), Ok(Fault::LeaseLost(Some(31))));
        assert!(Fault::named("lease-lost", Some(&json!("zz"))).is_err());
    }

    #[test]
    fn a_lost_lease_is_gone_and_a_lease_that_never_was_cannot_be_lost() {
        let store = EtcdStore::new(Clock::new(Pace::Manual));
        store.lease_grant(7, 60).expect("granted");
        store.lease_grant(8, 60).expect("granted");
        assert!(!store.inflict(Fault::LeaseLost(Some(9))));
        assert!(store.inflict(Fault::LeaseLost(Some(7))));
        assert_eq!(store.leases(), [8]);
        assert!(store.inflict(Fault::LeaseLost(None)));
        assert!(store.leases().is_empty());
    }
}
