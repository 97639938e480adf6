//! Names of the operations of every service, as fault rules and the request log have them.

use crate::control_plane::Generation;
use crate::service::Service;
use crate::suggest::did_you_mean;
use crate::world::Pattern;
use crate::{cloudwatch, cml, ec2, etcd, sts};

/// Operations of requests that no service can read, or that name no endpoint.
const UNREADABLE: [&str; 2] = ["unknown", "unreadable"];

impl Service {
    /// All services.
    pub const ALL: [Self; 6] = [Self::Ec2, Self::Cloudwatch, Self::Sts, Self::Cml, Self::Etcd, Self::ControlPlane];

    /// Returns the names of all operations, in alphabetical order. Those of the control plane are of both generations.
    pub fn operations(self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = match self {
            Self::Ec2 => ec2::actions().collect(),
            Self::Cloudwatch => cloudwatch::OPERATIONS.to_vec(),
            Self::Sts => sts::OPERATIONS.to_vec(),
            Self::Cml => cml::http::operations().collect(),
            Self::Etcd => etcd::operations().collect(),
            Self::ControlPlane => {
                let generations = [Generation::Original, Generation::Extended];
                generations.into_iter().flat_map(Generation::endpoints).map(|endpoint| endpoint.operation).collect()
            }
        };
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Returns the service of an operation, if only one has it.
pub(crate) fn only_service(operation: &str) -> Option<Service> {
    let mut services = Service::ALL.into_iter().filter(|service| service.operations().contains(&operation));
    services.next().filter(|_| services.next().is_none())
}

/// Rejects the name of an operation that no request can have. Patterns with `*` and `?` must match an operation.
///
/// # Errors
/// A message with the operation that was probably meant, or with all operations of the service.
pub(crate) fn check(operation: &str, service: Option<Service>) -> Result<(), String> {
    let services = service.map_or(Service::ALL.to_vec(), |service| vec![service]);
    let names: Vec<&'static str> = services.into_iter().flat_map(Service::operations).chain(UNREADABLE).collect();
    let pattern = Pattern::new(operation);
    if names.iter().any(|name| pattern.matches(name)) {
        return Ok(());
    }
    let of = service.map(|service| format!(" of {}", service.name())).unwrap_or_default();
    let hint = match (&*did_you_mean(operation, names.iter().copied()), service) {
        ("", Some(_)) => format!(": expected one of {}", names.join(", ")),
        (hint, _) => hint.to_owned(),
    };
    Err(format!("unknown operation '{operation}'{of}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_operations_are_refused_with_the_probable_one() {
        for (operation, service, hint) in [
            ("DescribeInstance", Some(Service::Ec2), "of ec2; did you mean 'DescribeInstances'?"),
            ("GetMetricsData", None, "unknown operation 'GetMetricsData'; did you mean 'GetMetricData'?"),
            ("get_workers", Some(Service::ControlPlane), "did you mean 'get_worker'?"),
            ("LeaseGrants", Some(Service::Etcd), "did you mean 'LeaseGrant'?"),
            ("Delete*Bucket", Some(Service::Sts), "expected one of GetCallerIdentity, unknown"),
        ] {
            let error = check(operation, service).expect_err(operation);
            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn operations_and_patterns_of_every_service_are_accepted() {
        for service in Service::ALL {
            assert!(service.operations().len() == 1 || service.operations().len() > 2, "{service:?}");
            for operation in service.operations() {
                assert_eq!(check(operation, Some(service)), Ok(()), "{operation}");
            }
        }
        assert_eq!(check("Describe*", Some(Service::Ec2)), Ok(()));
    }
}
