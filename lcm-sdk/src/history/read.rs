//! Reads histories.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::line::{FORMAT_VERSION, Header, KnownParts, ReadPolicy, ReadReconcile, RecordedReconcile};
use crate::lifecycle::policy::Policy;

/// How the name of every history file ends.
pub(super) const EXTENSION: &str = "ndjson";

/// A history that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A file or directory cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A directory holds no history.
    #[error("{path} holds no history; accepted: a file, or a directory of files that end in .ndjson")]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// A file is of a later version.
    #[error("{path} has format {found}; this version reads formats up to {FORMAT_VERSION}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// A line is malformed.
    #[error("{path}:{number}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, counted from one.
        number: usize,
        /// Description of the problem.
        problem: String,
    },
    /// The reading ended before its time.
    #[error("the history was not read to its end: {0}")]
    Interrupted(String),
    /// A replay changes the policy to one that is invalid.
    #[error(transparent)]
    Policy(#[from] crate::lifecycle::PolicyError),
}

/// The reconciles of a history, file by file, in order of their names.
///
/// A last line without its end is skipped: the process that wrote it was killed.
#[derive(Debug)]
pub struct HistoryReader {
    files: VecDeque<PathBuf>,
    open: Option<OpenFile>,
    warnings: Vec<String>,
}

struct OpenFile {
    path: PathBuf,
    lines: Box<dyn io::BufRead + Send>,
    number: usize,
    text: Vec<u8>,
    header: Option<Header>,
    policies: HashMap<String, Arc<Policy>>,
    known: KnownParts,
    warnings: Vec<String>,
}

impl HistoryReader {
    /// Opens a file, or a directory of files.
    ///
    /// # Errors
    /// If it cannot be read or holds no history.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        Self::open_all(&[path])
    }

    /// Opens files and directories of files, to be read one after the other.
    ///
    /// # Errors
    /// If one of them cannot be read or holds no history.
    pub fn open_all(paths: &[impl AsRef<Path>]) -> Result<Self, HistoryError> {
        let mut files = VecDeque::new();
        for path in paths.iter().map(AsRef::as_ref) {
            let io = |source| HistoryError::Io { path: path.to_owned(), source };
            let found = match path.is_dir() {
                false => vec![path.to_owned()],
                true => files_in(path).map_err(io)?,
            };
            if found.is_empty() {
                return Err(HistoryError::Empty { path: path.to_owned() });
            }
            files.extend(found);
        }
        Ok(Self { files, open: None, warnings: Vec::new() })
    }

    /// Parts of the lines read so far that this version does not know and skipped, as sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Reads the lines of one file from memory or another source.
    pub fn from_lines(lines: impl io::BufRead + Send + 'static) -> Self {
        let open = OpenFile::new(PathBuf::from("(lines)"), Box::new(lines));
        Self { files: VecDeque::new(), open: Some(open), warnings: Vec::new() }
    }
}

/// The history files in a directory, the oldest first.
pub(super) fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("path", &self.path).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Iterator for HistoryReader {
    type Item = Result<RecordedReconcile, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(open) = &mut self.open {
                let read = open.next_reconcile();
                self.warnings.append(&mut open.warnings);
                match read {
                    Ok(Some(reconcile)) => return Some(Ok(reconcile)),
                    Ok(None) => self.open = None,
                    Err(error) => {
                        (self.open, self.files) = (None, VecDeque::new());
                        return Some(Err(error));
                    }
                }
            }
            let path = self.files.pop_front()?;
            match OpenFile::open(path) {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    self.files.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

impl OpenFile {
    fn open(path: PathBuf) -> Result<Self, HistoryError> {
        let file = File::open(&path).map_err(|source| HistoryError::Io { path: path.clone(), source })?;
        Ok(Self::new(path, Box::new(BufReader::with_capacity(1 << 18, file))))
    }

    fn new(path: PathBuf, lines: Box<dyn io::BufRead + Send>) -> Self {
        Self {
            path,
            lines,
            number: 0,
            text: Vec::new(),
            header: None,
            policies: HashMap::new(),
            known: KnownParts::default(),
            warnings: Vec::new(),
        }
    }

    /// Reads up to the next reconcile; `None` at the end of the file.
    fn next_reconcile(&mut self) -> Result<Option<RecordedReconcile>, HistoryError> {
        loop {
            self.text.clear();
            let read = self.lines.read_until(b'\n', &mut self.text);
            read.map_err(|source| HistoryError::Io { path: self.path.clone(), source })?;
            self.number += 1;
            // A line without its end was being written when the process was killed.
            if self.text.pop() != Some(b'\n') {
                return Ok(None);
            }
            if let Some(reconcile) = self.read_line()? {
                return Ok(Some(reconcile));
            }
        }
    }

    /// Reads a line. Its first field tells what it is.
    fn read_line(&mut self) -> Result<Option<RecordedReconcile>, HistoryError> {
        let line = self.text.as_slice();
        if line.starts_with(br#"{"lcm_history""#) {
            let header: Header = serde_json::from_slice(line).map_err(|error| self.problem(&error))?;
            if header.lcm_history > FORMAT_VERSION {
                return Err(HistoryError::Version { path: self.path.clone(), found: header.lcm_history });
            }
            self.header = Some(header);
            return Ok(None);
        }
        if self.header.is_none() {
            return Err(self.problem(&"the first line is no header of a history"));
        }
        if line.starts_with(br#"{"policy""#) {
            let read: ReadPolicy = serde_json::from_slice(line).map_err(|error| self.problem(&error))?;
            let (policy, unknown) = Policy::of_another_version(read.fields).map_err(|error| self.problem(&error))?;
            if !unknown.is_empty() {
                let problem = format!("this version does not know {}: skipped", unknown.join(", "));
                self.warnings.push(self.problem(&problem).to_string());
            }
            self.policies.insert(read.policy, Arc::new(policy));
            return Ok(None);
        }
        let read: ReadReconcile<'_> = serde_json::from_slice(line).map_err(|error| self.problem(&error))?;
        let Some(policy) = self.policies.get(read.with) else {
            return Err(self.problem(&format_args!("no earlier line defines policy {}", read.with)));
        };
        let reconcile = read.under(Arc::clone(policy), &mut self.known);
        reconcile.map(Some).map_err(|error| self.problem(&error))
    }

    fn problem(&self, problem: &dyn std::fmt::Display) -> HistoryError {
        HistoryError::Line { path: self.path.clone(), number: self.number, problem: problem.to_string() }
    }
}
