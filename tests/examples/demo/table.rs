//! Table of the fleet that fits the terminal: record, EC2 state and last reason of each worker.

use std::time::Duration;

use console::{Style, measure_text_width, truncate_str};
use lcm_sdk::WorkerStatus;

/// Fleet at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// Leader and standby, as shown in the status line.
    pub(crate) leader: String,
    /// Number of EC2 requests so far.
    pub(crate) ec2_calls: usize,
    /// One row per worker.
    pub(crate) rows: Vec<Row>,
    /// Terminated workers of earlier acts, of which only the names are shown.
    pub(crate) folded: Vec<String>,
}

/// One worker of the fleet.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) worker: String,
    /// Status in the record.
    pub(crate) status: WorkerStatus,
    pub(crate) ec2: Ec2Column,
    pub(crate) instance: Option<String>,
    /// Number of sessions that still need the worker.
    pub(crate) sessions: usize,
    /// Reason of the last reconcile.
    pub(crate) now: String,
}

/// State of a worker's instance in EC2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ec2Column {
    /// The record has no instance.
    NoInstance,
    /// EC2 has no instance with this id.
    NotFound,
    /// Instance state, as EC2 names it.
    State(&'static str),
}

impl Ec2Column {
    const fn text(self) -> &'static str {
        match self {
            Self::NoInstance => "–",
            Self::NotFound => "not found",
            Self::State(name) => name,
        }
    }
}

/// Status change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) worker: String,
    /// Previous status; `None` for a new record.
    pub(crate) from: Option<String>,
    pub(crate) to: String,
}

/// Minimum width of the reason column.
const MIN_REASON_WIDTH: usize = 20;
/// Minimum terminal width for whole instance ids.
const WIDE: usize = 100;
/// Lines other than workers: two headings, folded and omitted workers, and one for the cursor.
const OTHER_LINES: usize = 5;

/// Lines of the table: fewer than `height`, each narrower than `width`.
pub(crate) fn lines(view: &View, elapsed: Duration, width: usize, height: usize) -> Vec<String> {
    // Some terminals wrap a line that fills the last column.
    let width = width.saturating_sub(1);
    let room = height.saturating_sub(OTHER_LINES).max(1);
    let columns = Columns::for_width(width);
    let mut lines = vec![status_line(view, elapsed, width), dim(&columns.headings())];
    lines.extend(view.rows.iter().take(room).map(|row| columns.row(row)));
    if let Some(omitted) = view.rows.len().checked_sub(room).filter(|omitted| *omitted > 0) {
        lines.push(dim(&format!("… and {omitted} more; a taller terminal shows them")));
    }
    if !view.folded.is_empty() {
        lines.push(dim(&format!("and {} terminated: {}", view.folded.len(), view.folded.join(" "))));
    }
    lines.into_iter().map(|line| truncate_str(&line, width, "…").into_owned()).collect()
}

fn status_line(view: &View, elapsed: Duration, width: usize) -> String {
    let facts =
        [format!("{:.1} s", elapsed.as_secs_f64()), view.leader.clone(), format!("EC2 calls {}", view.ec2_calls)];
    let facts = facts.join(" ── ");
    let rule = "─".repeat(width.saturating_sub(measure_text_width(&facts) + 4));
    format!("{} {} {}", dim("──"), Style::new().bold().apply_to(facts), dim(&rule))
}

/// Width of each column; zero for a column that does not fit.
struct Columns([usize; 6]);

impl Columns {
    fn for_width(width: usize) -> Self {
        let (instance, sessions) = if width >= WIDE { (19, 8) } else { (8, 4) };
        let mut columns = [6, 14, 13, instance, sessions, 0];
        // Drop the least important column first.
        for column in [3, 4, 2] {
            let left =
                width.saturating_sub(columns.iter().filter(|width| **width > 0).map(|width| width + 2).sum::<usize>());
            if left >= MIN_REASON_WIDTH {
                columns[5] = left;
                return Self(columns);
            }
            columns[column] = 0;
        }
        Self(columns)
    }

    fn headings(&self) -> String {
        let sessions = if self.0[4] < 8 { "SESS" } else { "SESSIONS" };
        self.line(&["WORKER", "RECORD", "EC2", "INSTANCE", sessions, "REASON"]).join("  ")
    }

    /// Cells of the visible columns, padded to their width.
    fn line(&self, cells: &[&str; 6]) -> Vec<String> {
        let with_width = self.0.iter().zip(cells).filter(|(width, _)| **width > 0);
        with_width.map(|(width, cell)| format!("{:width$}", truncate_str(cell, *width, "…"))).collect()
    }

