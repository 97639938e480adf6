//! Tests of the public settings API: values, errors, warnings and the reference.

use std::collections::BTreeMap;
use std::path::Path;

use lcm_sdk::controller::Shards;
use lcm_sdk::lifecycle::{ExternalStopPolicy, ImageOwners};
use lcm_sdk::ports::NotesPlacement;
use lcm_sdk::settings::{LogFormat, LogLevel, Origin, Settings, SettingsError, Warning};
use lcm_sdk::{Policy, RegionConfigs};
use proptest::prelude::*;

fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::from_map(variables.iter().copied())
}

fn accepted(variables: &[(&str, &str)]) -> Settings {
    read(variables).unwrap_or_else(|error| panic!("{error}"))
}

/// All warnings but the one about the filters of discovery, which few of these settings have.
fn other_warnings(settings: &Settings) -> Vec<Warning> {
    settings.warnings().iter().filter(|warning| **warning != Warning::NothingImported).cloned().collect()
}

fn rejected(variables: &[(&str, &str)]) -> String {
    read(variables).expect_err("rejected").to_string()
}

/// Names, variables and defaults as in the design documents and the control plane.
#[test]
fn documented_names_and_defaults_are_kept() {
    let documented = [
        ("reconcile_interval", "RECONCILE_INTERVAL", "30"),
        ("reconcile_interval", "INTERVAL_SECONDS", "30"),
        ("initial_delay", "INITIAL_DELAY", "5"),
        ("reconcile_polling_enabled", "RECONCILE_POLLING_ENABLED", "true"),
        ("reconcile_polling_enabled", "POLLING_ENABLED", "true"),
        ("max_concurrent", "MAX_CONCURRENT", "5"),
        ("max_concurrent", "MAX_CONCURRENT_RECONCILES", "5"),
        ("backoff_base", "BACKOFF_BASE", "1"),
        ("max_backoff", "MAX_BACKOFF", "60"),
        ("backoff_multiplier", "BACKOFF_MULTIPLIER", "2"),
        ("metric_prefix", "METRIC_PREFIX", "reconciliation"),
        ("idle_detection_interval", "IDLE_DETECTION_INTERVAL", "300"),
        ("cml_default_username", "CML_DEFAULT_USERNAME", "admin"),
        ("cml_default_username", "CML_WORKER_API_USERNAME", "admin"),
        ("cml_default_password", "CML_DEFAULT_PASSWORD", "(not set)"),
        ("cml_default_password", "CML_WORKER_API_PASSWORD", "(not set)"),
        ("scale_down_enabled", "SCALE_DOWN_ENABLED", "false"),
        ("min_workers", "MIN_WORKERS", "0"),
        ("scale_down_cooldown_seconds", "SCALE_DOWN_COOLDOWN_SECONDS", "600"),
        ("etcd_endpoints", "ETCD_ENDPOINTS", "localhost:2379"),
        ("election_key_prefix", "ELECTION_KEY_PREFIX", "/lcm"),
        ("service_name", "LCM_SERVICE_NAME", "worker-controller"),
        ("lease_ttl", "LEASE_TTL", "15"),
        ("retry_interval", "RETRY_INTERVAL", "5"),
        ("instance_id", "LCM_INSTANCE_ID", "(generated)"),
        ("watch_enabled", "WATCH_ENABLED", "true"),
        ("watch_prefix", "WATCH_PREFIX", "/workers/"),
        ("reconnect_delay", "RECONNECT_DELAY", "1"),
        ("max_reconnect_attempts", "MAX_RECONNECT_ATTEMPTS", "10"),
        ("debounce_seconds", "DEBOUNCE_SECONDS", "0.5"),
        ("worker_discovery_enabled", "WORKER_DISCOVERY_ENABLED", "true"),
        ("discovery_interval", "WORKER_DISCOVERY_INTERVAL", "300"),
        ("adopt_foreign", "ADOPT_FOREIGN", "false"),
        ("worker_discovery_tag_filter", "WORKER_DISCOVERY_TAG_FILTER", "(none)"),
        ("worker_discovery_ami_filter", "WORKER_DISCOVERY_AMI_NAME", "(not set)"),
        ("startup_reconcile_enabled", "STARTUP_RECONCILE_ENABLED", "true"),
        ("startup_reconcile_delay", "STARTUP_RECONCILE_DELAY", "2"),
        ("consistency_window", "CONSISTENCY_WINDOW", "120"),
        ("provisioning_timeout", "PROVISIONING_TIMEOUT_SECONDS", "900"),
        ("metrics_poll_interval", "METRICS_POLL_INTERVAL", "60"),
        ("aws_default_region", "AWS_REGION", "us-east-1"),
        ("aws_default_region", "AWS_DEFAULT_REGION", "us-east-1"),
        ("worker_idle_timeout_minutes", "WORKER_IDLE_TIMEOUT_MINUTES", "(not set)"),
        ("worker_auto_pause_enabled", "WORKER_AUTO_PAUSE_ENABLED", "(not set)"),
        ("worker_auto_pause_snooze_minutes", "WORKER_AUTO_PAUSE_SNOOZE_MINUTES", "(not set)"),
        ("etcd_endpoints", "ETCD_HOST", "localhost:2379"),
        ("etcd_endpoints", "ETCD_PORT", "localhost:2379"),
        ("lease_ttl", "LEADER_LEASE_TTL", "15"),
        ("watch_enabled", "ETCD_WATCH_ENABLED", "true"),
        ("admin_port", "APP_PORT", "8083"),
        ("aws_region_configs", "AWS_REGIONS_CONFIG_PATH", "(none)"),
        ("etcd_key_prefix", "ETCD_KEY_PREFIX", "/lcm"),
        ("admin_port", "ADMIN_PORT", "8083"),
    ];
    let table = Settings::table();
    for (name, variable, default) in documented {
        let setting = table.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(setting.variables.contains(&variable), "{name} is not read from {variable}");
        assert_eq!(setting.default, default, "{name}");
    }
}

