//! Arbitrary text in every environment variable.

use lcm_sdk::settings::Settings;
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases::{any_bytes, any_text, check, like_bytes};

/// Part of every secret variable; no output may show it.
const CANARY: &str = "canary-hunter2";

const GOOD: &[&str] = &[
    "10",
    "0.5",
    "true",
    "localhost:2379,http://etcd-2:2379",
    "https://user@host:8080/base",
    "/lcm",
    "us-east-1,eu-west-1",
    "cml-managed=true,team",
    "cisco-cml2.9*",
    "info,lcm=debug",
    "127.0.0.1",
    "::1",
    "0.0.0.0",
    "json",
    "respect",
    "self",
    r#"{"default_region": "us-east-1", "regions": {"us-east-1": {"subnet_id": "s", "security_group_ids": ["g"]}}}"#,
    "/etc/hostname",
    "123456789012",
];

fn secret_variables() -> Vec<&'static str> {
    let hidden = ["password", "key", "sink_url"];
    let settings = Settings::table().into_iter();
    let secret = settings.filter(|one| hidden.iter().any(|end| one.name.ends_with(end)));
    secret.flat_map(|one| one.variables.iter().copied()).collect()
}

#[test]
fn environment_is_accepted_or_refused_without_secrets() {
    let secrets = secret_variables();
    assert!(secrets.len() >= 6, "{secrets:?}");
    let all: Vec<&str> = Settings::table().iter().flat_map(|setting| setting.variables.iter().copied()).collect();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let value = prop_oneof![
        2 => any_text(),
        2 => select(GOOD).prop_map(str::to_owned),
        2 => like_bytes(select(GOOD).prop_map(|good| good.as_bytes().to_vec())).prop_map(text),
        1 => any_bytes().prop_map(text),
    ];
    let open = proptest::collection::vec((select(all), value.clone()), 0..8);
    let hidden = proptest::collection::vec((select(secrets.clone()), value), 0..3);
    check("settings", 3_000, "tests/fuzz/seeds/settings.txt", (open, hidden), |(open, hidden)| {
        let open = open.into_iter().filter(|(variable, _)| !secrets.contains(variable));
        let hidden = hidden.into_iter().map(|(variable, value)| (variable, format!("{value}{CANARY}{value}")));
        let shown = match Settings::from_map(open.chain(hidden)) {
            Ok(settings) => {
                let _ = (settings.policy(), settings.watch_prefixes(), settings.discovery_regions());
                let warnings: Vec<String> = settings.warnings().iter().map(ToString::to_string).collect();
                format!("{settings:?}{}{warnings:?}", settings.report())
            }
            Err(error) => {
                prop_assert!(!error.problems.is_empty());
                for problem in &error.problems {
                    let text = problem.to_string();
                    prop_assert!(text.contains("accepted") || text.contains(" and "), "{text}");
                    prop_assert!(text.len() < 4_000, "an error of {} bytes", text.len());
                }
                format!("{error} {error:?}")
            }
        };
        prop_assert!(!shown.contains(CANARY), "{shown}");
        Ok(())
    });
}
