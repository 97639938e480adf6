//! A list that is read while it comes.
//!
//! A listing of a large fleet takes a while to be written and to be sent. Read when all of it is there, it would be
//! waited for all that time, and then the server for us.
//!
//! # Flow
//! Records are read as they come, if the answer begins with the list, bare or as the first field of an envelope. When all
//! has come, what is around the list says whether it is whole.
//!
//! # Guarantees
//! What comes of it is what [`listing::read`] makes of the whole answer. Whatever is not as expected is left to that.

use serde_json::Deserializer;

use super::listing::{self, LISTS, List};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::json::Raw;
use crate::providers::http::{Onlooker, Reply};

/// A list that is read while it comes: `each` puts a record into what becomes of it.
pub(super) struct Incoming<T, F> {
    each: F,
    progress: Progress<T>,
}

#[derive(Default)]
struct Progress<T> {
    inside: Inside,
    /// Everything before this was gone through.
    place: usize,
    /// How much must have come before it is worth going on: at the least twice as much as was in vain, so that one long
    /// record is not begun again with every piece of it.
    worthwhile_from: usize,
    list: List<T>,
}

/// Where in the answer the place is that was reached.
#[derive(Clone, Copy, Default)]
enum Inside {
    #[default]
    Nothing,
    /// In the list, which begins here.
    List { begins: usize },
    /// After the list, which begins and ends here.
    Rest { begins: usize, ends: usize },
}

impl<T: Default, F: FnMut(&mut T, Raw<'_>)> Incoming<T, F> {
    pub(super) fn new(each: F) -> Self {
        Self { each, progress: Progress::default() }
    }

    /// What became of the list when all has come.
    ///
    /// # Errors
    /// An answer that is no list, or not all of one.
    pub(super) fn read_all(mut self, reply: &Reply) -> Result<T, CallFailure> {
        self.progress.worthwhile_from = 0;
        self.read_on(reply.body());
        let Self { mut each, progress } = self;
        if let Inside::Rest { begins, ends } = progress.inside {
            let around = [&reply.body()[..begins], &reply.body()[ends..]].concat();
            if let Some(whole) = listing::filled(&around, progress.list, &mut each) {
                return whole;
            }
        }
        listing::read(reply, each)
    }

    fn read_on(&mut self, so_far: &[u8]) {
        let Self { each, progress } = self;
        if so_far.len() < progress.worthwhile_from {
            return;
        }
        let mut left = text_in(&so_far[progress.place..]);
        while let Some(Step { record, length, is_last }) = progress.inside.step(left) {
            if let Some(record) = record {
                each(&mut progress.list.read, record);
                progress.list.length += 1;
            }
            left = &left[length..];
            progress.place += length;
            progress.inside = match progress.inside {
                Inside::Nothing => Inside::List { begins: progress.place },
                Inside::List { begins } if is_last => Inside::Rest { begins, ends: progress.place - 1 },
                inside @ (Inside::List { .. } | Inside::Rest { .. }) => inside,
            };
        }
        progress.worthwhile_from = so_far.len() + (so_far.len() - progress.place);
    }
}

impl<T: Default + Send, F: FnMut(&mut T, Raw<'_>) + Send> Onlooker for Incoming<T, F> {
    fn begin(&mut self) {
        self.progress = Progress::default();
    }

    fn look_on(&mut self, so_far: &[u8]) {
        self.read_on(so_far);
    }
}

/// A step through the answer.
struct Step<'a> {
    record: Option<Raw<'a>>,
    /// How many bytes it goes.
    length: usize,
    /// Whether the list ends with the last of them.
    is_last: bool,
}

impl Inside {
    /// The next step; `None` while not all of it is there, or if it is not as expected.
    fn step(self, text: &str) -> Option<Step<'_>> {
        match self {
            Self::Nothing => opening(text),
            Self::List { .. } => record(text),
            Self::Rest { .. } => None,
        }
    }
}

/// Up to the first record. A list without any is not worth it.
fn opening(text: &str) -> Option<Step<'_>> {
    let mut left = unblank(text);
    if let Some(envelope) = left.strip_prefix('{') {
        let (name, after) = unblank(envelope).strip_prefix('"')?.split_once('"')?;
        left = unblank(unblank(after).strip_prefix(':').filter(|_| LISTS.contains(&name))?);
    }
    let list = left.strip_prefix('[')?;
    let is_worth_it = !matches!(unblank(list).bytes().next()?, b']');
    is_worth_it.then_some(Step { record: None, length: text.len() - list.len(), is_last: false })
}

/// A record, and what follows it: without that, a number may not be all there.
fn record(text: &str) -> Option<Step<'_>> {
    let mut records = Deserializer::from_str(text).into_iter::<Raw<'_>>();
    let record = records.next()?.ok()?;
    let after = unblank(&text[records.byte_offset()..]);
    let is_last = match after.bytes().next()? {
        b',' => false,
        b']' => true,
        _ => return None,
    };
    Some(Step { record: Some(record), length: text.len() - after.len() + 1, is_last })
}

