//! Walks every history of the model.

use stateright::{Checker as _, Model, Property};

use super::model::{Arrival, Flaw, Guard, LEASE, Make, State};
use super::summary::Summary;

/// Election and launch with this many controllers, faults and moments.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    controllers: usize,
    faults: u8,
    moments: u8,
    make: Make,
}

/// The next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Claim(usize),
    Renew(usize),
    Look(usize),
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
        // Deciding takes no time; calls take up to one moment.
        let mut is_busy = state.calls.iter().any(|call| call.at < state.time);
        for (who, controller) in state.controllers.iter().enumerate() {
            let leads = state.leads(who, self.make.flaw);
            match &controller.pass {
                Some(pass) if !pass.is_waiting() => {
                    steps.push(Step::Send(who));
                    is_busy = true;
                }
                Some(_) => {}
                None if leads && !state.is_in_service() => steps.push(Step::Look(who)),
                None => {}
            }
            if let Some(since) = controller.cut_off {
                steps.push(Step::Reconnect(who));
                // Long enough to lose the lead and for another controller to take it.
                is_busy |= state.time > since + LEASE;
            } else {
                if state.key.is_none() && controller.lead.is_none() {
                    steps.push(Step::Claim(who));
                }
                if leads && controller.renewed_at < state.time {
                    steps.push(Step::Renew(who));
                    is_busy = true;
                }
            }
            if state.faults_left > 0 {
                steps.push(Step::Crash(who));
                if controller.cut_off.is_none() {
                    steps.push(Step::CutOff(who));
                }
            }
        }
        // A free key is taken and a leader reconciles, or nothing would ever have to happen.
        is_busy |= steps.iter().any(|step| matches!(step, Step::Claim(_)));
        is_busy |= steps.iter().any(|step| matches!(step, Step::Look(_))) && state.calls.is_empty() && !looked(state);
        for (number, call) in state.calls.iter().enumerate() {
            steps.push(Step::Arrive(number, Arrival::Fine));
            if state.faults_left > 0 {
                steps.push(Step::Arrive(number, Arrival::AnswerLost));
                if call.is_launch() {
                    steps.push(Step::Arrive(number, Arrival::ShownLate));
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
            Step::Tick => next.tick(self.make.flaw),
            Step::Claim(who) => next.claim(who),
            Step::Renew(who) => next.renew(who),
            Step::Look(who) => next.look(who),
            Step::Send(who) => next.send(who, self.make.flaw),
            Step::Arrive(number, arrival) => next.arrive(number, arrival, self.make),
            Step::Crash(who) => next.crash(who),
            Step::CutOff(who) => next.controllers[who].cut_off = Some(state.time),
            Step::Reconnect(who) => next.controllers[who].cut_off = None,
        }
        let costs = matches!(step, Step::Crash(_) | Step::CutOff(_))
            || matches!(step, Step::Arrive(_, Arrival::AnswerLost | Arrival::ShownLate));
        next.faults_left -= u8::from(costs);
        (next != *state).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.time <= self.moments
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one leader at a time", |model: &Self, state: &State| {
                (0..model.controllers).filter(|who| state.leads(*who, model.make.flaw)).count() <= 1
            }),
            Property::always("one instance", |_: &Self, state: &State| state.instances.len() <= 1),
            Property::always("no write follows a newer leader", |_: &Self, state: &State| !state.went_back),
            Property::eventually("in service", |_: &Self, state: &State| state.is_in_service()),
            Property::sometimes("a standby takes over", |_: &Self, state: &State| {
                state.next_token > 2 && state.is_in_service()
            }),
        ]
    }
}

/// Whether the leader has nothing to do until something changes.
fn looked(state: &State) -> bool {
    (0..state.controllers.len()).filter(|who| state.leads(*who, Flaw::None)).all(|who| {
        let mut next = state.clone();
        next.look(who);
        next == *state
    })
}

/// Checks the model and its flawed variants.
pub(crate) fn check() -> Summary {
    let mut summary = Summary::default();
    for (controllers, faults, moments, guard, kept) in [
        (2, 2, 16, Guard::Versions, "versions"),
        (2, 1, 16, Guard::Fences, "fencing tokens"),
        (3, 1, 12, Guard::Versions, "versions"),
    ] {
        let bounds = Bounds { controllers, faults, moments, make: Make { flaw: Flaw::None, guard } };
        let checker = bounds.checker().spawn_bfs().join();
        let faults = if faults == 1 { "one fault".to_owned() } else { format!("{faults} faults") };
        let name = format!("a model with {controllers} controllers, {faults}, a server with {kept}");
        summary.states.push((name.clone(), checker.unique_state_count()));
        for property in bounds.properties() {
            let found = checker.discovery(property.name);
            let wanted = matches!(property.expectation, stateright::Expectation::Sometimes);
            if found.is_some() != wanted {
                let path = found.map(|path| format!("{:?}", path.into_actions())).unwrap_or_default();
                summary.violations.push(format!("{name}: \"{}\" does not hold: {path}", property.name));
            }
        }
    }
    let sound = Make { flaw: Flaw::None, guard: Guard::Versions };
    for (make, name, property) in [
        (Make { flaw: Flaw::LeaseNotLookedAt, ..sound }, "model: lease not looked at", "one leader at a time"),
        (Make { flaw: Flaw::TokenOfItsOwn, ..sound }, "model: no client token", "one instance"),
        (
            Make { guard: Guard::Nothing, ..sound },
            "model: neither versions nor fencing",
            "no write follows a newer leader",
        ),
    ] {
        let bounds = Bounds { controllers: 2, faults: 2, moments: 12, make };
        let checker =
            bounds.checker().finish_when(stateright::HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
        let list = if checker.discovery(property).is_some() { &mut summary.caught } else { &mut summary.missed };
        list.push(name);
    }
    summary
}
