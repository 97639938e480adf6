//! A fault rule: its conditions, its action, and its validation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::control_plane::Records;
use crate::etcd::Fault;
use crate::names;
use crate::service::Service;
use crate::world::{Pattern, World};

/// Conditions and action of a fault. A missing condition matches every request.
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
    /// Matches requests to this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Matches requests for this operation; `*` and `?` are wildcards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Matches requests in this region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Matches requests that contain this instance id; outside AWS, requests about this worker, session or instance of
    /// a CML server. For actions that hide instances, the instance to hide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Matches Range, Put, DeleteRange and Txn requests to etcd with a key that has this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
    /// Number of matching requests that are served before the rule applies; 0 by default.
    #[serde(default)]
    pub after: u64,
    /// Number of requests to which the rule applies; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Probability from 0 to 1 that the rule applies to a matching request; 1 by default.
    #[serde(default = "one")]
    pub probability: f64,
    /// Unit that `after`, `times` and `probability` count.
    #[serde(default)]
    pub per: CountUnit,
    /// The fault to inject.
    pub action: Action,
}

/// Unit that a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountUnit {
    /// Each HTTP request. A retry of an SDK may succeed.
    #[default]
    Attempt,
    /// Each SDK call. All attempts of one call have the same outcome.
    Call,
}

/// A fault that a rule injects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Action {
    /// Returns an error without executing the request.
    Error {
        /// Error code of the service.
        code: String,
        /// HTTP status; the default of the code if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// Error message; the default of the code if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Returns the error of AWS for rejected credentials, without executing the request. AWS services only.
    Credentials {
        /// Reason of the rejection.
        problem: CredentialProblem,
    },
    /// Delays the request.
    Latency {
        /// Delay in seconds.
        seconds: f64,
        /// Clock on which the delay is measured.
        #[serde(default)]
        on: WaitOn,
    },
    /// Resets the connection without executing the request.
    Reset,
    /// Executes the request and closes the connection without a response.
    DropResponse,
    /// Hides instances that were launched recently.
    VisibilityLag {
        /// Seconds after the launch for which an instance is hidden.
        seconds: f64,
    },
    /// Omits instances from lists.
    Omit {
        /// Probability from 0 to 1 that an instance is omitted; 1 by default.
        #[serde(default = "one")]
        fraction: f64,
    },
    /// Returns an empty page with a next token.
    EmptyPage,
    /// Returns a page with fewer items than requested.
    PartialPage {
        /// Maximum number of items.
        limit: usize,
    },
    /// Returns the items of a list in random order.
    Shuffle,
    /// A fault that is specific to one service.
    Custom {
        /// Name of the fault, such as `bad-gateway`.
        name: String,
        /// Parameters of the fault.
        #[serde(default, rename = "with", skip_serializing_if = "BTreeMap::is_empty")]
        parameters: BTreeMap<String, serde_json::Value>,
    },
}

/// Reason why AWS rejects credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CredentialProblem {
    /// Temporary credentials have expired: `RequestExpired` of EC2, `ExpiredToken` of the others.
    Expired,
    /// The access key does not exist: `AuthFailure` of EC2, `InvalidClientTokenId` of the others.
    Invalid,
}

impl CredentialProblem {
    /// Returns the error code of a service.
    pub fn code(self, service: Service) -> &'static str {
        match (self, service) {
            (Self::Expired, Service::Ec2) => "RequestExpired",
            (Self::Invalid, Service::Ec2) => "AuthFailure",
            (Self::Expired, _) => "ExpiredToken",
            (Self::Invalid, _) => "InvalidClientTokenId",
        }
    }
}

/// Clock on which a delay is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitOn {
    /// The clock of the world. A manual clock must be advanced before the request continues.
    #[default]
    World,
    /// Real time, independent of the clock of the world.
    Real,
}

/// Error of an invalid rule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A probability or fraction is outside 0 to 1.
    #[error("{field} must be between 0 and 1, not {value}")]
    Fraction {
        /// Name of the field.
        field: &'static str,
        /// The invalid value.
        value: f64,
    },
    /// A duration is negative or longer than a day.
    #[error("seconds must be between 0 and 86400, not {0}")]
    Seconds(f64),
    /// The HTTP status is not an error status.
    #[error("status must be between 400 and 599, not {0}")]
    Status(u16),
    /// The custom fault is unknown to etcd, or its parameters are invalid.
    #[error("{0}")]
    Etcd(String),
    /// The service does not support the action.
    #[error("action {action} is not supported by {service}; accepted: {accepted}")]
    Unsupported {
        /// Name of the action.
        action: String,
        /// Name of the service.
        service: &'static str,
        /// Actions that the service supports.
        accepted: &'static str,
    },
    /// A key prefix is given for a service other than etcd.
    #[error("key_prefix is for rules with service: etcd")]
    Keys,
    /// No request can have this operation.
    #[error("{0}")]
    Operation(String),
    /// No region has this name.
    #[error("{0}")]
    Region(String),
    /// No instance, worker, session or template has this name.
    #[error("{0}")]
    Instance(String),
    /// The rule would never apply.
    #[error("times must be at least 1; leave it out for a rule that always applies")]
    Never,
}

