//! The fleet as a table that fits the terminal: what each record says, what EC2 says, and what is done about it.

use std::time::Duration;

use console::{Style, measure_text_width, truncate_str};
use lcm_sdk::WorkerStatus;

use crate::view::{Ec2Says, Row, View};

/// Narrower than this, a sentence says nothing any more.
const SHORTEST_SENTENCE: usize = 20;
/// Wider than this, an instance can be shown by its whole id.
const ROOMY: usize = 100;
/// Lines beside the workers: the two heads, what is folded or left out, and one for the cursor.
const OTHER_LINES: usize = 5;

/// The lines of the table. None is wider than `width`, and there are fewer than `height`.
pub(crate) fn lines(view: &View, elapsed: Duration, width: usize, height: usize) -> Vec<String> {
    // Some terminals break a line that fills them to the last column.
    let width = width.saturating_sub(1);
    let room = height.saturating_sub(OTHER_LINES).max(1);
    let columns = Columns::for_width(width);
    let mut lines = vec![status_line(view, elapsed, width), dim(&columns.heads())];
    lines.extend(view.rows.iter().take(room).map(|row| columns.row(row)));
    if let Some(left_out) = view.rows.len().checked_sub(room).filter(|left_out| *left_out > 0) {
        lines.push(dim(&format!("… and {left_out} more; a higher terminal shows them")));
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

/// How wide each column is; zero where there is no room for it.
struct Columns([usize; 6]);

impl Columns {
    fn for_width(width: usize) -> Self {
        let (instance, sessions) = if width >= ROOMY { (19, 8) } else { (8, 4) };
        let mut columns = [6, 14, 13, instance, sessions, 0];
        // What says least goes first.
        for least in [3, 4, 2] {
            let left = width
                .saturating_sub(columns.iter().filter(|column| **column > 0).map(|column| column + 2).sum::<usize>());
            if left >= SHORTEST_SENTENCE {
                columns[5] = left;
                return Self(columns);
            }
            columns[least] = 0;
        }
        Self(columns)
    }

    fn heads(&self) -> String {
        let sessions = if self.0[4] < 8 { "SESS" } else { "SESSIONS" };
        self.line(&["WORKER", "RECORD SAYS", "EC2 SAYS", "INSTANCE", sessions, "NOW"]).join("  ")
    }

    /// The cells that there is room for, each as wide as its column.
    fn line(&self, cells: &[&str; 6]) -> Vec<String> {
        let with_width = self.0.iter().zip(cells).filter(|(width, _)| **width > 0);
        with_width.map(|(width, cell)| format!("{:width$}", truncate_str(cell, *width, "…"))).collect()
    }

    fn row(&self, row: &Row) -> String {
        let status = format!("● {}", row.status);
        let instance = row.instance.as_deref().unwrap_or("–");
        // The beginnings of all ids are alike.
        let end = instance.char_indices().rev().nth(6).map_or(instance, |(at, _)| &instance[at..]);
        let short = if self.0[3] < instance.len() { format!("…{end}") } else { instance.to_owned() };
        let sessions = if row.sessions == 0 { String::new() } else { row.sessions.to_string() };
        let cells = [&row.worker, status.as_str(), row.ec2.words(), &short, &sessions, row.now.trim_end_matches('.')];
        let styles =
            [Style::new(), colour(row.status), ec2_colour(row), Style::new().dim(), Style::new(), Style::new()];
        let shown = self.0.iter().zip(styles).filter(|(width, _)| **width > 0).map(|(_, style)| style);
        let cells = self.line(&cells).into_iter().zip(shown).map(|(cell, style)| style.apply_to(cell).to_string());
        cells.collect::<Vec<_>>().join("  ")
    }
}

fn colour(status: WorkerStatus) -> Style {
    match status {
        WorkerStatus::Running => Style::new().green(),
        WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting => Style::new().yellow(),
        WorkerStatus::Draining => Style::new().magenta(),
        WorkerStatus::Stopping | WorkerStatus::Stopped => Style::new().blue(),
        WorkerStatus::Terminating | WorkerStatus::Terminated => Style::new().dim(),
        WorkerStatus::Failed | WorkerStatus::Unknown => Style::new().red(),
    }
}

/// Red where record and reality differ.
fn ec2_colour(row: &Row) -> Style {
    let agree = match (row.status, row.ec2) {
        (WorkerStatus::Running | WorkerStatus::Draining, ec2) => ec2 == Ec2Says::State("running"),
        (WorkerStatus::Stopped, ec2) => matches!(ec2, Ec2Says::State("stopped") | Ec2Says::NotAsked),
        (WorkerStatus::Terminated, ec2) => {
            !matches!(ec2, Ec2Says::State("pending" | "running" | "stopping" | "stopped"))
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
        ) => ec2 != Ec2Says::NoSuchInstance,
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
            ec2: Ec2Says::NoSuchInstance,
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
    fn it_fits_any_terminal() {
        for (width, height) in [(20, 10), (40, 24), (60, 5), (80, 24), (120, 30), (300, 100)] {
            let lines = lines(&view(), Duration::from_secs(12), width, height);
            assert!(lines.len() < height.max(6), "{height}: {lines:#?}");
            assert!(lines.iter().all(|line| measure_text_width(line) < width), "{width}: {lines:#?}");
            assert!(lines.iter().any(|line| line.contains("w-01")), "{lines:#?}");
        }
    }

    #[test]
    fn where_there_is_room_everything_is_shown() {
        let text = lines(&view(), Duration::from_secs(12), 120, 40).join("\n");
        for part in
            ["12.0 s", "alpha leads", "EC2 calls 123", "w-13", "provisioning", "not found", "i-0dead000000000004"]
        {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(text.contains("and 2 terminated: w-20 w-21"), "{text}");
    }

    #[test]
    fn on_eighty_columns_the_sentence_has_room() {
        let lines = lines(&view(), Duration::from_secs(12), 80, 24);
        assert!(lines.iter().any(|line| line.contains("…0000004") && line.contains("EC2 does not")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("SESS ")), "{lines:#?}");
    }
}
