//! What is shown: on a terminal, sentences that stay and a table below them that lives; in a pipe, lines.

use std::io;
use std::time::{Duration, Instant};

use console::{Style, Term, measure_text_width};

use crate::table;
use crate::view::{Change, View};

/// How often the table is drawn anew at most.
const FRAME: Duration = Duration::from_millis(80);
/// How long a sentence is left alone, so that a person can read it and look.
const BEAT: Duration = Duration::from_millis(1300);
/// What a sentence is set off by: the time, or a word.
const MARGIN: usize = 11;

/// Where the story is told.
pub(crate) struct Screen {
    term: Term,
    manner: Manner,
    began: Instant,
}

enum Manner {
    /// Nobody looks, or the terminal can do nothing but lines.
    Lines,
    /// A table that is drawn anew in place.
    Live {
        /// What it shows.
        view: View,
        /// How wide each line of it is that is on the screen now.
        drawn: Vec<usize>,
        /// When it was drawn.
        at: Instant,
    },
}

impl Screen {
    /// Live where somebody looks, lines where not. `NO_COLOR` takes the colours away, not the life.
    pub(crate) fn on_stdout() -> Self {
        let (term, began) = (Term::buffered_stdout(), Instant::now());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let manner = match term.is_term() && !dumb {
            true => Manner::Live { view: View::default(), drawn: Vec::new(), at: began },
            false => Manner::Lines,
        };
        Self { term, manner, began }
    }

    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// How long to wait for the reader: not at all where there is none.
    pub(crate) fn beat(&self) -> Duration {
        match self.manner {
            Manner::Lines => Duration::ZERO,
            Manner::Live { .. } => BEAT,
        }
    }

    /// A heading, which stays.
    pub(crate) fn head(&mut self, heading: &str) -> io::Result<()> {
        self.say(&["", heading].map(|line| Style::new().bold().apply_to(line).to_string()))
    }

    /// A sentence, which stays, with the time.
    pub(crate) fn tell(&mut self, sentence: &str) -> io::Result<()> {
        let time = format!("{:5.1} s", self.elapsed().as_secs_f64());
        self.note(&time, sentence)
    }

    /// A sentence, which stays, with a word beside it.
    pub(crate) fn note(&mut self, word: &str, sentence: &str) -> io::Result<()> {
        let width = if self.term.is_term() { self.size().0.saturating_sub(MARGIN) } else { usize::MAX };
        let mut beside = Style::new().dim().apply_to(format!("{word:MARGIN$}")).to_string();
        let mut lines = Vec::new();
        for line in wrap(sentence, width) {
            lines.push(std::mem::replace(&mut beside, " ".repeat(MARGIN)) + &line);
        }
        self.say(&lines)
    }

    /// Lines as they are, which stay.
    pub(crate) fn say(&mut self, lines: &[String]) -> io::Result<()> {
        self.wipe()?;
        for line in lines {
            self.term.write_line(line)?;
        }
        self.draw()?;
        self.term.flush()
    }

    /// The fleet as it is now: drawn anew, or what has changed as lines.
    pub(crate) fn show(&mut self, now: View, changes: &[Change]) -> io::Result<()> {
        match &mut self.manner {
            Manner::Lines => {
                for Change { worker, from, to } in changes {
                    let from = from.as_deref().unwrap_or("asked for");
                    self.term.write_line(&format!("{:MARGIN$}  {worker}: {from} → {to}", ""))?;
                }
            }
            Manner::Live { view, at, .. } => {
                *view = now;
                if changes.is_empty() && at.elapsed() < FRAME {
                    return Ok(());
                }
                *at = Instant::now();
                self.wipe()?;
                self.draw()?;
            }
        }
        self.term.flush()
    }

    /// Leaves the terminal in order, and the table as it is.
    pub(crate) fn leave(&mut self) {
        if let Manner::Live { .. } = self.manner {
            self.manner = Manner::Lines;
            // If that fails there is no terminal any more to leave in order.
            drop(self.term.show_cursor().and_then(|()| self.term.flush()));
        }
    }

    fn wipe(&mut self) -> io::Result<()> {
        let width = self.size().0.max(1);
        let Manner::Live { drawn, .. } = &mut self.manner else { return Ok(()) };
        // On a terminal that has become narrower, what was one line is several.
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
        let Manner::Live { view, drawn, .. } = &mut self.manner else { return Ok(()) };
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

/// However it ends.
impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Breaks a sentence between words, so that no line is longer than `width` unless a word is.
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
    fn a_sentence_breaks_between_words_and_loses_none() {
        let sentence = "The scan shows nothing at all, so nobody is touched.";
        for width in [1, 10, 20, 80, usize::MAX] {
            let lines = wrap(sentence, width);
            assert_eq!(lines.join(" "), sentence);
            assert!(lines.iter().all(|line| line.chars().count() <= width || !line.contains(' ')), "{lines:?}");
        }
    }
}
