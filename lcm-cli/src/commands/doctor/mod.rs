//! `lcm doctor`: checks everything that a controller needs, and tells how to mend it.

mod aws;
mod clock;
mod services;

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use lcm_sdk::CallFailure;
use lcm_sdk::ports::{Ports, Scope, WorkerListing};
use lcm_sdk::settings::Settings;
use serde::Serialize;

use crate::arguments::DoctorArguments;
use crate::context::Context;
use crate::exit::{ExitStatus, Failure};
use crate::output::{Cell, Paint, Table, color};
use crate::progress::Progress;

/// Longest time that a check may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Timeout of a single call: a service that needs longer is a finding.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// The subject of the check.
    check: &'static str,
    verdict: Verdict,
    /// The finding, for people.
    found: String,
    /// How to mend it; none if nothing is wrong.
    mend: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, with a risk or without a feature.
    Warn,
    /// A controller cannot do its work.
    Fail,
    /// Not checked, because an earlier check failed.
    Skipped,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), mend: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), mend: Some(mend.into()) }
    }

    fn skipped(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Skipped, found: found.into(), mend: None }
    }

    fn fail(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, found: found.into(), mend: Some(mend.into()) }
    }
}

/// The subject of the checks.
struct Subject<'a> {
    settings: &'a Settings,
    ports: &'a Ports,
    /// The records, which other checks depend on.
    listing: Result<WorkerListing, CallFailure>,
}

pub(crate) async fn run(arguments: &DoctorArguments) -> Result<ExitStatus, Failure> {
    let mut context = Context::new(&arguments.call)?;
    // A check reports the first failure, and does not wait for a service to recover.
    let control_plane = &mut context.settings.control_plane;
    control_plane.control_plane_api_retries = 0;
    control_plane.control_plane_api_timeout = control_plane.control_plane_api_timeout.min(CALL_TIMEOUT);
    let controller = context.controller().await?;
    let ports = controller.reconciler().ports();
    let checks = {
        let _progress = Progress::wait("checking");
        let listing = ports.control_plane.workers(&Scope::active()).await;
        let subject = Subject { settings: &context.settings, ports, listing };
        let (aws, control_plane, etcd, cml, clock) = tokio::join!(
            limited("credentials", aws::checks(&subject)),
            limited("control plane", services::control_plane(&subject)),
            limited("etcd", services::etcd(&context)),
            limited("CML", services::cml(&subject)),
            limited("clock", clock::check(&subject)),
        );
        [settings(&context.settings), aws, control_plane, etcd, cml, clock].concat()
    };
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail);
    let names = failed.clone().map(|check| check.check);
    context.output.print(&checks, names, |paint| table(&checks, paint))?;
    Ok(if failed.count() == 0 { ExitStatus::Success } else { ExitStatus::Failure })
}

async fn limited(check: &'static str, checks: impl Future<Output = Vec<Check>>) -> Vec<Check> {
    tokio::time::timeout(LIMIT, checks).await.unwrap_or_else(|_| {
        let found = format!("no result within {} s", LIMIT.as_secs());
        vec![Check::fail(check, found, "check the network between this host and the service, and its load")]
    })
}

fn settings(settings: &Settings) -> Vec<Check> {
    let warnings = settings.warnings();
    if warnings.is_empty() {
        let names = Settings::table().into_iter().map(|setting| setting.name);
        let set = names.filter(|name| settings.is_set(name)).count();
        return vec![Check::ok("settings", format!("{set} set, the others have their defaults"))];
    }
    let check = |warning: &lcm_sdk::settings::Warning| {
        Check::warn("settings", warning.to_string(), "`lcm settings` shows the values and their origins")
    };
    warnings.iter().map(check).collect()
}

fn table(checks: &[Check], paint: Paint) -> String {
    let mut table = Table::new(["CHECK", "RESULT", "FOUND"]);
    for check in checks {
        let (word, style) = match check.verdict {
            Verdict::Ok => ("ok", color(AnsiColor::Green)),
            Verdict::Warn => ("warn", color(AnsiColor::Yellow)),
            Verdict::Fail => ("FAIL", color(AnsiColor::Red).bold()),
            Verdict::Skipped => ("-", Style::new().dimmed()),
        };
        table.row([check.check.into(), Cell::styled(word, style), check.found.as_str().into()]);
        if let Some(mend) = &check.mend {
            table.detail(Cell::styled(format!("        → {mend}"), Style::new()));
        }
    }
    table.render(paint)
}
