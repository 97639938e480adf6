//! Documents agree with the code: diagrams, links, file names and make targets.

use std::path::{Path, PathBuf};

use lcm_sdk::lifecycle::transition;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent").to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn lifecycle_diagram_matches_the_table() {
    let diagram = transition::mermaid_commanded();
    assert!(read("docs/lifecycle.md").contains(&diagram), "docs/lifecycle.md should contain:\n{diagram}");
}

/// Paths of all Markdown pages, relative to the root: those of the root itself, and those below `docs` and `notebooks`.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![String::new(), "docs".to_owned(), "notebooks".to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(root().join(&directory)).expect("a directory of documents") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            if path.ends_with(".md") {
                found.push(path);
            } else if !directory.is_empty() && entry.path().is_dir() {
                directories.push(path);
            }
        }
    }
    found
}

/// Whether a page is written when the site is built, from the sources that `site/reference.py` names.
fn is_generated(page: &Path) -> bool {
    let name = page.file_name().expect("a name").to_string_lossy().into_owned();
    read("site/reference.py").contains(&format!("\"reference/{name}\""))
}

#[test]
fn linked_files_exist() {
    let documents = documents();
    assert!(documents.len() > 10, "{documents:?}");
    for document in documents {
        let text = read(&document);
        let directory = root().join(&document).parent().expect("a parent").to_owned();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.starts_with("http")) {
            let is_there = directory.join(link).exists() || is_generated(&directory.join(link));
            assert!(is_there, "{document} links to {link}");
        }
    }
}

#[test]
fn tests_named_by_the_security_page_exist() {
    let text = read("SECURITY.md");
    let shown: Vec<&str> = text.split('`').filter(|word| word.contains("tests/")).collect();
    assert!(shown.len() > 8, "{shown:?}");
    for file in shown {
        assert!(root().join(file).exists(), "SECURITY.md names {file}");
    }
}

#[test]
fn source_files_named_by_the_architecture_page_exist() {
    let text = read("ARCHITECTURE.md");
    let layers = ["lifecycle/", "ports/", "resilience/", "providers/", "controller/", "reconciler/", "workers/"];
    let named = text.split('`').filter(|word| layers.iter().any(|layer| word.starts_with(layer)));
    let named: Vec<&str> = named.filter(|word| !word.contains(['<', ' ', '\n'])).collect();
    assert!(named.len() > 10, "{named:?}");
    for file in named {
        assert!(root().join("lcm-sdk/src").join(file).exists(), "ARCHITECTURE.md names {file}");
    }
}

#[test]
fn make_targets_of_the_documents_exist_with_help() {
    let makefile = read("Makefile");
    for document in documents() {
        let text = read(&document);
        let targets = text.split("make ").skip(1).filter_map(|rest| {
            let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-').unwrap_or(rest.len());
            Some(&rest[..end]).filter(|_| rest[end..].starts_with(['`', ' ', '\n', ':']))
        });
        for target in targets.filter(|target| !target.is_empty()) {
            let explained =
                makefile.lines().any(|line| line.starts_with(&format!("{target}:")) && line.contains("## "));
            assert!(explained, "{document} mentions `make {target}`");
        }
    }
}
