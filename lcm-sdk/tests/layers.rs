//! Checks that imports inside the crate point one way.
//!
//! Reads every `crate::`, `super::` and `self::` path in `src/`, outside comments, strings and `#[cfg(test)]` modules,
//! and compares them with [`LAYERS`]. Neither the modules of the crate nor the children of any module may import each
//! other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module of the crate and the modules it may import. A module may always import from itself.
const LAYERS: &[(&str, &[&str])] = &[
    ("lifecycle", &[]),
    ("ports", &["lifecycle"]),
    // Leaves: labels are their own, values come from the lifecycle.
    ("spans", &["lifecycle"]),
    ("telemetry", &["lifecycle", "spans"]),
    ("resilience", &["lifecycle", "ports", "spans", "telemetry"]),
    ("history", &["lifecycle"]),
    ("simulate", &["lifecycle", "ports"]),
    // The memory ports are built on the EC2 model of the simulation.
    ("providers", &["lifecycle", "ports", "spans", "telemetry", "resilience", "simulate"]),
    ("conformance", &["lifecycle", "ports"]),
    ("controller", &["lifecycle", "ports", "spans", "telemetry", "resilience", "providers"]),
    ("reconciler", &["lifecycle", "ports", "telemetry", "history", "resilience", "providers", "controller"]),
    (
        "workers",
        &["lifecycle", "ports", "spans", "telemetry", "history", "resilience", "providers", "controller", "reconciler"],
    ),
    // Configuration types only.
    ("settings", &["lifecycle", "ports"]),
    ("logging", &["lifecycle", "settings", "spans"]),
    ("otel", &["settings", "spans", "logging"]),
    ("admin", &["lifecycle", "ports", "telemetry", "resilience", "providers", "controller", "reconciler", "workers"]),
    (
        "from_settings",
        &[
            "lifecycle",
            "history",
            "ports",
            "telemetry",
            "resilience",
            "providers",
            "controller",
            "reconciler",
            "workers",
            "settings",
            "logging",
            "admin",
        ],
    ),
];

/// A source file and the module it is.
struct Source {
    module: Vec<String>,
    text: String,
}

