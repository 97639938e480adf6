//! Every state of a worker, its instance, sessions and license, and every step between two of them.
//!
//! Timestamps are reduced to the ages that a decision can tell apart, and ids and tokens to the relations between them,
//! so that the states are finite. A state is explored with every step of the controller (a reconcile, one without a
//! response of EC2, one that crashes between two effects) and every step of the world (EC2 completes a transition, time
//! passes, sessions end, CML finishes). Sessions, license and template are chosen when a reconcile first reads them,
//! which covers all their values without multiplying the states in which they are not read.
//!
//! A history is fair if its crashes and outages end, and neither the controller, nor EC2, nor time stands still forever.
//! The test shows that every fair history, from every state, ends in the desired status or in a named waiting state, and
//! stays there: each strongly connected component of the graph without faults is either left by a step that a fair
//! history must take, or is one settled state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::time::Duration;

use chrono::TimeDelta;
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::{LicenseOperation, RegistrationStatus, WORKER_ID_TAG};
use lcm_sdk::simulate::{Ec2Model, Simulation};
use lcm_sdk::{
    CallFailure, Decision, DesiredStatus, Ec2State, FailureKind, Instance, InstanceId, Observation, Secret, Session,
    Timestamp, Worker, WorkerStatus,
};

use crate::common::{DESIRED, now, policy};

/// Ages that decisions tell apart, in seconds: a new event, past the settling time of a drain, past the consistency
/// window, past the timeouts of a start and a registration, past the deadline of a drain.
const AGES: [i64; 5] = [5, 60, 300, 1_800, 86_400];

/// Whether the value of a part has been chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Choice {
    /// No reconcile has read it yet.
    Open,
    Made,
}

#[derive(Debug, Clone)]
struct State {
    simulation: Simulation,
    sessions: Choice,
    license: Choice,
    template: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Reconcile,
    ReconcileWithoutEc2,
    Crash,
    Ec2Progresses,
    TimePasses,
    SessionsEnd,
    RegistrationEnds,
    Choose,
}

impl Step {
    /// Whether the step is a fault, of which a history has finitely many.
    const fn is_fault(self) -> bool {
        match self {
            Self::ReconcileWithoutEc2 | Self::Crash => true,
            Self::Reconcile
            | Self::Ec2Progresses
            | Self::TimePasses
            | Self::SessionsEnd
            | Self::RegistrationEnds
            | Self::Choose => false,
        }
    }

    /// The steps that a fair history takes if they stay possible.
    const FAIR: [Self; 4] = [Self::Reconcile, Self::Ec2Progresses, Self::TimePasses, Self::Choose];
}

impl State {
    fn new(worker: Worker, instance: Option<Instance>) -> Self {
        let mut simulation = Simulation::new(worker);
        simulation.policy = policy();
        simulation.now = now();
        simulation.step = Duration::ZERO;
        // EC2 completes a transition in a step of its own, and shows a terminated instance until it is forgotten.
        simulation.ec2.transition_time = Duration::from_secs(u64::MAX / 4);
        simulation.ec2.terminated_visible = Duration::from_secs(u64::MAX / 4);
        if let Some(instance) = instance {
            simulation.ec2.place(instance, now());
        }
        let mut state = Self { simulation, sessions: Choice::Open, license: Choice::Open, template: Choice::Open };
        state.reduce();
        state
    }

