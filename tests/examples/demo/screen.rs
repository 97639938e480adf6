//! Output: on a terminal, text above a live table; in a pipe, lines.

use std::io;
use std::time::{Duration, Instant};

use console::{Style, Term, measure_text_width};

use super::table::{self, Change, View};

/// Minimum time between two redraws of the table.
const FRAME: Duration = Duration::from_millis(80);
/// Pause after a sentence on a terminal, to read it.
const READING_PAUSE: Duration = Duration::from_millis(1300);
/// Width of the left column, which holds the time or a label.
const MARGIN: usize = 11;

/// Standard output of the demo.
pub(crate) struct Screen {
    term: Term,
    mode: Mode,
    started: Instant,
}

enum Mode {
    /// A pipe, or a terminal without cursor control.
    Lines,
    /// A terminal with a table that is redrawn in place.
    Live {
        view: View,
        /// Widths of the lines on the screen.
        drawn: Vec<usize>,
        /// Time of the last redraw.
        at: Instant,
    },
}

impl Screen {
    /// Live on a terminal, lines elsewhere. `NO_COLOR` turns off colors only.
    pub(crate) fn on_stdout() -> Self {
        let (term, started) = (Term::buffered_stdout(), Instant::now());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let mode = match term.is_term() && !dumb {
            true => Mode::Live { view: View::default(), drawn: Vec::new(), at: started },
            false => Mode::Lines,
        };
        Self { term, mode, started }
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Pause after a sentence; zero without a terminal.
    pub(crate) fn reading_pause(&self) -> Duration {
        match self.mode {
            Mode::Lines => Duration::ZERO,
            Mode::Live { .. } => READING_PAUSE,
        }
    }

    /// Prints a heading.
    pub(crate) fn head(&mut self, heading: &str) -> io::Result<()> {
        self.print_lines(&["", heading].map(|line| Style::new().bold().apply_to(line).to_string()))
    }

    /// Prints a sentence with the elapsed time.
    pub(crate) fn print(&mut self, sentence: &str) -> io::Result<()> {
        let time = format!("{:5.1} s", self.elapsed().as_secs_f64());
        self.print_labeled(&time, sentence)
    }

    /// Prints a sentence with a label.
    pub(crate) fn print_labeled(&mut self, label: &str, sentence: &str) -> io::Result<()> {
        let width = if self.term.is_term() { self.size().0.saturating_sub(MARGIN) } else { usize::MAX };
        let mut left = Style::new().dim().apply_to(format!("{label:MARGIN$}")).to_string();
        let mut lines = Vec::new();
        for line in wrap(sentence, width) {
            lines.push(std::mem::replace(&mut left, " ".repeat(MARGIN)) + &line);
        }
        self.print_lines(&lines)
    }

    /// Prints lines as they are.
    pub(crate) fn print_lines(&mut self, lines: &[String]) -> io::Result<()> {
        self.clear()?;
        for line in lines {
            self.term.write_line(line)?;
        }
        self.draw()?;
        self.term.flush()
    }

    /// Redraws the table, or prints the changes as lines.
    pub(crate) fn show(&mut self, now: View, changes: &[Change]) -> io::Result<()> {
        match &mut self.mode {
            Mode::Lines => {
                for Change { worker, from, to } in changes {
                    let from = from.as_deref().unwrap_or("requested");
                    self.term.write_line(&format!("{:MARGIN$}  {worker}: {from} → {to}", ""))?;
                }
            }
            Mode::Live { view, at, .. } => {
                *view = now;
                if changes.is_empty() && at.elapsed() < FRAME {
                    return Ok(());
                }
                *at = Instant::now();
                self.clear()?;
                self.draw()?;
            }
        }
        self.term.flush()
    }

    /// Restores the cursor and leaves the last table on the screen.
    pub(crate) fn leave(&mut self) {
        if let Mode::Live { .. } = self.mode {
            self.mode = Mode::Lines;
            // Fails only if the terminal is gone.
            drop(self.term.show_cursor().and_then(|()| self.term.flush()));
        }
    }

    fn clear(&mut self) -> io::Result<()> {
        let width = self.size().0.max(1);
        let Mode::Live { drawn, .. } = &mut self.mode else { return Ok(()) };
        // A line may have wrapped since the terminal became narrower.
        let rows: usize = drawn.drain(..).map(|line| line.div_ceil(width).max(1)).sum();
        if rows > 0 {
            self.term.move_cursor_up(rows)?;
            self.term.clear_to_end_of_screen()?;
        }
        Ok(())
    }

    fn draw(&mut self) -> io::Result<()> {
        let (width, height) = self.size();
        let elapsed = self.elapsed();
        let Mode::Live { view, drawn, .. } = &mut self.mode else { return Ok(()) };
        self.term.hide_cursor()?;
        for line in table::lines(view, elapsed, width, height) {
            drawn.push(measure_text_width(&line));
            self.term.write_line(&line)?;
        }
        Ok(())
    }

    fn size(&self) -> (usize, usize) {
        let (rows, columns) = self.term.size();
        (columns.into(), rows.into())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Wraps a sentence between words to lines of at most `width` columns.
fn wrap(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if measure_text_width(line) + 1 + measure_text_width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_keeps_every_word() {
        let sentence = "The scan shows nothing at all, so no record changes.";
        for width in [1, 10, 20, 80, usize::MAX] {
            let lines = wrap(sentence, width);
            assert_eq!(lines.join(" "), sentence);
            assert!(lines.iter().all(|line| line.chars().count() <= width || !line.contains(' ')), "{lines:?}");
        }
    }
}
