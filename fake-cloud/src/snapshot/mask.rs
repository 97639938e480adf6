//! Secrets of a snapshot: which are replaced, and the defaults that a restore puts in their place.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Stands for a masked text.
const MARK: &str = "[masked]";

/// Password of etcd users whose password was masked.
const ETCD_PASSWORD: &str = "fake";

/// Cost of the hash of [`ETCD_PASSWORD`], the lowest that bcrypt accepts: the password is no secret.
const COST: u32 = 4;

/// Kinds of secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Passwords of CML users, on the servers and in the records of workers.
    CmlPasswords,
    /// Keys that sign the logins of CML servers.
    CmlLogins,
    /// Passwords of etcd users.
    EtcdPasswords,
    /// Logins of etcd clients.
    EtcdLogins,
    /// User data of instances and launch templates.
    UserData,
    /// Other fields with the name of a secret, such as license tokens.
    Others,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::CmlPasswords => "passwords of CML users",
            Self::CmlLogins => "logins of CML clients",
            Self::EtcdPasswords => "passwords of etcd users",
            Self::EtcdLogins => "logins of etcd clients",
            Self::UserData => "user data",
            Self::Others => "tokens and other secrets",
        }
    }

    fn default(self) -> &'static str {
        match self {
            Self::CmlPasswords => "the CML password of the restored cloud",
            Self::CmlLogins | Self::EtcdLogins => "none: clients log in again",
            Self::EtcdPasswords => "the password 'fake'",
            Self::UserData => "none",
            Self::Others => "the text '[masked]'",
        }
    }
}

/// Secrets of one kind that a snapshot does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MaskedSecret {
    /// The kind, such as `passwords of CML users`.
    pub secret: &'static str,
    /// Number of secrets.
    pub count: u64,
    /// Value that a restored cloud has instead.
    pub default: &'static str,
}

/// Values of the restored cloud that take the place of masked ones.
pub(super) struct Replacements {
    pub(super) cml_password: String,
}

/// Returns the secrets that a document does not hold.
pub(super) fn list(document: &Value) -> Vec<MaskedSecret> {
    let masked = BTreeMap::<Kind, u64>::deserialize(&document["masked"]).unwrap_or_default();
    let secret = |(kind, count): (Kind, u64)| MaskedSecret { secret: kind.name(), count, default: kind.default() };
    masked.into_iter().map(secret).collect()
}

/// Replaces all secrets, and counts them in the document.
pub(super) fn hide(document: &mut Value) {
    let mut counts: BTreeMap<Kind, u64> = BTreeMap::new();
    visit(document, &mut Vec::new(), &mut |kind, value| {
        *counts.entry(kind).or_default() += 1;
        *value = MARK.into();
    });
    document["masked"] = json!(counts);
}

