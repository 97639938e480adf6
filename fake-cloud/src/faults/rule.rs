//! A fault rule: when something goes wrong, and what.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::support;
use crate::etcd::Fault;
use crate::service::Service;
use crate::world::Pattern;

/// When something goes wrong, and what. What is left out matches everything.
///
/// ```
/// use fake_cloud::faults::{Action, Rule};
///
/// let rule: Rule = serde_json::from_str(
///     r#"{"service": "ec2", "operation": "Describe*", "times": 2,
///         "action": {"kind": "error", "code": "RequestLimitExceeded"}}"#,
/// )?;
/// assert!(rule.check().is_ok());
/// assert!(matches!(rule.action, Action::Error { .. }));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Requests to this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Requests for this operation; `*` and `?` are wildcards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Requests in this region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Requests that name this instance; outside AWS, requests about this: a worker, a session, the instance of a CML.
    /// For actions that hide instances: the one to hide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Requests to etcd that read or write a key that begins like this: Range, Put, DeleteRange and Txn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
    /// Lets this many matching requests pass first.
    #[serde(default)]
    pub after: u64,
    /// Strikes this many times, then never again; always if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Strikes with this probability, 0 to 1.
    #[serde(default = "certain")]
    pub probability: f64,
    /// What counts as one request.
    #[serde(default)]
    pub per: Per,
    /// What goes wrong.
    pub action: Action,
}

/// What counts as one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// Each attempt on the wire: an SDK that tries again may get through.
    #[default]
    Attempt,
    /// Each call of the user: all attempts of one call fare the same.
    Call,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Action {
    /// The request is refused; nothing is done.
    Error {
        /// The error code.
        code: String,
        /// The HTTP status; the usual one of the code if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// The words; the usual ones of the code if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// The request is served later.
    Latency {
        /// How much later.
        seconds: f64,
        /// On which clock.
        #[serde(default)]
        on: WaitOn,
    },
    /// The connection is reset; nothing is done.
    Reset,
    /// The request is carried out, and the connection closed instead of an answer.
    DropResponse,
    /// Instances launched less than this ago do not exist yet.
    VisibilityLag {
        /// How long they are invisible.
        seconds: f64,
    },
    /// Lists leave instances out.
    Omit {
        /// How likely each one is left out.
        #[serde(default = "certain")]
        fraction: f64,
    },
    /// A page without anything on it.
    EmptyPage,
    /// A page with less on it than was asked for.
    PartialPage {
        /// How much at most.
        limit: usize,
    },
    /// Lists come in another order.
    Shuffle,
    /// Something only one service knows, by name.
    Custom {
        /// Its name.
        name: String,
        /// What it needs to know.
        #[serde(default, rename = "with", skip_serializing_if = "BTreeMap::is_empty")]
        parameters: BTreeMap<String, serde_json::Value>,
    },
}

/// The clock a delay is measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitOn {
    /// The world's: a manual clock must be moved before the request goes on.
    #[default]
    World,
    /// The one on the wall.
    Real,
}

/// Why a rule cannot be meant.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Not a share of anything.
    #[error("{field} must be between 0 and 1, not {value}")]
    Share {
        /// Where.
        field: &'static str,
        /// What it said.
        value: f64,
    },
    /// Not a duration.
    #[error("seconds must be between 0 and 86400, not {0}")]
    Seconds(f64),
    /// Not the status of an error.
    #[error("status must be between 400 and 599, not {0}")]
    Status(u16),
    /// Nothing etcd knows.
    #[error("{0}")]
    Etcd(String),
    /// It would strike and nothing would happen.
    #[error("action {action} means nothing to {service}; accepted: {accepted}")]
    Meaningless {
        /// The action.
        action: String,
        /// The service.
        service: &'static str,
        /// What the service understands.
        accepted: &'static str,
    },
    /// Only etcd has keys.
    #[error("key_prefix is for rules with service: etcd")]
    Keys,
    /// It would never strike.
    #[error("times must be at least 1; leave it out for a rule that always strikes")]
    Never,
}

impl Rule {
    /// A rule that strikes at every request.
    pub fn always(action: Action) -> Self {
        Self {
            service: None,
            operation: None,
            region: None,
            instance: None,
            key_prefix: None,
            after: 0,
            times: None,
            probability: certain(),
            per: Per::default(),
            action,
        }
    }

    /// Checks that it can be meant.
    ///
    /// # Errors
    /// Says which field cannot be.
    pub fn check(&self) -> Result<(), RuleError> {
        check_share("probability", self.probability)?;
        if self.times == Some(0) {
            return Err(RuleError::Never);
        }
        if self.key_prefix.is_some() && self.service != Some(Service::Etcd) {
            return Err(RuleError::Keys);
        }
        if let Some(service) = self.service {
            support::check(&self.action, service)?;
        }
        match &self.action {
            Action::Error { status: Some(status), .. } if !(400..=599).contains(status) => {
                Err(RuleError::Status(*status))
            }
            Action::Latency { seconds, .. } | Action::VisibilityLag { seconds }
                if !(0.0..=86_400.0).contains(seconds) =>
            {
                Err(RuleError::Seconds(*seconds))
            }
            Action::Custom { name, parameters } if self.service == Some(Service::Etcd) => {
                Fault::from_name(name, parameters.get("lease")).map(|_| ()).map_err(RuleError::Etcd)
            }
            Action::Omit { fraction } => check_share("fraction", *fraction),
            Action::Error { .. }
            | Action::Latency { .. }
            | Action::Reset
            | Action::DropResponse
            | Action::VisibilityLag { .. }
            | Action::EmptyPage
            | Action::PartialPage { .. }
            | Action::Shuffle
            | Action::Custom { .. } => Ok(()),
        }
    }