    /// Reduces timestamps to ages, and ids, tokens, generations and versions to their relations.
    fn reduce(&mut self) {
        let simulation = &mut self.simulation;
        let instances: Vec<Instance> = simulation.ec2.all().cloned().collect();
        let worker = &mut simulation.worker;
        worker.version = Some(1);
        worker.updated_at = None;
        worker.terminated_at = None;
        worker.last_activity_check_at = None;
        let notes = &mut worker.notes;
        for at in [
            &mut worker.created_at,
            &mut worker.start_initiated_at,
            &mut notes.launched_at,
            &mut notes.drain_started_at,
            &mut notes.scaled_down_at,
        ] {
            *at = at.map(bucket);
        }
        // A token matters only in relation to the plan: a launch with it returns its instance.
        let token = notes.launch_plan.as_ref().map(|plan| plan.client_token.clone());
        notes.launch_generation = 1;
        if let Some(plan) = &mut notes.launch_plan {
            plan.generation = 1;
            "planned".clone_into(&mut plan.client_token);
        }
        // The named instance, then the live ones, then at most one that has ended.
        let named = worker.ec2_instance_id.clone();
        let mut kept: Vec<Instance> = instances
            .into_iter()
            .filter(|instance| {
                let is_planned = instance.client_token.is_some() && instance.client_token == token;
                Some(&instance.id) == named.as_ref() || is_planned || instance.state.is_live()
            })
            .collect();
        kept.sort_by_key(|instance| Some(&instance.id) != named.as_ref());
        let mut ec2 = Ec2Model::default();
        ec2.transition_time = simulation.ec2.transition_time;
        ec2.terminated_visible = simulation.ec2.terminated_visible;
        worker.ec2_instance_id = named.as_ref().map(|_| InstanceId::from("i-1"));
        for (place, mut instance) in kept.into_iter().enumerate() {
            let is_named = Some(&instance.id) == named.as_ref();
            instance.id = if is_named { "i-1".into() } else { format!("i-{}", place + 2).as_str().into() };
            instance.launched_at = instance.launched_at.map(bucket);
            let is_planned = instance.client_token.is_some() && instance.client_token == token;
            instance.client_token = Some(if is_planned { "planned" } else { "spent" }.to_owned());
            instance.private_ip = instance.private_ip.map(|_| "10.0.0.1".to_owned());
            instance.public_ip = instance.public_ip.map(|_| "198.18.0.1".to_owned());
            ec2.place(instance, now());
        }
        simulation.ec2 = ec2;
        for address in [&mut worker.public_ip, &mut worker.private_ip, &mut worker.ip_address].into_iter().flatten() {
            *address = if address.starts_with("10.") { "10.0.0.1" } else { "198.18.0.1" }.to_owned();
        }
        simulation.now = now();
    }

    /// Identifies the state: 128 bits, so that two of a million states collide with a probability below 10⁻²⁶.
    fn key(&self) -> (u64, u64) {
        let Self { simulation, sessions, license, template } = self;
        let Simulation { worker, ec2, registration, .. } = simulation;
        let addresses = (&worker.public_ip, &worker.private_ip, &worker.ip_address);
        let times = (worker.start_initiated_at, worker.created_at);
        let choices = (sessions, license, template, simulation.template.is_some());
        let mut key = KeyHasher::default();
        write!(
            key,
            "{worker:?} {addresses:?} {times:?} {:?} {registration:?} {:?} {choices:?}",
            worker.license, simulation.sessions
        )
        .expect("hashing does not fail");
        ec2.all().for_each(|instance| write!(key, "{instance:?}").expect("hashing does not fail"));
        (key.0.finish(), key.1.finish())
    }