/// Puts defaults in the place of masked secrets.
pub(super) fn replace(document: &mut Value, replacements: &Replacements) {
    // One hash for all users: bcrypt is slow by design.
    let hash = bcrypt::hash(ETCD_PASSWORD, COST).map_or_else(|_| json!("None"), |hash| json!({"Hash": hash}));
    visit(document, &mut Vec::new(), &mut |kind, value| {
        if value != MARK {
            return;
        }
        *value = match kind {
            Kind::CmlPasswords => replacements.cml_password.as_str().into(),
            // A random key: logins at one server must not be valid at another.
            Kind::CmlLogins => STANDARD
                .encode([uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(uuid::Uuid::into_bytes).concat())
                .into(),
            Kind::EtcdPasswords => hash.clone(),
            Kind::EtcdLogins => json!({}),
            Kind::UserData => Value::Null,
            Kind::Others => MARK.into(),
        };
    });
}

/// Calls `change` for every secret below a value.
fn visit<'a>(value: &'a mut Value, path: &mut Vec<String>, change: &mut dyn FnMut(Kind, &mut Value)) {
    match value {
        Value::Object(fields) => {
            visit_value_of_key(fields, path, change);
            for (name, value) in fields {
                match kind_of(path, name, value) {
                    Some(kind) => change(kind, value),
                    None => {
                        path.push(name.clone());
                        visit(value, path, change);
                        path.pop();
                    }
                }
            }
        }
        Value::Array(items) => {
            // A parameter or a tag: a name and a value.
            if let [Value::String(name), value @ Value::String(_)] = &mut **items
                && is_secret(name)
                && *value != ""
            {
                change(Kind::Others, value);
                return;
            }
            items.iter_mut().for_each(|item| visit(item, path, change));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Calls `change` for the secrets within the value of a key of etcd, if that is JSON, or for all of it if the key has the
/// name of a secret.
fn visit_value_of_key(
    fields: &mut Map<String, Value>,
    path: &mut Vec<String>,
    change: &mut dyn FnMut(Kind, &mut Value),
) {
    if path.last().map(String::as_str) != Some("keyspace") {
        return;
    }
    let last = fields.get("key").and_then(Value::as_str).and_then(|key| key.rsplit('/').next()).map(is_secret);
    let Some(value) = fields.get_mut("value") else { return };
    if last == Some(true) && *value != "" {
        change(Kind::Others, value);
    } else if let Some(Ok(mut inner @ (Value::Object(_) | Value::Array(_)))) = value.as_str().map(serde_json::from_str)
    {
        let before: Value = inner.clone();
        visit(&mut inner, path, change);
        if inner != before {
            *value = inner.to_string().into();
        }
    }
}

/// Returns the kind of a field, if it is a secret that has a value.
fn kind_of(path: &[String], name: &str, value: &Value) -> Option<Kind> {
    let kind = match (path.first().map(String::as_str), name) {
        // Node definitions name the credentials of the images of their vendors.
        (Some("cml"), _) if path.iter().any(|part| part == "definitions") => return None,
        (Some("cml"), "password") | (Some("control_plane"), "cml_password") => Kind::CmlPasswords,
        (Some("cml"), "secret") if path.last().is_some_and(|last| last == "tokens") => Kind::CmlLogins,
        (Some("etcd"), "password") => {
            return (value == MARK || value.get("Hash").is_some()).then_some(Kind::EtcdPasswords);
        }
        (Some("etcd"), "by_token") => {
            let is_used = value.as_object().is_none_or(|tokens| !tokens.is_empty());
            return is_used.then_some(Kind::EtcdLogins);
        }
        (Some("world"), "user_data") => Kind::UserData,
        (_, name) if is_secret(name) => Kind::Others,
        (_, _) => return None,
    };
    value.as_str().is_some_and(|text| !text.is_empty()).then_some(kind)
}

/// Whether a field of this name may hold a secret. The token of a launch and a fencing token protect nothing.
pub(crate) fn is_secret(name: &str) -> bool {
    const SECRETS: [&str; 5] = ["password", "token", "secret", "apikey", "userdata"];
    const PUBLIC: [&str; 5] = ["clienttoken", "launchtoken", "fencingtoken", "httptokens", "nexttoken"];
    let name = name.to_ascii_lowercase().replace(['_', '-'], "");
    SECRETS.iter().any(|secret| name.contains(secret)) && !PUBLIC.iter().any(|public| name.ends_with(public))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_wherever_they_are() {
        let mut document = json!({
            "world": {
                "user_data": "c2VjcmV0", "metadata": {"http_tokens": "required"}, "client_token": "lcm-1",
                "parameters": [["UserData", "eA=="], ["ImageId", "ami-1"], ["MetadataOptions.HttpTokens", "required"]],
            },
            "control_plane": {"w-1": {"cml_password": "hunter2", "license": {"token": "abc", "status": "registered"}}},
            "etcd": {
                "auth": {"users": {"root": {"password": {"Hash": "$2b$"}}, "guest": {"password": "None"}},
                    "tokens": {"by_token": {"abc.1": {"user": "root"}}}},
                "store": {"keyspace": [
                    {"key": "/lcm/workers/w-1/license", "value": "{\"token\":\"abc\",\"operation\":\"register\"}"},
                    {"key": "/app/password", "value": "hunter2"}, {"key": "/app/name", "value": "blue"},
                ]},
            },
            "cml": {"i-1": {"password": "hunter2", "tokens": {"secret": "AAAA"}}},
        });
        let before = document.clone();
        hide(&mut document);
        let text = document.to_string();
        for secret in ["hunter2", "\"abc", "c2VjcmV0", "eA==", "$2b$", "AAAA", "abc.1"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        for kept in ["required", "lcm-1", "ami-1", "registered", "register\\\"", "blue"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let counts = json!({
            "cml-passwords": 2, "cml-logins": 1, "etcd-passwords": 1, "etcd-logins": 1, "user-data": 1, "others": 4,
        });
        assert_eq!(document["masked"], counts);
        replace(&mut document, &Replacements { cml_password: "admin".to_owned() });
        assert_eq!(document["cml"]["i-1"]["password"], "admin");
        assert_eq!(document["world"]["user_data"], Value::Null);
        let hash = document["etcd"]["auth"]["users"]["root"]["password"]["Hash"].as_str().expect("a hash");
        assert!(bcrypt::verify(ETCD_PASSWORD, hash).expect("bcrypt's"));
        assert_eq!(document["etcd"]["auth"]["users"]["guest"], before["etcd"]["auth"]["users"]["guest"]);
        assert_eq!(document["etcd"]["auth"]["tokens"]["by_token"], json!({}));
    }
}