impl Rule {
    /// Creates a rule that applies to every request.
    pub fn new(action: Action) -> Self {
        Self {
            service: None,
            operation: None,
            region: None,
            instance: None,
            key_prefix: None,
            after: 0,
            times: None,
            probability: one(),
            per: CountUnit::default(),
            action,
        }
    }

    /// Validates the rule.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), RuleError> {
        check_fraction("probability", self.probability)?;
        if self.times == Some(0) {
            return Err(RuleError::Never);
        }
        if self.key_prefix.is_some() && self.service != Some(Service::Etcd) {
            return Err(RuleError::Keys);
        }
        if let Some(operation) = &self.operation {
            crate::operations::check(operation, self.service).map_err(RuleError::Operation)?;
        }
        if let Some(region) = &self.region {
            crate::world::check_region(region).map_err(RuleError::Region)?;
        }
        if let Some(service) = self.service {
            check_support(&self.action, service)?;
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
            Action::Omit { fraction } => check_fraction("fraction", *fraction),
            Action::Error { .. }
            | Action::Credentials { .. }
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

    /// Returns the rule with the id of its instance in place of a name.
    ///
    /// # Errors
    /// A message with the instance that was probably meant.
    pub(crate) fn resolve(self, world: &World, records: Option<&Records>) -> Result<Self, RuleError> {
        let of = (self.service.or(self.action.only_service()), self.operation.as_deref());
        let instance = self.instance.as_deref().map(|text| names::find_subject(world, records, of, text));
        Ok(Self { instance: instance.transpose().map_err(RuleError::Instance)?, ..self })
    }

    pub(super) fn matches(&self, context: &super::RequestContext<'_>) -> bool {
        self.service.is_none_or(|service| service == context.service)
            && self.operation.as_ref().is_none_or(|pattern| Pattern::new(pattern).matches(context.operation))
            && self.region.as_ref().is_none_or(|region| Some(region.as_str()) == context.region)
            && self.instance.as_ref().is_none_or(|id| self.action.hides() || context.instances.contains(id))
            && (!self.action.is_of_aws() || check_support(&self.action, context.service).is_ok())
            && match &self.key_prefix {
                None => context.keys.is_empty(),
                Some(prefix) => context.keys.iter().any(|key| key.starts_with(prefix.as_bytes())),
            }
    }
}

impl Action {
    /// Returns whether a rule without a service applies to AWS only.
    fn is_of_aws(&self) -> bool {
        matches!(self, Self::Credentials { .. })
    }

    /// Returns the service of an action that only one has.
    fn only_service(&self) -> Option<Service> {
        matches!(self, Self::VisibilityLag { .. } | Self::Omit { .. } | Self::Shuffle).then_some(Service::Ec2)
    }

