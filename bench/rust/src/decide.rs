//! What a decision costs in Rust, over a fleet that is given as JSON so that somebody else can decide about the same.

use std::hint::black_box;
use std::io::Read;

use lcm_sdk::{Lookup, Ec2State, Observation, Policy, Timestamp, Worker, decide};
use serde::{Deserialize, Serialize};

use crate::measure::processor_time;
use crate::{Error, tell};

/// Records as the control plane tells them, and what EC2 says of the instance of each.
#[derive(Debug, Deserialize)]
struct Fleet {
    now: Timestamp,
    records: Vec<Worker>,
    states: Vec<Ec2State>,
}

#[derive(Debug, Serialize)]
struct Measured {
    /// Processor time of a decision, in nanoseconds, in the best round.
    processor_ns: f64,
    /// What was decided: outcome, status and reason.
    decisions: Vec<(&'static str, &'static str, &'static str)>,
}

/// Decides about the whole fleet, again and again.
///
/// # Errors
/// If the fleet cannot be read.
pub fn run(input: impl Read, rounds: usize) -> Result<(), Error> {
    let Fleet { now, records, states } = serde_json::from_reader(input)?;
    let fleet: Vec<_> = records.into_iter().zip(states).map(|(worker, state)| seen(worker, state)).collect();
    let policy = Policy::default();
    let decisions = fleet
        .iter()
        .map(|(worker, seen)| {
            let decision = decide(worker, seen, &policy, now);
            let target = decision.transition.map_or(worker.status, |transition| transition.to());
            (decision.outcome.as_str(), target.as_str(), decision.reason.code.as_str())
        })
        .collect();
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let began = processor_time();
        for (worker, seen) in &fleet {
            drop(black_box(decide(black_box(worker), black_box(seen), &policy, now)));
        }
        best = best.min((processor_time() - began).as_secs_f64());
    }
    tell(&Measured { processor_ns: best * 1e9 / fleet.len() as f64, decisions })
}

/// EC2 shows the worker's instance, with the addresses that are on the record.
fn seen(worker: Worker, state: Ec2State) -> (Worker, Observation) {
    let id = worker.ec2_instance_id.as_ref().map_or("", |id| id.as_str());
    let mut seen = Observation::with_instance_state(id, state);
    if let Lookup::Found(instance) = &mut seen.instance {
        instance.public_ip.clone_from(&worker.public_ip);
        instance.private_ip.clone_from(&worker.private_ip);
    }
    (worker, seen)
}
