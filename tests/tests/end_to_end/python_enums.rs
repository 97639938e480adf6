//! Renders `lcm/enums.py` from the enums of the SDK.

use std::fmt::Write as _;
use std::path::Path;

use lcm_sdk::lifecycle::orphans::Conclusion;
use lcm_sdk::lifecycle::{
    DesiredStatus, Ec2State, EffectName, EffectResultKind, ExternalStopPolicy, FailureKind, Outcome, ReasonCode,
    RequeueKind, Vocabulary, WorkerStatus,
};

const FILE: &str = "lcm-py/python/lcm/enums.py";
const LINE_LENGTH: usize = 120;

/// With `UPDATE_DOCS=1` the module is written first.
#[test]
fn python_enums_are_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE);
    let expected = module();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == expected, "{FILE} is out of date: run this test with UPDATE_DOCS=1 and commit the module");
}

fn module() -> String {
    let classes = [
        class::<WorkerStatus>("WorkerStatus"),
        class::<DesiredStatus>("DesiredStatus"),
        class::<Ec2State>("Ec2State"),
        class::<ExternalStopPolicy>("ExternalStopPolicy"),
        class::<Outcome>("Outcome"),
        class::<RequeueKind>("Requeue"),
        class::<EffectName>("EffectName"),
        class::<EffectResultKind>("EffectResult"),
        class::<FailureKind>("FailureKind"),
        class::<Conclusion>("Conclusion"),
        class::<ReasonCode>("ReasonCode"),
    ];
    let mut names = classes.each_ref().map(|(name, _)| *name);
    names.sort_unstable();
    let mut module = HEADER.to_owned();
    module.push_str("\n__all__ = [\n");
    for name in names {
        let _ = writeln!(module, "    {name:?},");
    }
    module.push_str("]\n");
    for (_, class) in classes {
        module.push_str("\n\n");
        module.push_str(&class);
    }
    let long: Vec<_> = module.lines().filter(|line| line.chars().count() > LINE_LENGTH).collect();
    assert!(long.is_empty(), "shorten these documentation comments: {long:#?}");
    module
}

const HEADER: &str = r#"# Generated from Rust by `UPDATE_DOCS=1 cargo test --workspace --test end_to_end`; do not edit.
"""Enums whose values are the words on the wire.

>>> WorkerStatus("running") is WorkerStatus.RUNNING
True
>>> WorkerStatus.RUNNING == "running"
True
"""

from enum import StrEnum
"#;

/// The source of a Python enum: one member per word, each followed by its documentation.
fn class<T: Vocabulary>(name: &'static str) -> (&'static str, String) {
    let mut source = format!("class {name}(StrEnum):\n    \"\"\"{}\"\"\"\n\n", summary(T::DOC));
    for (word, doc) in T::MEMBERS {
        let member = word.to_ascii_uppercase().replace('-', "_");
        let _ = writeln!(source, "    {member} = {word:?}\n    \"\"\"{}\"\"\"", summary(doc));
    }
    (name, source)
}

/// The first paragraph of a documentation comment, on one line.
fn summary(doc: &str) -> String {
    let paragraph = doc.lines().map(str::trim).take_while(|line| !line.is_empty());
    let summary = paragraph.collect::<Vec<_>>().join(" ");
    assert!(!summary.is_empty(), "a member without documentation");
    assert!(!summary.contains(['[', '\\', '"']), "links, quotes and escapes have no form in Python: {summary}");
    summary
}
