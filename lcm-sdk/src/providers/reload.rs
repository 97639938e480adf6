//! Values made from files, and made again when a file changes.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// Shortest time between two reads of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// A value made from files, such as a client from its certificates. It is made again when the contents of a file change,
/// so that a rotated certificate needs no restart.
///
/// A change that cannot be used, such as a file that is written in part, is logged once and leaves the value as it is.
pub(crate) struct FromFiles<T> {
    files: Vec<PathBuf>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: T,
    /// Of the contents that the value was last made from. The contents are not kept: they may be a private key.
    digest: Vec<u8>,
    checked_at: Instant,
}

impl<T: Clone> FromFiles<T> {
    /// Makes a value. Without files it is never made again.
    pub(crate) fn new<E>(files: Vec<PathBuf>, make: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        // Read before the value is made: a change in between is then noticed by the next check.
        let digest = digest(&files);
        let state = State { value: make()?, digest, checked_at: Instant::now() };
        Ok(Self { files, state: Mutex::new(state) })
    }

    /// Returns the value, made again if a file has changed. Reads the files at most every ten seconds.
    pub(crate) fn get<E: Display>(&self, make: impl FnOnce() -> Result<T, E>) -> T {
        let mut state = self.state.lock();
        if !self.files.is_empty() && state.checked_at.elapsed() >= CHECK_INTERVAL {
            state.checked_at = Instant::now();
            let digest = digest(&self.files);
            if digest != state.digest {
                state.digest = digest;
                match make() {
                    Ok(value) => {
                        tracing::info!(target: "lcm::tls", files = ?self.files, "TLS files have changed and are used");
                        state.value = value;
                    }
                    Err(error) => {
                        tracing::warn!(target: "lcm::tls", files = ?self.files, %error, "TLS files have changed and cannot be used; the earlier ones stay in use");
                    }
                }
            }
        }
        state.value.clone()
    }
}

impl<T> fmt::Debug for FromFiles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFiles").field("files", &self.files).finish_non_exhaustive()
    }
}

fn digest(files: &[PathBuf]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for file in files {
        match std::fs::read(file) {
            Ok(contents) => hash.update(Sha256::digest(contents)),
            Err(_) => hash.update(b"unreadable"),
        }
    }
    hash.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn value_follows_its_file() {
        let file = std::env::temp_dir().join(format!("lcm-reload-{}.pem", std::process::id()));
        let make = || std::fs::read_to_string(&file).map_err(|error| error.to_string());
        let write = |text: &str| std::fs::write(&file, text).expect("written");
        write("old");
        let value = FromFiles::new(vec![file.clone()], make).expect("readable");
        write("new");
        assert_eq!(value.get(make), "old", "the file is not read for every call");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(value.get(make), "new");
        std::fs::remove_file(&file).expect("removed");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(value.get(make), "new", "an unusable change leaves the value as it is");
        write("newer");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(value.get(make), "newer");
        let untouched = || -> Result<String, String> { unreachable!("nothing has changed") };
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(value.get(untouched), "newer");
        std::fs::remove_file(&file).expect("removed");
    }
}