    fn hides(&self) -> bool {
        matches!(self, Self::VisibilityLag { .. } | Self::Omit { .. })
    }
}

fn one() -> f64 {
    1.0
}

fn check_fraction(field: &'static str, value: f64) -> Result<(), RuleError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(RuleError::Fraction { field, value }) }
}

/// Custom faults of CML.
const CML_FAULTS: [&str; 3] = ["bad-gateway", "not-ready", "unauthorized"];
/// Custom faults of the control plane.
const CONTROL_PLANE_FAULTS: [&str; 3] = ["bad-gateway", "write-conflict", "split-write"];

/// Rejects an action that the service does not support, because such a rule would let a test pass for the wrong reason.
fn check_support(action: &Action, service: Service) -> Result<(), RuleError> {
    let accepted = match service {
        Service::Ec2 => {
            "error, credentials, latency, reset, drop-response, visibility-lag, omit, empty-page, partial-page, shuffle"
        }
        Service::Cloudwatch => "error, credentials, latency, reset, drop-response, empty-page, partial-page",
        Service::Sts => "error, credentials, latency, reset, drop-response",
        Service::Cml => "error, latency, reset, drop-response, custom with bad-gateway, not-ready or unauthorized",
        Service::Etcd => "error, latency, reset, drop-response, custom with the name of a fault of etcd",
        Service::ControlPlane => {
            "error, latency, reset, drop-response, custom with bad-gateway, write-conflict or split-write"
        }
    };
    let is_supported = match action {
        Action::Error { .. } | Action::Latency { .. } | Action::Reset | Action::DropResponse => true,
        Action::Credentials { .. } => matches!(service, Service::Ec2 | Service::Cloudwatch | Service::Sts),
        Action::EmptyPage | Action::PartialPage { .. } => matches!(service, Service::Ec2 | Service::Cloudwatch),
        Action::VisibilityLag { .. } | Action::Omit { .. } | Action::Shuffle => service == Service::Ec2,
        Action::Custom { name, .. } => match service {
            Service::Ec2 | Service::Cloudwatch | Service::Sts => false,
            Service::Cml => CML_FAULTS.contains(&name.as_str()),
            Service::ControlPlane => CONTROL_PLANE_FAULTS.contains(&name.as_str()),
            // `Rule::check` validates the faults of etcd.
            Service::Etcd => true,
        },
    };
    if is_supported {
        return Ok(());
    }
    Err(RuleError::Unsupported { action: action_name(action), service: service.name(), accepted })
}

fn action_name(action: &Action) -> String {
    match action {
        Action::Error { .. } => "error",
        Action::Credentials { .. } => "credentials",
        Action::Latency { .. } => "latency",
        Action::Reset => "reset",
        Action::DropResponse => "drop-response",
        Action::VisibilityLag { .. } => "visibility-lag",
        Action::Omit { .. } => "omit",
        Action::EmptyPage => "empty-page",
        Action::PartialPage { .. } => "partial-page",
        Action::Shuffle => "shuffle",
        Action::Custom { name, .. } => name,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_round_trip_through_json() {
        for text in [
            r#"{"kind":"error","code":"InternalError","status":500}"#,
            r#"{"kind":"latency","seconds":0.5,"on":"real"}"#,
            r#"{"kind":"credentials","problem":"expired"}"#,
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
            assert_eq!(serde_json::to_string(&action).expect("serializes"), text);
        }
    }

    #[test]
    fn parse_errors_name_the_mistake() {
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
    fn unknown_regions_are_rejected() {
        let rule = Rule { region: Some("us-esat-1".to_owned()), ..Rule::new(Action::Reset) };
        let error = rule.check().expect_err("a typo").to_string();
        assert_eq!(error, "unknown region 'us-esat-1'; did you mean 'us-east-1'?");
    }

    #[test]
    fn unsupported_actions_are_rejected() {
        for (service, action, hint) in [
            ("control-plane", r#"{"kind":"shuffle"}"#, "action shuffle is not supported by control-plane"),
            ("cml", r#"{"kind":"custom","name":"meteor"}"#, "accepted: error, latency, reset, drop-response"),
            ("ec2", r#"{"kind":"custom","name":"bad-gateway"}"#, "action bad-gateway is not supported by ec2"),
            ("cloudwatch", r#"{"kind":"visibility-lag","seconds":1}"#, "is not supported by cloudwatch"),
            ("cml", r#"{"kind":"credentials","problem":"invalid"}"#, "action credentials is not supported by cml"),
            ("etcd", r#"{"kind":"empty-page"}"#, "is not supported by etcd"),
        ] {
            let text = format!(r#"{{"service":"{service}","action":{action}}}"#);
            let rule: Rule = serde_json::from_str(&text).expect("well-formed");
            let error = rule.check().expect_err(&text).to_string();
            assert!(error.contains(hint), "{error}");
        }
        let keyed = Rule { key_prefix: Some("/".to_owned()), ..Rule::new(Action::Reset) };
        assert_eq!(keyed.check(), Err(RuleError::Keys));
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        let odd = Rule { probability: 1.5, ..Rule::new(Action::Reset) };
        assert_eq!(odd.check().expect_err("rejected").to_string(), "probability must be between 0 and 1, not 1.5");
        let never = Rule { times: Some(0), ..Rule::new(Action::Reset) };
        assert_eq!(never.check(), Err(RuleError::Never));
        let fine = Action::Error { code: "X".to_owned(), status: Some(200), message: None };
        assert_eq!(Rule::new(fine).check(), Err(RuleError::Status(200)));
        let meteor = Action::Custom { name: "meteor".to_owned(), parameters: BTreeMap::new() };
        let meteor = Rule { service: Some(Service::Etcd), ..Rule::new(meteor) };
        assert!(meteor.check().is_err_and(|error| error.to_string().contains("expected one of lease-lost, compact")));
        assert!(Rule::new(Action::VisibilityLag { seconds: f64::NAN }).check().is_err());
    }
}