    /// The states that follow, by step.
    fn next(&self, decision: &Decision, seen: &Observation) -> Vec<(Step, Self)> {
        if let Some(choices) = self.choices(seen) {
            return choices.into_iter().map(|state| (Step::Choose, state)).collect();
        }
        let mut next = Vec::new();
        let mut add = |step, change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            state.reduce();
            next.push((step, state));
        };
        add(Step::Reconcile, &|state| drop(state.simulation.play()));
        add(Step::ReconcileWithoutEc2, &|state| {
            state.simulation.ec2.outage = Some(CallFailure::new(FailureKind::Unreachable, "outage"));
            drop(state.simulation.play());
            state.simulation.ec2.outage = None;
        });
        for effects in 0..decision.effects.len() {
            add(Step::Crash, &|state| {
                state.simulation.play_and_crash_after(effects);
            });
        }
        if self.simulation.ec2.is_in_transition() {
            add(Step::Ec2Progresses, &|state| state.simulation.ec2.settle_all(now()));
        }
        add(Step::TimePasses, &|state| state.age());
        if !self.simulation.sessions.is_empty() {
            add(Step::SessionsEnd, &|state| state.simulation.sessions.clear());
        }
        if self.simulation.registration.raw == "IN_PROGRESS" {
            for end in ["COMPLETED", "FAILED"] {
                add(Step::RegistrationEnds, &|state| end.clone_into(&mut state.simulation.registration.raw));
            }
        }
        next
    }

    /// All values of a part that the next reconcile reads for the first time.
    fn choices(&self, seen: &Observation) -> Option<Vec<Self>> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            state
        };
        if self.license == Choice::Open && self.simulation.worker.status == WorkerStatus::Running {
            let made = |state: &mut Self| state.license = Choice::Made;
            let requested = |state: &mut Self, operation, token: Option<&str>| {
                made(state);
                state.simulation.worker.license.pending_operation = Some(operation);
                state.simulation.worker.license.pending_token = token.map(Secret::from);
            };
            return Some(vec![
                with(&made),
                with(&|state| requested(state, LicenseOperation::Register, Some("token"))),
                with(&|state| requested(state, LicenseOperation::Register, None)),
                with(&|state| requested(state, LicenseOperation::Deregister, None)),
                with(&|state| {
                    requested(state, LicenseOperation::Register, Some("token"));
                    state.simulation.worker.license.operation_in_progress = true;
                    state.simulation.registration = RegistrationStatus::from_wire("IN_PROGRESS");
                }),
            ]);
        }
        if self.sessions == Choice::Open && !seen.sessions.is_not_requested() {
            let with_sessions = |words: &'static [&'static str]| {
                with(&|state| {
                    state.sessions = Choice::Made;
                    let numbered = words.iter().enumerate();
                    state.simulation.sessions =
                        numbered.map(|(number, word)| Session::new(format!("s-{number}"), word)).collect();
                })
            };
            return Some(
                [&[][..], &["running"], &["scheduled"], &["failed"], &["expired"], &["running", "scheduled"]]
                    .map(with_sessions)
                    .to_vec(),
            );
        }
        if self.template == Choice::Open && !seen.template.is_not_requested() {
            return Some(vec![
                with(&|state| state.template = Choice::Made),
                with(&|state| {
                    state.template = Choice::Made;
                    state.simulation.template = None;
                }),
            ]);
        }
        None
    }

    /// Moves every timestamp to the next age.
    fn age(&mut self) {
        let worker = &mut self.simulation.worker;
        let notes = &mut worker.notes;
        for at in [
            &mut worker.created_at,
            &mut worker.start_initiated_at,
            &mut notes.launched_at,
            &mut notes.drain_started_at,
            &mut notes.scaled_down_at,
        ] {
            *at = at.map(older);
        }
        let mut ec2 = Ec2Model::default();
        std::mem::swap(&mut ec2, &mut self.simulation.ec2);
        for instance in ec2.all() {
            let launched_at = instance.launched_at.map(older);
            self.simulation.ec2.place(Instance { launched_at, ..instance.clone() }, now());
        }
        self.simulation.ec2.transition_time = ec2.transition_time;
        self.simulation.ec2.terminated_visible = ec2.terminated_visible;
    }
}

/// Hashes formatted text twice, with different beginnings.
struct KeyHasher(DefaultHasher, DefaultHasher);

impl Default for KeyHasher {
    fn default() -> Self {
        let mut other = DefaultHasher::new();
        other.write_u8(1);
        Self(DefaultHasher::new(), other)
    }
}

impl std::fmt::Write for KeyHasher {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        self.1.write(text.as_bytes());
        Ok(())
    }
}

fn seconds_ago(seconds: i64) -> Timestamp {
    now() - TimeDelta::seconds(seconds)
}

fn place_of(at: Timestamp) -> usize {
    let age = (now() - at).num_seconds();
    AGES.iter().rposition(|known| *known <= age).unwrap_or(0)
}

/// The timestamp with the age that decisions cannot tell from this one.
fn bucket(at: Timestamp) -> Timestamp {
    seconds_ago(AGES[place_of(at)])
}

fn older(at: Timestamp) -> Timestamp {
    seconds_ago(AGES[(place_of(at) + 1).min(AGES.len() - 1)])
}

