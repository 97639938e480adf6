//! `lcm leader`: who leads the fleet, or each shard of it.

use lcm_sdk::controller::{Leader, leaders};

use crate::arguments::LeaderArguments;
use crate::context::Context;
use crate::exit::{ExitStatus, Failure};
use crate::output::{Paint, Table};

pub(crate) async fn run(arguments: &LeaderArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let Some(etcd) = context.coordination()? else {
        let message = "ETCD_ENDPOINTS is empty: a controller leads without an election, and no key names it";
        return Err(Failure::new(ExitStatus::Usage, &message));
    };
    let key = context.settings.leader_key();
    let read = leaders(&*etcd, &key).await;
    let found = read.map_err(|failure| Failure::call("the leader could not be read from etcd", &failure))?;
    let names = found.iter().map(|leader| &leader.identity);
    context.output.print(&found, names, |paint| table(&found, paint))?;
    let shards = context.settings.election.leader_shards;
    if found.is_empty() {
        eprintln!("lcm: no controller leads: {key} does not exist");
        return Ok(ExitStatus::Failure);
    }
    if found.len() < shards {
        eprintln!("lcm: {} of {shards} shards have no leader", shards - found.len());
        return Ok(ExitStatus::Failure);
    }
    Ok(ExitStatus::Success)
}

fn table(leaders: &[Leader], paint: Paint) -> String {
    if leaders.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["LEADS", "CONTROLLER", "FENCING TOKEN", "KEY"]);
    for leader in leaders {
        table.row([
            realm(leader).into(),
            leader.identity.as_str().into(),
            leader.fencing_token.into(),
            leader.key.as_str().into(),
        ]);
    }
    table.render(paint)
}

/// The part of the fleet that a controller leads.
pub(crate) fn realm(leader: &Leader) -> String {
    match leader.shards {
        1 => "the fleet".to_owned(),
        shards => format!("shard {} of {shards}", leader.shard),
    }
}
