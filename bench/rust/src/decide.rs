//! Cost of a decision in Rust, over a fleet given as JSON so that another implementation can decide for the same one.

use std::hint::black_box;
use std::io::Read;

use lcm_sdk::{Ec2State, Lookup, Observation, Policy, Timestamp, Worker, decide};
use serde::{Deserialize, Serialize};

use crate::measure::processor_time;
use crate::{Error, report};

/// Number of reported values.
const TURNS: usize = 10;

/// Control-plane records, and the EC2 state of each instance.
#[derive(Debug, Deserialize)]
struct Fleet {
    now: Timestamp,
    records: Vec<Worker>,
    states: Vec<Ec2State>,
}

#[derive(Debug, Serialize)]
struct Measured {
    /// Processor time per decision in nanoseconds, one value per turn. A turn is the best of its rounds.
    processor_ns: Vec<f64>,
    /// Outcome, target status and reason code of each decision.
    decisions: Vec<(&'static str, &'static str, &'static str)>,
}

/// Decides for the whole fleet in [`TURNS`] turns of `rounds` rounds each.
///
/// # Errors
/// If the fleet cannot be parsed.
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
    let mut processor_ns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            let began = processor_time();
            for (worker, seen) in &fleet {
                drop(black_box(decide(black_box(worker), black_box(seen), &policy, now)));
            }
            best = best.min((processor_time() - began).as_secs_f64());
        }
        processor_ns.push(best * 1e9 / fleet.len() as f64);
    }
    report(&Measured { processor_ns, decisions })
}

/// Observes the worker's instance with the addresses of its record.
fn seen(worker: Worker, state: Ec2State) -> (Worker, Observation) {
    let id = worker.ec2_instance_id.as_ref().map_or("", |id| id.as_str());
    let mut seen = Observation::with_instance_state(id, state);
    if let Lookup::Found(instance) = &mut seen.instance {
        instance.public_ip.clone_from(&worker.public_ip);
        instance.private_ip.clone_from(&worker.private_ip);
    }
    (worker, seen)
}