/// Every combination of status, desired status, instance, launch plan and age.
fn initial_states() -> Vec<State> {
    let mut states = Vec::new();
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for named in [true, false] {
                for plan in [None, Some(Box::new(planned()))] {
                    for instance in instances(plan.is_some()) {
                        // Time makes the others of these.
                        for age in [AGES[0], AGES[2], AGES[4]] {
                            for drain_age in [None, Some(AGES[0])] {
                                let mut worker = Worker::new("w-1", status);
                                worker.desired_status = desired;
                                worker.ec2_instance_id = named.then(|| "i-1".into());
                                worker.template_name = Some("metal".to_owned());
                                worker.aws_region = Some("us-east-1".to_owned());
                                worker.is_idle_detection_enabled = false;
                                worker.created_at = Some(seconds_ago(age));
                                worker.notes.launched_at = Some(seconds_ago(age));
                                worker.notes.launch_plan.clone_from(&plan);
                                worker.notes.drain_started_at = drain_age.map(seconds_ago);
                                let mut instance = instance.clone();
                                if let Some(instance) = &mut instance {
                                    instance.launched_at = Some(seconds_ago(age));
                                }
                                states.push(State::new(worker, instance));
                            }
                        }
                    }
                }
            }
        }
    }
    states
}

/// No instance, and one in every state, with and without an address, launched before the plan or by it.
fn instances(has_plan: bool) -> Vec<Option<Instance>> {
    let mut instances = vec![None];
    for &state in Ec2State::ALL {
        for token in ["spent", "planned"].into_iter().take(if has_plan { 2 } else { 1 }) {
            let mut instance = Instance::new("i-1", state);
            instance.tags.insert(WORKER_ID_TAG.to_owned(), "w-1".to_owned());
            instance.client_token = Some(token.to_owned());
            instance.private_ip = Some("10.0.0.1".to_owned());
            instances.push(Some(instance.clone()));
            if state == Ec2State::Running {
                instance.private_ip = None;
                instances.push(Some(instance));
            }
        }
    }
    instances
}

fn planned() -> LaunchPlan {
    LaunchPlan {
        region: "us-east-1".to_owned(),
        image_id: "ami-new".to_owned(),
        instance_type: "m5zn.metal".to_owned(),
        subnet_id: "subnet-1".to_owned(),
        security_group_ids: vec!["sg-1".to_owned()],
        key_name: None,
        tags: [(WORKER_ID_TAG.to_owned(), "w-1".to_owned())].into(),
        generation: 1,
        client_token: "planned".to_owned(),
    }
}