/// A text from its first sign that is no blank in JSON.
fn unblank(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\r', '\n'])
}

/// As much as is whole characters.
fn text_in(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_else(|error| {
        // The last one may not be all there.
        std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::StatusCode;

    use super::*;

    /// What is read of an answer that comes in pieces of a length.
    fn read(answer: &str, length: usize) -> Result<Vec<String>, String> {
        let mut incoming = Incoming::new(put);
        incoming.begin();
        (length..answer.len()).step_by(length).for_each(|come| incoming.look_on(&answer.as_bytes()[..come]));
        incoming.read_all(&reply(answer)).map_err(|failure| failure.to_string())
    }

    fn put(records: &mut Vec<String>, record: Raw<'_>) {
        records.push(record.into_value().to_string());
    }

    fn reply(answer: &str) -> Reply {
        Reply::of(StatusCode::OK, answer.as_bytes().to_vec())
    }

    const LISTINGS: [&str; 24] = [
        "[]",
        " [ ] ",
        r#"[{"id": "é", "n": [1, {"a": "]}"}]}, 12, "t,]", null , true,1.5]"#,
        r#"{"workers": [{"id": "w-1"}, {"id": "w-2"}], "total": 2}"#,
        r#"{ "items" : [ {"id": "\\\"]"} ] , "next": null}"#,
        r#"{"workers": [{"id": "w-1"}], "total": 2}"#,
        r#"{"workers": [{"id": "w-1"}], "next": "more"}"#,
        r#"{"workers": [{"id": "w-1"}], "items": [{"id": "w-2"}]}"#,
        r#"{"workers": [{"id": "w-1"}], "workers": [{"id": "w-2"}]}"#,
        r#"{"workers": [{"id": "w-1"}], "workers": []}"#,
        r#"{"workers": [{"id": "w-1"}], "workers": 7}"#,
        r#"{"total": 1, "workers": [{"id": "w-1"}]}"#,
        r#"{"others": [{"id": "w-1"}]}"#,
        r#"{"workers": {"id": "w-1"}}"#,
        r#"[{"id": "w-1"},]"#,
        r#"[{"id": "w-1"}"#,
        r#"[{"id": "w-1"}] []"#,
        r#"[{"id": "w-1"} {"id": "w-2"}]"#,
        r#"{"workers": [{"id": "w-1"}], "total": }"#,
        r#"{"workers": [{"id": "w-1"}]"#,
        r#"[{"id": w-1}]"#,
        "\u{feff}[1]",
        "null",
        "",
    ];

    #[test]
    fn in_how_many_pieces_a_list_comes_makes_no_difference() {
        for answer in LISTINGS {
            let whole = listing::read(&reply(answer), put).map_err(|failure| failure.to_string());
            for length in (1..20).chain([1000]) {
                assert_eq!(read(answer, length), whole, "{answer} in pieces of {length}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nor_does_it_for_nearly_a_list(
            begin in prop_oneof![Just("["), Just("{\"workers\": ["), Just("")],
            parts in prop::collection::vec(
                prop_oneof![
                    Just("{\"id\": \"w\"}"), Just(","), Just("]"), Just("}"), Just("["), Just("{"), Just("\""), Just(":"),
                    Just("12"), Just("-"), Just("null"), Just("\"é\""), Just(" "), Just("\\"), Just("\"items\": []"),
                    Just("\"total\": 3"),
                ],
                0..12,
            ),
            length in 1_usize..30,
        ) {
            let answer = format!("{begin}{}", parts.concat());
            let whole = listing::read(&reply(&answer), put).map_err(|failure| failure.to_string());
            prop_assert_eq!(read(&answer, length), whole);
        }
    }

    #[test]
    fn records_are_read_before_all_has_come() {
        let mut incoming = Incoming::new(put);
        incoming.begin();
        incoming.look_on(br#"{"workers": [{"id": "w-1"}, {"id": "w-2"}, {"id": "w"#);
        assert_eq!(incoming.progress.list.length, 2);
        incoming.begin();
        assert_eq!(incoming.progress.list.length, 0, "what was cut off is forgotten");
    }

    #[test]
    fn what_is_no_text_is_an_error_wherever_it_stands() {
        for place in ["[{\"a\": \"#\"}, 1]", "[1, {\"a\": \"#\"}]", "[1] #"] {
            let answer: Vec<u8> = place.bytes().map(|byte| if byte == b'#' { 0xff } else { byte }).collect();
            let mut incoming = Incoming::new(put);
            incoming.begin();
            (1..answer.len()).for_each(|come| incoming.look_on(&answer[..come]));
            let failure = incoming.read_all(&Reply::of(StatusCode::OK, answer)).expect_err("no text");
            assert!(failure.to_string().contains("the answer is no JSON"), "{failure}");
        }
    }
}
