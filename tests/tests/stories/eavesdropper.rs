//! Listens to everything this project logs in any story, in search of secrets.

use std::io;
use std::sync::{Mutex, Once};

use lcm_sdk::logging::{self, Color};
use lcm_sdk::settings::Settings;

/// Every secret that a story uses. A new one belongs here.
pub(crate) const SECRETS: [&str; 9] = [
    "cml-secret-password",
    "cml-wrong-password",
    "cml-default-password",
    "licence-token-0451",
    "control-plane-secret-key",
    "etcd-secret-password",
    "sink-secret-token",
    "sink-secret-query",
    crate::stage::AWS_SECRET,
];

/// The lines that told a secret.
static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Listens from now on to what is logged under this project's targets, everything of it. What it is built on is
/// listened to in a story of its own: at that level it talks too much for all of them.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let settings = Settings::from_map([("RUST_LOG", "lcm=trace,lcm_sdk=trace")]).expect("good settings");
        let subscriber = logging::subscriber(&settings.logs, Color::Off, || Ear).expect("good directives");
        tracing::subscriber::set_global_default(subscriber).expect("nobody else listens");
    });
}

pub(crate) fn assert_nothing_was_heard() {
    let heard = HEARD.lock().expect("no panic while it was held");
    assert!(heard.is_empty(), "secrets were logged:\n{}", heard.join("\n"));
}

/// The secrets in a text.
pub(crate) fn secrets_in(text: &str) -> Vec<&'static str> {
    SECRETS.into_iter().filter(|secret| text.contains(secret)).collect()
}

/// Takes one line at a time, as the logs are written.
struct Ear;

impl io::Write for Ear {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if !secrets_in(&text).is_empty() {
            HEARD.lock().expect("no panic while it was held").push(text.into_owned());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
