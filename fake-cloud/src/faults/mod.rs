//! What goes wrong on purpose: rules, and what they say about a request.

mod rule;
mod support;

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use serde::Serialize;

use crate::service::Service;
use crate::world::SeededRng;

pub use self::rule::{Action, Per, Rule, RuleError, WaitOn};

/// Of how many calls a rule remembers what it decided.
const CALLS_REMEMBERED: usize = 4096;

/// The keys a decoded request to etcd names; empty before it is decoded.
pub type Keys<'a> = &'a [&'a [u8]];

/// The parts of a request that rules match.
#[derive(Debug, Clone, Copy)]
pub struct RequestContext<'a> {
    /// The service.
    pub service: Service,
    /// The operation.
    pub operation: &'a str,
    /// The region, where there is one.
    pub region: Option<&'a str>,
    /// The instances it names.
    pub instances: &'a [String],
    /// The keys it names, where they are what it is judged by: rules that look at keys count then, and no others.
    pub keys: Keys<'a>,
    /// What all attempts of the same call have in common.
    pub call: Option<&'a str>,
}

/// A rule that strikes.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggeredRule {
    /// The rule.
    pub rule: u64,
    /// What goes wrong.
    pub action: Action,
    /// The only instance it is about.
    pub instance: Option<String>,
    /// A number of its own, for choices within the action.
    pub roll: u64,
}

/// A rule and how it fared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleStatus {
    /// Its number.
    pub id: u64,
    /// The rule.
    pub rule: Rule,
    /// How many requests it was asked about.
    pub matched: u64,
    /// How often it struck.
    pub struck: u64,
}

/// The faults of a world.
#[derive(Debug)]
pub struct Faults {
    seed: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    rng: SeededRng,
    next_id: u64,
    rules: Vec<Armed>,
}

#[derive(Debug)]
struct Armed {
    status: RuleStatus,
    decided: HashMap<String, bool>,
    order: VecDeque<String>,
}

impl Faults {
    /// No faults. The seed decides what probabilities come to.
    pub fn new(seed: u64) -> Self {
        Self { seed, inner: Mutex::new(Inner { rng: SeededRng::new(seed, "faults"), next_id: 1, rules: Vec::new() }) }
    }

    /// Adds a rule and says its number. Rules apply in the order they were added.
    ///
    /// # Errors
    /// A rule that cannot be meant.
    pub fn add(&self, rule: Rule) -> Result<u64, RuleError> {
        rule.check()?;
        let mut inner = self.inner.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let status = RuleStatus { id, rule, matched: 0, struck: 0 };
        inner.rules.push(Armed { status, decided: HashMap::new(), order: VecDeque::new() });
        Ok(id)
    }

    /// Takes a rule away. False when there is none of this number.
    pub fn remove(&self, id: u64) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.rules.len();
        inner.rules.retain(|armed| armed.status.id != id);
        inner.rules.len() < before
    }

    /// Takes all rules away and begins the rng anew.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.rules.clear();
        inner.rng = SeededRng::new(self.seed, "faults");
    }

    /// All rules and how they fared.
    pub fn list(&self) -> Vec<RuleStatus> {
        self.inner.lock().rules.iter().map(|armed| armed.status.clone()).collect()
    }

    /// What goes wrong with a request: every rule that strikes, in order. Asking counts.
    pub fn evaluate(&self, context: &RequestContext<'_>) -> Vec<TriggeredRule> {
        let Inner { rng, rules, .. } = &mut *self.inner.lock();
        rules.iter_mut().filter_map(|armed| armed.evaluate(context, rng)).collect()
    }
}

impl Armed {
    fn evaluate(&mut self, context: &RequestContext<'_>, rng: &mut SeededRng) -> Option<TriggeredRule> {
        if !self.status.rule.matches(context) || !self.strikes(context, rng) {
            return None;
        }
        Some(TriggeredRule {
            rule: self.status.id,
            action: self.status.rule.action.clone(),
            instance: self.status.rule.instance.clone(),
            roll: rng.next_u64(),
        })
    }

