//! Credentials, account, regions, subnets and AMIs.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use lcm_sdk::lifecycle::{DEFAULT_AMI_PATTERN, ImageOwners};
use lcm_sdk::{CallFailure, FailureKind, WorkerId};

use super::{Check, Subject};

/// Id of a worker that does not exist: a lookup of its instances shows whether EC2 accepts calls.
const NO_WORKER: &str = "lcm-doctor";

pub(super) async fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let settings = subject.settings;
    let mut regions: BTreeSet<String> = settings.discovery_regions().into_iter().collect();
    regions.extend(settings.aws.aws_region_configs.regions.keys().cloned());
    let describes = regions.iter().map(|region| async move {
        (region.as_str(), subject.ports.compute.tagged(region, &WorkerId::from(NO_WORKER)).await.map(drop))
    });
    let responses = join_all(describes).await;
    let default = settings.aws.aws_default_region.as_str();
    let first = responses.iter().find(|(region, _)| *region == default).or(responses.first());
    let mut checks = Vec::new();
    match first {
        Some((region, Err(failure))) => {
            checks.push(Check::fail("credentials", format!("{region}: {failure}"), mend_call(failure)));
            // The same failure would follow for everything else.
            let found = format!("not checked, because EC2 does not accept the credentials in {region}");
            checks.extend(["account", "regions", "subnets", "AMI owner"].map(|check| Check::skipped(check, &found)));
            return checks;
        }
        Some((region, Ok(()))) => checks.push(Check::ok("credentials", format!("EC2 accepts them in {region}"))),
        None => {}
    }
    let account = subject.ports.compute.caller(default).await.ok().and_then(|caller| caller.account_id);
    checks.push(account_check(settings.aws.aws_account_id.as_deref(), account.as_deref()));
    checks.push(regions_check(&responses));
    checks.extend(subnets(subject, account.as_deref()).await);
    checks.extend(images(subject).await);
    checks
}

fn account_check(expected: Option<&str>, account: Option<&str>) -> Check {
    match (expected, account) {
        (_, None) => Check::warn(
            "account",
            "STS does not report the account of the credentials",
            "allow sts:GetCallerIdentity; without the account, no absence of an instance is believed",
        ),
        (Some(expected), Some(account)) if expected != account => Check::fail(
            "account",
            format!("the credentials belong to account {account}, and LCM_AWS_ACCOUNT_ID is {expected}"),
            "use credentials of the expected account, or correct LCM_AWS_ACCOUNT_ID",
        ),
        (Some(_), Some(account)) => Check::ok("account", format!("{account}, as LCM_AWS_ACCOUNT_ID says")),
        (None, Some(account)) => Check::ok("account", format!("{account}; LCM_AWS_ACCOUNT_ID is not set")),
    }
}

fn regions_check(responses: &[(&str, Result<(), CallFailure>)]) -> Check {
    let failed: Vec<_> =
        responses.iter().filter_map(|(region, result)| Some((*region, result.as_ref().err()?))).collect();
    match failed.first() {
        None => Check::ok("regions", names(responses.iter().map(|(region, _)| *region))),
        Some((_, failure)) => Check::fail(
            "regions",
            format!("{}: {failure}", names(failed.iter().map(|(region, _)| *region))),
            format!(
                "{}; or take the regions out of AWS_REGION_CONFIGS and WORKER_DISCOVERY_REGIONS",
                mend_call(failure)
            ),
        ),
    }
}

