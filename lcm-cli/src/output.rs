//! Prints results: tables and texts for people, JSON, YAML and names for scripts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use lcm_sdk::WorkerStatus;
use lcm_sdk::logging::Color;
use serde::Serialize;

use crate::exit::{ExitStatus, Failure};

/// Format of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table or text for people.
    #[default]
    Table,
    /// JSON; one line per change where a command follows changes.
    Json,
    /// YAML; one document per change where a command follows changes.
    Yaml,
    /// Names only, one per line.
    Name,
}

/// Standard output in one format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) paint: Paint,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, paint: Paint(Color::detect(&std::io::stdout())) }
    }

    /// Prints the result of a command.
    pub(crate) fn print<T: Serialize + ?Sized>(
        &self,
        value: &T,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => {
                print(&format!("{}\n", serde_json::to_string_pretty(value).map_err(|error| unprintable(&error))?))
            }
            Format::Table | Format::Yaml | Format::Name => self.print_shared(value, names, text, ""),
        }
    }

    /// Prints one of many results that follow each other.
    pub(crate) fn print_item<T: Serialize + ?Sized>(
        &self,
        value: &T,
        name: &str,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => print(&format!("{}\n", serde_json::to_string(value).map_err(|error| unprintable(&error))?)),
            Format::Table | Format::Yaml | Format::Name => self.print_shared(value, [name], text, "---\n"),
        }
    }

    fn print_shared<T: Serialize + ?Sized>(
        &self,
        value: &T,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        text: impl FnOnce(Paint) -> String,
        separator: &str,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json | Format::Yaml => {
                let yaml = serde_yaml_ng::to_string(value).map_err(|error| unprintable(&error))?;
                print(&format!("{separator}{yaml}"))
            }
            Format::Name => {
                let mut lines = String::new();
                for name in names {
                    let _ = writeln!(lines, "{}", printable(name.as_ref()));
                }
                print(&lines)
            }
            Format::Table => print(&text(self.paint)),
        }
    }
}

fn unprintable(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ExitStatus::Failure, &format!("the result could not be formatted: {error}"))
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Escapes control characters: a name could otherwise move the cursor or recolor the terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |letter: char| -> String {
        if letter.is_control() { letter.escape_default().collect() } else { letter.to_string() }
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Colors text, or leaves it as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(pub(crate) Color);

impl Paint {
    pub(crate) fn with(self, style: Style, text: &str) -> String {
        match self.0 {
            Color::On if !style.is_plain() => format!("{style}{text}{style:#}"),
            Color::On | Color::Off => text.to_owned(),
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with(Style::new().dimmed(), text)
    }
}

/// A style with one color.
pub(crate) const fn color(color: AnsiColor) -> Style {
    Style::new().fg_color(Some(anstyle::Color::Ansi(color)))
}

/// The style of a worker status: in service, on its way, at rest, or in need of an operator.
pub(crate) const fn status_style(status: WorkerStatus) -> Style {
    match status {
        WorkerStatus::Running => color(AnsiColor::Green),
        WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting => color(AnsiColor::Cyan),
        WorkerStatus::Draining | WorkerStatus::Stopping | WorkerStatus::Terminating => color(AnsiColor::Yellow),
        WorkerStatus::Stopped | WorkerStatus::Terminated => Style::new().dimmed(),
        WorkerStatus::Failed | WorkerStatus::Unknown => color(AnsiColor::Red),
    }
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(text: impl ToString, style: Style) -> Self {
        Self { text: printable(&text.to_string()).into_owned(), style }
    }

    /// A cell that may be empty.
    pub(crate) fn optional(text: Option<impl ToString>) -> Self {
        text.map_or_else(|| Self::styled("-", Style::new().dimmed()), Self::from)
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// A table: columns as wide as their widest cell, except for the last.
#[derive(Debug)]
pub(crate) struct Table {
    heads: Vec<&'static str>,
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Row(Vec<Cell>),
    /// Belongs to the row above it; indented by the first column.
    Detail(Cell),
}

impl Table {
    pub(crate) fn new<const N: usize>(heads: [&'static str; N]) -> Self {
        Self { heads: heads.to_vec(), lines: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.lines.push(Line::Row(cells.to_vec()));
    }

    pub(crate) fn detail(&mut self, text: impl Into<Cell>) {
        self.lines.push(Line::Detail(text.into()));
    }

    pub(crate) fn render(&self, paint: Paint) -> String {
        let mut widths: Vec<usize> = self.heads.iter().map(|head| head.len()).collect();
        for line in &self.lines {
            let Line::Row(cells) = line else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        let heads = self.heads.iter().map(|head| Cell::styled(head, Style::new().bold())).collect();
        let mut text = String::new();
        for line in std::iter::once(&Line::Row(heads)).chain(&self.lines) {
            match line {
                Line::Row(cells) => {
                    for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                        let is_last = at + 1 == cells.len();
                        let gap = if is_last { 0 } else { width - cell.text.chars().count() + 2 };
                        let _ = write!(text, "{}{:gap$}", paint.with(cell.style, &cell.text), "");
                    }
                }
                Line::Detail(cell) => {
                    let indent = widths.first().map_or(0, |width| width + 2);
                    let _ = write!(text, "{:indent$}{}", "", paint.with(cell.style, &cell.text));
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(["WORKER", "WHY"]);
        table.row(["w-1".into(), "short".into()]);
        table.detail("would stop");
        table.row(["a longer id".into(), Cell::optional(None::<String>)]);
        let text = table.render(Paint(Color::Off));
        assert_eq!(text, "WORKER       WHY\nw-1          short\n             would stop\na longer id  -\n");
    }

    #[test]
    fn control_characters_are_escaped() {
        let cell = Cell::from("w-1\u{1b}[31m\r\n");
        assert_eq!(cell.text, r"w-1\u{1b}[31m\r\n");
    }

    #[test]
    fn color_wraps_the_text_without_its_gap() {
        let mut table = Table::new(["A", "B"]);
        table.row([Cell::styled("x", color(AnsiColor::Red)), "y".into()]);
        let text = table.render(Paint(Color::On));
        assert!(text.ends_with("\u{1b}[31mx\u{1b}[0m  y\n"), "{text:?}");
    }
}
