//! The table of broken variants in `docs/proof.md`. `UPDATE_DOCS=1` writes it.

use std::fmt::Write as _;

use super::summary::{Caught, Summary};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/proof.md");
const BEGIN: &str = "<!-- broken variants: written by the prover -->\n";
const END: &str = "<!-- end -->\n";

/// Compares the table in the document with the variants that were caught, or writes it.
pub(crate) fn check(summary: &mut Summary) {
    let text = std::fs::read_to_string(FILE).unwrap_or_else(|error| panic!("{FILE} cannot be read: {error}"));
    let (Some((before, rest)), expected) = (text.split_once(BEGIN), table(&summary.caught)) else {
        summary.violations.push(format!("{FILE} has no line {BEGIN:?}"));
        return;
    };
    let Some((found, after)) = rest.split_once(END) else {
        summary.violations.push(format!("{FILE} has no line {END:?}"));
        return;
    };
    if found == expected {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{before}{BEGIN}{expected}{END}{after}");
        std::fs::write(FILE, text).unwrap_or_else(|error| panic!("{FILE} cannot be written: {error}"));
    } else {
        let differing = expected.lines().filter(|line| !found.lines().any(|other| other == *line));
        let lines: Vec<_> = differing.collect();
        summary.violations.push(format!(
            "the table of broken variants in {FILE} is not current; run the prover with UPDATE_DOCS=1. New lines:\n{}",
            lines.join("\n")
        ));
    }
}

fn table(caught: &[Caught]) -> String {
    let mut rows: Vec<_> = caught.iter().collect();
    rows.sort_by_key(|row| (row.defects, row.variant));
    let mut table = "| variant | defect | caught in | violated rule |\n|---|---|---|---|\n".to_owned();
    for Caught { variant, defects, script, rule } in rows {
        let defects: Vec<_> = defects.iter().map(ToString::to_string).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {variant} | {} | {script} | {rule} |", defects.join(", "));
    }
    table
}
