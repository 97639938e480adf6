//! The documents tell the truth: what they show is what the code says.

use std::path::{Path, PathBuf};

use lcm_sdk::lifecycle::transition;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent").to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn the_readme_draws_the_lifecycle_that_the_table_holds() {
    let diagram = transition::mermaid_of_commanded();
    assert!(read("README.md").contains(&diagram), "README.md should contain:\n{diagram}");
}

#[test]
fn every_file_the_documents_point_to_exists() {
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"] {
        let text = read(document);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with("http")) {
            assert!(root().join(link).exists(), "{document} points to {link}");
        }
    }
}

#[test]
fn everything_that_shows_what_the_security_document_claims_exists() {
    let text = read("SECURITY.md");
    let shown: Vec<&str> = text.split('`').filter(|word| word.contains("tests/")).collect();
    assert!(shown.len() > 8, "{shown:?}");
    for file in shown {
        assert!(root().join(file).exists(), "SECURITY.md names {file}");
    }
}

#[test]
fn every_room_of_the_architecture_exists() {
    let text = read("ARCHITECTURE.md");
    for word in text.split('`').filter(|word| word.starts_with("core/") || word.starts_with("adapters/")) {
        if !word.contains('<') {
            assert!(root().join("lcm-sdk/src").join(word).exists(), "ARCHITECTURE.md names {word}");
        }
    }
}

#[test]
fn every_make_target_of_the_documents_exists_and_explains_itself() {
    let makefile = read("Makefile");
    for document in ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"] {
        let text = read(document);
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
