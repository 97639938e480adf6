//! Logs, for people or for machines.

use std::io::IsTerminal as _;

use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::{LogFormat, LogLevel, LogSettings};

/// What this project logs under; everything else is what it is built on.
const OURS: [&str; 3] = ["lcm", "lcm_sdk", "worker_controller"];

/// Sends the logs of the whole process to its standard error.
///
/// # Flow
/// `rust_log` decides what is logged; without it `log_level` does, for this project, while what it is built on logs
/// warnings and errors. Lines for people have colours on a terminal, unless `NO_COLOR` is set.
///
/// # Errors
/// If the directives cannot be read, or somebody took the logs already.
pub fn init(settings: &LogSettings) -> Result<(), LoggingError> {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let colours = if wanted && std::io::stderr().is_terminal() { Colours::On } else { Colours::Off };
    let subscriber = subscriber(settings, colours, std::io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::AlreadyTaken)
}

/// Whether lines for people have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// For a terminal.
    On,
    /// For a file.
    Off,
}

/// Why logs cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The directives cannot be read.
    #[error(
        "RUST_LOG={directives:?} is not accepted ({problem}); accepted: target=level or a level alone, more after commas; levels: trace, debug, info, warn, error, off"
    )]
    BadDirectives {
        /// What was given.
        directives: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody else in this process takes the logs.
    #[error(
        "the logs of this process go somewhere already; `logging::init` can be called once, and not beside another subscriber"
    )]
    AlreadyTaken,
}

/// What [`init`] installs, for any writer.
///
/// # Errors
/// If the directives cannot be read.
pub fn subscriber<W>(
    settings: &LogSettings,
    colours: Colours,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter(settings)?).with_writer(writer);
    Ok(match settings.log_format {
        LogFormat::People => Box::new(builder.compact().with_ansi(colours == Colours::On).finish()),
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
    let others = match level {
        LogLevel::Trace | LogLevel::Debug | LogLevel::Info | LogLevel::Warn => LogLevel::Warn,
        LogLevel::Error | LogLevel::Off => level,
    };
    let ours = OURS.map(|target| format!(",{target}={level}"));
    format!("{others}{}", ours.concat())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::settings::Settings;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
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

    fn logged(variables: &[(&str, &str)], colours: Colours) -> String {
        let page = Page::default();
        let writer = page.clone();
        let subscriber = subscriber(&settings(variables), colours, move || writer.clone()).expect("a subscriber");
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(target: "lcm::test", "a detail");
            tracing::info!(target: "lcm::test", worker = "w-1", "it \"happened\"\nhere");
            tracing::info!(target: "hyper::client", "chatter");
            tracing::warn!(target: "hyper::client", "a warning");
        });
        let bytes = page.0.lock().clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn people_read_what_happened_and_warnings_of_others() {
        let text = logged(&[], Colours::Off);
        assert!(text.contains("INFO") && text.contains("happened") && text.contains("w-1"), "{text}");
        assert!(text.contains("a warning"), "{text}");
        assert!(!text.contains("a detail") && !text.contains("chatter"), "{text}");
        assert!(!text.contains('\u{1b}'), "no colours in a file: {text:?}");
        assert!(logged(&[], Colours::On).contains('\u{1b}'));
    }

    #[test]
    fn machines_read_one_object_on_each_line() {
        let text = logged(&[("LCM_LOG_FORMAT", "json"), ("LCM_LOG_LEVEL", "debug")], Colours::On);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!((&lines[1]["level"], &lines[1]["worker"]), (&"INFO".into(), &"w-1".into()));
    }

    #[test]
    fn directives_count_more_than_the_level() {
        let text = logged(&[("RUST_LOG", "hyper=info"), ("LCM_LOG_LEVEL", "trace")], Colours::Off);
        assert!(text.contains("chatter") && !text.contains("happened"), "{text}");
        assert_eq!(logged(&[("LCM_LOG_LEVEL", "off")], Colours::Off), "");
    }

    #[test]
    fn directives_that_cannot_be_read_are_named_with_what_is_accepted() {
        let logs = settings(&[("RUST_LOG", "lcm=loud")]);
        let error = filter(&logs).expect_err("refused").to_string();
        assert!(error.contains(r#"RUST_LOG="lcm=loud""#) && error.contains("levels: trace"), "{error}");
    }
}
