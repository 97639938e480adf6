//! Pages that name tests as evidence: every statement is there once, and every file and test that is named exists.
//! Pages with a section per value of an enum have each of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lcm_sdk::ReasonCode;

/// The design documents by a word of their heading, and the number of their statements.
const STATEMENTS: &[(&str, usize)] =
    &[("ADR-014", 26), ("ADR-043", 20), ("lifecycle", 76), ("observation", 45), ("ADR-008", 25)];

/// Number of the defects that the review of the first version found.
const DEFECTS: usize = 44;

/// Column of the files in a table of statements, counted from zero.
const FILES: usize = 2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent").to_owned()
}

fn read(file: &str) -> Option<String> {
    fs::read_to_string(root().join(file)).ok()
}

/// A row of a table that begins with a number.
struct Row<'a> {
    heading: &'a str,
    number: usize,
    cells: Vec<&'a str>,
}

fn rows(page: &str) -> Vec<Row<'_>> {
    let (mut heading, mut rows) = ("", Vec::new());
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title;
        }
        let Some(line) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else { continue };
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let Some(number) = cells.first().and_then(|cell| cell.parse().ok()) {
            rows.push(Row { heading, number, cells });
        }
    }
    rows
}

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The tests in a text, as file and function.
fn tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let named = quoted(text).filter_map(|word| word.split_once("::"));
    named.filter(|(file, _)| [".rs", ".py"].iter().any(|extension| file.ends_with(extension)))
}

/// Whether a Rust or Python source defines a test that runs.
fn defines_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let after = ["async fn ", "fn ", "async def ", "def "].iter().find_map(|keyword| line.strip_prefix(keyword));
        let is_named = after.and_then(|after| after.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('));
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '@', '/', ')', ']']));
        let attributes: Vec<&str> = above.copied().collect();
        let has = |word: &str| attributes.iter().any(|line| line.contains(word));
        let is_test = has("#[test]") || has("#[tokio::test") || (name.starts_with("test_") && line.contains("def "));
        is_named && is_test && !has("#[ignore") && !has(".skip")
    })
}

/// The problems of one page: rows without a test, and tests that do not exist.
fn problems(page: &str, sources: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for Row { heading, number, cells } in rows(page) {
        if tests(&cells.join(" ")).next().is_none() {
            problems.push(format!("{heading} {number} names no test"));
        }
    }
    for (file, name) in tests(page) {
        match sources(file) {
            None => problems.push(format!("{file} does not exist")),
            Some(source) if !defines_test(&source, name) => problems.push(format!("{file} has no test {name}")),
            Some(_) => {}
        }
    }
    problems
}

fn assert_numbered(page: &str, label: &str, numbers: &[usize], count: usize) {
    let expected: Vec<usize> = (1..=count).collect();
    assert_eq!(numbers, expected, "{page}, {label}: every number once, in order");
}

#[test]
fn every_statement_is_covered_once() {
    let page = read("docs/design-coverage.md").expect("a page");
    let mut numbers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for row in rows(&page) {
        numbers.entry(row.heading).or_default().push(row.number);
    }
    assert_eq!(numbers.len(), STATEMENTS.len(), "{:?}", numbers.keys());
    for (word, count) in STATEMENTS {
        let of_document: Vec<_> = numbers.iter().filter(|(heading, _)| heading.contains(word)).collect();
        let [(heading, numbers)] = of_document[..] else { panic!("{word}: {of_document:?}") };
        assert_numbered("docs/design-coverage.md", heading, numbers, *count);
    }
}

#[test]
fn every_defect_is_listed_once() {
    let page = "docs/defects.md";
    let text = read(page).expect("a page");
    let numbers: Vec<usize> = rows(&text).iter().map(|row| row.number).collect();
    assert_numbered(page, "defects", &numbers, DEFECTS);
}

#[test]
fn tests_named_as_evidence_exist() {
    let mut wrong = Vec::new();
    for page in ["docs/design-coverage.md", "docs/defects.md"] {
        let text = read(page).expect("a page");
        wrong.extend(problems(&text, read).into_iter().map(|problem| format!("{page}: {problem}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_named_by_the_coverage_exist() {
    let page = read("docs/design-coverage.md").expect("a page");
    let is_there = |file: &str| root().join("lcm-sdk/src").join(file).is_file() || root().join(file).is_file();
    let rows = rows(&page);
    let named = rows.iter().flat_map(|row| row.cells.get(FILES)).flat_map(|cell| quoted(cell));
    let (present, missing): (Vec<&str>, Vec<&str>) = named.partition(|file| is_there(file));
    assert!(missing.is_empty(), "{missing:?}");
    assert!(present.len() > 192, "each statement names a file: {}", present.len());
}

#[test]
fn every_reason_code_has_a_section_in_order() {
    let page = read("docs/reference/reasons.md").expect("a page");
    // Codes of the run loop follow, which are no reasons of a decision.
    let (decisions, _) = page.split_once("\n## Run loop\n").expect("a chapter");
    let sections: Vec<&str> = decisions.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let codes: Vec<&str> = ReasonCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(sections, codes);
}

#[test]
fn every_reason_code_says_what_to_do() {
    let page = read("docs/reference/reasons.md").expect("a page");
    for section in page.split("\n### ").skip(1) {
        let (code, text) = section.split_once('\n').expect("a text below the heading");
        let (meaning, action) = text.split_once("**Do:** ").unwrap_or_else(|| panic!("{code} has no action"));
        assert!(!meaning.trim().is_empty() && !action.trim().is_empty(), "{code} lacks its meaning or its action");
    }
}

#[test]
fn wrong_names_are_found() {
    let page = "## Paper\n\n| 1 | a | `x.rs::works` |\n| 2 | b | `x.rs::helper` |\n| 3 | c | |\n| 4 | d | `y.py::test_y` |\n\
                | 5 | e | `x.rs::ignored` |\n| 6 | f | `x.rs::work` |\n| 7 | g | `z.py::test_z` |\n";
    let rust = "#[tokio::test(start_paused = true)]\nasync fn works() {}\n\nfn helper() {}\n\n\
                #[test]\n#[ignore = \"slow\"]\nfn ignored() {}\n";
    let sources = |file: &str| match file {
        "x.rs" => Some(rust.to_owned()),
        "z.py" => Some("@pytest.mark.parametrize(\"x\", [1])\ndef test_z(x: int) -> None:\n".to_owned()),
        _ => None,
    };
    let expected = [
        "Paper 3 names no test",
        "x.rs has no test helper",
        "y.py does not exist",
        "x.rs has no test ignored",
        "x.rs has no test work",
    ];
    assert_eq!(problems(page, sources), expected);
}