type Edges = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn imports_point_one_way() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(from) = source.module.first() else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| layer == from) else {
            wrong.push(format!("{from} is in no layer: add it to LAYERS"));
            continue;
        };
        for path in imports(&source) {
            let to = path.first().map_or("", String::as_str);
            if to != from && !allowed.contains(&to) {
                wrong.push(format!("{} imports {}", source.module.join("::"), path.join("::")));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{} imports against the order:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let mut edges = Edges::new();
    for source in sources() {
        let Some(from) = source.module.first() else { continue };
        for path in imports(&source) {
            add(&mut edges, from, &path[0], &source, &path);
        }
    }
    let cycles = cycles("the crate", &edges);
    assert!(cycles.is_none(), "{}", cycles.unwrap_or_default());
}

#[test]
fn children_of_a_module_do_not_import_each_other_in_a_circle() {
    let sources = sources();
    let parents: BTreeSet<&[String]> =
        sources.iter().flat_map(|source| (1..source.module.len()).map(|length| &source.module[..length])).collect();
    let mut wrong = Vec::new();
    for parent in parents {
        let reexports = reexports(&sources, parent);
        let mut edges = Edges::new();
        for source in sources.iter().filter(|source| source.module.starts_with(parent)) {
            let Some(from) = source.module.get(parent.len()) else { continue };
            for path in imports(source).into_iter().filter(|path| path.starts_with(parent)) {
                let Some(name) = path.get(parent.len()) else { continue };
                let to = reexports.get(name).unwrap_or(name);
                add(&mut edges, from, to, source, &path);
            }
        }
        wrong.extend(cycles(&parent.join("::"), &edges));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn add(edges: &mut Edges, from: &str, to: &str, source: &Source, path: &[String]) {
    if from != to {
        let example = format!("{} imports {}", source.module.join("::"), path.join("::"));
        edges.entry(from.to_owned()).or_default().entry(to.to_owned()).or_insert(example);
    }
}

/// Describes the import cycles inside a module, if it has any.
fn cycles(parent: &str, edges: &Edges) -> Option<String> {
    let reachable = |start: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(node) = open.pop() {
            for next in edges.get(node).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let in_circle: Vec<&str> = edges.keys().map(String::as_str).filter(|node| reachable(node).contains(node)).collect();
    let examples = edges.iter().filter(|(from, _)| in_circle.contains(&from.as_str())).flat_map(|(from, targets)| {
        let targets =
            targets.iter().filter(|(to, _)| in_circle.contains(&to.as_str()) && reachable(to).contains(from.as_str()));
        targets.map(|(_, example)| example.as_str())
    });
    let examples: Vec<&str> = examples.collect();
    (!in_circle.is_empty())
        .then(|| format!("{parent} has import cycles between {in_circle:?}:\n{}", examples.join("\n")))
}

/// The names that a module re-exports from its children, each with the child that defines it.
fn reexports(sources: &[Source], parent: &[String]) -> BTreeMap<String, String> {
    let front = sources.iter().find(|source| source.module == parent);
    let text = front.map_or("", |front| front.text.as_str());
    let mut found = BTreeMap::new();
    for statement in text.split(';').map(str::trim) {
        let Some((_, tree)) = statement.rsplit_once("use ").filter(|(before, _)| before.trim_end().starts_with("pub"))
        else {
            continue;
        };
        for path in expand(tree.trim().trim_start_matches("self::")) {
            if let [child, .., name] = path.as_slice() {
                found.insert(name.clone(), child.clone());
            }
        }
    }
    found
}

/// Every path into the crate, from its root on.
fn imports(source: &Source) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let text = source.text.as_str();
    let bytes = text.as_bytes();
    for (root, keep) in
        [("crate::", 0), ("self::", source.module.len()), ("super::", source.module.len().saturating_sub(1))]
    {
        for (at, _) in text.match_indices(root) {
            let before = at.checked_sub(1).map(|before| bytes[before]);
            if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':') {
                continue;
            }
            let (mut keep, mut rest) = (keep, &text[at + root.len()..]);
            while let Some(further) = rest.strip_prefix("super::") {
                keep = keep.saturating_sub(1);
                rest = further;
            }
            for path in expand(rest) {
                let path: Vec<String> = source.module[..keep].iter().cloned().chain(path).collect();
                if !path.is_empty() {
                    found.insert(path);
                }
            }
        }
    }
    found
}

/// The paths of a `use` tree, or the single path of an expression, at the beginning of a text.
fn expand(text: &str) -> Vec<Vec<String>> {
    let mut path = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(inside) = rest.strip_prefix('{') {
            let branches = branches(inside).into_iter().flat_map(expand);
            return branches.map(|branch| path.iter().cloned().chain(branch).collect()).collect();
        }
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        if end > 0 && &rest[..end] != "self" {
            path.push(rest[..end].to_owned());
        }
        match rest[end..].strip_prefix("::") {
            Some(further) => rest = further,
            None => return vec![path],
        }
    }
}

/// Splits the inside of a brace at its own commas, up to its end.
fn branches(inside: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(inside[begin..at].trim());
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(inside[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|branch| !branch.is_empty());
    found
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let read = |file: PathBuf| {
        let within = file.strip_prefix(&root).expect("below src").with_extension("");
        let mut module: Vec<String> = within.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| last == "mod" || last == "lib") {
            module.pop();
        }
        let text = fs::read_to_string(&file).expect("a readable source");
        Source { module, text: code(&text) }
    };
    files.into_iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("src/bin") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// A source without comments, strings and the inline test module at its end.
fn code(text: &str) -> String {
    let tests = text.match_indices("\nmod tests {").map(|(at, _)| at).find(|at| {
        let attribute = text[..*at].lines().next_back().unwrap_or_default();
        attribute.starts_with("#[cfg(") && attribute.contains("test")
    });
    let text = &text[..tests.unwrap_or(text.len())];
    let lines = text.lines().map(|line| {
        let line = line.split("//").next().unwrap_or_default();
        line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn use_trees_are_expanded() {
    let source = Source {
        module: ["controller", "watch", "connection"].map(str::to_owned).to_vec(),
        text: code(concat!(
            "use crate::{ports::{self, Clock}, lifecycle::ids::WorkerId}; // crate::admin\n",
            "use super::super::queue::Key;\n",
            "fn f() { super::g(\"crate::settings\", crate::telemetry::h()) }\n",
            "#[cfg(test)]\nmod tests { use crate::providers; }"
        )),
    };
    let found: Vec<String> = imports(&source).iter().map(|path| path.join("::")).collect();
    let expected = [
        "controller::queue::Key",
        "controller::watch::g",
        "lifecycle::ids::WorkerId",
        "ports",
        "ports::Clock",
        "telemetry::h",
    ];
    assert_eq!(found, expected);
}