    fn strikes(&mut self, context: &RequestContext<'_>, rng: &mut SeededRng) -> bool {
        match (self.status.rule.per, context.call) {
            (Per::Call, Some(call)) => {
                if let Some(decided) = self.decided.get(call) {
                    return *decided;
                }
                let decision = self.decide(rng);
                if self.order.len() == CALLS_REMEMBERED
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.decided.remove(&oldest);
                }
                self.decided.insert(call.to_owned(), decision);
                self.order.push_back(call.to_owned());
                decision
            }
            (Per::Call, None) | (Per::Attempt, Some(_) | None) => self.decide(rng),
        }
    }

    fn decide(&mut self, rng: &mut SeededRng) -> bool {
        let status = &mut self.status;
        status.matched += 1;
        let strikes = status.matched > status.rule.after
            && status.rule.times.is_none_or(|times| status.struck < times)
            && rng.chance(status.rule.probability);
        status.struck += u64::from(strikes);
        strikes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(call: Option<&str>) -> RequestContext<'_> {
        RequestContext {
            service: Service::Ec2,
            operation: "DescribeInstances",
            region: Some("us-east-1"),
            instances: &[],
            keys: &[],
            call,
        }
    }

    fn count(faults: &Faults, context: &RequestContext<'_>, asked: usize) -> usize {
        (0..asked).filter(|_| !faults.evaluate(context).is_empty()).count()
    }

    #[test]
    fn a_rule_lets_the_first_pass_strikes_as_often_as_it_says_and_then_rests() {
        let faults = Faults::new(0);
        faults.add(Rule { after: 2, times: Some(3), ..Rule::always(Action::Reset) }).expect("a good rule");
        let struck: Vec<bool> = (0..8).map(|_| !faults.evaluate(&describe(None)).is_empty()).collect();
        assert_eq!(struck, [false, false, true, true, true, false, false, false]);
    }

    #[test]
    fn per_call_all_attempts_of_a_call_fare_the_same() {
        let faults = Faults::new(0);
        faults.add(Rule { times: Some(1), per: Per::Call, ..Rule::always(Action::Reset) }).expect("a good rule");
        assert_eq!(count(&faults, &describe(Some("first")), 3), 3);
        assert_eq!(count(&faults, &describe(Some("second")), 3), 0);
        assert_eq!(count(&faults, &describe(Some("first")), 1), 1);
    }

    #[test]
    fn the_same_seed_strikes_the_same_requests() {
        let outcome = |seed| {
            let faults = Faults::new(seed);
            faults.add(Rule { probability: 0.3, ..Rule::always(Action::Reset) }).expect("a good rule");
            (0..200).map(|_| !faults.evaluate(&describe(None)).is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(outcome(7), outcome(7));
        assert_ne!(outcome(7), outcome(8));
        let struck = outcome(7).into_iter().filter(|struck| *struck).count();
        assert!((30..90).contains(&struck), "{struck}");
    }

    #[test]
    fn rules_look_at_service_operation_region_and_instance() {
        let always = || Rule::always(Action::Reset);
        let ids = ["i-1".to_owned()];
        let context = RequestContext { instances: &ids, ..describe(None) };
        for (rule, strikes) in [
            (always(), true),
            (Rule { service: Some(Service::Cml), ..always() }, false),
            (Rule { operation: Some("Describe*".to_owned()), ..always() }, true),
            (Rule { operation: Some("RunInstances".to_owned()), ..always() }, false),
            (Rule { region: Some("eu-west-1".to_owned()), ..always() }, false),
            (Rule { instance: Some("i-1".to_owned()), ..always() }, true),
            (Rule { instance: Some("i-2".to_owned()), ..always() }, false),
            (Rule { instance: Some("i-2".to_owned()), ..Rule::always(Action::Omit { fraction: 1.0 }) }, true),
        ] {
            let faults = Faults::new(0);
            faults.add(rule.clone()).expect("a good rule");
            assert_eq!(count(&faults, &context, 1) == 1, strikes, "{rule:?}");
        }
    }

    #[test]
    fn a_rule_about_keys_waits_until_they_are_known_and_is_asked_once() {
        let faults = Faults::new(0);
        let about = |prefix: &str| Rule {
            service: Some(Service::Etcd),
            key_prefix: Some(prefix.to_owned()),
            ..Rule::always(Action::Reset)
        };
        faults.add(about("/lcm/workers/")).expect("a good rule");
        faults.add(Rule { service: Some(Service::Etcd), ..Rule::always(Action::Reset) }).expect("a good rule");
        let coming_in = RequestContext { service: Service::Etcd, operation: "Put", region: None, ..describe(None) };
        let rules =
            |context: &RequestContext<'_>| faults.evaluate(context).iter().map(|one| one.rule).collect::<Vec<_>>();
        assert_eq!(rules(&coming_in), [2]);
        assert_eq!(rules(&RequestContext { keys: &[b"/a", b"/lcm/workers/w-1/state"], ..coming_in }), [1]);
        assert!(rules(&RequestContext { keys: &[b"/lcm/worker"], ..coming_in }).is_empty());
    }

    #[test]
    fn a_rule_that_was_taken_away_strikes_no_more() {
        let faults = Faults::new(0);
        let id = faults.add(Rule::always(Action::Reset)).expect("a good rule");
        assert!(faults.remove(id));
        assert!(!faults.remove(id));
        assert_eq!(count(&faults, &describe(None), 1), 0);
    }
}
