//! Alarms of members, which restrict the store until they are disarmed.

use std::collections::BTreeSet;

/// The problem that an alarm reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) enum AlarmKind {
    /// The store has reached its quota: puts and new leases are rejected.
    NoSpace,
    /// The store is corrupt: writes are rejected.
    Corrupt,
}

impl AlarmKind {
    /// The name in statuses and health checks.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        }
    }

    /// The number in etcd's messages.
    pub(super) fn number(self) -> i32 {
        match self {
            Self::NoSpace => 1,
            Self::Corrupt => 2,
        }
    }

    /// The kind with this number; 0 is none.
    pub(super) fn from_number(number: i32) -> Option<Self> {
        [Self::NoSpace, Self::Corrupt].into_iter().find(|kind| kind.number() == number)
    }
}

/// An alarm of a member. The member need not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Alarm {
    pub(super) kind: AlarmKind,
    pub(super) member: u64,
}

/// All raised alarms.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Alarms(BTreeSet<Alarm>);

impl Alarms {
    pub(super) fn raise(&mut self, alarm: Alarm) {
        self.0.insert(alarm);
    }

    /// Removes an alarm and returns whether it was raised.
    pub(super) fn disarm(&mut self, alarm: Alarm) -> bool {
        self.0.remove(&alarm)
    }

    pub(super) fn is_raised(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }

    /// The raised alarms of one kind, or all of them.
    pub(super) fn list(&self, kind: Option<AlarmKind>) -> Vec<Alarm> {
        self.0.iter().copied().filter(|alarm| kind.is_none_or(|kind| alarm.kind == kind)).collect()
    }
}
