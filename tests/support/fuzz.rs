//! What the fuzz tests of all crates share: how many cases there are, and what comes in from outside.
//!
//! `LCM_FUZZ_CASES` sets the number of cases of each property. Where `LCM_PROVE_ROWS` names a directory, what was tried
//! is left there as rows of a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseResult, TestRunner};
use serde_json::{Map, Number, Value};

/// Tries a property on as many cases as asked for, `usual` of them by default. What fails is printed, and its seed is
/// kept in `seeds`, to be tried first from then on.
pub(crate) fn check<S: Strategy>(
    what: &'static str,
    usual: u32,
    seeds: &'static str,
    strategy: S,
    property: impl Fn(S::Value) -> TestCaseResult,
) {
    let asked = std::env::var("LCM_FUZZ_CASES").ok();
    let cases = asked.map_or(usual, |text| text.parse().expect("LCM_FUZZ_CASES is a whole number"));
    let config = Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
        // Every refusal counts as a case; nothing is filtered away.
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let tried = AtomicU64::new(0);
    let outcome = TestRunner::new(config).run(&strategy, |input| {
        tried.fetch_add(1, Ordering::Relaxed);
        property(input)
    });
    if let Err(failure) = outcome {
        panic!("{what}: {failure}");
    }
    report(what, tried.into_inner());
}

fn report(what: &'static str, tried: u64) {
    static ROWS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());
    let mut rows = ROWS.lock().expect("no panic while it was held");
    *rows.entry(what).or_default() += tried;
    println!("{what}: {tried} cases");
    let Some(directory) = std::env::var_os("LCM_PROVE_ROWS") else { return };
    let mut text = String::new();
    for (what, tried) in rows.iter() {
        let _ = writeln!(text, "| fuzz cases: {what} | {tried} |");
    }
    let file = PathBuf::from(directory).join(concat!("30-fuzz-", env!("CARGO_PKG_NAME"), ".md"));
    std::fs::write(file, text).expect("the rows are written");
}

/// Texts that have broken somebody before.
const ODD_TEXTS: &[&str] = &[
    "",
    " ",
    "0",
    "-1",
    "-0",
    "1",
    "5",
    "1000",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775809",
    "18446744073709551616",
    "99999999999999999999999999",
    "1e308",
    "1e999",
    "-1e999",
    "NaN",
    "inf",
    "0x10",
    "1.5",
    "true",
    "False",
    "null",
    "None",
    "{}",
    "[]",
    "\"",
    "'",
    "\\",
    "/",
    "..",
    "../../etc/passwd",
    "%",
    "%00",
    "%zz",
    "&",
    "=",
    ";",
    "<",
    "]]>",
    "<script>",
    "&amp;",
    "\0",
    "\n",
    "\r\n",
    "\u{7f}",
    "\u{feff}",
    "\u{202e}",
    "\u{fffe}",
    "é",
    "e\u{301}",
    "😀",
    "*",
    "?",
    "**********",
    "i-",
    "i-0123456789abcdef0",
    "w-1",
    "2026-02-06T08:00:00Z",
    "9999-12-31T23:59:60Z",
    "-262143-01-01T00:00:00Z",
    "+262142-12-31T23:59:59Z",
    "us-east-1",
];

/// A text that somebody might send.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => select(ODD_TEXTS).prop_map(str::to_owned),
        3 => ".{0,16}",
        2 => "[a-zA-Z0-9._:/*-]{0,24}",
        1 => (select(ODD_TEXTS), 2_usize..400).prop_map(|(text, times)| text.repeat(times)),
    ]
}

/// A number as JSON writes it, however large and however precise.
fn any_number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-3_i64..1000).prop_map(Value::from),
        any::<f64>().prop_map(|float| Number::from_f64(float).map_or(Value::Null, Value::Number)),
        (-3_i32..1000).prop_map(|whole| Value::from(f64::from(whole))),
        select(vec![0.5, -0.0, 1e15, 9e15, 1e18, 1e19, 1e300, f64::MIN_POSITIVE]).prop_map(Value::from),
    ]
}

/// Any JSON, a few levels deep.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any_number(),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((any_text(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A good answer or request with up to four of its parts replaced, taken out or put where they do not belong.
pub(crate) fn like_json(examples: Vec<Value>) -> impl Strategy<Value = Value> {
    let changes = proptest::collection::vec((any::<Index>(), any_json(), 0_u8..4), 0..5);
    (select(examples), changes).prop_map(|(mut value, changes)| {
        for (place, replacement, kind) in changes {
            let mut places = Vec::new();
            walk(&value, &mut String::new(), &mut places);
            let pointer = place.get(&places).clone();
            let (parent, name) = pointer.rsplit_once('/').unwrap_or(("", ""));
            match (kind, value.pointer_mut(parent)) {
                (0, Some(Value::Object(members))) => drop(members.remove(&unescaped(name))),
                (1, Some(Value::Array(items))) => items.push(replacement),
                (_, _) => {
                    if let Some(part) = value.pointer_mut(&pointer) {
                        *part = replacement;
                    }
                }
            }
        }
        value
    })
}

fn walk(value: &Value, pointer: &mut String, places: &mut Vec<String>) {
    places.push(pointer.clone());
    let mut step = |name: &str, part: &Value| {
        let before = pointer.len();
        pointer.push('/');
        pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
        walk(part, pointer, places);
        pointer.truncate(before);
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(name, part)| step(name, part)),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, part)| step(&index.to_string(), part)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn unescaped(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

/// Bytes of any kind.
pub(crate) fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => proptest::collection::vec(any::<u8>(), 0..256),
        1 => proptest::collection::vec(any::<u8>(), 0..4096),
        // Nothing but openings: whoever follows them by recursion falls.
        1 => (select(&b"[{(<\x81\x9f\xbf\xa1\"&%"[..]), 1_usize..60_000).prop_map(|(byte, times)| vec![byte; times]),
        // A number that does not end.
        1 => (1_usize..60_000).prop_map(|digits| vec![b'9'; digits]),
    ]
}

/// Something good with bytes changed, lost, doubled, cut off, and odd things put in.
pub(crate) fn like_bytes(good: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<Index>(), any::<Index>(), any::<u8>(), select(ODD_TEXTS), 0_u8..6);
    (good, proptest::collection::vec(change, 0..5)).prop_map(|(mut bytes, changes)| {
        for (at, other, byte, text, kind) in changes {
            if bytes.is_empty() {
                break;
            }
            let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
            let range = at.min(other)..at.max(other);
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.drain(range)),
                3 => {
                    let doubled = bytes[range.clone()].to_vec();
                    drop(bytes.splice(range.end..range.end, doubled));
                }
                4 => bytes.truncate(at),
                _ => drop(bytes.splice(at..at, text.bytes())),
            }
        }
        bytes
    })
}
