//! Variables as the environment holds them, and those of the original controller that have another form than ours.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv6Addr;

use super::error::Warning;

/// A variable of the environment.
pub(super) struct Variable {
    /// Its name as it was spelled.
    pub(super) spelled: String,
    pub(super) value: OsString,
}

/// Port of etcd where only its host is named.
const ETCD_PORT: &str = "2379";

/// Ports among the settings. Kubernetes sets variables of these names for services called `etcd`, `app` and so on.
const PORTS: [&str; 4] = ["ETCD_PORT", "APP_PORT", "ADMIN_PORT", "CML_PORT"];

/// Families of variables of the original controller. A member that is not a setting is reported.
const FAMILIES: [&str; 3] = ["WORKER_DISCOVERY_", "WORKER_IDLE_", "WORKER_AUTO_PAUSE_"];

/// Rewrites variables into the form of the setting that reads them, and drops values that a platform injected.
pub(super) fn translate(variables: &mut BTreeMap<String, Variable>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for port in PORTS {
        if variables.get(port).is_some_and(is_service_link)
            && let Some(Variable { spelled, .. }) = variables.remove(port)
        {
            warnings.push(Warning::ServiceLink { variable: spelled });
        }
    }
    join_endpoint(variables);
    if let Some(path) = variables.get_mut("AWS_REGIONS_CONFIG_PATH").filter(|path| !path.value.is_empty()) {
        let mut file = OsString::from("@");
        file.push(&path.value);
        path.value = file;
    }
    warnings
}

/// Whether a variable belongs to a family of the original controller.
pub(super) fn is_of_a_family(upper: &str) -> bool {
    FAMILIES.iter().any(|family| upper.starts_with(family))
}

/// Whether the value is the address of a service in the form in which Kubernetes injects it.
fn is_service_link(variable: &Variable) -> bool {
    let value = variable.value.to_str().unwrap_or_default();
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

/// Joins `ETCD_HOST` and `ETCD_PORT` to endpoints, under the name of the first.
fn join_endpoint(variables: &mut BTreeMap<String, Variable>) {
    let mut take = |name: &str| variables.remove(name).filter(|variable| !variable.value.is_empty());
    let (host, port) = (take("ETCD_HOST"), take("ETCD_PORT"));
    let set = [&host, &port].into_iter().flatten();
    let spelled: Vec<&str> = set.clone().map(|variable| variable.spelled.as_str()).collect();
    if spelled.is_empty() {
        return;
    }
    let unreadable = set.clone().find(|variable| variable.value.to_str().is_none());
    let value = match unreadable {
        // The reader reports it.
        Some(variable) => variable.value.clone(),
        None => {
            let text = |variable: &Option<Variable>, default: &str| match variable {
                Some(variable) => variable.value.to_str().unwrap_or_default().trim().to_owned(),
                None => default.to_owned(),
            };
            let (hosts, port) = (text(&host, "localhost"), text(&port, ETCD_PORT));
            let endpoint = |host: &str| match host.trim() {
                host if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
                host => format!("{host}:{port}"),
            };
            hosts.split(',').map(endpoint).collect::<Vec<_>>().join(",").into()
        }
    };
    let joined = Variable { spelled: spelled.join("+"), value };
    variables.insert("ETCD_HOST".to_owned(), joined);
}
