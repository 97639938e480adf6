//! Log output of a process: readable lines or JSON.

use std::io::IsTerminal as _;

use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::{LogFormat, LogLevel, LogSettings};

/// Log targets of this project.
const TARGETS: [&str; 3] = ["lcm", "lcm_sdk", "worker_controller"];

/// Sends the logs of the process to standard error.
///
/// `rust_log` selects the messages. If it is not set, this project logs at `log_level`, and its dependencies log warnings
/// and errors. Readable lines are colored on a terminal, unless `NO_COLOR` is set.
///
/// # Errors
/// If the directives are invalid, or another subscriber is installed.
pub fn init(settings: &LogSettings) -> Result<(), LoggingError> {
    let allowed = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let color = if allowed && std::io::stderr().is_terminal() { Color::On } else { Color::Off };
    let subscriber = subscriber(settings, color, std::io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::AlreadyInitialized)
}

/// Whether readable lines are colored. JSON never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Adds ANSI escapes, for a terminal.
    On,
    /// Writes plain text, for a file.
    Off,
}

/// Error of [`init`] and [`subscriber`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The directives of `rust_log` are invalid.
    #[error(
        "RUST_LOG={directives:?} is not accepted ({problem}); accepted: target=level or a level alone, more after commas; levels: trace, debug, info, warn, error, off"
    )]
    BadDirectives {
        /// Value of the setting.
        directives: String,
        /// Error of the parser.
        problem: String,
    },
    /// Another subscriber is installed in this process.
    #[error(
        "a log subscriber is installed already; `logging::init` can be called once, and not beside another subscriber"
    )]
    AlreadyInitialized,
}

/// Returns the subscriber that [`init`] installs, for any writer.
///
/// # Errors
/// If the directives are invalid.
pub fn subscriber<W>(
    settings: &LogSettings,
    color: Color,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter(settings)?).with_writer(writer);
    Ok(match settings.log_format {
        LogFormat::People => Box::new(builder.compact().with_ansi(color == Color::On).finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).with_current_span(true).finish()),
    })
}

fn filter(settings: &LogSettings) -> Result<EnvFilter, LoggingError> {
    let directives = match &settings.rust_log {
        Some(directives) => directives.clone(),
        None => directives(settings.log_level),
    };
    let builder = EnvFilter::builder();
    builder.parse(&directives).map_err(|error| LoggingError::BadDirectives { directives, problem: error.to_string() })
}

fn directives(level: LogLevel) -> String {
    let dependencies = match level {
        LogLevel::Trace | LogLevel::Debug | LogLevel::Info | LogLevel::Warn => LogLevel::Warn,
        LogLevel::Error | LogLevel::Off => level,
    };
    let own = TARGETS.map(|target| format!(",{target}={level}"));
    format!("{dependencies}{}", own.concat())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::settings::Settings;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn settings(variables: &[(&str, &str)]) -> LogSettings {
        Settings::from_map(variables.iter().copied()).expect("settings").logs
    }

    fn logged(variables: &[(&str, &str)], color: Color) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(&settings(variables), color, move || writer.clone()).expect("a subscriber");
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(target: "lcm::test", "a detail");
            tracing::info!(target: "lcm::test", worker = "w-1", "it \"happened\"\nhere");
            tracing::info!(target: "hyper::client", "chatter");
            tracing::warn!(target: "hyper::client", "a warning");
        });
        let bytes = buffer.0.lock().clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn dependencies_log_warnings_only() {
        let text = logged(&[], Color::Off);
        assert!(text.contains("INFO") && text.contains("happened") && text.contains("w-1"), "{text}");
        assert!(text.contains("a warning"), "{text}");
        assert!(!text.contains("a detail") && !text.contains("chatter"), "{text}");
        assert!(!text.contains('\u{1b}'), "no color in a file: {text:?}");
        assert!(logged(&[], Color::On).contains('\u{1b}'));
    }

    #[test]
    fn json_format_writes_one_object_per_line() {
        let text = logged(&[("LCM_LOG_FORMAT", "json"), ("LCM_LOG_LEVEL", "debug")], Color::On);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!((&lines[1]["level"], &lines[1]["worker"]), (&"INFO".into(), &"w-1".into()));
    }

    #[test]
    fn directives_override_the_level() {
        let text = logged(&[("RUST_LOG", "hyper=info"), ("LCM_LOG_LEVEL", "trace")], Color::Off);
        assert!(text.contains("chatter") && !text.contains("happened"), "{text}");
        assert_eq!(logged(&[("LCM_LOG_LEVEL", "off")], Color::Off), "");
    }

    #[test]
    fn invalid_directives_are_reported() {
        let logs = settings(&[("RUST_LOG", "lcm=loud")]);
        let error = filter(&logs).expect_err("invalid directives").to_string();
        assert!(error.contains(r#"RUST_LOG="lcm=loud""#) && error.contains("levels: trace"), "{error}");
    }
}
