//! The table of all settings: the only place that defines a setting.
//!
//! A row is `name: type, [variables], default, parser, description`. The first variable is `LCM_<NAME>`; the first that
//! is set and not empty counts. Names that a platform sets for its own purposes are accepted only with the prefix.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::parse::{
    Parser, Root, boolean, directory, endpoints, file, image_owners, integer, ip_address, key_prefix, keyword, list,
    minutes, number, regions, seconds, secret, secret_url, tags, text, url, whole_seconds,
};
use super::reader::{Origin, Reader};
use super::report::{Setting, SettingValue};
use crate::lifecycle::capabilities::ControlPlaneGeneration;
use crate::lifecycle::instance::ImageOwners;
use crate::lifecycle::policy::ExternalStopPolicy;
use crate::lifecycle::region::RegionConfigs;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::wire_enum::vocabulary;
use crate::ports::NotesPlacement;

/// Longest interval of periodic work, in seconds.
const DAY: f64 = 86_400.0;

/// Largest number of shards that a fleet can be divided into.
const MAX_SHARDS: usize = 1024;

macro_rules! group {
    ($group:ident, $title:literal, $about:literal {
        $( $name:ident: $type:ty, [$($variable:literal),+], $default:literal, $parser:expr, $description:literal; )+
    }) => {
        #[doc = $about]
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct $group {
            $( #[doc = $description] pub $name: $type, )+
        }

        impl $group {
            /// Reads every setting of the group even if one is invalid, so that all problems are found.
            pub(super) fn read(reader: &mut Reader) -> Option<Self> {
                $( let $name = reader.read(&$parser, stringify!($name), &[$($variable),+], $default); )+
                Some(Self { $( $name: $name? ),+ })
            }

            pub(super) fn settings() -> Vec<Setting> {
                vec![$( {
                    let parser: Parser<$type> = $parser;
                    Setting {
                        group: $title,
                        about: $about,
                        name: stringify!($name),
                        variables: &[$($variable),+],
                        default: if $default.is_empty() { parser.empty } else { $default },
                        accepted: parser.accepted,
                        description: $description,
                    }
                } ),+]
            }

            pub(super) fn values(&self, origins: &BTreeMap<&'static str, Origin>) -> Vec<SettingValue> {
                let values = [$( $parser.show(&self.$name) ),+];
                let origin = |setting: &Setting| origins.get(setting.name).cloned().unwrap_or(Origin::Default);
                let with_origin = |(setting, value)| SettingValue { origin: origin(&setting), setting, value };
                Self::settings().into_iter().zip(values).map(with_origin).collect()
            }
        }
    };
}

group! { ReconciliationSettings, "Reconciliation", "Polling, retries and concurrency of reconciles." {
    reconcile_interval: Duration, ["LCM_RECONCILE_INTERVAL", "RECONCILE_INTERVAL", "INTERVAL_SECONDS"], "30", seconds(0.1, DAY),
        "Seconds between two polling cycles.";
    initial_delay: Duration, ["LCM_INITIAL_DELAY", "INITIAL_DELAY"], "5", seconds(0.0, 3600.0),
        "Seconds from becoming leader to the first polling cycle.";
    reconcile_polling_enabled: bool, ["LCM_RECONCILE_POLLING_ENABLED", "RECONCILE_POLLING_ENABLED", "POLLING_ENABLED"], "true", boolean(),
        "Whether workers are polled. Without polling, a lost watch event is never made up for.";
    max_concurrent: usize, ["LCM_MAX_CONCURRENT", "MAX_CONCURRENT", "MAX_CONCURRENT_RECONCILES"], "5", integer(1, 1000),
        "Maximum number of concurrent reconciles. Controllers built on the generic layer default to 10.";
    reconcile_timeout: Duration, ["LCM_RECONCILE_TIMEOUT", "RECONCILE_TIMEOUT"], "120", seconds(1.0, 3600.0),
        "Seconds after which a reconcile is canceled, counted and retried.";
    backoff_base: Duration, ["LCM_BACKOFF_BASE", "BACKOFF_BASE"], "1", seconds(0.01, 3600.0),
        "Seconds before the first retry.";
    max_backoff: Duration, ["LCM_MAX_BACKOFF", "MAX_BACKOFF"], "60", seconds(0.01, DAY),
        "Longest delay between two retries, in seconds.";
    backoff_multiplier: f64, ["LCM_BACKOFF_MULTIPLIER", "BACKOFF_MULTIPLIER"], "2", number(1.0, 100.0),
        "Factor by which the delay grows with each retry.";
    metric_prefix: String, ["LCM_METRIC_PREFIX", "METRIC_PREFIX"], "reconciliation", metric_name(),
        "Prefix of the reconcile metrics.";
    metrics_poll_interval: Duration, ["LCM_METRICS_POLL_INTERVAL", "METRICS_POLL_INTERVAL"], "60", seconds(1.0, DAY),
        "Seconds between two collections of metrics. A reconcile requests metrics that are older than this.";
    shutdown_grace: Duration, ["LCM_SHUTDOWN_GRACE", "SHUTDOWN_GRACE"], "30", seconds(0.0, 3600.0),
        "Seconds that reconciles in progress may take to finish on shutdown, including the write of the record.";
} }

group! { StartupSettings, "Start-up sweep", "Reconcile of all workers on becoming leader (ADR-043)." {
    startup_reconcile_enabled: bool, ["LCM_STARTUP_RECONCILE_ENABLED", "STARTUP_RECONCILE_ENABLED"], "true", boolean(),
        "Whether all workers except terminated ones are reconciled on becoming leader.";
    startup_reconcile_delay: Duration, ["LCM_STARTUP_RECONCILE_DELAY", "STARTUP_RECONCILE_DELAY"], "2", seconds(0.0, 3600.0),
        "Seconds from becoming leader to the sweep.";
    startup_reconcile_timeout: Duration, ["LCM_STARTUP_RECONCILE_TIMEOUT", "STARTUP_RECONCILE_TIMEOUT"], "300", seconds(1.0, DAY),
        "Seconds after which the readiness gate stops waiting for the sweep and reports the workers that are missing.";
} }

group! { LifecycleSettings, "Lifecycle", "Policy of the decisions about one worker." {
    consistency_window: Duration, ["LCM_CONSISTENCY_WINDOW", "CONSISTENCY_WINDOW"], "120", seconds(0.0, DAY),
        "Seconds for which EC2 may not return a new instance. An absent instance counts as gone only after that.";
    provisioning_timeout: Duration, ["LCM_PROVISIONING_TIMEOUT", "PROVISIONING_TIMEOUT", "PROVISIONING_TIMEOUT_SECONDS"], "900", seconds(1.0, DAY),
        "Seconds that an instance may take to start before its worker fails.";
    external_stop_policy: ExternalStopPolicy, ["LCM_EXTERNAL_STOP_POLICY", "EXTERNAL_STOP_POLICY"], "restart", keyword(),
        "Reaction to an external stop of a worker whose desired status is running: restart it, or respect the stop.";
    resurrect_terminated: bool, ["LCM_RESURRECT_TERMINATED", "RESURRECT_TERMINATED"], "true", boolean(),
        "Whether a live instance revives its terminated record.";
    max_session_retries: u32, ["LCM_MAX_SESSION_RETRIES", "MAX_SESSION_RETRIES"], "3", integer(0, 100),
        "Number of retries of a failed session on a draining worker.";
    drain_settle: Duration, ["LCM_DRAIN_SETTLE", "DRAIN_SETTLE"], "10", seconds(0.0, 3600.0),
        "Seconds from the end of placement on a worker to the last listing of its sessions, before it is stopped.";
    max_drain_tries: u32, ["LCM_MAX_DRAIN_TRIES", "MAX_DRAIN_TRIES"], "3", integer(0, 100),
        "Number of times that a session that cannot be ended delays the stop of a worker after the deadline of its drain.";
    license_poll_interval: Duration, ["LCM_LICENSE_POLL_INTERVAL", "LICENSE_POLL_INTERVAL"], "5", seconds(0.1, 3600.0),
        "Seconds between two checks of a license operation in progress.";
    license_timeout: Duration, ["LCM_LICENSE_TIMEOUT", "LICENSE_TIMEOUT"], "900", seconds(1.0, DAY),
        "Seconds that CML may take to finish a registration before it is reported as failed.";
} }

group! { ScaleDownSettings, "Idle workers and scale-down", "Idle detection, and the conditions for stopping an idle worker." {
    idle_detection_interval: Duration, ["LCM_IDLE_DETECTION_INTERVAL", "IDLE_DETECTION_INTERVAL"], "300", seconds(1.0, DAY),
        "Shortest time between two idle checks of a worker, in seconds.";
    scale_down_enabled: bool, ["LCM_SCALE_DOWN_ENABLED", "SCALE_DOWN_ENABLED"], "false", boolean(),
        "Whether idle workers are scaled down. Idle detection then does not pause them itself.";
    min_workers: usize, ["LCM_MIN_WORKERS", "MIN_WORKERS"], "0", integer(0, 100_000),
        "Minimum number of running workers. Scale-down never goes below it.";
    scale_down_cooldown_seconds: Duration, ["LCM_SCALE_DOWN_COOLDOWN_SECONDS", "SCALE_DOWN_COOLDOWN_SECONDS"], "600", seconds(0.0, 30.0 * DAY),
        "Shortest time between two scale-downs, in seconds.";
    scale_down_look_ahead: Duration, ["LCM_SCALE_DOWN_LOOK_AHEAD", "SCALE_DOWN_LOOK_AHEAD"], "1800", seconds(0.0, 30.0 * DAY),
        "Seconds to look ahead: a worker with a session scheduled in that time is not scaled down.";
} }

group! { DiscoverySettings, "Discovery and garbage collection", "Scans of EC2 for instances and orphaned records (ADR-014). Settings made by operators in the control plane win over these. Without a tag filter and an AMI filter nothing is imported; records are then verified by the id of their instance." {
    worker_discovery_enabled: bool, ["LCM_WORKER_DISCOVERY_ENABLED", "WORKER_DISCOVERY_ENABLED"], "true", boolean(),
        "Whether EC2 is scanned for instances. Orphans are not found without it.";
    discovery_interval: Duration, ["LCM_DISCOVERY_INTERVAL", "DISCOVERY_INTERVAL", "WORKER_DISCOVERY_INTERVAL"], "300", seconds(10.0, DAY),
        "Seconds between two scans. The control plane's interval has the same minimum.";
    discovery_initial_delay: Duration, ["LCM_DISCOVERY_INITIAL_DELAY", "DISCOVERY_INITIAL_DELAY"], "5", seconds(0.0, 3600.0),
        "Seconds from becoming leader to the first scan.";
    worker_discovery_tag_filter: Vec<(String, Option<String>)>, ["LCM_WORKER_DISCOVERY_TAG_FILTER", "WORKER_DISCOVERY_TAG_FILTER"], "", tags(),
        "Tags that instances must have, such as cml-managed=true.";
    worker_discovery_ami_filter: Option<String>, ["LCM_WORKER_DISCOVERY_AMI_FILTER", "WORKER_DISCOVERY_AMI_FILTER", "WORKER_DISCOVERY_AMI_NAME"], "", ami_pattern().optional(),
        "Name pattern of the AMI of the instances, such as cisco-cml2.9*.";
    worker_discovery_regions: Vec<String>, ["LCM_WORKER_DISCOVERY_REGIONS", "WORKER_DISCOVERY_REGIONS"], "", list(region(), "(all configured)"),
        "Regions to scan. If empty: all regions of AWS_REGION_CONFIGS and the default region.";
    adopt_foreign: bool, ["LCM_ADOPT_FOREIGN", "ADOPT_FOREIGN"], "false", boolean(),
        "Whether instances are imported that carry lcm:managed_by or lcm:worker_id of a control plane that is not this one. If false, they are reported.";
    gc_max_terminations_per_pass: Option<usize>, ["LCM_GC_MAX_TERMINATIONS_PER_PASS", "GC_MAX_TERMINATIONS_PER_PASS"], "", integer(0, 100_000).optional(),
        "Maximum number of records marked terminated per scan. If empty: no limit.";
} }

group! { ElectionSettings, "Leader election", "Leases that allow one controller to act. The leader's key is election_key_prefix/service_name/leader." {
    election_key_prefix: String, ["LCM_ELECTION_KEY_PREFIX", "ELECTION_KEY_PREFIX"], "/lcm", key_prefix(Root::Allowed),
        "Prefix of the leader's key. Set /elections while the previous controller still runs beside this one.";
    service_name: String, ["LCM_SERVICE_NAME"], "worker-controller", service_name(),
        "Name of the service in the leader's key.";
    leader_shards: usize, ["LCM_LEADER_SHARDS", "LEADER_SHARDS"], "1", integer(1, MAX_SHARDS),
        "Number of shards of the fleet, so that several controllers share it. Must be equal on all controllers; see scaling.md.";
    instance_id: String, ["LCM_INSTANCE_ID"], "", instance_id(),
        "Identity of this controller, unique among controllers. Defaults to the host name and a random number.";
    lease_ttl: Duration, ["LCM_LEASE_TTL", "LEASE_TTL", "LEADER_LEASE_TTL"], "15", whole_seconds(2, 3600),
        "Seconds after which a lease expires without renewal. It is renewed every third of this time.";
    lease_margin: Duration, ["LCM_LEASE_MARGIN", "LEASE_MARGIN"], "2", seconds(0.0, 600.0),
        "Seconds before the end of the lease at which a leader stops acting. Less than half of lease_ttl.";
    retry_interval: Duration, ["LCM_RETRY_INTERVAL", "RETRY_INTERVAL"], "5", seconds(0.1, 3600.0),
        "Seconds between two attempts of a standby that cannot watch the leader's key.";
} }

group! { EtcdSettings, "etcd", "Connection to etcd, which elects leaders and publishes changes." {
    etcd_endpoints: Vec<String>, ["LCM_ETCD_ENDPOINTS", "ETCD_ENDPOINTS", "ETCD_HOST", "ETCD_PORT"], "localhost:2379", endpoints(),
        "Endpoints of etcd. If set to an empty text: mock mode, this controller leads without an election. ETCD_HOST and ETCD_PORT form one endpoint.";
    etcd_key_prefix: String, ["LCM_ETCD_KEY_PREFIX", "ETCD_KEY_PREFIX"], "/lcm", key_prefix(Root::Allowed),
        "Prefix of the control plane's keys: prefix/workers/ is watched too.";
    etcd_username: Option<String>, ["LCM_ETCD_USERNAME", "ETCD_USERNAME"], "", name().optional(),
        "User name, if etcd requires authentication.";
    etcd_password: Option<Secret>, ["LCM_ETCD_PASSWORD", "ETCD_PASSWORD"], "", secret().optional(),
        "Password of the user.";
    etcd_ca_file: Option<PathBuf>, ["LCM_ETCD_CA_FILE", "ETCD_CA_FILE"], "", file().optional(),
        "CA certificates (PEM) that verify etcd. Only these are trusted, not those of the system; the file is read again when it changes.";
    etcd_cert_file: Option<PathBuf>, ["LCM_ETCD_CERT_FILE", "ETCD_CERT_FILE"], "", file().optional(),
        "Client certificate (PEM), if etcd requires one.";
    etcd_key_file: Option<PathBuf>, ["LCM_ETCD_KEY_FILE", "ETCD_KEY_FILE"], "", file().optional(),
        "Private key (PEM) of the client certificate.";
} }

group! { WatchSettings, "Watch", "Watch on etcd that reconciles changed workers at once." {
    watch_enabled: bool, ["LCM_WATCH_ENABLED", "WATCH_ENABLED", "ETCD_WATCH_ENABLED"], "true", boolean(),
        "Whether etcd is watched. Without the watch, changes wait for the next polling cycle.";
    watch_prefix: String, ["LCM_WATCH_PREFIX", "WATCH_PREFIX"], "/workers/", key_prefix(Root::Denied),
        "Prefix of the watched keys; the next segment is the id of the worker.";
    reconnect_delay: Duration, ["LCM_RECONNECT_DELAY", "RECONNECT_DELAY"], "1", seconds(0.01, 3600.0),
        "Seconds before the first reconnect; the n-th reconnect waits n times as long.";
    max_reconnect_attempts: u32, ["LCM_MAX_RECONNECT_ATTEMPTS", "MAX_RECONNECT_ATTEMPTS"], "10", integer(0, 10_000),
        "Failed reconnects after which the watch pauses until the next polling cycle.";
    debounce_seconds: Duration, ["LCM_DEBOUNCE_SECONDS", "DEBOUNCE_SECONDS"], "0.5", seconds(0.0, 60.0),
        "Seconds for which events of a worker are collected, from the first one on.";
} }

group! { ControlPlaneSettings, "Control plane", "The service that owns the records." {
    control_plane_api_url: String, ["LCM_CONTROL_PLANE_API_URL", "CONTROL_PLANE_API_URL"], "http://localhost:8080", url(),
        "Base URL, without /api/internal.";
    control_plane_api_key: Option<Secret>, ["LCM_CONTROL_PLANE_API_KEY", "CONTROL_PLANE_API_KEY"], "", secret().optional(),
        "API key, sent as X-API-Key.";
    control_plane_ca_file: Option<PathBuf>, ["LCM_CONTROL_PLANE_CA_FILE", "CONTROL_PLANE_CA_FILE"], "", file().optional(),
        "CA certificates (PEM) that verify an https control plane. Only these are trusted, not those of the system; the file is read again when it changes.";
    control_plane_api_timeout: Duration, ["LCM_CONTROL_PLANE_API_TIMEOUT", "CONTROL_PLANE_API_TIMEOUT"], "30", seconds(0.1, 600.0),
        "Timeout of a call, in seconds.";
    control_plane_api_retries: u32, ["LCM_CONTROL_PLANE_API_RETRIES", "CONTROL_PLANE_API_RETRIES"], "3", integer(0, 10),
        "Number of retries of a call that is safe to repeat.";
    control_plane_generation: ControlPlaneGeneration, ["LCM_CONTROL_PLANE_GENERATION", "CONTROL_PLANE_GENERATION"], "auto", keyword(),
        "API of the control plane. With auto, its optional features are read off responses; original has none of them, extended has all.";
    control_plane_events: bool, ["LCM_CONTROL_PLANE_EVENTS", "CONTROL_PLANE_EVENTS"], "false", boolean(),
        "Whether events are also posted to the control plane. If it has no such endpoint, that is logged, and they are discarded for an hour.";
    event_sink_url: Option<Secret>, ["LCM_EVENT_SINK_URL", "EVENT_SINK_URL"], "", secret_url().optional(),
        "URL that CloudEvents are posted to. It is a secret, because such URLs often contain a token.";
} }

group! { NotesSettings, "Notes", "Place of the notes of LCM about workers: start of a drain, launch in progress, time of a scale-down. See controller.md." {
    notes_store: NotesPlacement, ["LCM_NOTES_STORE", "NOTES_STORE"], "auto", keyword(),
        "Where notes are kept: on the records, in etcd or in memory. auto keeps them on the records if the control plane does not drop them, else in etcd, and in memory if there are no endpoints. Memory is lost at a restart.";
    notes_prefix: String, ["LCM_NOTES_PREFIX", "NOTES_PREFIX"], "/lcm-notes", key_prefix(Root::Denied),
        "Prefix of the notes in etcd: prefix/workers/ and the id of the worker. Outside of the watched prefixes, and one for each control plane.";
} }

group! { ControlPlanePolicySettings, "Owned by the control plane", "Settings of the control plane. LCM reads them, because both services may share an environment, and reports each one that is set; they have no effect on it." {
    worker_idle_timeout_minutes: Option<Duration>, ["LCM_WORKER_IDLE_TIMEOUT_MINUTES", "WORKER_IDLE_TIMEOUT_MINUTES"], "", minutes(1.0, 43_200.0).optional(),
        "Owned by the control plane: minutes without activity after which a worker is idle.";
    worker_auto_pause_enabled: Option<bool>, ["LCM_WORKER_AUTO_PAUSE_ENABLED", "WORKER_AUTO_PAUSE_ENABLED"], "", boolean().optional(),
        "Owned by the control plane: whether it pauses idle workers.";
    worker_auto_pause_snooze_minutes: Option<Duration>, ["LCM_WORKER_AUTO_PAUSE_SNOOZE_MINUTES", "WORKER_AUTO_PAUSE_SNOOZE_MINUTES"], "", minutes(0.0, 43_200.0).optional(),
        "Owned by the control plane: minutes after a resume in which it does not pause a worker.";
} }

group! { CmlSettings, "CML", "Connection to the CML server of a worker." {
    cml_default_username: String, ["LCM_CML_DEFAULT_USERNAME", "CML_DEFAULT_USERNAME", "CML_WORKER_API_USERNAME"], "admin", name(),
        "User name for workers whose record has none.";
    cml_default_password: Option<Secret>, ["LCM_CML_DEFAULT_PASSWORD", "CML_DEFAULT_PASSWORD", "CML_WORKER_API_PASSWORD"], "", secret().optional(),
        "Password for workers whose record has none.";
    cml_port: u16, ["LCM_CML_PORT", "CML_PORT"], "443", integer(1, u16::MAX),
        "Port of CML.";
    cml_verify_tls: bool, ["LCM_CML_VERIFY_TLS", "CML_VERIFY_TLS"], "true", boolean(),
        "Whether certificates of CML are verified. If off, passwords and tokens go to servers that are not verified.";
    cml_ca_file: Option<PathBuf>, ["LCM_CML_CA_FILE", "CML_CA_FILE"], "", file().optional(),
        "CA certificates (PEM) that verify CML. Only these are trusted, not those of the system; the file is read again when it changes.";
    cml_timeout: Duration, ["LCM_CML_TIMEOUT", "CML_TIMEOUT"], "10", seconds(0.1, 600.0),
        "Timeout of a call, in seconds.";
} }

group! { AwsSettings, "AWS", "Regions and images of new workers. Credentials and endpoints come from the standard AWS variables and files." {
    aws_default_region: String, ["LCM_AWS_DEFAULT_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"], "us-east-1", region(),
        "Region of workers without one. If not set, default_region of AWS_REGION_CONFIGS counts.";
    aws_region_configs: RegionConfigs, ["LCM_AWS_REGION_CONFIGS", "AWS_REGION_CONFIGS", "AWS_REGIONS_CONFIG_PATH"], "", regions(),
        "Launch configuration by region: subnet, security groups, key pair, tags. AWS_REGIONS_CONFIG_PATH is the path of a file, without @.";
    aws_account_id: Option<String>, ["LCM_AWS_ACCOUNT_ID"], "", account_id().optional(),
        "Account of the workers' instances. Credentials of this account prove that an instance is gone; without it, a recorded instance that EC2 shows or the configured subnet proves that. Nothing is launched with the credentials of another account.";
    ami_owners: ImageOwners, ["LCM_AMI_OWNERS", "AMI_OWNERS"], "self", image_owners(ami_owner()),
        "Owners of the AMIs to launch and to discover. self is the account that STS reports. Name the account that shares its AMIs. With any, every account can publish an AMI with a matching name and a newer date, which new workers then boot.";
    aws_rate_factor: f64, ["LCM_AWS_RATE_FACTOR", "AWS_RATE_FACTOR"], "1", number(0.01, 1000.0),
        "Factor on the request rates to AWS. 1 is the default rate of an account for changes, and half of it for reads. Set more only if AWS raised the rates, and 1/n for n controllers that share an account.";
} }

group! { AdminSettings, "Admin server", "Statistics, metrics and health over HTTP. Reads need no key, except those of the web console on a server that is open to the network." {
    admin_host: IpAddr, ["LCM_ADMIN_HOST", "ADMIN_HOST"], "127.0.0.1", ip_address(),
        "Address to listen on. An address other than loopback needs admin_expose.";
    admin_port: u16, ["LCM_ADMIN_PORT", "ADMIN_PORT", "APP_PORT"], "8083", integer(0, u16::MAX),
        "Port to listen on; 0 selects a free port.";
    admin_expose: bool, ["LCM_ADMIN_EXPOSE", "ADMIN_EXPOSE"], "false", boolean(),
        "Whether the server may listen on the network. Changes and the data of the web console are then rejected without admin_key.";
    admin_key: Option<Secret>, ["LCM_ADMIN_KEY", "ADMIN_KEY"], "", secret().optional(),
        "Key for changes and for the data of the web console, sent as X-API-Key or bearer token. If empty, both are for this host only.";
} }

group! { HistorySettings, "History", "Files with the decisions of this process and their input, to be replayed. See what-if.md." {
    history_dir: Option<PathBuf>, ["LCM_HISTORY_DIR"], "", directory().optional(),
        "Directory of the history. It is created if its parent exists. Without it, no history is written.";
    history_max_mb: u64, ["LCM_HISTORY_MAX_MB"], "256", integer(1, 1_000_000),
        "Maximum size of the files in the directory together, in megabytes. The oldest are deleted.";
    history_max_days: f64, ["LCM_HISTORY_MAX_DAYS"], "7", number(0.01, 3650.0),
        "Days after which a file is deleted.";
    history_sample: u64, ["LCM_HISTORY_SAMPLE"], "100", integer(0, 1_000_000),
        "One in this many reconciles that change nothing is written; 0 for none.";
} }

group! { LogSettings, "Logs", "Format and level of the logs." {
    log_format: LogFormat, ["LCM_LOG_FORMAT"], "people", keyword(),
        "Readable lines, or one JSON object per line.";
    log_level: LogLevel, ["LCM_LOG_LEVEL"], "info", keyword(),
        "Level of this project's logs. Dependencies log warnings and errors.";
    rust_log: Option<String>, ["LCM_RUST_LOG", "RUST_LOG"], "", log_directives().optional(),
        "Filter directives such as info,lcm=debug,hyper=warn. If set, log_level does not count.";
} }

vocabulary! {
    /// Format of the logs.
    LogFormat, "log format" {
        /// Lines that are easy to read.
        People = "people" | "text",
        /// One JSON object per line.
        Json = "json",
    }
}

vocabulary! {
    /// Lowest level that is logged; each level includes those after it.
    LogLevel, "log level" {
        /// Every step of every call.
        Trace = "trace",
        /// Details that help to diagnose a fault.
        Debug = "debug",
        /// Changes of state and their reasons.
        Info = "info",
        /// Conditions that need attention.
        Warn = "warn" | "warning",
        /// Failures that need a repair.
        Error = "error" | "critical",
        /// No messages at all.
        Off = "off",
    }
}

fn metric_name() -> Parser<String> {
    text("letters, digits and _, not a digit first", |text| {
        !text.is_empty()
            && !text.starts_with(|first: char| first.is_ascii_digit())
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    })
}

fn region() -> Parser<String> {
    text("the name of a region, such as us-east-1", |text| {
        let is_allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        text.starts_with(|first: char| first.is_ascii_lowercase()) && text.chars().all(is_allowed)
    })
}

fn service_name() -> Parser<String> {
    text("a name without spaces and slashes", |text| {
        !text.is_empty() && !text.contains(|letter: char| letter.is_whitespace() || letter == '/')
    })
}

fn instance_id() -> Parser<String> {
    text("a name without spaces, at most 200 letters; or nothing", |text| {
        text.len() <= 200 && !text.contains(char::is_whitespace)
    })
    .with_empty("(generated)")
}

fn name() -> Parser<String> {
    text("a name", |text| !text.is_empty())
}

fn ami_pattern() -> Parser<String> {
    text("the name of an AMI, with * and ? where anything may stand", |text| {
        !text.is_empty() && text.chars().any(|letter| letter != '*')
    })
}

fn account_id() -> Parser<String> {
    text("the id of an account, 12 digits", |text| {
        text.len() == 12 && text.chars().all(|letter| letter.is_ascii_digit())
    })
}

fn ami_owner() -> Parser<String> {
    text("the id of an account, or self, amazon, aws-marketplace", |text| {
        let is_account = text.len() == 12 && text.chars().all(|letter| letter.is_ascii_digit());
        is_account || matches!(text, "self" | "amazon" | "aws-marketplace" | "aws-backup-vault")
    })
}

fn log_directives() -> Parser<String> {
    text("target=level, or a level alone, more after commas", |text| !text.is_empty())
}
