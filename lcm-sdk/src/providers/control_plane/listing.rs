//! Listings: a whole list, bare or in an envelope, read record by record while it is parsed.
//!
//! A listing of a large fleet is a hundred megabytes. Made into JSON values first it would be several times that, for
//! no more than to be taken apart again.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::responses::unparsable;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::json::{Name, Raw};
use crate::providers::http::{Reply, whole};

/// The names a list goes by in the servers of the field. Of several, the first here counts.
pub(super) const LISTS: [&str; 6] = ["items", "data", "results", "workers", "sessions", "lablet_sessions"];
/// Where an envelope says that there is more, or how many there are in all.
const HINTS: [&str; 7] = ["next", "next_page", "next_cursor", "has_more", "has_next", "total", "total_count"];

/// What becomes of a list in a whole answer when `each` has put all of its records into it.
///
/// # Errors
/// An answer that is no list, or not all of one.
pub(super) fn read<T: Default>(reply: &Reply, mut each: impl FnMut(&mut T, Raw<'_>)) -> Result<T, CallFailure> {
    match reply.json_as(Reading(&mut each, PhantomData))? {
        Answer::List(list) => Ok(list.read),
        Answer::Envelope(envelope) => envelope.list(),
        Answer::Other => Err(unparsable("the answer is no list")),
    }
}

/// What becomes of a list that was taken out of an answer before, whose place is empty there; `None` if there is another
/// one that may count, or something that is no answer at all.
pub(super) fn filled<T: Default>(
    around: &[u8],
    list: List<T>,
    each: &mut impl FnMut(&mut T, Raw<'_>),
) -> Option<Result<T, CallFailure>> {
    let mut json = serde_json::Deserializer::from_slice(around);
    let answer = Reading(each, PhantomData).deserialize(&mut json).and_then(|read| json.end().map(|()| read));
    match answer.ok()? {
        Answer::List(_) => Some(Ok(list.read)),
        Answer::Envelope(mut envelope) => {
            let [(_, place)] = &mut envelope.lists[..] else { return None };
            *place = list;
            (envelope.named == 1).then(|| envelope.list())
        }
        Answer::Other => None,
    }
}

enum Answer<T> {
    List(List<T>),
    Envelope(Envelope<T>),
    Other,
}

/// What becomes of a list.
#[derive(Default)]
pub(super) struct List<T> {
    pub(super) read: T,
    /// How many records there were.
    pub(super) length: u64,
}

struct Envelope<T> {
    lists: Vec<(&'static str, List<T>)>,
    /// How often the name of a list was there.
    named: usize,
    hints: Map<String, Value>,
}

impl<T> Envelope<T> {
    fn list(mut self) -> Result<T, CallFailure> {
        let place = LISTS.iter().find_map(|name| self.lists.iter().position(|(found, _)| found == name));
        let Some(place) = place else { return Err(unparsable("there is no list in the answer")) };
        let (_, list) = self.lists.swap_remove(place);
        let hints = self.hints;
        let more = ["next", "next_page", "next_cursor"]
            .iter()
            .any(|hint| hints.get(*hint).is_some_and(|hint| !hint.is_null() && hint != false && hint != ""));
        let told = hints.get("total").or_else(|| hints.get("total_count")).and_then(whole);
        let has_more = hints.get("has_more").or_else(|| hints.get("has_next")) == Some(&Value::Bool(true));
        if more || has_more || told.is_some_and(|total| total > list.length) {
            return Err(unparsable("the answer is only a part of the list"));
        }
        Ok(list.read)
    }
}

struct Reading<'f, T, F>(&'f mut F, PhantomData<T>);

impl<'de, T: Default, F: FnMut(&mut T, Raw<'_>)> DeserializeSeed<'de> for Reading<'_, T, F> {
    type Value = Answer<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Answer<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Default, F: FnMut(&mut T, Raw<'_>)> Visitor<'de> for Reading<'_, T, F> {
    type Value = Answer<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Answer<T>, A::Error> {
        let mut list = List { read: T::default(), length: 0 };
        while let Some(record) = items.next_element::<Raw<'de>>()? {
            list.length += 1;
            (self.0)(&mut list.read, record);
        }
        Ok(Answer::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Answer<T>, A::Error> {
        let mut envelope = Envelope { lists: Vec::new(), named: 0, hints: Map::new() };
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            if let Some(known) = LISTS.iter().copied().find(|known| *known == name) {
                // Of a name that is there twice the last counts, be it a list or not.
                envelope.named += 1;
                envelope.lists.retain(|(earlier, _)| *earlier != known);
                if let Answer::List(list) = map.next_value_seed(Reading(&mut *self.0, PhantomData))? {
                    envelope.lists.push((known, list));
                }
            } else if HINTS.contains(&name.as_ref()) {
                envelope.hints.insert(name.into_owned(), map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Answer::Envelope(envelope))
    }

    fn visit_unit<E: Error>(self) -> Result<Answer<T>, E> {
        Ok(Answer::Other)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Answer<T>, E> {
        Ok(Answer::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Answer<T>, E> {
        Ok(Answer::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Answer<T>, E> {
        Ok(Answer::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Answer<T>, E> {
        Ok(Answer::Other)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Answer<T>, E> {
        Ok(Answer::Other)
    }
}
