//! Smart licensing: asynchronous registration and synchronous deregistration.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::error::CmlError;

/// Durations and status names of licensing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LicensingRules {
    /// Duration of a registration, on the world's clock.
    pub registration: Duration,
    /// Duration of the authorization that follows a registration.
    pub authorization: Duration,
    /// Status names in responses.
    pub names: LicensingStatusNames,
}

impl Default for LicensingRules {
    fn default() -> Self {
        Self {
            registration: Duration::from_secs(10),
            authorization: Duration::from_secs(2),
            names: LicensingStatusNames::default(),
        }
    }
}

/// Status names in licensing responses. Only `COMPLETED`, `IN_COMPLIANCE` and `FAILED` are known to be the real names,
/// so all of them are configurable.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LicensingStatusNames {
    /// Registration status before the first registration and after a deregistration.
    pub not_registered: String,
    /// Registration status while a registration is in progress.
    pub in_progress: String,
    /// Registration status after a successful registration.
    pub completed: String,
    /// Registration status after a rejected registration.
    pub failed: String,
    /// Authorization status without a valid authorization.
    pub not_authorized: String,
    /// Authorization status with a valid authorization.
    pub in_compliance: String,
}

impl Default for LicensingStatusNames {
    fn default() -> Self {
        Self {
            not_registered: "NOT_REGISTERED".into(),
            in_progress: "IN_PROGRESS".into(),
            completed: "COMPLETED".into(),
            failed: "FAILED".into(),
            not_authorized: "INIT".into(),
            in_compliance: "IN_COMPLIANCE".into(),
        }
    }
}

/// Result of later registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Registration {
    /// The registration succeeds.
    #[default]
    Completes,
    /// The licensing server rejects the token.
    Fails,
    /// The registration never finishes.
    Hangs,
}

/// Result of later deregistrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Deregistration {
    /// Deregistered locally and at the licensing server (204).
    #[default]
    Done,
    /// Deregistered locally; the licensing server was unreachable (202).
    LocalOnly,
}

#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
struct Attempt {
    started_at: DateTime<Utc>,
    result: Registration,
}

/// Licensing state of one server.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Licensing {
    rules: LicensingRules,
    attempt: Option<Attempt>,
    product: String,
    ssms: String,
    proxy: Value,
    /// Number of additional nodes that the license is to cover.
    nodes: u32,
    pub(super) next_registration: Registration,
    pub(super) next_deregistration: Deregistration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LicenseState {
    Unregistered,
    InProgress,
    Failed,
    Registered,
    Authorized,
}

/// Feature of the product itself.
const BASE: &str = "regid.2019-10.com.cisco.CML_ENT_BASE,1.0_2607650b-6ca8-46d5-81e5-e6688b7383c4";
/// Feature of additional nodes.
const NODE_COUNT: &str = "regid.2019-10.com.cisco.CML_NODE_COUNT,1.0_2607650b-6ca8-46d5-81e5-e6688b7383c4";
const MAX_NODE_COUNT: u32 = 300;

const DEFAULT_SSMS: &str = "https://smartreceiver.cisco.com/licservice/license";

impl Licensing {
    pub(super) fn new(rules: LicensingRules) -> Self {
        Self {
            rules,
            attempt: None,
            product: "CML_Enterprise".into(),
            ssms: DEFAULT_SSMS.into(),
            proxy: json!({"server": null, "port": null}),
            nodes: 0,
            next_registration: Registration::default(),
            next_deregistration: Deregistration::default(),
        }
    }

    fn state(&self, now: DateTime<Utc>) -> LicenseState {
        let Some(attempt) = self.attempt else { return LicenseState::Unregistered };
        let age = now - attempt.started_at;
        if age < delta(self.rules.registration) {
            return LicenseState::InProgress;
        }
        match attempt.result {
            Registration::Hangs => LicenseState::InProgress,
            Registration::Fails => LicenseState::Failed,
            Registration::Completes
                if age < delta(self.rules.registration.saturating_add(self.rules.authorization)) =>
            {
                LicenseState::Registered
            }
            Registration::Completes => LicenseState::Authorized,
        }
    }

    pub(super) fn is_licensed(&self, now: DateTime<Utc>) -> bool {
        self.state(now) == LicenseState::Authorized
    }

