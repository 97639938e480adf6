//! `lcm settings`.

use lcm_sdk::settings::Settings;

use crate::arguments::SettingsArguments;
use crate::exit::{ExitStatus, Failure};
use crate::output::Output;
use crate::summary;

pub(crate) fn run(arguments: &SettingsArguments) -> Result<ExitStatus, Failure> {
    let settings = Settings::from_env()?;
    let report = settings.report();
    let names = report.settings.iter().map(|value| value.setting.name);
    Output::new(arguments.output).print(&report, names, |_| summary::settings(&settings))?;
    Ok(ExitStatus::Success)
}
