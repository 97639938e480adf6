//! Which keys a request means.

use std::ops::Bound;

use bytes::Bytes;

/// The keys between two bounds, as etcd's `key` and `range_end` name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRange {
    /// This key and no other.
    One(Bytes),
    /// From the first, up to but without the second. Empty when they are the wrong way round.
    Between(Bytes, Bytes),
    /// This key and all that sort after it.
    From(Bytes),
}

/// Where a range begins and ends, as maps want to know it.
pub(super) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyRange {
    /// Reads etcd's two fields: no end is one key, an end of one zero byte is no end at all.
    pub fn new(key: Bytes, range_end: Bytes) -> Self {
        match range_end.as_ref() {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Between(key, range_end),
        }
    }

    /// All keys that begin with `prefix`: all there are, if it is empty.
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

    /// Whether `key` is one of them.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => one == key,
            Self::Between(from, to) => from <= key && key < to.as_ref(),
            Self::From(from) => from <= key,
        }
    }

    /// The bounds for an ordered map, or none when no key can be between them.
    pub(super) fn bounds(&self) -> Option<Bounds<'_>> {
        match self {
            Self::One(one) => Some((Bound::Included(one), Bound::Included(one))),
            Self::Between(from, to) if from < to => Some((Bound::Included(from), Bound::Excluded(to))),
            Self::Between(_, _) => None,
            Self::From(from) => Some((Bound::Included(from), Bound::Unbounded)),
        }
    }

    /// The prefix these keys share, when they are exactly the keys with a common prefix.
    pub(super) fn as_prefix(&self) -> Option<&[u8]> {
        match self {
            Self::One(_) => None,
            Self::Between(from, to) => (after_prefix(from).as_ref() == Some(to)).then_some(from.as_ref()),
            // No key is empty, so everything from the smallest key on is everything.
            Self::From(from) if from.as_ref() == [0] => Some(&[]),
            Self::From(_) => None,
        }
    }

    /// A copy that does not keep the buffer of the request it came in alive.
    pub(super) fn detached(&self) -> Self {
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        match self {
            Self::One(one) => Self::One(copy(one)),
            Self::Between(from, to) => Self::Between(copy(from), copy(to)),
            Self::From(from) => Self::From(copy(from)),
        }
    }
}

/// The first key after all keys with this prefix, unless there is none (all bytes 255, or no bytes).
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
    fn an_end_of_one_zero_byte_means_no_end() {
        let range = KeyRange::new("b".into(), Bytes::from_static(&[0]));
        assert!(!range.contains(b"a") && range.contains(b"b") && range.contains(&[255, 255]));
    }

    #[test]
    fn a_range_the_wrong_way_round_is_empty() {
        let range = KeyRange::new("b".into(), "a".into());
        assert!(range.bounds().is_none() && !range.contains(b"a") && !range.contains(b"b"));
    }

    #[test]
    fn a_prefix_is_recognised_even_when_its_last_byte_cannot_grow() {
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
