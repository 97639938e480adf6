//! What ends the command.

use std::io;

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
