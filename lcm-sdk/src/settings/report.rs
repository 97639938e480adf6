//! The settings for people: what `--print-settings` prints, and the reference in the documents.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::reader::Origin;

/// One row of the table of settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// What it belongs to.
    pub group: &'static str,
    /// What that is about.
    #[serde(skip)]
    pub about: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The variables it is read from, `LCM_<NAME>` first; the first that is set and not empty counts.
    pub variables: &'static [&'static str],
    /// Its default.
    pub default: &'static str,
    /// What is accepted.
    pub accepted: String,
    /// What it means.
    pub description: &'static str,
}

/// A setting and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The setting.
    #[serde(flatten)]
    pub setting: Setting,
    /// Its value; secrets show that they are there, nothing more.
    pub value: String,
    /// Where the value came from.
    pub origin: Origin,
}

/// All settings with their values. Displays as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// The rows, grouped.
    pub readings: Vec<Reading>,
}

const HEADINGS: [&str; 6] = ["SETTING", "VARIABLE", "VALUE", "DEFAULT", "FROM", "MEANING"];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 6]> = self.readings.iter().map(cells).collect();
        let mut widths = HEADINGS.map(|heading| heading.chars().count());
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |f: &mut fmt::Formatter<'_>, cells: &[String; 6]| {
            let mut text = String::new();
            for (cell, width) in cells.iter().zip(widths) {
                write!(text, "{cell:width$}  ")?;
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(f, &HEADINGS.map(str::to_owned))?;
        let mut group = "";
        for (reading, row) in self.readings.iter().zip(&rows) {
            if reading.setting.group != group {
                group = reading.setting.group;
                writeln!(f, "\n# {group}")?;
            }
            line(f, row)?;
        }
        Ok(())
    }
}

/// Values are cut: a list of regions must not push everything after it off the screen.
const WIDEST: usize = 48;

fn cells(reading: &Reading) -> [String; 6] {
    let setting = &reading.setting;
    let cut = |text: &str| {
        let mut letters = text.chars();
        let mut short: String = letters.by_ref().take(WIDEST).collect();
        if letters.next().is_some() {
            short.push('…');
        }
        short
    };
    [
        setting.name.to_owned(),
        setting.variables.first().copied().unwrap_or_default().to_owned(),
        cut(&reading.value),
        setting.default.to_owned(),
        cut(&reading.origin.to_string()),
        setting.description.to_owned(),
    ]
}

/// The reference of all settings, in Markdown.
pub(super) fn reference(settings: &[Setting]) -> String {
    let mut text = String::from(PREFACE);
    let mut group = "";
    for setting in settings {
        if setting.group != group {
            group = setting.group;
            let _ = write!(text, "\n## {group}\n\n{}\n\n{TABLE_HEAD}", setting.about);
        }
        let mut variables = setting.variables.iter().map(|variable| format!("`{variable}`"));
        let own = variables.next().unwrap_or_default();
        let aliases: Vec<String> = variables.collect();
        let row = [
            format!("`{}`", setting.name),
            own,
            aliases.join(", "),
            format!("`{}`", setting.default),
            setting.accepted.clone(),
            setting.description.to_owned(),
        ];
        let _ = writeln!(text, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    text
}

const TABLE_HEAD: &str =
    "| setting | variable | also accepted | default | values | meaning |\n|---|---|---|---|---|---|\n";

const PREFACE: &str = "\
# Settings

Everything is set by environment variables, in any case. `worker-controller --print-settings` shows each setting with
its value, its default and where the value came from; secrets show as `[redacted]`, or `(not set)`.

- Every setting has a variable of its own, `LCM_` and its name, which wins over the other names it is accepted under.
  Among variables of one setting the first that is set and not empty counts; a warning names unprefixed ones that differ.
- Names that a platform may set for its own purposes (`SERVICE_NAME`, `INSTANCE_ID`, `LOG_LEVEL`, `LOG_FORMAT`) count only
  with the prefix.
- A bad value is an error before anything starts. It names the variable, the value and what is accepted; all bad values
  are named at once.
- A variable that nobody reads but that looks like one of these gives a warning.
- Times are in seconds unless the name says otherwise; fractions are fine.

This page is generated from the table in `lcm-sdk/src/settings/table.rs`; a test fails while the two differ.
";
