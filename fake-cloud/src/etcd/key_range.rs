//! Ranges of keys, as requests name them.

use std::ops::Bound;

use bytes::Bytes;

/// A range of keys, from etcd's request fields `key` and `range_end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRange {
    /// A single key.
    One(Bytes),
    /// Keys from the first (inclusive) to the second (exclusive). Empty unless the first is less than the second.
    Between(Bytes, Bytes),
    /// All keys greater than or equal to this one.
    From(Bytes),
}

/// Bounds for a lookup in an ordered map.
pub(super) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyRange {
    /// Interprets etcd's two fields: an empty `range_end` means a single key, one zero byte means no upper bound.
    pub fn new(key: Bytes, range_end: Bytes) -> Self {
        match range_end.as_ref() {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Between(key, range_end),
        }
    }

    /// All keys that begin with `prefix`; all keys if it is empty.
    ///
    /// ```
    /// use fake_cloud::etcd::KeyRange;
    ///
    /// assert_eq!(KeyRange::prefix("/a/"), KeyRange::new("/a/".into(), "/a0".into()));
    /// ```
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        match after_prefix(&prefix) {
            Some(end) => Self::Between(prefix, end),
            None if prefix.is_empty() => Self::From(Bytes::from_static(&[0])),
            None => Self::From(prefix),
        }
    }

    /// Returns whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => one == key,
            Self::Between(from, to) => from <= key && key < to.as_ref(),
            Self::From(from) => from <= key,
        }
    }

    /// Returns whether the range starts at the empty key, which requests must not name.
    pub(super) fn is_empty_key(&self) -> bool {
        match self {
            Self::One(key) | Self::Between(key, _) | Self::From(key) => key.is_empty(),
        }
    }

    /// The bounds for an ordered map, or `None` if the range is empty.
    pub(super) fn bounds(&self) -> Option<Bounds<'_>> {
        match self {
            Self::One(one) => Some((Bound::Included(one), Bound::Included(one))),
            Self::Between(from, to) if from < to => Some((Bound::Included(from), Bound::Excluded(to))),
            Self::Between(_, _) => None,
            Self::From(from) => Some((Bound::Included(from), Bound::Unbounded)),
        }
    }

    /// The prefix, if the range consists of exactly the keys with that prefix.
    pub(super) fn as_prefix(&self) -> Option<&[u8]> {
        match self {
            Self::One(_) => None,
            Self::Between(from, to) => (after_prefix(from).as_ref() == Some(to)).then_some(from.as_ref()),
            // Keys are not empty, so this is every key.
            Self::From(from) if from.as_ref() == [0] => Some(&[]),
            Self::From(_) => None,
        }
    }

    /// A copy that does not share the buffer of the request it was decoded from.
    pub(super) fn detached(&self) -> Self {
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        match self {
            Self::One(one) => Self::One(copy(one)),
            Self::Between(from, to) => Self::Between(copy(from), copy(to)),
            Self::From(from) => Self::From(copy(from)),
        }
    }
}

/// The first key after all keys with this prefix. `None` if the prefix is empty or all its bytes are 255.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_end_of_one_zero_byte_is_unbounded() {
        let range = KeyRange::new("b".into(), Bytes::from_static(&[0]));
        assert!(!range.contains(b"a") && range.contains(b"b") && range.contains(&[255, 255]));
    }

    #[test]
    fn reversed_range_is_empty() {
        let range = KeyRange::new("b".into(), "a".into());
        assert!(range.bounds().is_none() && !range.contains(b"a") && !range.contains(b"b"));
    }

    #[test]
    fn prefix_is_recognized_when_its_last_byte_is_255() {
        for prefix in [&b"a"[..], b"/lcm/", &[1, 255], &[255, 255], b""] {
            let range = KeyRange::prefix(Bytes::copy_from_slice(prefix));
            let mut inside = prefix.to_vec();
            inside.push(7);
            assert!(range.contains(&inside), "{prefix:?}");
        }
        assert_eq!(KeyRange::prefix("/a/").as_prefix(), Some(&b"/a/"[..]));
        assert_eq!(KeyRange::From(Bytes::from_static(&[0])).as_prefix(), Some(&b""[..]));
        assert_eq!(KeyRange::new("a".into(), "c".into()).as_prefix(), None);
    }
}
