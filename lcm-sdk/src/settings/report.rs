//! Formats settings: the table of `--print-settings` and the reference in `docs/settings.md`.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::parse::truncate;
use super::reader::Origin;

/// One row of the table of settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// The title of the group it belongs to.
    pub group: &'static str,
    /// The description of that group.
    #[serde(skip)]
    pub about: &'static str,
    /// The name of the setting, in lower case: `LCM_` and the name in upper case is its variable.
    pub name: &'static str,
    /// The variables it is read from, `LCM_<NAME>` first; the first that is set and not empty counts.
    pub variables: &'static [&'static str],
    /// The default value, or a placeholder such as `(not set)`.
    pub default: &'static str,
    /// The accepted values, as errors list them.
    pub accepted: String,
    /// The effect of the setting, with its unit.
    pub description: &'static str,
}

/// A setting with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettingValue {
    /// The row of the table of settings.
    #[serde(flatten)]
    pub setting: Setting,
    /// The value as text; `[redacted]` for a secret.
    pub value: String,
    /// The origin of the value.
    pub origin: Origin,
}

/// All settings with their values. Displays as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
#[non_exhaustive]
pub struct Report {
    /// One row per setting, ordered by group.
    pub settings: Vec<SettingValue>,
}

const HEADINGS: [&str; 6] = ["SETTING", "VARIABLE", "VALUE", "DEFAULT", "FROM", "MEANING"];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 6]> = self.settings.iter().map(cells).collect();
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
        for (value, row) in self.settings.iter().zip(&rows) {
            if value.setting.group != group {
                group = value.setting.group;
                writeln!(f, "\n# {group}")?;
            }
            line(f, row)?;
        }
        Ok(())
    }
}

/// Widest value in characters. A long list of regions must not push the other columns off the screen.
const MAX_WIDTH: usize = 48;

/// Widest origin in characters. It may hold the path of a file.
const MAX_ORIGIN_WIDTH: usize = 96;

fn cells(value: &SettingValue) -> [String; 6] {
    let setting = &value.setting;
    [
        setting.name.to_owned(),
        setting.variables.first().copied().unwrap_or_default().to_owned(),
        truncate(&value.value, MAX_WIDTH),
        setting.default.to_owned(),
        truncate(&value.origin.to_string(), MAX_ORIGIN_WIDTH),
        setting.description.to_owned(),
    ]
}

/// Returns the reference of all settings in Markdown.
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

Settings are environment variables, in upper or lower case. `worker-controller --print-settings` lists every setting with
its value, default and origin; secrets are shown as `[redacted]` or `(not set)`.

- Every setting has a variable of its own, `LCM_` and its name, which wins over the other names it is accepted under: our
  names without the prefix, then those of the original controller. The first that is set and not empty counts. A
  variable with another value gives a warning that names both.
- Names that a platform may set for its own purposes (`SERVICE_NAME`, `INSTANCE_ID`, `LOG_LEVEL`, `LOG_FORMAT`) count only
  with the prefix.
- An invalid value is an error before anything starts. The error lists every invalid variable with its value and the
  accepted values.
- An unknown variable that resembles a setting gives a warning, and so does an unknown `WORKER_DISCOVERY_…`,
  `WORKER_IDLE_…` or `WORKER_AUTO_PAUSE_…`.
- `ETCD_PORT`, `APP_PORT`, `ADMIN_PORT` and `CML_PORT` are ignored with a warning if they hold the address of a service
  (`tcp://…`), which Kubernetes injects.
- Times are in seconds unless the name has another unit. Fractions are accepted.

This page is generated from the table in `lcm-sdk/src/settings/table.rs`; a test fails while the two differ.
";
