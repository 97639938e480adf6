//! Reads variables one setting after the other, and remembers where each value came from and what was wrong.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde::Serialize;

use super::parse::{Form, Refusal, cut};
use super::problem::{Problem, Warning};
use super::suggest;

/// Longest reason in a problem, in letters.
const LONGEST_REASON: usize = 300;

/// Prefix of every setting's own variable.
const PREFIX: &str = "LCM_";

/// Where the value of a setting came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A variable, as it was spelled.
    Variable(String),
    /// It was made up for this process.
    Generated,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::Variable(variable) => f.pad(&variable.escape_debug().to_string()),
            Self::Generated => f.pad("generated"),
        }
    }
}

/// The variables that were given, by their names in upper case.
pub(super) struct Reader {
    given: BTreeMap<String, Given>,
    /// The variables of every setting read so far.
    settings: Vec<Vec<&'static str>>,
    pub(super) origins: BTreeMap<&'static str, Origin>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

struct Given {
    spelled: String,
    value: OsString,
}

impl Reader {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        let mut given: BTreeMap<String, Given> = BTreeMap::new();
        for (spelled, value) in variables {
            let upper = spelled.to_ascii_uppercase();
            // The spelling of the documents wins over others, whatever order the environment comes in.
            if given.get(&upper).is_none_or(|earlier| earlier.spelled != upper && spelled <= earlier.spelled)
                || spelled == upper
            {
                given.insert(upper, Given { spelled, value });
            }
        }
        Self { given, settings: Vec::new(), origins: BTreeMap::new(), problems: Vec::new(), warnings: Vec::new() }
    }

    /// Reads one setting. `None` means that a problem was noted.
    pub(super) fn read<F: Form>(
        &mut self,
        form: &F,
        name: &'static str,
        variables: &[&'static str],
        default: &str,
    ) -> Option<F::Value> {
        self.settings.push(variables.to_vec());
        let set: Vec<&Given> = variables.iter().filter_map(|variable| self.given.get(*variable)).collect();
        // An alias with something in it is meant more than a variable somebody left empty.
        let chosen = set.iter().find(|given| !given.value.is_empty()).or(set.first()).copied();
        let (variable, text, origin) = match chosen {
            None => (variables.first().copied().unwrap_or(name).to_owned(), Some(default), Origin::Default),
            Some(Given { spelled, value }) => (spelled.clone(), value.to_str(), Origin::Variable(spelled.clone())),
        };
        let outcome = match text {
            Some(text) => form.read(text).map_err(|refusal| (form.show_refused(text), refusal)),
            None => Err(("(bytes)".to_owned(), Refusal::Because("it is not UTF-8".to_owned()))),
        };
        if let Some(wins) = chosen {
            // A prefixed variable is a deliberate override; only unprefixed ones that differ are worth a warning.
            let unprefixed = !is_prefixed(&wins.spelled);
            let loses =
                set.iter().filter(|given| unprefixed && given.value != wins.value && !is_prefixed(&given.spelled));
            let overruled =
                |loses: &&Given| Warning::Overruled { wins: wins.spelled.clone(), loses: loses.spelled.clone() };
            self.warnings.extend(loses.map(overruled));
        }
        self.origins.insert(name, origin);
        outcome
            .map_err(|(value, refusal)| {
                let because = match refusal {
                    Refusal::NotAccepted => None,
                    // It may repeat what it is about, however long that is.
                    Refusal::Because(text) => Some(cut(&text, LONGEST_REASON)),
                };
                self.problems.push(Problem::BadValue { variable, value, accepted: form.accepted(), because });
            })
            .ok()
    }

    /// Looks for variables that nobody read and that look like one somebody did.
    pub(super) fn look_for_misspellings(&mut self) {
        for (upper, given) in &self.given {
            if let Some(meant) = suggest::meant(upper, &self.settings) {
                self.warnings.push(Warning::Misspelled { variable: given.spelled.clone(), meant });
            }
        }
    }

    /// The value of a variable that is no setting, such as the name of the host.
    pub(super) fn variable(&self, upper: &str) -> Option<&str> {
        self.given.get(upper)?.value.to_str()
    }
}

/// Whether a variable has the prefix of this project.
fn is_prefixed(variable: &str) -> bool {
    variable.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::settings::parse::{Hidden, Whole};

    #[test]
    fn bytes_that_are_no_text_are_refused_unseen() {
        let broken = || OsString::from_vec(b"hunter2\xff".to_vec());
        let mut reader = Reader::new([("MIN_WORKERS".to_owned(), broken()), ("KEY".to_owned(), broken())]);
        assert!(reader.read(&Whole { from: 0, to: 9 }, "min_workers", &["MIN_WORKERS"], "0").is_none());
        assert!(reader.read(&Hidden, "key", &["KEY"], "").is_none());
        let said: Vec<String> = reader.problems.iter().map(ToString::to_string).collect();
        assert!(said[0].starts_with("MIN_WORKERS=(bytes) is not accepted (it is not UTF-8)"), "{said:?}");
        assert!(!said.concat().contains("hunter2"), "{said:?}");
    }
}
