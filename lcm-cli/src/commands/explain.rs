//! `lcm explain`: what a reconcile of one worker would do now, and why.

use lcm_sdk::chrono::SecondsFormat;
use lcm_sdk::history::{HistoryReader, why};
use lcm_sdk::lifecycle::time;
use lcm_sdk::reconciler::Explanation;
use lcm_sdk::{Timestamp, WorkerId};
use serde::Serialize;
use serde_json::Value;

use crate::admin::{AdminClient, AdminError};
use crate::arguments::ExplainArguments;
use crate::context::{Context, flush};
use crate::exit::{ExitStatus, Failure};
use crate::output::{Paint, printable, status_style};
use crate::progress::Progress;
use crate::summary;

/// An explanation, with the history that the controller keeps.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    /// The last reconciles that changed something or went wrong; none if the controller could not be reached.
    history: Option<Value>,
    /// Place in the queue of the controller.
    queue: Option<Value>,
}

pub(crate) async fn run(arguments: &ExplainArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let admin = context.admin(&arguments.admin)?;
    if let Some(at) = arguments.at {
        return explain_at(&context, &admin, &arguments.worker, at).await;
    }
    let controller = context.controller().await?;
    let reconciler = controller.single_reconciler();
    let (explanation, report) = {
        let _progress = Progress::wait("observing");
        let worker = WorkerId::from(arguments.worker.as_str());
        tokio::join!(controller.explain_now(&worker), history(&admin, &arguments.worker))
    };
    flush(&reconciler).await;
    let explanation = explanation?;
    let (history, queue, note) = match report {
        Ok(mut report) => (Some(report["history"].take()), Some(report["queue"].take()), None),
        Err(note) => (None, None, Some(note)),
    };
    let queue = queue.filter(|queue| !queue.is_null());
    let explained = Explained { explanation, history, queue };
    let id = explained.explanation.record.id.clone();
    context.output.print(&explained, [id], |paint| text(&explained, note.as_deref(), paint))?;
    Ok(ExitStatus::Success)
}

/// Explains the status at a time: from the recording if the settings name one, else as the controller remembers.
async fn explain_at(
    context: &Context,
    admin: &AdminClient,
    worker: &str,
    at: Timestamp,
) -> Result<ExitStatus, Failure> {
    let (source, steps) = match &context.settings.history.history_dir {
        Some(directory) => {
            let read = HistoryReader::open(directory).and_then(|reader| why(reader, &worker.into(), at));
            let steps = read.map_err(|error| Failure::new(ExitStatus::Failure, &error))?;
            ("recording".into(), serde_json::to_value(steps).unwrap_or_default())
        }
        None => {
            let query = [("at", at.to_rfc3339())];
            let mut answer = admin.get(&["admin", "workers", worker, "history"], &query).await.map_err(|error| {
                let (AdminError::Unreachable(problem) | AdminError::Refused(_, problem)) = error;
                let problem = format!("{problem}; without a controller, LCM_HISTORY_DIR names the recording");
                Failure::new(ExitStatus::Failure, &problem)
            })?;
            (answer["source"].take(), answer["steps"].take())
        }
    };
    let explained = ExplainedAt { worker_id: worker, at, source, steps };
    context.output.print(&explained, [worker.to_owned()], |paint| text_at(&explained, paint))?;
    Ok(ExitStatus::Success)
}

/// The reconciles that led to the status of a worker at a time.
#[derive(Serialize)]
struct ExplainedAt<'a> {
    worker_id: &'a str,
    at: Timestamp,
    /// `recording` or `memory`.
    source: Value,
    steps: Value,
}

fn text_at(explained: &ExplainedAt<'_>, paint: Paint) -> String {
    let ExplainedAt { worker_id, at, steps, .. } = explained;
    let mut lines = Lines { text: String::new(), paint };
    let steps = steps.as_array().map(Vec::as_slice).unwrap_or_default();
    let at = at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let status = steps.last().and_then(|step| step["to_status"].as_str());
    lines.head(&match status {
        Some(status) => format!("{}  {} at {at}", paint.bold(&printable(worker_id)), printable(status)),
        None => format!("{}  nothing is known up to {at}", paint.bold(&printable(worker_id))),
    });
    for step in steps {
        let time = step["at"].as_str().unwrap_or_default();
        let (_, happened) = summary::history_entry(step);
        let operator = step["requested_by"].as_str().map(|by| format!(" (requested by {by})")).unwrap_or_default();
        lines.line(&format!("{}  {happened}{}", paint.dim(&printable(time)), printable(&operator)));
        for part in step["observed"].as_array().into_iter().flatten() {
            let word = |name: &str| part[name].as_str().unwrap_or_default();
            let observed = format!("{}: {}", word("query").replace('_', " "), word("found"));
            lines.line(&format!("  {}", paint.dim(&printable(&observed))));
        }
    }
    lines.text
}

