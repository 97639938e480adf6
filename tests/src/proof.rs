//! What was tried and what came of it, as rows of the one table that `make prove` prints.

/// How many times something is to be tried: what a variable says, or else this.
///
/// # Panics
/// When the variable does not say a number.
pub fn how_many(variable: &str, usual: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not accepted; accepted: a number")),
        Err(_) => usual,
    }
}

/// Prints rows, and adds them to the table of `make prove` if one is made: a file in the directory that
/// `LCM_PROVE_ROWS` names.
///
/// # Panics
/// When the file cannot be written.
pub fn report(file: &str, rows: &[(&str, String)]) {
    let rows: String = rows.iter().map(|(what, how_much)| format!("| {what} | {how_much} |\n")).collect();
    print!("{rows}");
    if let Some(directory) = std::env::var_os("LCM_PROVE_ROWS") {
        let file = std::path::Path::new(&directory).join(file);
        std::fs::write(&file, rows).unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    }
}