    /// Accepts a token and starts a registration.
    ///
    /// A 400 for a second registration without `reregister` is an assumption; the real text is not known.
    pub(super) fn register(&mut self, body: &Value, now: DateTime<Utc>) -> Result<(), CmlError> {
        let token = body.get("token").and_then(Value::as_str).unwrap_or_default();
        let valid = |c: char| c.is_ascii_alphanumeric() || "+/%=-".contains(c);
        if !(1..=256).contains(&token.len()) || !token.chars().all(valid) {
            // The token is never part of the message.
            return Err(CmlError::bad_request("Licensing issue: The registration token is not valid."));
        }
        let reregister = body.get("reregister").and_then(Value::as_bool).unwrap_or(false);
        match self.state(now) {
            LicenseState::InProgress => {
                return Err(CmlError::conflict("Licensing issue: A registration is in progress."));
            }
            LicenseState::Registered | LicenseState::Authorized if !reregister => {
                return Err(CmlError::bad_request("Licensing issue: The product has already been registered."));
            }
            LicenseState::Registered | LicenseState::Authorized | LicenseState::Failed | LicenseState::Unregistered => {
            }
        }
        self.attempt = Some(Attempt { started_at: now, result: self.next_registration });
        Ok(())
    }

    /// Releases the license. Returns the response status: 204 or 202.
    pub(super) fn deregister(&mut self, running_nodes: u32, now: DateTime<Utc>) -> Result<u16, CmlError> {
        match self.state(now) {
            LicenseState::Unregistered | LicenseState::Failed => {
                let text = "Licensing issue: The product has already been de-registered.";
                return Err(CmlError::bad_request(text));
            }
            LicenseState::InProgress => {
                return Err(CmlError::conflict("Licensing issue: A registration is in progress."));
            }
            LicenseState::Registered | LicenseState::Authorized => {}
        }
        if running_nodes > 0 {
            return Err(CmlError::bad_request("Licensing issue: Cannot de-register when nodes are running."));
        }
        self.attempt = None;
        Ok(match self.next_deregistration {
            Deregistration::Done => 204,
            Deregistration::LocalOnly => 202,
        })
    }

    pub(super) fn renew(&mut self, now: DateTime<Utc>) -> Result<(), CmlError> {
        match self.state(now) {
            LicenseState::Registered | LicenseState::Authorized => Ok(()),
            LicenseState::Unregistered | LicenseState::InProgress | LicenseState::Failed => {
                Err(CmlError::conflict("Licensing issue: The product is not registered."))
            }
        }
    }

    pub(super) fn set_product(&mut self, body: &Value) -> Result<(), CmlError> {
        const KNOWN: [&str; 4] = ["CML_Enterprise", "CML_Education", "CML_Personal", "CML_Personal40"];
        match body.as_str().filter(|product| KNOWN.contains(product)) {
            Some(product) => {
                self.product = product.to_owned();
                Ok(())
            }
            None => Err(CmlError::bad_request(format!("Unknown product license; accepted: {}", KNOWN.join(", ")))),
        }
    }

    pub(super) fn set_transport(&mut self, body: &Value) -> Result<(), CmlError> {
        if !body.is_object() {
            return Err(CmlError::bad_request("Transport: a JSON object with ssms and proxy is needed."));
        }
        self.ssms = body.get("ssms").and_then(Value::as_str).unwrap_or(DEFAULT_SSMS).to_owned();
        self.proxy = body.get("proxy").cloned().unwrap_or(json!({"server": null, "port": null}));
        Ok(())
    }

