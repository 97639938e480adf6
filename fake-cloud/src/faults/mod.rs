//! Fault rules: which requests fail, and how.

mod rule;

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::service::Service;
use crate::world::SeededRng;

pub use self::rule::{Action, CountUnit, CredentialProblem, Rule, RuleError, WaitOn};

/// Number of calls for which a rule keeps its decision.
const MAX_DECISIONS: usize = 4096;

/// Keys in a decoded request to etcd; empty before the request is decoded.
pub type Keys<'a> = &'a [&'a [u8]];

/// Properties of a request that rules match.
#[derive(Debug, Clone, Copy)]
pub struct RequestContext<'a> {
    /// The service that received the request.
    pub service: Service,
    /// Operation name, such as `RunInstances`.
    pub operation: &'a str,
    /// Region; `None` for services without regions.
    pub region: Option<&'a str>,
    /// Ids of instances and other resources in the request.
    pub instances: &'a [String],
    /// Keys in the request. If not empty, only rules with a `key_prefix` are evaluated.
    pub keys: Keys<'a>,
    /// Id shared by all attempts of one SDK call.
    pub call: Option<&'a str>,
}

/// A rule that applies to a request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TriggeredRule {
    /// Id of the rule.
    pub rule: u64,
    /// The fault to inject.
    pub action: Action,
    /// Instance to which the action is limited.
    pub instance: Option<String>,
    /// Random number for choices within the action.
    pub roll: u64,
}

/// A rule and its counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RuleStatus {
    /// Id of the rule.
    pub id: u64,
    /// The rule as it was added.
    pub rule: Rule,
    /// Number of requests that matched.
    pub matched: u64,
    /// Number of requests to which the action was applied.
    pub applied: u64,
}

/// All rules of a snapshot.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct FaultsState(Inner);

/// The fault rules of a world.
#[derive(Debug)]
pub struct Faults {
    inner: Mutex<Inner>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Inner {
    seed: u64,
    rng: SeededRng,
    next_id: u64,
    rules: Vec<ActiveRule>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ActiveRule {
    status: RuleStatus,
    decided: HashMap<String, bool>,
    order: VecDeque<String>,
}

impl Faults {
    /// Creates an empty set of rules. The seed determines the outcome of probabilities.
    pub fn new(seed: u64) -> Self {
        let rng = SeededRng::new(seed, "faults");
        Self { inner: Mutex::new(Inner { seed, rng, next_id: 1, rules: Vec::new() }) }
    }

    /// Adds a rule and returns its id. Rules apply in the order in which they were added.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn add(&self, rule: Rule) -> Result<u64, RuleError> {
        rule.check()?;
        let mut inner = self.inner.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let status = RuleStatus { id, rule, matched: 0, applied: 0 };
        inner.rules.push(ActiveRule { status, decided: HashMap::new(), order: VecDeque::new() });
        Ok(id)
    }

    /// Removes a rule. Returns `false` if the id is unknown.
    pub fn remove(&self, id: u64) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.rules.len();
        inner.rules.retain(|active| active.status.id != id);
        inner.rules.len() < before
    }

    /// Removes all rules and restarts the random number generator.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.rules.clear();
        inner.rng = SeededRng::new(inner.seed, "faults");
    }

    /// Returns all rules with their counters and decisions, for a snapshot.
    pub(crate) fn capture(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(&*self.inner.lock())
    }

    /// Replaces all rules.
    pub(crate) fn restore(&self, state: FaultsState) {
        *self.inner.lock() = state.0;
    }

    /// Returns all rules and their counters.
    pub fn list(&self) -> Vec<RuleStatus> {
        self.inner.lock().rules.iter().map(|active| active.status.clone()).collect()
    }

    /// Returns the rules that apply to a request, in order, and updates their counters.
    pub fn evaluate(&self, context: &RequestContext<'_>) -> Vec<TriggeredRule> {
        let Inner { rng, rules, .. } = &mut *self.inner.lock();
        rules.iter_mut().filter_map(|active| active.evaluate(context, rng)).collect()
    }
}

impl ActiveRule {
    fn evaluate(&mut self, context: &RequestContext<'_>, rng: &mut SeededRng) -> Option<TriggeredRule> {
        if !self.status.rule.matches(context) || !self.applies(context, rng) {
            return None;
        }
        Some(TriggeredRule {
            rule: self.status.id,
            action: self.status.rule.action.clone(),
            instance: self.status.rule.instance.clone(),
            roll: rng.next_u64(),
        })
    }