    fn row(&self, row: &Row) -> String {
        let status = format!("● {}", row.status);
        let instance = row.instance.as_deref().unwrap_or("–");
        // The ids differ only at their end.
        let end = instance.char_indices().rev().nth(6).map_or(instance, |(at, _)| &instance[at..]);
        let short = if self.0[3] < instance.len() { format!("…{end}") } else { instance.to_owned() };
        let sessions = if row.sessions == 0 { String::new() } else { row.sessions.to_string() };
        let cells = [&row.worker, status.as_str(), row.ec2.text(), &short, &sessions, row.now.trim_end_matches('.')];
        let styles = [Style::new(), color(row.status), ec2_color(row), Style::new().dim(), Style::new(), Style::new()];
        let styles = self.0.iter().zip(styles).filter(|(width, _)| **width > 0).map(|(_, style)| style);
        let cells = self.line(&cells).into_iter().zip(styles).map(|(cell, style)| style.apply_to(cell).to_string());
        cells.collect::<Vec<_>>().join("  ")
    }
}

fn color(status: WorkerStatus) -> Style {
    match status {
        WorkerStatus::Running => Style::new().green(),
        WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting => Style::new().yellow(),
        WorkerStatus::Draining => Style::new().magenta(),
        WorkerStatus::Stopping | WorkerStatus::Stopped => Style::new().blue(),
        WorkerStatus::Terminating | WorkerStatus::Terminated => Style::new().dim(),
        WorkerStatus::Failed | WorkerStatus::Unknown => Style::new().red(),
    }
}

/// Red where the record and EC2 differ.
fn ec2_color(row: &Row) -> Style {
    let agree = match (row.status, row.ec2) {
        (WorkerStatus::Running | WorkerStatus::Draining, ec2) => ec2 == Ec2Column::State("running"),
        (WorkerStatus::Stopped, ec2) => matches!(ec2, Ec2Column::State("stopped") | Ec2Column::NoInstance),
        (WorkerStatus::Terminated, ec2) => {
            !matches!(ec2, Ec2Column::State("pending" | "running" | "stopping" | "stopped"))
        }
        (
            WorkerStatus::Pending
            | WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Stopping
            | WorkerStatus::Terminating
            | WorkerStatus::Failed
            | WorkerStatus::Unknown,
            ec2,
        ) => ec2 != Ec2Column::NotFound,
    };
    if agree { Style::new().dim() } else { Style::new().red().bold() }
}

fn dim(text: &str) -> String {
    Style::new().dim().apply_to(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let row = |number: usize| Row {
            worker: format!("w-{number:02}"),
            status: WorkerStatus::Provisioning,
            ec2: Ec2Column::NotFound,
            instance: Some("i-0dead000000000004".to_owned()),
            sessions: 2,
            now: "EC2 does not show the instance, but the launch is so young that it may only be late.".to_owned(),
        };
        View {
            leader: "alpha leads (token 17), bravo stands by".to_owned(),
            ec2_calls: 123,
            rows: (1..=13).map(row).collect(),
            folded: vec!["w-20".to_owned(), "w-21".to_owned()],
        }
    }

    #[test]
    fn table_fits_any_terminal() {
        for (width, height) in [(20, 10), (40, 24), (60, 5), (80, 24), (120, 30), (300, 100)] {
            let lines = lines(&view(), Duration::from_secs(12), width, height);
            assert!(lines.len() < height.max(6), "{height}: {lines:#?}");
            assert!(lines.iter().all(|line| measure_text_width(line) < width), "{width}: {lines:#?}");
            assert!(lines.iter().any(|line| line.contains("w-01")), "{lines:#?}");
        }
    }

    #[test]
    fn wide_terminal_shows_every_column() {
        let text = lines(&view(), Duration::from_secs(12), 120, 40).join("\n");
        for part in
            ["12.0 s", "alpha leads", "EC2 calls 123", "w-13", "provisioning", "not found", "i-0dead000000000004"]
        {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(text.contains("and 2 terminated: w-20 w-21"), "{text}");
    }

    #[test]
    fn eighty_columns_show_the_reason() {
        let lines = lines(&view(), Duration::from_secs(12), 80, 24);
        assert!(lines.iter().any(|line| line.contains("…0000004") && line.contains("EC2 does not")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("SESS ")), "{lines:#?}");
    }
}