#[test]
fn names_and_variables_are_unique() {
    let mut owners = BTreeMap::new();
    for setting in Settings::table() {
        for variable in setting.variables {
            assert_eq!(owners.insert(*variable, setting.name), None, "{variable}");
        }
        assert_eq!(owners.insert(setting.name, setting.name), None, "{}", setting.name);
    }
}

#[test]
fn defaults_match_the_default_policy() {
    let settings = accepted(&[]);
    let regions = RegionConfigs::default().with_default_region("us-east-1");
    assert_eq!(settings.policy(), Policy { regions, ..Policy::default() });
    assert_eq!(settings.leader_key(), "/lcm/worker-controller/leader");
    assert_eq!(settings.watch_prefixes(), ["/workers/", "/lcm/workers/"]);
    assert_eq!(settings.etcd.urls(), ["http://localhost:2379"]);
    assert!(settings.admin.admin_host.is_loopback());
    assert!(settings.discovery_filter().is_empty());
    assert_eq!(settings.warnings(), [Warning::NothingImported], "garbage collection needs no filter, imports do");
}

#[test]
fn variables_are_case_insensitive() {
    let settings = accepted(&[
        ("min_workers", "2"),
        ("Scale_Down_Enabled", "YES"),
        ("EXTERNAL_STOP_POLICY", "Respect"),
        ("gc_max_terminations_per_pass", "7"),
        ("CONSISTENCY_WINDOW", "0.5"),
        ("LCM_LOG_FORMAT", "JSON"),
        ("LCM_LOG_LEVEL", "WARNING"),
        ("election_key_prefix", "/elections/"),
        ("ETCD_KEY_PREFIX", ""),
    ]);
    let policy = settings.policy();
    assert_eq!((policy.scale_down.min_workers, policy.scale_down.enabled), (2, true));
    assert_eq!(policy.external_stop_policy, ExternalStopPolicy::Respect);
    assert_eq!(policy.orphans.max_terminations_per_pass, Some(7));
    assert_eq!(policy.consistency_window.as_millis(), 500);
    assert_eq!((settings.logs.log_format, settings.logs.log_level), (LogFormat::Json, LogLevel::Warn));
    assert_eq!(settings.leader_key(), "/elections/worker-controller/leader");
    assert_eq!(settings.watch_prefixes(), ["/workers/"]);
}

