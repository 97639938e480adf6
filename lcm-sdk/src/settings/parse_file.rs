//! Forms of things that are in files.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::parse::{Form, Refusal};

/// The path of a file that is there.
pub(super) struct File;

impl Form for File {
    type Value = PathBuf;

    fn read(&self, text: &str) -> Result<PathBuf, Refusal> {
        let path = PathBuf::from(text.trim());
        existing_file(&path).map_err(Refusal::Because)?;
        Ok(path)
    }

    fn accepted(&self) -> String {
        "the path of a file".to_owned()
    }

    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// Reads a small file. Pipes, devices and giants are refused: they would make reading the settings hang.
pub(super) fn read_small_file(path: &Path) -> Result<String, String> {
    const LARGEST: u64 = 1 << 20;
    existing_file(path)?;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if text.len() as u64 > LARGEST {
        return Err(format!("{} is larger than {LARGEST} bytes", path.display()));
    }
    Ok(text)
}

fn existing_file(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(format!("{} is not a file", path.display())),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_files_are_opened() {
        for path in ["/dev/zero", "/", "/nowhere/at/all"] {
            assert!(matches!(File.read(path), Err(Refusal::Because(_))), "{path}");
            assert!(read_small_file(Path::new(path)).is_err(), "{path}");
        }
    }
}
