//! Runner and input generators of the fuzz tests of all crates.
//!
//! `LCM_FUZZ_CASES` sets the number of cases of each property. If `LCM_PROVE_ROWS` names a directory, the case counts are
//! written there as rows of a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseResult, TestRunner};
use serde_json::{Map, Number, Value};

/// Checks a property on `LCM_FUZZ_CASES` cases, `default_cases` if unset. The seed of a failing case is appended to the
/// file `seeds`, whose cases are run first.
pub(crate) fn check<S: Strategy>(
    name: &'static str,
    default_cases: u32,
    seeds: &'static str,
    strategy: S,
    property: impl Fn(S::Value) -> TestCaseResult,
) {
    let requested = std::env::var("LCM_FUZZ_CASES").ok();
    let cases = requested.map_or(default_cases, |text| text.parse().expect("LCM_FUZZ_CASES is a whole number"));
    let config = Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
        // A refused input counts as a case: no input is filtered out.
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let count = AtomicU64::new(0);
    let outcome = TestRunner::new(config).run(&strategy, |input| {
        count.fetch_add(1, Ordering::Relaxed);
        property(input)
    });
    if let Err(failure) = outcome {
        panic!("{name}: {failure}");
    }
    report(name, count.into_inner());
}

fn report(name: &'static str, count: u64) {
    static ROWS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());
    let mut rows = ROWS.lock().expect("not poisoned");
    *rows.entry(name).or_default() += count;
    println!("{name}: {count} cases");
    let Some(directory) = std::env::var_os("LCM_PROVE_ROWS") else { return };
    let mut text = String::new();
    for (name, count) in rows.iter() {
        let _ = writeln!(text, "| fuzz cases: {name} | {count} |");
    }
    let file = PathBuf::from(directory).join(concat!("30-fuzz-", env!("CARGO_PKG_NAME"), ".md"));
    std::fs::write(file, text).expect("rows written");
}

/// Texts that often break parsers.
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

/// An arbitrary text, often an odd one.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => select(ODD_TEXTS).prop_map(str::to_owned),
        3 => ".{0,16}",
        2 => "[a-zA-Z0-9._:/*-]{0,24}",
        1 => (select(ODD_TEXTS), 2_usize..400).prop_map(|(text, times)| text.repeat(times)),
    ]
}

/// A JSON number of any size and precision.
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

/// Arbitrary JSON, a few levels deep.
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

/// A valid JSON body with up to four parts replaced, removed or added.
pub(crate) fn like_json(examples: Vec<Value>) -> impl Strategy<Value = Value> {
    let changes = proptest::collection::vec((any::<Index>(), any_json(), 0_u8..4), 0..5);
    (select(examples), changes).prop_map(|(mut value, changes)| {
        for (index, replacement, kind) in changes {
            let mut pointers = Vec::new();
            list_pointers(&value, &mut String::new(), &mut pointers);
            let pointer = index.get(&pointers).clone();
            let (parent, name) = pointer.rsplit_once('/').unwrap_or(("", ""));
            match (kind, value.pointer_mut(parent)) {
                (0, Some(Value::Object(members))) => drop(members.remove(&unescape(name))),
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

fn list_pointers(value: &Value, pointer: &mut String, pointers: &mut Vec<String>) {
    pointers.push(pointer.clone());
    let mut step = |name: &str, part: &Value| {
        let before = pointer.len();
        pointer.push('/');
        pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
        list_pointers(part, pointer, pointers);
        pointer.truncate(before);
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(name, part)| step(name, part)),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, part)| step(&index.to_string(), part)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn unescape(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

/// Arbitrary bytes, deep nesting and long numbers.
pub(crate) fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => proptest::collection::vec(any::<u8>(), 0..256),
        1 => proptest::collection::vec(any::<u8>(), 0..4096),
        // Opening brackets only: a recursive parser would overflow its stack.
        1 => (select(&b"[{(<\x81\x9f\xbf\xa1\"&%"[..]), 1_usize..60_000).prop_map(|(byte, times)| vec![byte; times]),
        // A very long number.
        1 => (1_usize..60_000).prop_map(|digits| vec![b'9'; digits]),
    ]
}

/// Valid bytes with some of them changed, removed, repeated, truncated, or an odd text inserted.
pub(crate) fn like_bytes(valid: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<Index>(), any::<Index>(), any::<u8>(), select(ODD_TEXTS), 0_u8..6);
    (valid, proptest::collection::vec(change, 0..5)).prop_map(|(mut bytes, changes)| {
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