/// Subnet and security groups of each region that workers can be launched in.
async fn subnets(subject: &Subject<'_>, account: Option<&str>) -> Vec<Check> {
    let configs = &subject.settings.aws.aws_region_configs.regions;
    if configs.is_empty() {
        let found = "no region is configured: no worker can be launched, and no subnet proves the account";
        return vec![Check::warn("subnets", found, "set AWS_REGION_CONFIGS with subnet_id and security_group_ids")];
    }
    let checks = configs.iter().map(|(region, config)| async move {
        let subnet = config.subnet_id.as_str();
        if subnet.is_empty() || config.security_group_ids.is_empty() {
            let found = format!("{region} has no subnet_id or no security_group_ids: no worker can be launched there");
            return Err(Check::fail("subnets", found, "complete the region in AWS_REGION_CONFIGS"));
        }
        match subject.ports.compute.subnet_owner(region, subnet).await {
            Ok(Some(owner)) if account.is_some_and(|account| account != owner) => Err(Check::warn(
                "subnets",
                format!("{subnet} in {region} belongs to account {owner}"),
                "set LCM_AWS_ACCOUNT_ID: a shared subnet does not prove the account of the instances",
            )),
            Ok(Some(_)) => Ok(format!("{subnet} in {region}")),
            Ok(None) => Err(Check::fail(
                "subnets",
                format!("{subnet} is not visible in {region}"),
                "correct subnet_id in AWS_REGION_CONFIGS, or use credentials of its account",
            )),
            Err(failure) => {
                Err(Check::fail("subnets", format!("{subnet} in {region}: {failure}"), mend_call(&failure)))
            }
        }
    });
    grouped("subnets", join_all(checks).await)
}

/// The AMIs that new workers would boot: one pattern per template in use.
async fn images(subject: &Subject<'_>) -> Vec<Check> {
    let owners = &subject.settings.aws.ami_owners;
    let owner_names = match owners {
        ImageOwners::Any => {
            let found = "AMI_OWNERS is any: every account can publish the AMI that new workers boot";
            return vec![Check::warn("AMI owner", found, "set AMI_OWNERS to the account that shares the AMIs")];
        }
        ImageOwners::Named(names) => names.join(", "),
    };
    let patterns = &patterns(subject).await;
    let configs = subject.settings.aws.aws_region_configs.regions.keys();
    let wanted = configs.flat_map(|region| patterns.iter().map(move |pattern| (region, pattern)));
    let owner_names = &owner_names;
    let checks = wanted.map(|(region, pattern)| async move {
        match subject.ports.compute.images(region, pattern).await {
            Ok(images) if images.is_empty() => Err(Check::fail(
                "AMI owner",
                format!("{region} has no AMI named {pattern} of owner {owner_names}"),
                "set AMI_OWNERS to the account that shares the AMIs, or correct the template",
            )),
            Ok(images) => Ok(format!("{} named {pattern} of owner {owner_names} in {region}", images.len())),
            Err(failure) => Err(Check::fail("AMI owner", format!("{region}: {failure}"), mend_call(&failure))),
        }
    });
    grouped("AMI owner", join_all(checks).await)
}

/// The patterns of the templates that records name, or the default one.
async fn patterns(subject: &Subject<'_>) -> BTreeSet<String> {
    let listed = subject.listing.iter().flat_map(|listing| &listing.workers);
    let templates: BTreeSet<&str> = listed.filter_map(|worker| worker.template_name.as_deref()).collect();
    let reads = templates.into_iter().map(|name| subject.ports.control_plane.template(name));
    let found = join_all(reads).await.into_iter().filter_map(|read| Some(read.ok()??.ami_name_pattern));
    let mut patterns: BTreeSet<String> = found.collect();
    if patterns.is_empty() {
        patterns.insert(DEFAULT_AMI_PATTERN.to_owned());
    }
    patterns
}

/// One line for all that are fine, and one for each that is not.
fn grouped(check: &'static str, results: Vec<Result<String, Check>>) -> Vec<Check> {
    let (mut fine, mut checks) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(found) => fine.push(found),
            Err(problem) => checks.push(problem),
        }
    }
    if !fine.is_empty() {
        checks.insert(0, Check::ok(check, fine.join("; ")));
    }
    checks
}

fn names<'a>(regions: impl Iterator<Item = &'a str>) -> String {
    regions.collect::<Vec<_>>().join(", ")
}

/// How to mend a failed call to AWS.
fn mend_call(failure: &CallFailure) -> &'static str {
    let code = failure.code.as_deref().unwrap_or_default();
    match failure.kind {
        _ if code.contains("Unauthorized") || code.contains("AccessDenied") => {
            "allow the ec2:Describe* actions to the identity of these credentials"
        }
        FailureKind::Unreachable | FailureKind::Unclear => {
            "check the network, AWS_ENDPOINT_URL and the name of the region"
        }
        FailureKind::Throttled => "try again later, or set AWS_RATE_FACTOR to the share of this controller",
        _ => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or attach a role to this host",
    }
}
