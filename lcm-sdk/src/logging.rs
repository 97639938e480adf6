//! Log output of a process: readable lines or JSON.

use std::io::IsTerminal;

use thiserror::Error;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::settings::{LogFormat, LogLevel, LogSettings};
use crate::spans::TraceContext;

/// Log targets of this project.
const TARGETS: [&str; 3] = ["lcm", "lcm_cli", "lcm_sdk"];

/// Sends the logs of the process to standard error.
///
/// `rust_log` selects the messages. If it is not set, this project logs at `log_level`, and its dependencies log warnings
/// and errors. Readable lines are colored on a terminal, unless `NO_COLOR` is set.
///
/// # Errors
/// If the directives are invalid, or another subscriber is installed.
pub fn init(settings: &LogSettings) -> Result<(), LoggingError> {
    let subscriber = subscriber(settings, Color::detect(&std::io::stderr()), std::io::stderr)?;
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

impl Color {
    /// On for a terminal, unless `NO_COLOR` is set.
    pub fn detect(stream: &impl IsTerminal) -> Self {
        let is_allowed = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if is_allowed && stream.is_terminal() { Self::On } else { Self::Off }
    }
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
    Ok(Box::new(tracing_subscriber::registry().with(layer(settings, color, writer)?)))
}

/// Returns the log output as a layer, for a subscriber that also does something else.
///
/// # Errors
/// If the directives are invalid.
pub fn layer<W>(
    settings: &LogSettings,
    color: Color,
    writer: W,
) -> Result<Box<dyn Layer<Registry> + Send + Sync>, LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, is_colored) = (filter(settings)?, color == Color::On);
    Ok(match settings.log_format {
        LogFormat::People => {
            let format = WithTrace { inner: fmt::format().compact().with_ansi(is_colored), ending: people };
            fmt::layer().with_ansi(is_colored).with_writer(writer).event_format(format).with_filter(filter).boxed()
        }
        LogFormat::Json => {
            let inner = fmt::format().json().flatten_event(true).with_current_span(true);
            let format = WithTrace { inner, ending: json };
            fmt::layer().json().with_writer(writer).event_format(format).with_filter(filter).boxed()
        }
    })
}

/// Adds the ids of the trace and the span to the lines of another format.
struct WithTrace<F> {
    inner: F,
    /// Replaces the end of a line.
    ending: fn(&mut String, TraceContext),
}

fn people(line: &mut String, trace: TraceContext) {
    line.truncate(line.trim_end_matches('\n').len());
    *line += &format!(" trace_id={} span_id={}\n", trace.trace_id(), trace.span_id());
}

fn json(line: &mut String, trace: TraceContext) {
    let open = line.trim_end().strip_suffix('}').map_or(line.len(), str::len);
    line.truncate(open);
    *line += &format!(",\"trace_id\":\"{}\",\"span_id\":\"{}\"}}\n", trace.trace_id(), trace.span_id());
}

impl<S, N, F> FormatEvent<S, N> for WithTrace<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let Some(trace) = TraceContext::current() else {
            return self.inner.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        (self.ending)(&mut line, trace);
        writer.write_str(&line)
    }
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
    // The AWS configuration warns of each source without credentials, with internals. LCM reports missing ones itself.
    let aws_config = if level == LogLevel::Off { LogLevel::Off } else { LogLevel::Error };
    format!("{dependencies},aws_config={aws_config}{}", own.concat())
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