/// A state in the graph.
#[derive(Debug)]
struct Node {
    /// Status, desired status, EC2 and the reason of the next reconcile, for messages.
    label: Label,
    steps: Vec<(Step, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    reason: &'static str,
}

/// Explores all states that follow from the initial ones.
fn explore() -> Vec<Node> {
    let mut places: HashMap<(u64, u64), usize> = HashMap::new();
    let mut nodes: Vec<Node> = Vec::new();
    let mut open: Vec<(usize, State)> = Vec::new();
    let mut place_of = |state: State, nodes: &mut Vec<Node>, open: &mut Vec<(usize, State)>| {
        *places.entry(state.key()).or_insert_with(|| {
            let Simulation { worker, .. } = &state.simulation;
            let label = Label { status: worker.status, desired: worker.desired_status, reason: "" };
            nodes.push(Node { label, steps: Vec::new() });
            open.push((nodes.len() - 1, state));
            nodes.len() - 1
        })
    };
    for state in initial_states() {
        place_of(state, &mut nodes, &mut open);
    }
    while let Some((place, state)) = open.pop() {
        let (decision, seen) = state.simulation.decide();
        nodes[place].label.reason = decision.reason.code.as_str();
        let mut steps = Vec::new();
        for (step, next) in state.next(&decision, &seen) {
            steps.push((step, place_of(next, &mut nodes, &mut open)));
        }
        nodes[place].steps = steps;
    }
    nodes
}

/// The strongly connected components of the graph, by Tarjan's algorithm without recursion.
fn components(nodes: &[Node]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let (mut index, mut low) = (vec![UNSEEN; nodes.len()], vec![0; nodes.len()]);
    let (mut on_stack, mut stack, mut count) = (vec![false; nodes.len()], Vec::new(), 0);
    let mut components = Vec::new();
    for root in 0..nodes.len() {
        if index[root] != UNSEEN {
            continue;
        }
        let mut calls = vec![(root, 0)];
        while let Some((node, edge)) = calls.pop() {
            if edge == 0 {
                (index[node], low[node], on_stack[node]) = (count, count, true);
                stack.push(node);
                count += 1;
            }
            match nodes[node].steps.get(edge) {
                Some((_, next)) => {
                    calls.push((node, edge + 1));
                    if index[*next] == UNSEEN {
                        calls.push((*next, 0));
                    } else if on_stack[*next] {
                        low[node] = low[node].min(index[*next]);
                    }
                }
                None => {
                    if let Some((parent, _)) = calls.last() {
                        low[*parent] = low[*parent].min(low[node]);
                    }
                    if low[node] == index[node] {
                        let at = stack.iter().rposition(|member| *member == node).expect("on the stack");
                        let members = stack.split_off(at);
                        members.iter().for_each(|member| on_stack[*member] = false);
                        components.push(members);
                    }
                }
            }
        }
    }
    components
}

/// Whether a fair history can stay in a component: every fair step that is possible in all of its states is also taken
/// within it.
fn holds_a_fair_history(component: &[usize], nodes: &[Node]) -> bool {
    let is_member = |node: &usize| component.contains(node);
    let has_cycle = component.len() > 1 || nodes[component[0]].steps.iter().any(|(_, next)| *next == component[0]);
    has_cycle
        && Step::FAIR.iter().all(|fair| {
            let is_possible = |node: &usize| nodes[*node].steps.iter().any(|(step, _)| step == fair);
            let is_taken = |node: &usize| nodes[*node].steps.iter().any(|(step, next)| step == fair && is_member(next));
            !component.iter().all(is_possible) || component.iter().any(is_taken)
        })
}

/// Whether a worker may stay like this forever.
fn is_settled(Label { status, desired, reason }: Label) -> bool {
    use DesiredStatus::{Running, Stopped};
    match (status, desired, reason) {
        (WorkerStatus::Running, None | Some(Running), "in_service") => true,
        (WorkerStatus::Stopped, None | Some(Stopped), "at_rest") => true,
        (WorkerStatus::Pending, Some(Stopped), "held_back") => true,
        (WorkerStatus::Terminated, _, "terminated") => true,
        (WorkerStatus::Failed, None | Some(Running | Stopped), "needs_operator") => true,
        // The record names no instance and none carries its tag: whether one exists, only an operator can tell.
        (WorkerStatus::Running, None | Some(Running), "no_instance_named")
        | (WorkerStatus::Draining | WorkerStatus::Unknown, _, "no_instance_named") => true,
        _ => false,
    }
}

#[test]
fn every_fair_history_settles() {
    let mut nodes = explore();
    let edges: usize = nodes.iter().map(|node| node.steps.len()).sum();
    // Faults have led to more states. From here on, the history goes on without them.
    nodes.iter_mut().for_each(|node| node.steps.retain(|(step, _)| !step.is_fault()));
    let mut settled: BTreeMap<Label, usize> = BTreeMap::new();
    let mut violations = Vec::new();
    for component in components(&nodes) {
        if !holds_a_fair_history(&component, &nodes) {
            continue;
        }
        let label = nodes[component[0]].label;
        if component.len() > 1 {
            let labels: BTreeSet<_> = component.iter().map(|node| nodes[*node].label).collect();
            violations.push(format!("a worker changes forever: {labels:?}"));
        } else if is_settled(label) {
            *settled.entry(label).or_default() += 1;
        } else {
            violations.push(format!("a worker waits forever: {label:?}"));
        }
    }
    println!("{} states, {edges} steps; fair histories settle in", nodes.len());
    settled.iter().for_each(|(label, count)| println!("  {label:?}: {count}"));
    violations.sort();
    violations.dedup();
    assert!(violations.is_empty(), "{} kinds:\n{}", violations.len(), violations.join("\n"));
    assert!(nodes.len() > 10_000, "{} states", nodes.len());
}
