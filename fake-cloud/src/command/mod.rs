//! The command `fake-cloud`: starts a cloud, says where it is, and ends it when asked to.
//!
//! It is here, and not in the program, because it has two doors: the binary and `python -m lcm.fake_cloud`.

mod arguments;
mod startup_banner;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use self::arguments::Arguments;
use crate::cloud::FakeCloud;
use crate::scenario::BUILTIN;

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ExitStatus {
    /// It did what was asked for.
    Success,
    /// It could not start: a port in use, a scenario that cannot be meant.
    StartFailed,
    /// What was said on the command line is no use.
    UsageError,
}

impl ExitStatus {
    /// The exit code that says so.
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
    fn from(ending: ExitStatus) -> Self {
        Self::from(ending.code())
    }
}

/// Runs the command until it is told to stop: by Ctrl-C, or by a request to end the process.
///
/// `words` are what comes after the program's name on the command line, and `program` is what help calls it. Where the
/// cloud is goes to stdout, and everything else to stderr.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use fake_cloud::command::{ExitStatus, run};
///
/// assert_eq!(run("fake-cloud", ["--list-scenarios".into()]).await, ExitStatus::Success);
/// assert_eq!(run("fake-cloud", ["--speed=11".into()]).await, ExitStatus::UsageError);
/// # });
/// ```
pub async fn run(program: &str, words: impl IntoIterator<Item = OsString>) -> ExitStatus {
    let arguments = match Arguments::read(program, words) {
        Ok(arguments) => arguments,
        Err(message) => return show(&message),
    };
    let ended = if arguments.list_scenarios { list_scenarios() } else { serve(&arguments).await };
    match ended {
        Ok(()) => ExitStatus::Success,
        Err(message) => {
            complain(&format!("fake-cloud: {message}"));
            ExitStatus::StartFailed
        }
    }
}

/// Shows what clap has to say: help and the version were asked for, anything else is wrong usage.
fn show(message: &clap::Error) -> ExitStatus {
    // Whoever reads only the first lines of it has seen enough.
    drop(message.print());
    if message.use_stderr() { ExitStatus::UsageError } else { ExitStatus::Success }
}

async fn serve(arguments: &Arguments) -> Result<(), String> {
    let options = arguments.options().map_err(|error| error.to_string())?;
    let stop = stop_signal().map_err(|error| format!("cannot listen to signals: {error}"))?;
    let cloud = FakeCloud::start(options).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => format!("{error}; choose another port (see --help) or use --ephemeral"),
        _ => error.to_string(),
    })?;
    // Asked for or not: what cannot be reached is easily taken for a bug of whoever tries.
    cloud.world().request_log().on_notice(|notice| complain(notice));
    if arguments.verbose {
        // To stderr, so that whoever reads the endpoints from stdout reads nothing else there.
        cloud.world().request_log().on_request(|record| complain(record));
    }
    let announced = if arguments.json {
        startup_banner::json(cloud.endpoints()).map_err(|error| error.to_string())?
    } else {
        startup_banner::table(cloud.endpoints())
    };
    say(&announced).map_err(|error| error.to_string())?;
    stop.await;
    cloud.stop().await;
    Ok(())
}

fn list_scenarios() -> Result<(), String> {
    let lines: Result<String, String> = BUILTIN
        .iter()
        .map(|ready| {
            let scenario = ready.scenario().map_err(|error| error.to_string())?;
            Ok(format!("{:<9}  {}\n", ready.name, scenario.about()))
        })
        .collect();
    say(&lines?).map_err(|error| error.to_string())
}

/// Says something to whoever reads stdout, if anybody still does.
fn say(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// A line to stderr. Whoever reads the log may stop reading; the cloud goes on.
fn complain(line: &dyn std::fmt::Display) {
    drop(writeln!(io::stderr(), "{line}"));
}

/// Completes when somebody presses Ctrl-C or asks the process to end. Whoever does so before anybody waits is heard too.
///
/// # Errors
/// Signals that cannot be listened to.
pub(super) fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let (mut interrupted, mut terminated) = {
        use tokio::signal::unix::{SignalKind, signal};
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    #[cfg(windows)]
    let (mut interrupted, mut terminated) = (tokio::signal::windows::ctrl_c()?, tokio::signal::windows::ctrl_close()?);
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}