    fn applies(&mut self, context: &RequestContext<'_>, rng: &mut SeededRng) -> bool {
        match (self.status.rule.per, context.call) {
            (CountUnit::Call, Some(call)) => {
                if let Some(decided) = self.decided.get(call) {
                    return *decided;
                }
                let decision = self.decide(rng);
                if self.order.len() == MAX_DECISIONS
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.decided.remove(&oldest);
                }
                self.decided.insert(call.to_owned(), decision);
                self.order.push_back(call.to_owned());
                decision
            }
            (CountUnit::Call, None) | (CountUnit::Attempt, Some(_) | None) => self.decide(rng),
        }
    }

    fn decide(&mut self, rng: &mut SeededRng) -> bool {
        let status = &mut self.status;
        status.matched += 1;
        let applies = status.matched > status.rule.after
            && status.rule.times.is_none_or(|times| status.applied < times)
            && rng.chance(status.rule.probability);
        status.applied += u64::from(applies);
        applies
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

    fn count(faults: &Faults, context: &RequestContext<'_>, requests: usize) -> usize {
        (0..requests).filter(|_| !faults.evaluate(context).is_empty()).count()
    }

    #[test]
    fn rule_applies_between_after_and_times() {
        let faults = Faults::new(0);
        faults.add(Rule { after: 2, times: Some(3), ..Rule::new(Action::Reset) }).expect("a good rule");
        let applied: Vec<bool> = (0..8).map(|_| !faults.evaluate(&describe(None)).is_empty()).collect();
        assert_eq!(applied, [false, false, true, true, true, false, false, false]);
    }

    #[test]
    fn per_call_rules_decide_once_for_all_attempts() {
        let faults = Faults::new(0);
        faults.add(Rule { times: Some(1), per: CountUnit::Call, ..Rule::new(Action::Reset) }).expect("a good rule");
        assert_eq!(count(&faults, &describe(Some("first")), 3), 3);
        assert_eq!(count(&faults, &describe(Some("second")), 3), 0);
        assert_eq!(count(&faults, &describe(Some("first")), 1), 1);
    }

    #[test]
    fn outcome_depends_on_the_seed() {
        let outcome = |seed| {
            let faults = Faults::new(seed);
            faults.add(Rule { probability: 0.3, ..Rule::new(Action::Reset) }).expect("a good rule");
            (0..200).map(|_| !faults.evaluate(&describe(None)).is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(outcome(7), outcome(7));
        assert_ne!(outcome(7), outcome(8));
        let applied = outcome(7).into_iter().filter(|applied| *applied).count();
        assert!((30..90).contains(&applied), "{applied}");
    }

    #[test]
    fn rules_match_service_operation_region_and_instance() {
        let always = || Rule::new(Action::Reset);
        let ids = ["i-1".to_owned()];
        let context = RequestContext { instances: &ids, ..describe(None) };
        for (rule, applies) in [
            (always(), true),
            (Rule { service: Some(Service::Cml), ..always() }, false),
            (Rule { operation: Some("Describe*".to_owned()), ..always() }, true),
            (Rule { operation: Some("RunInstances".to_owned()), ..always() }, false),
            (Rule { region: Some("eu-west-1".to_owned()), ..always() }, false),
            (Rule { instance: Some("i-1".to_owned()), ..always() }, true),
            (Rule { instance: Some("i-2".to_owned()), ..always() }, false),
            (Rule { instance: Some("i-2".to_owned()), ..Rule::new(Action::Omit { fraction: 1.0 }) }, true),
        ] {
            let faults = Faults::new(0);
            faults.add(rule.clone()).expect("a good rule");
            assert_eq!(count(&faults, &context, 1) == 1, applies, "{rule:?}");
        }
    }

    #[test]
    fn key_rules_are_evaluated_once_keys_are_known() {
        let faults = Faults::new(0);
        let key_rule = |prefix: &str| Rule {
            service: Some(Service::Etcd),
            key_prefix: Some(prefix.to_owned()),
            ..Rule::new(Action::Reset)
        };
        faults.add(key_rule("/lcm/workers/")).expect("a good rule");
        faults.add(Rule { service: Some(Service::Etcd), ..Rule::new(Action::Reset) }).expect("a good rule");
        let undecoded = RequestContext { service: Service::Etcd, operation: "Put", region: None, ..describe(None) };
        let rules =
            |context: &RequestContext<'_>| faults.evaluate(context).iter().map(|one| one.rule).collect::<Vec<_>>();
        assert_eq!(rules(&undecoded), [2]);
        assert_eq!(rules(&RequestContext { keys: &[b"/a", b"/lcm/workers/w-1/state"], ..undecoded }), [1]);
        assert!(rules(&RequestContext { keys: &[b"/lcm/worker"], ..undecoded }).is_empty());
    }

    #[test]
    fn removed_rule_does_not_apply() {
        let faults = Faults::new(0);
        let id = faults.add(Rule::new(Action::Reset)).expect("a good rule");
        assert!(faults.remove(id));
        assert!(!faults.remove(id));
        assert_eq!(count(&faults, &describe(None), 1), 0);
    }
}
