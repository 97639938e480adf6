//! Permissions of roles on ranges of keys.

use bytes::Bytes;

/// The accesses that a permission allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in super::super) enum PermissionKind {
    /// Reads, watches and compares.
    Read,
    /// Puts and deletes.
    Write,
    /// Both.
    ReadWrite,
}

impl PermissionKind {
    /// The number in etcd's messages.
    pub(in super::super) fn number(self) -> i32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::ReadWrite => 2,
        }
    }

    /// The kind with this number. Other numbers are taken for the first.
    pub(in super::super) fn from_number(number: i32) -> Self {
        [Self::Write, Self::ReadWrite].into_iter().find(|kind| kind.number() == number).unwrap_or(Self::Read)
    }
}

/// A permission on a key or a range, with etcd's two fields for a range.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in super::super) struct Permission {
    pub(in super::super) kind: PermissionKind,
    #[serde(with = "crate::serial::text")]
    pub(in super::super) key: Bytes,
    #[serde(with = "crate::serial::text")]
    pub(in super::super) range_end: Bytes,
}

impl Permission {
    /// The permission of the role root.
    pub(super) fn everything() -> Self {
        Self { kind: PermissionKind::ReadWrite, key: Bytes::new(), range_end: Bytes::from_static(&[0]) }
    }
}

/// The way a request uses keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Read,
    Write,
}

/// A use of keys that needs a permission.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Access<'a> {
    need: Need,
    key: &'a [u8],
    range_end: &'a [u8],
}

impl<'a> Access<'a> {
    /// A read, a watch or a compare of a key, or of a range if `range_end` is not empty.
    pub(in super::super) fn read(key: &'a [u8], range_end: &'a [u8]) -> Self {
        Self { need: Need::Read, key, range_end }
    }

    /// A put or a delete of a key, or of a range if `range_end` is not empty.
    pub(in super::super) fn write(key: &'a [u8], range_end: &'a [u8]) -> Self {
        Self { need: Need::Write, key, range_end }
    }

    /// Returns whether the permissions together cover all keys of the access.
    pub(super) fn is_covered(&self, permissions: &[&Permission]) -> bool {
        let allowed: Vec<_> = permissions
            .iter()
            .filter(|permission| self.is_allowed_by(permission.kind))
            .map(|permission| limits(&permission.key, &permission.range_end))
            .collect();
        let (start, end) = limits(self.key, self.range_end);
        let mut covered = End::Before(start);
        loop {
            let reaching = allowed.iter().filter(|(from, to)| End::Before(from.clone()) <= covered && covered < *to);
            match reaching.map(|(_, to)| to).max() {
                None => return false,
                Some(furthest) if *furthest >= end => return true,
                Some(furthest) => covered = furthest.clone(),
            }
        }
    }

    fn is_allowed_by(&self, kind: PermissionKind) -> bool {
        match kind {
            PermissionKind::Read => self.need == Need::Read,
            PermissionKind::Write => self.need == Need::Write,
            PermissionKind::ReadWrite => true,
        }
    }
}

/// The end of a range: the first key after it, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Vec<u8>),
    Open,
}

/// The first key of a range and its end.
fn limits(key: &[u8], range_end: &[u8]) -> (Vec<u8>, End) {
    let end = match range_end {
        [] => End::Before([key, &[0]].concat()),
        [0] => End::Open,
        _ => End::Before(range_end.to_vec()),
    };
    (key.to_vec(), end)
}
