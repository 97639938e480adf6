//! Reads settings from variables, and collects the origin of each value, problems and warnings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use serde::Serialize;

use super::error::{Problem, Warning};
use super::original::{self, Variable};
use super::parse::{ParseError, Parser, truncate};

/// Prefix of the first variable of every setting.
const PREFIX: &str = "LCM_";

/// Longest reason in a problem, in characters. A reason may quote the value, which has no limit.
const MAX_REASON: usize = 300;

/// Origin of the value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// The default of the setting.
    Default,
    /// A variable, as it was spelled; two that form one value are joined by `+`.
    Variable(String),
    /// A file that a variable names.
    File {
        /// The variable as it was spelled.
        variable: String,
        /// The path of the file.
        path: String,
    },
    /// Generated for this process.
    Generated,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::Variable(variable) => f.pad(&variable.escape_debug().to_string()),
            Self::File { variable, path } => f.pad(&format!("{} ({})", path.escape_debug(), variable.escape_debug())),
            Self::Generated => f.pad("generated"),
        }
    }
}

/// Reads one setting after the other from a set of variables.
pub(super) struct Reader {
    /// The variables by their names in upper case.
    variables: BTreeMap<String, Variable>,
    /// The variables of every setting read so far.
    known: Vec<Vec<&'static str>>,
    pub(super) origins: BTreeMap<&'static str, Origin>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

impl Reader {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        let mut by_name: BTreeMap<String, Variable> = BTreeMap::new();
        for (spelled, value) in variables {
            let upper = spelled.to_ascii_uppercase();
            // Upper case wins over other spellings, independent of the order of the environment.
            if by_name.get(&upper).is_none_or(|earlier| earlier.spelled != upper && spelled <= earlier.spelled)
                || spelled == upper
            {
                by_name.insert(upper, Variable { spelled, value });
            }
        }
        let warnings = original::translate(&mut by_name);
        Self { variables: by_name, known: Vec::new(), origins: BTreeMap::new(), problems: Vec::new(), warnings }
    }

    /// Reads one setting. Returns `None` after recording a problem.
    pub(super) fn read<T: PartialEq + 'static>(
        &mut self,
        parser: &Parser<T>,
        name: &'static str,
        variables: &[&'static str],
        default: &str,
    ) -> Option<T> {
        self.known.push(variables.to_vec());
        let set: Vec<&Variable> = variables.iter().filter_map(|variable| self.variables.get(*variable)).collect();
        // A non-empty alias wins over an empty variable.
        let chosen = set.iter().find(|variable| !variable.value.is_empty()).or(set.first()).copied();
        let (variable, text, origin) = match chosen {
            None => (variables.first().copied().unwrap_or(name).to_owned(), Some(default), Origin::Default),
            Some(Variable { spelled, value }) => {
                let (variable, text) = (spelled.clone(), value.to_str());
                let origin = match text.and_then(|text| parser.file_in(text)) {
                    Some(path) => Origin::File { variable, path: path.to_owned() },
                    None => Origin::Variable(variable),
                };
                (spelled.clone(), text, origin)
            }
        };
        let parsed = match text {
            Some(text) => parser.parse(text),
            None => Err(ParseError::Because("it is not UTF-8".to_owned())),
        };
        if let Some(wins) = chosen {
            let differs = |loses: &&&Variable| {
                let value = loses.value.to_str().map(|text| parser.parse(text));
                !loses.value.is_empty() && !std::ptr::eq(**loses, wins) && value.as_ref() != Some(&parsed)
            };
            let overruled =
                |loses: &&Variable| Warning::Overruled { wins: wins.spelled.clone(), loses: loses.spelled.clone() };
            self.warnings.extend(set.iter().filter(differs).map(overruled));
        }
        self.origins.insert(name, origin);
        let record_problem = |error| {
            let value = text.map_or_else(|| "(bytes)".to_owned(), |text| parser.show_rejected(text));
            let because = match error {
                ParseError::NotAccepted => None,
                ParseError::Because(reason) => Some(truncate(&reason, MAX_REASON)),
            };
            self.problems.push(Problem::BadValue { variable, value, accepted: parser.accepted.clone(), because });
        };
        parsed.map_err(record_problem).ok()
    }

    /// Warns about variables that are not settings but resemble one.
    pub(super) fn find_misspellings(&mut self) {
        for (upper, variable) in &self.variables {
            if let Some(meant) = suggest(upper, &self.known) {
                self.warnings.push(Warning::Misspelled { variable: variable.spelled.clone(), meant });
            } else if original::is_of_a_family(upper) && !self.known.iter().flatten().any(|known| known == upper) {
                self.warnings.push(Warning::NoEffect { variable: variable.spelled.clone() });
            }
        }
    }

    /// Returns the value of a variable that is not a setting, such as `HOSTNAME`.
    pub(super) fn variable(&self, upper: &str) -> Option<&str> {
        self.variables.get(upper)?.value.to_str()
    }
}

