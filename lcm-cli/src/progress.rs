//! Progress of long commands, on a terminal only.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lcm_sdk::workers::SweepProgress;

/// Time between two frames of the animation.
const FRAME: Duration = Duration::from_millis(100);

/// A line on standard error that shows that a command is at work. It is gone when the command prints its result.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar of the workers of a sweep, such as `━━━━╸      12/40 workers decided`, once they are listed.
    pub(crate) fn sweep(what: &'static str) -> Self {
        Self::start("{spinner} listing the workers ({elapsed})", what)
    }

    /// Notes the progress of a sweep.
    pub(crate) fn note(&self, progress: SweepProgress<'_>) {
        match progress {
            SweepProgress::Listed(count) => {
                if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({elapsed})") {
                    self.bar.set_style(style.progress_chars("━╸ "));
                }
                self.bar.set_length(count as u64);
            }
            SweepProgress::Reconciled(_) => self.bar.inc(1),
        }
    }

    /// Shows what a command waits for.
    pub(crate) fn wait(what: impl Into<Cow<'static, str>>) -> Self {
        Self::start("{spinner} {msg} ({elapsed})", what)
    }

    /// Shows what a command waits for, and how long at most.
    pub(crate) fn wait_at_most(what: &str, limit: Duration) -> Self {
        Self::start("{spinner} {msg}: {elapsed}", format!("{what}, for at most {} s", limit.as_secs()))
    }

    fn start(template: &str, message: impl Into<Cow<'static, str>>) -> Self {
        // It draws on a terminal only.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(message);
        bar.enable_steady_tick(FRAME);
        Self { bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
