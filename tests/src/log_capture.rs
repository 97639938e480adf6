//! Captures the logs of a test process and fails tests that log a secret.

use std::io;
use std::sync::{Mutex, Once};

use lcm_sdk::logging::{self, Color};
use lcm_sdk::settings::Settings;

/// Secrets used by the tests. Add every new one.
pub const SECRETS: [&str; 9] = [
    "cml-secret-password",
    "cml-wrong-password",
    "cml-default-password",
    "license-token-0451",
    "control-plane-secret-key",
    "etcd-secret-password",
    "sink-secret-token",
    "sink-secret-query",
    crate::harness::AWS_SECRET,
];

/// Log lines that contain a secret.
static LEAKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Installs the capture as the global subscriber, at trace level for this project's targets. Logs of dependencies are
/// covered by a separate test, because they are too verbose at that level.
///
/// # Panics
/// If another global subscriber is installed.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let settings = Settings::from_map([("RUST_LOG", "lcm=trace,lcm_sdk=trace")]).expect("valid settings");
        let subscriber = logging::subscriber(&settings.logs, Color::Off, || Capture).expect("valid directives");
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber");
    });
}

/// Fails if a secret was logged.
///
/// # Panics
/// If a secret was logged.
pub fn assert_no_secrets() {
    let leaked = LEAKED.lock().expect("not poisoned");
    assert!(leaked.is_empty(), "secrets were logged:\n{}", leaked.join("\n"));
}

/// Secrets in a text.
pub fn secrets_in(text: &str) -> Vec<&'static str> {
    SECRETS.into_iter().filter(|secret| text.contains(secret)).collect()
}

/// Receives one log line per write.
struct Capture;

impl io::Write for Capture {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if !secrets_in(&text).is_empty() {
            LEAKED.lock().expect("not poisoned").push(text.into_owned());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