    /// Sets how many units of a feature the license is to cover: `[{"id", "count"}]`, or `{"<id>": count}` as older
    /// clients send it.
    pub(super) fn set_features(&mut self, body: &Value) -> Result<(), CmlError> {
        let invalid = || CmlError::bad_request("Expected a list of features with id and count, or an object.");
        let wanted: Vec<(String, &Value)> = match body {
            Value::Array(features) => {
                let feature = |feature: &'_ Value| feature["id"].as_str().map(str::to_owned);
                let pairs = features.iter().map(|one| feature(one).map(|id| (id, &one["count"])));
                pairs.collect::<Option<_>>().ok_or_else(invalid)?
            }
            Value::Object(features) => features.iter().map(|(id, count)| (id.clone(), count)).collect(),
            _ => return Err(invalid()),
        };
        for (id, count) in wanted {
            let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
            match (id.as_str(), count) {
                (NODE_COUNT, Some(count @ 0..=MAX_NODE_COUNT)) => self.nodes = count,
                // Exactly one unit is in use while the product is authorized.
                (BASE, Some(0 | 1)) => {}
                (NODE_COUNT | BASE, _) => {
                    let message = format!("Invalid count of {id}: expected a number within the limits of the feature.");
                    return Err(CmlError::bad_request(message));
                }
                _ => return Err(CmlError::not_found("Feature", &id)),
            }
        }
        Ok(())
    }

    pub(super) fn status(&self, product_uuid: &str, hostname: &str, now: DateTime<Utc>) -> Value {
        let names = &self.rules.names;
        let state = self.state(now);
        let registration = match state {
            LicenseState::Unregistered => &names.not_registered,
            LicenseState::InProgress => &names.in_progress,
            LicenseState::Failed => &names.failed,
            LicenseState::Registered | LicenseState::Authorized => &names.completed,
        };
        let authorized = state == LicenseState::Authorized;
        let authorization = if authorized { &names.in_compliance } else { &names.not_authorized };
        let is_registered = matches!(state, LicenseState::Registered | LicenseState::Authorized);
        let attempted = self.attempt.map(|attempt| format_time(attempt.started_at));
        let finished = self.attempt.map(|attempt| format_time(attempt.started_at + delta(self.rules.registration)));
        let succeeded = finished.clone().filter(|_| is_registered);
        let expires = self
            .attempt
            .filter(|_| is_registered)
            .map(|attempt| format_time(attempt.started_at + TimeDelta::days(365)));
        let failure = (state == LicenseState::Failed).then_some("The token is not valid or has expired.");
        json!({
            "registration": {
                "status": registration,
                "smart_account": is_registered.then_some("Fake Smart Account"),
                "virtual_account": is_registered.then_some("Default"),
                "expires": expires,
                "register_time": {
                    "succeeded": succeeded, "attempted": attempted, "scheduled": null,
                    "status": registration, "failure": failure, "success": is_registered,
                },
                "renew_time": {
                    "succeeded": null, "attempted": null, "scheduled": expires, "status": null, "failure": null,
                    "success": null,
                },
            },
            "authorization": {
                "status": authorization,
                "expires": expires.clone().filter(|_| authorized),
                "renew_time": {
                    "succeeded": succeeded.filter(|_| authorized), "attempted": attempted.filter(|_| authorized),
                    "scheduled": null, "status": null, "failure": null, "success": authorized.then_some(true),
                },
            },
            "features": [
                {
                    "id": BASE, "name": "CML - Enterprise License",
                    "description": "Cisco Modeling Labs - Enterprise License", "in_use": u8::from(authorized),
                    "status": authorization, "version": "1.0", "min": 0, "max": 1, "minEndDate": null,
                    "maxEndDate": null,
                },
                {
                    "id": NODE_COUNT, "name": "CML - Expansion Nodes",
                    "description": "Cisco Modeling Labs - Expansion Nodes", "in_use": self.nodes,
                    "status": if self.nodes > 0 { authorization } else { &names.not_authorized }, "version": "1.0",
                    "min": 0, "max": MAX_NODE_COUNT, "minEndDate": null, "maxEndDate": null,
                },
            ],
            "reservation_mode": false,
            "transport": {"ssms": self.ssms, "default_ssms": DEFAULT_SSMS, "proxy": self.proxy},
            "udi": {"hostname": hostname, "product_uuid": product_uuid},
            "product_license": {
                "active": self.product, "is_enterprise": !self.product.starts_with("CML_Personal"),
            },
        })
    }
}

fn format_time(moment: DateTime<Utc>) -> String {
    moment.format("%Y-%m-%d %H:%M:%S").to_string()
}

fn delta(duration: Duration) -> TimeDelta {
    // Caps at a century, so that sums of dates stay in range.
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX).min(TimeDelta::days(36_500))
}
