//! `lcm completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::exit::{ExitStatus, Failure};
use crate::output;

pub(crate) fn run(shell: Shell) -> Result<ExitStatus, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lcm", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitStatus::Success)
}