    pub(super) fn matches(&self, context: &super::RequestContext<'_>) -> bool {
        self.service.is_none_or(|service| service == context.service)
            && self.operation.as_ref().is_none_or(|pattern| Pattern::new(pattern).matches(context.operation))
            && self.region.as_ref().is_none_or(|region| Some(region.as_str()) == context.region)
            && self.instance.as_ref().is_none_or(|id| self.action.hides() || context.instances.contains(id))
            && match &self.key_prefix {
                None => context.keys.is_empty(),
                Some(prefix) => context.keys.iter().any(|key| key.starts_with(prefix.as_bytes())),
            }
    }
}

impl Action {
    fn hides(&self) -> bool {
        matches!(self, Self::VisibilityLag { .. } | Self::Omit { .. })
    }
}

fn certain() -> f64 {
    1.0
}

fn check_share(field: &'static str, value: f64) -> Result<(), RuleError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(RuleError::Share { field, value }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_survives_a_round_trip_through_json() {
        for text in [
            r#"{"kind":"error","code":"InternalError","status":500}"#,
            r#"{"kind":"latency","seconds":0.5,"on":"real"}"#,
            r#"{"kind":"reset"}"#,
            r#"{"kind":"drop-response"}"#,
            r#"{"kind":"visibility-lag","seconds":5.0}"#,
            r#"{"kind":"omit","fraction":0.25}"#,
            r#"{"kind":"empty-page"}"#,
            r#"{"kind":"partial-page","limit":3}"#,
            r#"{"kind":"shuffle"}"#,
            r#"{"kind":"custom","name":"lease-lost","with":{"lease":7}}"#,
        ] {
            let action: Action = serde_json::from_str(text).expect(text);
            assert_eq!(serde_json::to_string(&action).expect("it serialises"), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, hint) in [
            (r#"{"action":{"kind":"explode"}}"#, "unknown variant `explode`"),
            (r#"{"acton":{"kind":"reset"}}"#, "unknown field `acton`"),
            (r#"{"service":"s3","action":{"kind":"reset"}}"#, "unknown variant `s3`"),
            (r#"{"service":"ec2"}"#, "missing field `action`"),
        ] {
            let error = serde_json::from_str::<Rule>(text).expect_err(text).to_string();
            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn a_rule_that_would_strike_for_nothing_is_refused_with_what_would_not() {
        for (service, action, hint) in [
            ("control-plane", r#"{"kind":"shuffle"}"#, "action shuffle means nothing to control-plane"),
            ("cml", r#"{"kind":"custom","name":"meteor"}"#, "accepted: error, latency, reset, drop-response"),
            ("ec2", r#"{"kind":"custom","name":"bad-gateway"}"#, "action bad-gateway means nothing to ec2"),
            ("cloudwatch", r#"{"kind":"visibility-lag","seconds":1}"#, "means nothing to cloudwatch"),
            ("etcd", r#"{"kind":"empty-page"}"#, "means nothing to etcd"),
        ] {
            let text = format!(r#"{{"service":"{service}","action":{action}}}"#);
            let rule: Rule = serde_json::from_str(&text).expect("well-formed");
            let error = rule.check().expect_err(&text).to_string();
            assert!(error.contains(hint), "{error}");
        }
        let keyed = Rule { key_prefix: Some("/".to_owned()), ..Rule::always(Action::Reset) };
        assert_eq!(keyed.check(), Err(RuleError::Keys));
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let odd = Rule { probability: 1.5, ..Rule::always(Action::Reset) };
        assert_eq!(odd.check().expect_err("refused").to_string(), "probability must be between 0 and 1, not 1.5");
        let never = Rule { times: Some(0), ..Rule::always(Action::Reset) };
        assert_eq!(never.check(), Err(RuleError::Never));
        let fine = Action::Error { code: "X".to_owned(), status: Some(200), message: None };
        assert_eq!(Rule::always(fine).check(), Err(RuleError::Status(200)));
        let meteor = Action::Custom { name: "meteor".to_owned(), parameters: BTreeMap::new() };
        let meteor = Rule { service: Some(Service::Etcd), ..Rule::always(meteor) };
        assert!(meteor.check().is_err_and(|error| error.to_string().contains("accepted: lease-lost, compact")));
        assert!(Rule::always(Action::VisibilityLag { seconds: f64::NAN }).check().is_err());
    }
}