/// Reads what the running controller knows about a worker, or returns why it is not known.
async fn history(admin: &AdminClient, worker: &str) -> Result<Value, String> {
    admin.get(&["admin", "workers", worker], &[]).await.map_err(|error| match error {
        AdminError::Unreachable(problem) | AdminError::Refused(_, problem) => problem,
    })
}

fn text(explained: &Explained, note: Option<&str>, paint: Paint) -> String {
    let Explanation { at: now, record, observed, plan, what_if, next, .. } = &explained.explanation;
    let mut lines = Lines { text: String::new(), paint };
    let status = paint.with(status_style(record.status), record.status.as_str());
    let desired = record.desired_status.map_or("no desired status".to_owned(), |desired| format!("desired {desired}"));
    lines.head(&format!("{}  {status}, {desired}", paint.bold(&printable(&record.id))));

    lines.head(&paint.bold("Record"));
    let age = |at: Timestamp| format!("{} ago", time::spoken(time::age(at, *now)));
    let optional = [
        ("name", record.name.clone()),
        ("instance", record.ec2_instance_id.clone()),
        ("region", record.aws_region.clone()),
        ("address", record.address.clone()),
        ("type", record.instance_type.clone()),
        ("template", record.template_name.clone()),
        ("license", record.license_status.clone()),
        ("license operation", record.license_operation.map(str::to_owned)),
        ("version", record.version.map(|version| version.to_string())),
        ("created", record.created_at.map(age)),
        ("updated", record.updated_at.map(age)),
        ("launched", record.launched_at.map(age)),
        ("drain began", record.drain_started_at.map(age)),
        ("failed launches", Some(record.launch_generation).filter(|count| *count > 0).map(|count| count.to_string())),
        ("launch", record.launch_under_way.then(|| "under way, its result is not known yet".to_owned())),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            lines.field(name, &value);
        }
    }
    for warning in &record.warnings {
        lines.field("warning", warning);
    }

    lines.head(&paint.bold("Observed"));
    for part in observed {
        lines.field(&part.query.as_str().replace('_', " "), &part.found);
    }
    if observed.is_empty() {
        lines.line("nothing: the decision needed no lookup");
    }

    lines.head(&paint.bold("Decision"));
    lines.field("status", &summary::status_change(plan));
    lines.field("why", &format!("{} ({})", plan.reason, plan.reason.code.as_str()));
    lines.field("documented", plan.reason.code.url());
    for report in &plan.effects {
        lines.field("effect", &report.to_string());
    }
    if plan.effects.is_empty() {
        lines.field("effect", "none");
    }
    if !plan.changes.is_empty() {
        lines.field("fields", &format!("would {}", plan.changes));
    }

    if !what_if.is_empty() {
        lines.head(&paint.bold("What would change it"));
        for other in what_if {
            lines.line(&format!("if {}:", other.condition));
            lines.line(&format!("  {}", other.then));
        }
    }

    lines.head(&paint.bold("Next"));
    let queued = explained.queue.as_ref().and_then(|queue| queue["next_retry_at"].as_str()).and_then(time::parse);
    let due = next.at.or(queued).map_or(String::new(), |due| format!(" ({})", due.format("%H:%M:%S UTC")));
    lines.field("reconcile", &format!("{}{due}", next.when));
    lines.field("waits for", next.awaits);

    lines.head(&paint.bold("History"));
    match (&explained.history, note) {
        (Some(Value::Array(entries)), _) if entries.is_empty() => lines.line("nothing changed and nothing went wrong"),
        (Some(Value::Array(entries)), _) => entries.iter().for_each(|entry| {
            let (at, what) = summary::history_entry(entry);
            lines.line(&format!("{}  {what}", paint.dim(&at)));
        }),
        (_, note) => {
            let note = note.unwrap_or("the controller has none");
            lines.line(&paint.dim(&printable(note)));
        }
    }
    lines.text
}

struct Lines {
    text: String,
    paint: Paint,
}

impl Lines {
    /// A line at the margin.
    fn head(&mut self, text: &str) {
        self.text += text;
        self.text.push('\n');
    }

    /// An indented line.
    fn line(&mut self, text: &str) {
        self.text += &format!("  {text}\n");
    }

    /// An indented name with its value.
    fn field(&mut self, name: &str, value: &str) {
        let name = self.paint.dim(&format!("{name:18}"));
        self.line(&format!("{name} {}", printable(value)));
    }
}
