//! Checks every history of the model.

use stateright::{Checker as _, Model, Property};

use super::model::{Arrival, Flaw, Guard, LEASE, State, Variant};
use super::rules::Rule;
use super::summary::{Caught, Summary};

/// Limits of a model.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    controllers: usize,
    faults: u8,
    ticks: u8,
    variant: Variant,
}

/// The next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Claim(usize),
    Renew(usize),
    Observe(usize),
    Send(usize),
    Arrive(usize, Arrival),
    Crash(usize),
    CutOff(usize),
    Reconnect(usize),
}

impl Model for Bounds {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.controllers, self.faults)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        // Deciding takes no time; calls take up to one tick.
        let mut is_busy = state.calls.iter().any(|call| call.at < state.time);
        for (index, controller) in state.controllers.iter().enumerate() {
            let leads = state.leads(index, self.variant.flaw);
            match &controller.reconcile {
                Some(reconcile) if !reconcile.is_waiting() => {
                    steps.push(Step::Send(index));
                    is_busy = true;
                }
                Some(_) => {}
                None if leads && !state.is_in_service() => steps.push(Step::Observe(index)),
                None => {}
            }
            if let Some(since) = controller.cut_off {
                steps.push(Step::Reconnect(index));
                // Long enough to lose the lead and for another controller to take it.
                is_busy |= state.time > since + LEASE;
            } else {
                if state.key.is_none() && controller.lead.is_none() {
                    steps.push(Step::Claim(index));
                }
                if leads && controller.renewed_at < state.time {
                    steps.push(Step::Renew(index));
                    is_busy = true;
                }
            }
            if state.faults_left > 0 {
                steps.push(Step::Crash(index));
                if controller.cut_off.is_none() {
                    steps.push(Step::CutOff(index));
                }
            }
        }
        // A free key must be claimed and a leader must reconcile before time passes.
        is_busy |= steps.iter().any(|step| matches!(step, Step::Claim(_)));
        is_busy |= steps.iter().any(|step| matches!(step, Step::Observe(_)))
            && state.calls.is_empty()
            && !is_leader_idle(state);
        for (number, call) in state.calls.iter().enumerate() {
            steps.push(Step::Arrive(number, Arrival::Delivered));
            if state.faults_left > 0 {
                steps.push(Step::Arrive(number, Arrival::ResponseLost));
                if call.is_launch() {
                    steps.push(Step::Arrive(number, Arrival::VisibilityLag));
                }
            }
        }
        if !is_busy {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.tick(self.variant.flaw),
            Step::Claim(index) => next.claim(index),
            Step::Renew(index) => next.renew(index),
            Step::Observe(index) => next.observe(index),
            Step::Send(index) => next.send(index, self.variant.flaw),
            Step::Arrive(number, arrival) => next.arrive(number, arrival, self.variant),
            Step::Crash(index) => next.crash(index),
            Step::CutOff(index) => next.controllers[index].cut_off = Some(state.time),
            Step::Reconnect(index) => next.controllers[index].cut_off = None,
        }
        let costs = matches!(step, Step::Crash(_) | Step::CutOff(_))
            || matches!(step, Step::Arrive(_, Arrival::ResponseLost | Arrival::VisibilityLag));
        next.faults_left -= u8::from(costs);
        (next != *state).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.time <= self.ticks
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one leader", |model: &Self, state: &State| {
                (0..model.controllers).filter(|index| state.leads(*index, model.variant.flaw)).count() <= 1
            }),
            Property::always("at most one instance", |_: &Self, state: &State| state.instances.len() <= 1),
            Property::always("no write after a newer leader", |_: &Self, state: &State| !state.stale_write_accepted),
            Property::eventually("worker comes into service", |_: &Self, state: &State| state.is_in_service()),
            Property::sometimes("standby takes over", |_: &Self, state: &State| {
                state.next_token > 2 && state.is_in_service()
            }),
        ]
    }
}

/// Whether another reconcile of the leader changes nothing.
fn is_leader_idle(state: &State) -> bool {
    (0..state.controllers.len()).filter(|index| state.leads(*index, Flaw::None)).all(|index| {
        let mut next = state.clone();
        next.observe(index);
        next == *state
    })
}

/// Checks the model and its flawed variants.
pub(crate) fn check() -> Summary {
    let mut summary = Summary::default();
    for (controllers, faults, ticks, guard, protection) in [
        (2, 2, 16, Guard::Versions, "versions"),
        (2, 1, 16, Guard::Fences, "fencing tokens"),
        (3, 1, 12, Guard::Versions, "versions"),
    ] {
        let bounds = Bounds { controllers, faults, ticks, variant: Variant { flaw: Flaw::None, guard } };
        let checker = bounds.checker().spawn_bfs().join();
        let faults = if faults == 1 { "one fault".to_owned() } else { format!("{faults} faults") };
        let name = format!("model with {controllers} controllers, {faults} and {protection}");
        summary.states.push((name.clone(), checker.unique_state_count()));
        for property in bounds.properties() {
            let found = checker.discovery(property.name);
            let expected = matches!(property.expectation, stateright::Expectation::Sometimes);
            if found.is_some() != expected {
                let path = found.map(|path| format!("{:?}", path.into_actions())).unwrap_or_default();
                summary.violations.push(format!("{name}: \"{}\" does not hold: {path}", property.name));
            }
        }
    }
    let sound = Variant { flaw: Flaw::None, guard: Guard::Versions };
    for (variant, name, property, rule) in [
        (
            Variant { flaw: Flaw::LeaseNotChecked, ..sound },
            "model: the lease is not checked",
            "at most one leader",
            Rule::LeaderActs,
        ),
        (
            Variant { flaw: Flaw::UniqueToken, ..sound },
            "model: every launch has its own token",
            "at most one instance",
            Rule::OneInstancePerWorker,
        ),
        (
            Variant { guard: Guard::None, ..sound },
            "model: no versions and no fencing tokens",
            "no write after a newer leader",
            Rule::TokenIsOwn,
        ),
    ] {
        let bounds = Bounds { controllers: 2, faults: 2, ticks: 12, variant };
        let checker =
            bounds.checker().finish_when(stateright::HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
        if checker.discovery(property).is_some() {
            summary.caught.push(Caught { variant: name, defects: &[], script: "all histories", rule: rule.text() });
        } else {
            summary.missed.push(name);
        }
    }
    summary
}