/// Longest variable that is compared. Settings are shorter, and the comparison is quadratic.
const MAX_COMPARED: usize = 64;

/// Shortest variable that is compared. Shorter ones resemble too many others.
const MIN_COMPARED: usize = 7;

/// Returns the variable of a setting that an unknown variable was probably meant to be.
///
/// `settings` holds the variables of each setting, the prefixed one first. A prefixed alias (`LCM_INTERVAL_SECONDS`)
/// resolves to the prefixed name of its setting.
fn suggest(variable: &str, settings: &[Vec<&'static str>]) -> Option<&'static str> {
    let known = || settings.iter().flatten().copied();
    if known().any(|candidate| candidate == variable) || !(MIN_COMPARED..=MAX_COMPARED).contains(&variable.len()) {
        return None;
    }
    if let Some(alias) = variable.strip_prefix(PREFIX)
        && let Some(setting) = settings.iter().find(|variables| variables.contains(&alias))
    {
        return setting.first().copied();
    }
    let tolerance = if variable.len() < 10 { 1 } else { 2 };
    let candidates = known().map(|candidate| (edit_distance(variable, candidate), candidate));
    candidates.filter(|(distance, _)| *distance <= tolerance).min().map(|(_, candidate)| candidate)
}

/// Returns the number of insertions, deletions, substitutions and swaps of neighbors between two texts.
fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > 2 {
        return usize::MAX;
    }
    let mut row_before_last: Vec<usize> = Vec::new();
    let mut last_row: Vec<usize> = (0..=other.len()).collect();
    for (row, character) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, counterpart) in other.iter().enumerate() {
            let substituted = last_row[column] + usize::from(character != counterpart);
            let mut best = substituted.min(last_row[column + 1] + 1).min(current[column] + 1);
            let is_swap = row > 0 && column > 0 && one[row - 1] == *counterpart && *character == other[column - 1];
            if is_swap {
                best = best.min(row_before_last[column - 1] + 1);
            }
            current.push(best);
        }
        row_before_last = std::mem::replace(&mut last_row, current);
    }
    last_row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn values_that_are_not_utf8_are_rejected_unseen() {
        use std::os::unix::ffi::OsStringExt as _;

        use crate::settings::parse::{integer, secret};

        let bytes = || OsString::from_vec(b"hunter2\xff".to_vec());
        let mut reader = Reader::new([("MIN_WORKERS".to_owned(), bytes()), ("KEY".to_owned(), bytes())]);
        assert!(reader.read(&integer(0, 9), "min_workers", &["MIN_WORKERS"], "0").is_none());
        assert!(reader.read(&secret(), "key", &["KEY"], "").is_none());
        let problems: Vec<String> = reader.problems.iter().map(ToString::to_string).collect();
        assert!(problems[0].starts_with("MIN_WORKERS=(bytes) is not accepted (it is not UTF-8)"), "{problems:?}");
        assert!(!problems.concat().contains("hunter2"), "{problems:?}");
    }

    #[test]
    fn near_misses_are_suggested() {
        let settings = [
            vec!["LCM_RECONCILE_INTERVAL", "RECONCILE_INTERVAL", "INTERVAL_SECONDS"],
            vec!["LCM_ETCD_ENDPOINTS", "ETCD_ENDPOINTS"],
            vec!["LCM_LOG_LEVEL"],
            vec!["LCM_AWS_DEFAULT_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"],
        ];
        for (variable, meant) in [
            ("RECONCILE_INTERVALL", "RECONCILE_INTERVAL"),
            ("RECONICLE_INTERVAL", "RECONCILE_INTERVAL"),
            ("ETCD_ENDPOINT", "ETCD_ENDPOINTS"),
            ("LCM_LOG_LEVLE", "LCM_LOG_LEVEL"),
            ("LCM_ETCD_ENDPOINT", "LCM_ETCD_ENDPOINTS"),
            ("LCM_AWS_REGION", "LCM_AWS_DEFAULT_REGION"),
        ] {
            assert_eq!(suggest(variable, &settings), Some(meant), "{variable}");
        }
        for other in [
            "ETCDCTL_ENDPOINTS",
            "AWS_PROFILE",
            "PATH",
            "LOGNAME",
            "LOG_LEVEL",
            "LCM_ETCD_BIN",
            "RECONCILE_INTERVAL",
            "",
            "HOME",
        ] {
            assert_eq!(suggest(other, &settings), None, "{other}");
        }
    }

    #[test]
    fn edit_distance_counts_characters() {
        assert_eq!(edit_distance("kitten", "kitten"), 0);
        assert_eq!(edit_distance("kitten", "sittin"), 2);
        assert_eq!(edit_distance("ab", "ba"), 1);
        assert_eq!(edit_distance("", "ab"), 2);
    }
}