#[test]
fn upper_case_wins_in_any_order() {
    let spellings = [("min_workers", "1"), ("MIN_WORKERS", "2"), ("Min_Workers", "3")];
    for turn in 0..spellings.len() {
        let mut variables = spellings;
        variables.rotate_left(turn);
        assert_eq!(accepted(&variables).scale_down.min_workers, 2, "{variables:?}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let error = rejected(&[
        ("RECONCILE_INTERVAL", "soon"),
        ("lease_ttl", "1.5"),
        ("CML_VERIFY_TLS", "maybe"),
        ("ETCD_CA_FILE", "/nowhere/ca.pem"),
        ("CONTROL_PLANE_API_URL", "http://admin:hunter2@cp"),
        ("CONTROL_PLANE_API_KEY", "hunter3\n"),
    ]);
    for part in [
        "6 settings cannot be used",
        r#"RECONCILE_INTERVAL="soon" is not accepted; accepted: seconds from 0.1 to 86400"#,
        r#"lease_ttl="1.5" is not accepted; accepted: whole seconds from 2 to 3600"#,
        r#"CML_VERIFY_TLS="maybe" is not accepted; accepted: true, false, 1, 0, yes, no, on, off"#,
        "cannot read /nowhere/ca.pem",
        r#"CONTROL_PLANE_API_URL="[redacted]@cp" is not accepted (it carries a user or password)"#,
        "CONTROL_PLANE_API_KEY=[redacted] is not accepted; accepted: one line of text",
    ] {
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
    assert!(!error.contains("hunter"), "{error}");
}

#[test]
fn shard_count_is_between_1_and_1024() {
    assert_eq!(accepted(&[]).election.leader_shards, 1);
    assert_eq!(accepted(&[("LEADER_SHARDS", "1024")]).election.leader_shards, 1024);
    assert!(Shards::new(1024).is_ok() && Shards::new(1025).is_err(), "the limit is that of the shards");
    for bad in ["0", "1025", "-1", "many"] {
        let error = rejected(&[("LEADER_SHARDS", bad)]);
        assert!(error.contains("LEADER_SHARDS") && error.contains(bad), "{error}");
        assert!(error.contains("a whole number from 1 to 1024"), "{error}");
    }
}

#[test]
fn contradictions_are_rejected() {
    for (variables, rule) in [
        (&[("BACKOFF_BASE", "61")], "BACKOFF_BASE and MAX_BACKOFF: "),
        (&[("LEASE_TTL", "4")], "LEASE_MARGIN and LEASE_TTL: "),
        (&[("ETCD_USERNAME", "root")], "ETCD_USERNAME and ETCD_PASSWORD: set both or neither"),
        (&[("ETCD_KEY_FILE", "Cargo.toml")], "ETCD_CERT_FILE and ETCD_KEY_FILE: set both or neither"),
    ] {
        let error = rejected(variables);
        assert!(error.contains(rule), "{error}");
    }
}

#[test]
fn first_nonempty_variable_counts() {
    let both = [("CML_DEFAULT_USERNAME", "first"), ("CML_WORKER_API_USERNAME", "second")];
    let settings = accepted(&both);
    assert_eq!(settings.cml.cml_default_username, "first");
    let warnings = other_warnings(&settings);
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert_eq!(
        warning.to_string(),
        "CML_DEFAULT_USERNAME and CML_WORKER_API_USERNAME differ; CML_DEFAULT_USERNAME counts"
    );

    let settings = accepted(&[("CML_DEFAULT_PASSWORD", ""), ("CML_WORKER_API_PASSWORD", "hunter2")]);
    assert_eq!(settings.cml.cml_default_password.map(|secret| secret.expose().to_owned()).as_deref(), Some("hunter2"));

    let settings = accepted(&[("AWS_REGION", "eu-west-1"), ("AWS_DEFAULT_REGION", "eu-west-1")]);
    assert_eq!(other_warnings(&settings), [], "equal values give no warning");
}

#[test]
fn prefixed_variable_is_the_first_of_every_setting() {
    for setting in Settings::table() {
        assert_eq!(setting.variables[0], format!("LCM_{}", setting.name.to_ascii_uppercase()));
    }
}

#[test]
fn prefixed_variable_wins_with_a_warning() {
    let settings = accepted(&[("MIN_WORKERS", "1"), ("LCM_MIN_WORKERS", "2"), ("AWS_REGION", "eu-west-1")]);
    assert_eq!(settings.scale_down.min_workers, 2);
    assert_eq!(settings.aws.aws_default_region, "eu-west-1");
    let warnings = other_warnings(&settings);
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert_eq!(warning.to_string(), "LCM_MIN_WORKERS and MIN_WORKERS differ; LCM_MIN_WORKERS counts");
    assert_eq!(origin_of(&settings, "min_workers"), Origin::Variable("LCM_MIN_WORKERS".to_owned()));
}

fn origin_of(settings: &Settings, name: &str) -> Origin {
    let report = settings.report();
    report.settings.into_iter().find(|row| row.setting.name == name).expect("a row").origin
}

fn texts(settings: &Settings) -> Vec<String> {
    other_warnings(settings).iter().map(ToString::to_string).collect()
}

#[test]
fn equal_values_of_any_spelling_are_no_conflict() {
    for variables in [
        [("LEASE_TTL", "15"), ("LEADER_LEASE_TTL", " 15 ")],
        [("LCM_WATCH_ENABLED", "no"), ("ETCD_WATCH_ENABLED", "False")],
        [("ETCD_ENDPOINTS", "etcd:2379"), ("ETCD_HOST", "etcd")],
        [("CML_DEFAULT_PASSWORD", ""), ("CML_WORKER_API_PASSWORD", "hunter2")],
    ] {
        assert_eq!(other_warnings(&accepted(&variables)), [], "{variables:?}");
    }
}

#[test]
fn etcd_host_and_port_form_one_endpoint() {
    for (variables, endpoints, origin) in [
        (&[("ETCD_HOST", "etcd"), ("ETCD_PORT", "2380")][..], &["etcd:2380"][..], "ETCD_HOST+ETCD_PORT"),
        (&[("etcd_host", "etcd")], &["etcd:2379"], "etcd_host"),
        (&[("ETCD_PORT", "2380")], &["localhost:2380"], "ETCD_PORT"),
        (&[("ETCD_HOST", "::1")], &["[::1]:2379"], "ETCD_HOST"),
        (&[("ETCD_HOST", "http://a, b"), ("ETCD_PORT", "1")], &["http://a:1", "b:1"], "ETCD_HOST+ETCD_PORT"),
        (&[("ETCD_ENDPOINTS", "ours:1"), ("ETCD_HOST", "theirs")], &["ours:1"], "ETCD_ENDPOINTS"),
        (&[("ETCD_HOST", ""), ("ETCD_PORT", "")], &["localhost:2379"], "default"),
    ] {
        let settings = accepted(variables);
        assert_eq!(settings.etcd.etcd_endpoints, endpoints, "{variables:?}");
        assert_eq!(origin_of(&settings, "etcd_endpoints").to_string(), origin, "{variables:?}");
    }
    let error = rejected(&[("ETCD_HOST", "etcd"), ("ETCD_PORT", "x")]);
    assert!(error.contains(r#"ETCD_HOST+ETCD_PORT="etcd:x" is not accepted"#), "{error}");
}

#[test]
fn injected_service_addresses_are_ignored_with_a_warning() {
    let settings = accepted(&[
        ("ETCD_HOST", "etcd"),
        ("ETCD_PORT", "tcp://10.0.0.7:2379"),
        ("APP_PORT", "tcp://10.0.0.8:80"),
        ("KUBERNETES_PORT", "tcp://10.0.0.1:443"),
    ]);
    assert_eq!(settings.etcd.etcd_endpoints, ["etcd:2379"]);
    assert_eq!(settings.admin.admin_port, 8083);
    let warnings = texts(&settings);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("ETCD_PORT is ignored: it holds the address of a service"), "{warnings:?}");
    assert!(warnings[1].starts_with("APP_PORT is ignored"), "{warnings:?}");
}

#[test]
fn original_environment_is_read() {
    let settings = accepted(&[
        ("LEADER_LEASE_TTL", "20"),
        ("ETCD_WATCH_ENABLED", "false"),
        ("APP_PORT", "9000"),
        ("CML_WORKER_API_USERNAME", "operator"),
        ("CML_WORKER_API_PASSWORD", "hunter2"),
        ("METRICS_POLL_INTERVAL", "300"),
        ("PROVISIONING_TIMEOUT_SECONDS", "600"),
        ("WORKER_DISCOVERY_AMI_NAME", "cisco-cml2.9*"),
        ("ETCD_KEY_PREFIX", "/lcm"),
    ]);
    assert_eq!(settings.election.lease_ttl.as_secs(), 20);
    assert!(!settings.watch.watch_enabled);
    assert_eq!(settings.admin.admin_port, 9000);
    assert_eq!(settings.cml.cml_default_username, "operator");
    assert_eq!(settings.policy().metrics_interval.as_secs(), 300);
    assert_eq!(settings.policy().provisioning_timeout.as_secs(), 600);
    assert_eq!(settings.discovery_filter().ami_name_pattern.as_deref(), Some("cisco-cml2.9*"));
    assert_eq!(settings.watch_prefixes(), ["/workers/", "/lcm/workers/"]);
    assert_eq!(other_warnings(&settings), []);
    let report = settings.report().to_string();
    assert!(report.contains("LEADER_LEASE_TTL") && !report.contains("hunter2"), "{report}");
}

#[test]
fn settings_of_the_control_plane_are_reported() {
    let settings = accepted(&[
        ("WORKER_IDLE_TIMEOUT_MINUTES", "45"),
        ("WORKER_AUTO_PAUSE_ENABLED", "true"),
        ("WORKER_AUTO_PAUSE_SNOOZE_MINUTES", ""),
        ("WORKER_AUTO_PAUSE_GRACE", "5"),
        ("WORKER_DISCOVERY_BATCH", "10"),
    ]);
    assert_eq!(settings.control_plane_policy.worker_idle_timeout_minutes.map(|time| time.as_secs()), Some(2700));
    assert_eq!(
        texts(&settings),
        [
            "WORKER_AUTO_PAUSE_GRACE has no effect: no setting reads it",
            "WORKER_DISCOVERY_BATCH has no effect: no setting reads it",
            "WORKER_IDLE_TIMEOUT_MINUTES is owned by the control plane and has no effect here; set it there",
            "WORKER_AUTO_PAUSE_ENABLED is owned by the control plane and has no effect here; set it there",
        ]
    );
}

#[test]
fn region_file_of_the_original_is_read() {
    let directory = std::env::temp_dir().join(format!("lcm-regions-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("aws_regions.yaml");
    let text = "\
x-tags: &tags {team: labs, cost-center: \"17\"}
regions:
  us-east-1:
    security_group_ids: [sg-1, sg-2]
    subnet_id: subnet-1
    key_name: null
    default_tags: *tags
";
    std::fs::write(&path, text).expect("written");
    let path_text = path.to_str().expect("UTF-8");
    let settings = accepted(&[("AWS_REGIONS_CONFIG_PATH", path_text)]);
    let region = &settings.aws.aws_region_configs.regions["us-east-1"];
    assert_eq!((region.subnet_id.as_str(), region.security_group_ids.len()), ("subnet-1", 2));
    assert_eq!(region.default_tags["cost-center"], "17");
    let from_file = |variable: &str| Origin::File { variable: variable.to_owned(), path: path_text.to_owned() };
    assert_eq!(origin_of(&settings, "aws_region_configs"), from_file("AWS_REGIONS_CONFIG_PATH"));

    let ours = format!("@{path_text}");
    let settings = accepted(&[("AWS_REGION_CONFIGS", &ours), ("AWS_REGIONS_CONFIG_PATH", path_text)]);
    assert_eq!(origin_of(&settings, "aws_region_configs"), from_file("AWS_REGION_CONFIGS"));
    assert_eq!(other_warnings(&settings), [], "the same file twice is no conflict");
    let settings = accepted(&[("AWS_REGION_CONFIGS", r#"{"us-east-1": {}}"#), ("AWS_REGIONS_CONFIG_PATH", path_text)]);
    assert_eq!(texts(&settings), ["AWS_REGION_CONFIGS and AWS_REGIONS_CONFIG_PATH differ; AWS_REGION_CONFIGS counts"]);

    for bad in ["us-east-1: [", "- us-east-1", "us-east-1: {subnet_id: 7}", ""] {
        std::fs::write(&path, bad).expect("written");
        let error = rejected(&[("AWS_REGIONS_CONFIG_PATH", path_text)]);
        assert!(error.contains("AWS_REGIONS_CONFIG_PATH="), "{bad}: {error}");
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn empty_prefixed_variable_yields_to_aliases() {
    let settings =
        accepted(&[("LCM_CML_DEFAULT_USERNAME", ""), ("CML_DEFAULT_USERNAME", "a"), ("CML_WORKER_API_USERNAME", "b")]);
    assert_eq!(settings.cml.cml_default_username, "a");
    assert_eq!(other_warnings(&settings).len(), 1, "{:?}", other_warnings(&settings));
}

#[test]
fn unprefixed_names_are_accepted_in_any_case() {
    assert_eq!(accepted(&[("lcm_min_workers", "2")]).scale_down.min_workers, 2);
    assert_eq!(accepted(&[("INTERVAL_SECONDS", "7")]).reconciliation.reconcile_interval.as_secs(), 7);
}

#[test]
fn host_wide_names_count_only_with_the_prefix() {
    let platform = [("SERVICE_NAME", "billing"), ("INSTANCE_ID", "i-1"), ("LOG_LEVEL", "loud"), ("LOG_FORMAT", "xml")];
    let settings = accepted(&platform);
    assert_eq!(settings.leader_key(), "/lcm/worker-controller/leader");
    assert_ne!(settings.election.instance_id, "i-1");
    assert_eq!((settings.logs.log_format, settings.logs.log_level), (LogFormat::People, LogLevel::Info));
    assert_eq!(other_warnings(&settings), []);
    assert_eq!(accepted(&[("LCM_SERVICE_NAME", "blue")]).leader_key(), "/lcm/blue/leader");
}

#[test]
fn notes_are_kept_apart_from_watched_keys() {
    let settings = accepted(&[("NOTES_STORE", "Etcd"), ("LCM_NOTES_PREFIX", "/notes/")]);
    assert_eq!((settings.notes.notes_store, settings.notes.notes_prefix.as_str()), (NotesPlacement::Etcd, "/notes"));
    assert!(settings.is_set("notes_store") && !accepted(&[]).is_set("notes_store"));
    for prefix in ["/lcm", "/lcm/workers", "/lcm/workers/notes", "/workers", "/workers/notes"] {
        let error = rejected(&[("NOTES_PREFIX", prefix)]);
        assert!(error.contains("NOTES_PREFIX and WATCH_PREFIX: notes must not be under a watched prefix"), "{error}");
    }
    let error = rejected(&[("NOTES_PREFIX", "/notes"), ("WATCH_PREFIX", "/notes/workers/blue")]);
    assert!(error.contains("NOTES_PREFIX and WATCH_PREFIX"), "the list of notes would hold the watched keys: {error}");
    accepted(&[("NOTES_PREFIX", "/lcm-notes/blue"), ("ETCD_KEY_PREFIX", "/lcm-control")]);
    let error = rejected(&[("NOTES_STORE", "disk")]);
    assert!(error.contains(r#"NOTES_STORE="disk" is not accepted; accepted: auto, record, etcd, memory"#), "{error}");
}

#[test]
fn notes_in_etcd_need_endpoints() {
    let error = rejected(&[("NOTES_STORE", "etcd"), ("ETCD_ENDPOINTS", "")]);
    assert!(error.contains("NOTES_STORE and ETCD_ENDPOINTS: notes in etcd need its endpoints"), "{error}");
    let memory = accepted(&[("NOTES_STORE", "memory")]);
    assert_eq!(other_warnings(&memory), [Warning::NotesInMemory]);
    let on_records = accepted(&[("NOTES_STORE", "record"), ("ETCD_ENDPOINTS", "")]);
    assert_eq!(other_warnings(&on_records), [Warning::MockMode]);
}

#[test]
fn empty_endpoints_are_mock_mode() {
    let settings = accepted(&[("ETCD_ENDPOINTS", "")]);
    assert!(settings.etcd.is_mock());
    assert_eq!(other_warnings(&settings), [Warning::MockMode, Warning::NotesInMemory]);
    assert!(rejected(&[("ETCD_ENDPOINTS", ",")]).contains("ETCD_ENDPOINTS"), "a stray comma is not mock mode");
    assert!(!accepted(&[]).etcd.is_mock());
}

#[test]
fn images_of_any_owner_are_accepted_by_name_only() {
    assert_eq!(accepted(&[]).aws.ami_owners, ImageOwners::Named(vec!["self".to_owned()]));
    let any = accepted(&[("AMI_OWNERS", "any")]);
    assert_eq!((&any.aws.ami_owners, other_warnings(&any)), (&ImageOwners::Any, vec![Warning::AnyImageOwner]));
    let named = accepted(&[("AMI_OWNERS", "self, 210987654321")]);
    assert_eq!(named.aws.ami_owners, ImageOwners::Named(vec!["self".to_owned(), "210987654321".to_owned()]));
    for invalid in ["any,self", "somewhere", ","] {
        rejected(&[("AMI_OWNERS", invalid)]);
    }
}

#[test]
fn misspellings_are_reported_without_values() {
    let settings = accepted(&[
        ("CML_DEFAULT_PASSWRD", "hunter2"),
        ("reconcile_intervall", "10"),
        ("LCM_MIN_WORKER", "1"),
        ("LCM_INTERVAL_SECONDS", "1"),
        ("LCM_ETCD_BIN", "/bin"),
        ("PATH", "/bin"),
        ("AWS_PROFILE", "dev"),
        ("ETCDCTL_ENDPOINTS", "x"),
    ]);
    let warnings: Vec<String> = other_warnings(&settings).iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "CML_DEFAULT_PASSWRD is not a setting; did you mean CML_DEFAULT_PASSWORD?",
            "LCM_INTERVAL_SECONDS is not a setting; did you mean LCM_RECONCILE_INTERVAL?",
            "LCM_MIN_WORKER is not a setting; did you mean LCM_MIN_WORKERS?",
            "reconcile_intervall is not a setting; did you mean RECONCILE_INTERVAL?",
        ]
    );
}

#[test]
fn default_region_falls_back_to_region_configs() {
    let configs =
        r#"{"default_region": "eu-west-1", "regions": {"eu-west-1": {"subnet_id": "s", "security_group_ids": ["g"]}}}"#;
    let settings = accepted(&[("AWS_REGION_CONFIGS", configs)]);
    assert_eq!(settings.aws.aws_default_region, "eu-west-1");
    assert_eq!(settings.discovery_regions(), ["eu-west-1"]);
    let settings = accepted(&[("AWS_REGION_CONFIGS", configs), ("AWS_REGION", "us-east-1")]);
    assert_eq!(settings.policy().regions.default_region.as_deref(), Some("us-east-1"));
    assert_eq!(settings.discovery_regions(), ["eu-west-1", "us-east-1"]);
    let unconfigured = Warning::DefaultRegionNotConfigured { region: "us-east-1".to_owned() };
    assert_eq!(other_warnings(&settings), [unconfigured]);
    let settings = accepted(&[("WORKER_DISCOVERY_REGIONS", "ap-south-1, eu-west-3")]);
    assert_eq!(settings.discovery_regions(), ["ap-south-1", "eu-west-3"]);
}

#[test]
fn region_configs_can_be_in_a_file() {
    let file = std::env::temp_dir().join(format!("lcm-regions-{}.json", std::process::id()));
    std::fs::write(&file, r#"{"us-east-1": {"subnet_id": "subnet-1", "security_group_ids": ["sg-1"]}}"#)
        .expect("written");
    let settings = accepted(&[("AWS_REGION_CONFIGS", &format!("@{}", file.display()))]);
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(settings.policy().regions.regions["us-east-1"].subnet_id, "subnet-1");
}

#[test]
fn generated_instance_ids_are_unique() {
    let name = |variables: &[(&str, &str)]| accepted(variables).election.instance_id;
    let host = [("HOSTNAME", "pod-7")];
    assert!(name(&host).starts_with("pod-7-"), "{}", name(&host));
    assert_ne!(name(&host), name(&host));
    assert_eq!(name(&[("LCM_INSTANCE_ID", "blue")]), "blue");
}

#[test]
fn report_shows_origins_and_no_secrets() {
    let settings = accepted(&[
        ("reconcile_interval", "10"),
        ("CONTROL_PLANE_API_KEY", "hunter2"),
        ("ETCD_USERNAME", "root"),
        ("ETCD_PASSWORD", "hunter3"),
        ("EVENT_SINK_URL", "https://hooks.example/hunter4"),
    ]);
    let report = settings.report();
    let row = |name: &str| report.settings.iter().find(|row| row.setting.name == name).expect("a row").clone();
    assert_eq!(row("reconcile_interval").value, "10");
    assert_eq!(row("reconcile_interval").origin, Origin::Variable("reconcile_interval".to_owned()));
    assert_eq!(row("control_plane_api_key").value, "[redacted]");
    assert_eq!(row("cml_default_password").value, "(not set)");
    assert_eq!(row("min_workers").origin, Origin::Default);
    assert_eq!(row("instance_id").origin, Origin::Generated);
    let json = serde_json::to_string(&report).expect("JSON");
    let printed = format!("{report}{report:?}{settings:?}{json}");
    assert!(!printed.contains("hunter"), "{printed}");
    for setting in Settings::table() {
        assert!(printed.contains(setting.description) && printed.contains(setting.variables[0]), "{}", setting.name);
    }
}

#[test]
fn discovery_with_a_filter_or_off_gives_no_warning() {
    for variable in [
        ("WORKER_DISCOVERY_AMI_FILTER", "cisco-cml2.9*"),
        ("WORKER_DISCOVERY_TAG_FILTER", "cml-managed"),
        ("WORKER_DISCOVERY_ENABLED", "false"),
    ] {
        assert_eq!(accepted(&[variable]).warnings(), [], "{variable:?}");
    }
    assert!(rejected(&[("DISCOVERY_INTERVAL", "9")]).contains("seconds from 10 to 86400"));
}

#[test]
fn exports_of_the_fake_cloud_are_accepted() {
    let settings = accepted(&[
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:4566"),
        ("AWS_ACCESS_KEY_ID", "fake"),
        ("AWS_SECRET_ACCESS_KEY", "fake"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("ETCDCTL_ENDPOINTS", "127.0.0.1:23790"),
        ("ETCD_ENDPOINTS", "127.0.0.1:23790"),
        ("CONTROL_PLANE_API_URL", "http://127.0.0.1:8080"),
        ("CONTROL_PLANE_API_KEY", "fake-key"),
    ]);
    assert_eq!(other_warnings(&settings), []);
    assert_eq!(settings.etcd.urls(), ["http://127.0.0.1:23790"]);
}

/// With `UPDATE_DOCS=1` the page is written first.
#[test]
fn settings_reference_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/settings.md");
    let expected = Settings::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&page, &expected).expect("docs/settings.md can be written");
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        written == expected,
        "docs/settings.md is out of date: run this test with UPDATE_DOCS=1 and commit the page"
    );
}

fn variable() -> impl Strategy<Value = String> {
    let known: Vec<&str> = Settings::table().iter().flat_map(|setting| setting.variables.to_vec()).collect();
    prop_oneof![9 => proptest::sample::select(known).prop_map(str::to_owned), 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[-+0-9.eEinfa]{0,12}",
        r#"[\[\]{}",:@/=a-z0-9 ]{0,40}"#,
        "(https?://)?[a-z0-9.:@/\\[\\]]{0,30}",
        any::<f64>().prop_map(|number| number.to_string()),
        any::<i128>().prop_map(|number| number.to_string()),
    ]
}

#[test]
fn long_reasons_are_truncated() {
    let long = "[".repeat(100_000);
    for variable in ["ETCD_ENDPOINTS", "AWS_REGION_CONFIGS"] {
        let error = rejected(&[(variable, &long)]);
        assert!(error.contains(variable) && error.len() < 2_000, "{} bytes", error.len());
    }
}

#[test]
fn exposed_admin_address_needs_admin_expose() {
    let error = rejected(&[("ADMIN_HOST", "0.0.0.0")]);
    assert!(error.contains("ADMIN_HOST") && error.contains("ADMIN_EXPOSE=true"), "{error}");
    let settings = accepted(&[("ADMIN_HOST", "0.0.0.0"), ("ADMIN_EXPOSE", "true"), ("ADMIN_KEY", "hunter2")]);
    assert!(!format!("{settings:?} {}", settings.report()).contains("hunter2"));
    for local in ["127.0.0.1", "::1", "127.9.9.9"] {
        accepted(&[("ADMIN_HOST", local)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_environment_is_read_without_panic(
        variables in proptest::collection::vec((variable(), value()), 0..12),
    ) {
        match Settings::from_map(variables) {
            Ok(settings) => {
                let _ = (settings.report().to_string(), settings.policy(), settings.etcd.urls());
                prop_assert!(settings.reconciliation.max_concurrent > 0);
                prop_assert!(settings.reconciliation.reconcile_interval.as_secs_f64() >= 0.1);
                prop_assert!(settings.leader_key().starts_with('/'));
                prop_assert!(settings.watch_prefixes().iter().all(|prefix| prefix.len() > 2 && prefix.ends_with('/')));
            }
            Err(error) => prop_assert!(!error.problems.is_empty() && !error.to_string().is_empty()),
        }
    }

    #[test]
    fn secrets_are_never_shown(secret in "[A-Z]{3}-[0-9]{6}\n?") {
        let secrets = ["CML_DEFAULT_PASSWORD", "CONTROL_PLANE_API_KEY", "ETCD_PASSWORD", "EVENT_SINK_URL", "ADMIN_KEY"];
        for variable in secrets {
            let output = match Settings::from_map([(variable, secret.as_str())]) {
                Ok(settings) => format!("{settings:?}{}{:?}", settings.report(), other_warnings(&settings)),
                Err(error) => format!("{error}{error:?}"),
            };
            prop_assert!(!output.contains(secret.trim()), "{}", output);
        }
    }
}

#[test]
fn respected_stops_need_a_desired_status_that_can_be_written() {
    let with = |generation: &str| {
        Settings::from_map([("EXTERNAL_STOP_POLICY", "respect"), ("CONTROL_PLANE_GENERATION", generation)])
    };
    let refused = with("original").expect_err("the original control plane stores no desired status");
    assert!(refused.to_string().contains("the policy respect writes a desired status"), "{refused}");
    for generation in ["auto", "extended"] {
        with(generation).expect("known to store it, or not known yet");
    }
    let odd = with("newest").expect_err("an unknown generation");
    assert!(odd.to_string().contains("auto, original, extended"), "{odd}");
}
