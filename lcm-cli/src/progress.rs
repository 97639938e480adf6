//! Progress of long commands, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two frames of the animation.
const FRAME: Duration = Duration::from_millis(100);

/// A line on standard error that shows that a command is at work. It is gone when the command prints its result.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a count that grows, such as `12 workers reconciled`.
    pub(crate) fn count(what: &'static str) -> Self {
        Self::start("{spinner} {pos} {msg} in {elapsed}", what)
    }

    /// Shows what a command waits for.
    pub(crate) fn wait(what: &'static str) -> Self {
        Self::start("{spinner} {msg} ({elapsed})", what)
    }

    fn start(template: &str, message: &'static str) -> Self {
        // It draws on a terminal only.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(message);
        bar.enable_steady_tick(FRAME);
        Self { bar }
    }

    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
