//! Reports results as rows of the table that `make prove` prints.

use fake_cloud::control_plane::Generation;

/// Reads a number from an environment variable, with a default.
///
/// # Panics
/// If the value is not a number.
pub fn number_from_env(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not accepted; accepted: a number")),
        Err(_) => default,
    }
}

/// Prints rows for a generation of the control plane. If `LCM_PROVE_ROWS` names a directory, also writes them to a file
/// there.
///
/// # Panics
/// If the file cannot be written.
pub fn report(name: &str, generation: Generation, rows: &[(&str, String)]) {
    let server = format!("{generation:?}").to_lowercase();
    let file = format!("{name}-{server}.md");
    let row = |(measure, value): &(&str, String)| format!("| {measure} ({server} control plane) | {value} |\n");
    let rows: String = rows.iter().map(row).collect();
    print!("{rows}");
    if let Some(directory) = std::env::var_os("LCM_PROVE_ROWS") {
        let file = std::path::Path::new(&directory).join(file);
        std::fs::write(&file, rows).unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    }
}
