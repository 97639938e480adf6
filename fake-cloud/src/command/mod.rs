//! The `fake-cloud` command: starts a cloud, prints its endpoints and stops it on a signal.
//!
//! It is part of the library because it has two entry points: the binary and `python -m lcm.fake_cloud`.

mod arguments;
mod etcd;
mod startup_banner;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use self::arguments::Arguments;
use crate::scenario::BUILTIN;

/// Result of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ExitStatus {
    /// The command ran and stopped without an error.
    Success,
    /// The cloud could not start: a port is in use or the scenario is invalid.
    StartFailed,
    /// The command line is invalid.
    UsageError,
}

impl ExitStatus {
    /// Process exit code: 0, 1 or 2.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::StartFailed => 1,
            Self::UsageError => 2,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

/// Runs the command until SIGINT, SIGTERM or SIGHUP.
///
/// `args` excludes the program name; `program` is the name shown in help. The endpoints are printed to stdout, errors
/// and the request log to stderr. With `etcd` as the first argument, it runs a fake etcd alone.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use fake_cloud::command::{ExitStatus, run};
///
/// assert_eq!(run("fake-cloud", ["--list-scenarios".into()]).await, ExitStatus::Success);
/// assert_eq!(run("fake-cloud", ["--speed=11".into()]).await, ExitStatus::UsageError);
/// assert_eq!(run("fake-cloud", ["etcd".into(), "--help".into()]).await, ExitStatus::Success);
/// # });
/// ```
pub async fn run(program: &str, args: impl IntoIterator<Item = OsString>) -> ExitStatus {
    let mut args = args.into_iter().peekable();
    if args.next_if(|first| first == "etcd").is_some() {
        return etcd::run(&format!("{program} etcd"), args).await;
    }
    let arguments = match Arguments::parse_from(program, args) {
        Ok(arguments) => arguments,
        Err(error) => return print_clap_error(&error),
    };
    finish(if arguments.list_scenarios { list_scenarios() } else { serve(&arguments).await })
}

/// Prints the error of a command that could not start.
fn finish(result: Result<(), String>) -> ExitStatus {
    match result {
        Ok(()) => ExitStatus::Success,
        Err(message) => {
            log_line(&format!("fake-cloud: {message}"));
            ExitStatus::StartFailed
        }
    }
}

/// Prints help, the version or a usage error.
fn print_clap_error(error: &clap::Error) -> ExitStatus {
    // A reader that closes the pipe early is not an error.
    drop(error.print());
    if error.use_stderr() { ExitStatus::UsageError } else { ExitStatus::Success }
}

async fn serve(arguments: &Arguments) -> Result<(), String> {
    let builder = arguments.builder()?;
    let stop = stop_signal().map_err(|error| format!("cannot register signal handlers: {error}"))?;
    let cloud = builder.start().await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => format!("{error}; choose another port (see --help) or use --ephemeral"),
        _ => error.to_string(),
    })?;
    for masked in &cloud.restored().masked {
        log_line(&format!(
            "fake-cloud: the snapshot holds no {} ({}): {}",
            masked.secret, masked.count, masked.default
        ));
    }
    // Printed without --verbose too: an unreachable CML server looks like a bug in the client.
    cloud.world().request_log().on_notice(|notice| log_line(notice));
    if arguments.verbose {
        // To stderr, so that stdout holds nothing but the endpoints.
        cloud.world().request_log().on_request(|record| log_line(record));
    }
    let banner = if arguments.json {
        startup_banner::json(cloud.endpoints()).map_err(|error| error.to_string())?
    } else {
        startup_banner::table(cloud.endpoints())
    };
    print_stdout(&banner).map_err(|error| error.to_string())?;
    stop.await;
    cloud.stop().await;
    Ok(())
}

fn list_scenarios() -> Result<(), String> {
    let lines: Result<String, String> = BUILTIN
        .iter()
        .map(|builtin| {
            let scenario = builtin.load().map_err(|error| error.to_string())?;
            Ok(format!("{:<9}  {}\n", builtin.name, scenario.about()))
        })
        .collect();
    print_stdout(&lines?).map_err(|error| error.to_string())
}

/// Writes to stdout. A closed pipe is not an error.
fn print_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to stderr. Write errors are ignored, so that the cloud keeps running.
fn log_line(line: &dyn std::fmt::Display) {
    drop(writeln!(io::stderr(), "{line}"));
}

/// Completes on SIGINT, SIGTERM or SIGHUP, unless the process was started to ignore SIGHUP, as by `nohup`. Signals that
/// arrive before the first poll count.
///
/// # Errors
/// The signal handlers cannot be registered.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let (mut interrupted, mut terminated, mut hung_up) = {
        use tokio::signal::unix::{SignalKind, signal};
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, hangup)
    };
    #[cfg(windows)]
    let (mut interrupted, mut terminated) = (tokio::signal::windows::ctrl_c()?, tokio::signal::windows::ctrl_close()?);
    Ok(async move {
        #[cfg(unix)]
        let hang_up = async {
            match &mut hung_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        #[cfg(windows)]
        let hang_up = std::future::pending::<()>();
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
            () = hang_up => {}
        }
    })
}

/// Whether this process was started with SIGHUP ignored. A handler would replace that.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    // The first bit is signal 1, SIGHUP.
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
