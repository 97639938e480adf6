//! The table of all settings. Each row is read, documented, shown and printed from here; there is no second place.
//!
//! A row: `name: type, [variables], default, form, description`. The first variable is `LCM_<NAME>`; the first that is set
//! and not empty counts. Names that a platform sets for its own purposes are accepted only with the prefix.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::log_options::{LogFormat, LogLevel};
use super::parse::{Address, Form, Hidden, NOT_SET, Number, Optional, Span, Switch, Text, Whole, WholeSeconds, Words};
use super::parse_file::File;
use super::parse_network::{Endpoints, HiddenUrl, KeyPrefix, List, Regions, Tags, Url};
use super::reader::{Origin, Reader};
use super::report::{Reading, Setting};
use crate::controller::shards::Shards;
use crate::lifecycle::policy::ExternalStopPolicy;
use crate::lifecycle::region::RegionConfigs;
use crate::lifecycle::secret::Secret;

/// A day: the longest time between two of anything that happens regularly.
const DAY: f64 = 86_400.0;

macro_rules! group {
    ($group:ident, $title:literal, $about:literal {
        $( $name:ident: $type:ty, [$($variable:literal),+], $default:literal, $form:expr, $description:literal; )+
    }) => {
        #[doc = $about]
        #[derive(Debug, Clone, PartialEq)]
        pub struct $group {
            $( #[doc = $description] pub $name: $type, )+
        }

        impl $group {
            /// Reads all of the group before giving up, so that every problem is found.
            pub(super) fn read(reader: &mut Reader) -> Option<Self> {
                $( let $name = reader.read(&$form, stringify!($name), &[$($variable),+], $default); )+
                Some(Self { $( $name: $name? ),+ })
            }

            pub(super) fn settings() -> Vec<Setting> {
                vec![$( Setting {
                    group: $title,
                    about: $about,
                    name: stringify!($name),
                    variables: &[$($variable),+],
                    default: if $default.is_empty() { Form::empty(&$form) } else { $default },
                    accepted: $form.accepted(),
                    description: $description,
                } ),+]
            }

            pub(super) fn readings(&self, origins: &BTreeMap<&'static str, Origin>) -> Vec<Reading> {
                let shown = [$( $form.show(&self.$name) ),+];
                let origin = |setting: &Setting| origins.get(setting.name).cloned().unwrap_or(Origin::Default);
                let reading = |(setting, value)| Reading { origin: origin(&setting), setting, value };
                Self::settings().into_iter().zip(shown).map(reading).collect()
            }
        }
    };
}

group! { ReconciliationSettings, "Reconciliation", "How often workers are looked at, and how many at once." {
    reconcile_interval: Duration, ["LCM_RECONCILE_INTERVAL", "RECONCILE_INTERVAL", "INTERVAL_SECONDS"], "30", Span::seconds(0.1, DAY),
        "Seconds between two polling cycles.";
    initial_delay: Duration, ["LCM_INITIAL_DELAY", "INITIAL_DELAY"], "5", Span::seconds(0.0, 3600.0),
        "Seconds from becoming leader to the first polling cycle.";
    reconcile_polling_enabled: bool, ["LCM_RECONCILE_POLLING_ENABLED", "RECONCILE_POLLING_ENABLED", "POLLING_ENABLED"], "true", Switch,
        "Whether workers are polled at all. Without polling nothing repairs what a lost watch event would have told.";
    max_concurrent: usize, ["LCM_MAX_CONCURRENT", "MAX_CONCURRENT", "MAX_CONCURRENT_RECONCILES"], "5", Whole { from: 1, to: 1000 },
        "How many workers are reconciled at the same time. Other controllers on the generic layers default to 10.";
    reconcile_timeout: Duration, ["LCM_RECONCILE_TIMEOUT", "RECONCILE_TIMEOUT"], "120", Span::seconds(1.0, 3600.0),
        "Seconds after which one reconcile is given up, counted and retried.";
    backoff_base: Duration, ["LCM_BACKOFF_BASE", "BACKOFF_BASE"], "1", Span::seconds(0.01, 3600.0),
        "Seconds before the first retry.";
    max_backoff: Duration, ["LCM_MAX_BACKOFF", "MAX_BACKOFF"], "60", Span::seconds(0.01, DAY),
        "Longest time between two retries, in seconds.";
    backoff_multiplier: f64, ["LCM_BACKOFF_MULTIPLIER", "BACKOFF_MULTIPLIER"], "2", Number { from: 1.0, to: 100.0 },
        "What each further retry multiplies the wait by.";
    metric_prefix: String, ["LCM_METRIC_PREFIX", "METRIC_PREFIX"], "reconciliation", METRIC_NAME,
        "What the names of the reconcile metrics begin with.";
    metrics_poll_interval: Duration, ["LCM_METRICS_POLL_INTERVAL", "METRICS_POLL_INTERVAL"], "60", Span::seconds(1.0, DAY),
        "Seconds between two collections of metrics; a pass asks by itself for what is older.";
    shutdown_grace: Duration, ["LCM_SHUTDOWN_GRACE", "SHUTDOWN_GRACE"], "30", Span::seconds(0.0, 3600.0),
        "Seconds that reconciles in progress get to finish and be recorded on shutdown.";
} }

group! { StartupSettings, "Start-up sweep", "The look at all workers on becoming leader (ADR-043)." {
    startup_reconcile_enabled: bool, ["LCM_STARTUP_RECONCILE_ENABLED", "STARTUP_RECONCILE_ENABLED"], "true", Switch,
        "Whether all workers but terminated ones are verified on becoming leader.";
    startup_reconcile_delay: Duration, ["LCM_STARTUP_RECONCILE_DELAY", "STARTUP_RECONCILE_DELAY"], "2", Span::seconds(0.0, 3600.0),
        "Seconds from becoming leader to the sweep.";
    startup_reconcile_timeout: Duration, ["LCM_STARTUP_RECONCILE_TIMEOUT", "STARTUP_RECONCILE_TIMEOUT"], "300", Span::seconds(1.0, DAY),
        "Seconds after which the readiness gate stops waiting for the sweep and reports what is missing.";
} }

group! { LifecycleSettings, "Lifecycle", "What decisions about one worker depend on." {
    consistency_window: Duration, ["LCM_CONSISTENCY_WINDOW", "CONSISTENCY_WINDOW"], "120", Span::seconds(0.0, DAY),
        "Seconds that EC2 may fail to show a new instance. An absent instance counts as gone only after that.";
    provisioning_timeout: Duration, ["LCM_PROVISIONING_TIMEOUT", "PROVISIONING_TIMEOUT", "PROVISIONING_TIMEOUT_SECONDS"], "900", Span::seconds(1.0, DAY),
        "Seconds that an instance may take to come up before its worker has failed.";
    external_stop_policy: ExternalStopPolicy, ["LCM_EXTERNAL_STOP_POLICY", "EXTERNAL_STOP_POLICY"], "restart", Words::<ExternalStopPolicy>::new(),
        "What a stop from outside means to a worker that is wanted running: start it again, or respect the stop.";
    resurrect_terminated: bool, ["LCM_RESURRECT_TERMINATED", "RESURRECT_TERMINATED"], "true", Switch,
        "Whether a live instance brings its terminated record back.";
    max_session_retries: u32, ["LCM_MAX_SESSION_RETRIES", "MAX_SESSION_RETRIES"], "3", Whole { from: 0, to: 100 },
        "How often a failed session is retried on a draining worker.";
    license_poll_interval: Duration, ["LCM_LICENSE_POLL_INTERVAL", "LICENSE_POLL_INTERVAL"], "5", Span::seconds(0.1, 3600.0),
        "Seconds until a licence operation that CML works on is looked at again.";
} }

group! { ScaleDownSettings, "Idle workers and scale-down", "When an idle worker may go." {
    idle_detection_interval: Duration, ["LCM_IDLE_DETECTION_INTERVAL", "IDLE_DETECTION_INTERVAL"], "300", Span::seconds(1.0, DAY),
        "Shortest time between two idle checks of one worker, in seconds.";
    scale_down_enabled: bool, ["LCM_SCALE_DOWN_ENABLED", "SCALE_DOWN_ENABLED"], "false", Switch,
        "Whether idle workers are scaled down. Idle detection is then asked not to pause them by itself.";
    min_workers: usize, ["LCM_MIN_WORKERS", "MIN_WORKERS"], "0", Whole { from: 0, to: 100_000 },
        "Never fewer running workers than this.";
    scale_down_cooldown_seconds: Duration, ["LCM_SCALE_DOWN_COOLDOWN_SECONDS", "SCALE_DOWN_COOLDOWN_SECONDS"], "600", Span::seconds(0.0, 30.0 * DAY),
        "Shortest time between two scale-downs, in seconds.";
    scale_down_look_ahead: Duration, ["LCM_SCALE_DOWN_LOOK_AHEAD", "SCALE_DOWN_LOOK_AHEAD"], "1800", Span::seconds(0.0, 30.0 * DAY),
        "A session scheduled within this many seconds keeps its worker.";
    worker_idle_timeout_minutes: Duration, ["LCM_WORKER_IDLE_TIMEOUT_MINUTES", "WORKER_IDLE_TIMEOUT_MINUTES"], "60", Span::minutes(1.0, 43_200.0),
        "Minutes without activity after which a worker is idle. The control plane judges that: here for an environment that serves both.";
    worker_auto_pause_enabled: bool, ["LCM_WORKER_AUTO_PAUSE_ENABLED", "WORKER_AUTO_PAUSE_ENABLED"], "true", Switch,
        "Whether the control plane pauses idle workers by itself. Its setting; here for an environment that serves both.";
    worker_auto_pause_snooze_minutes: Duration, ["LCM_WORKER_AUTO_PAUSE_SNOOZE_MINUTES", "WORKER_AUTO_PAUSE_SNOOZE_MINUTES"], "60", Span::minutes(0.0, 43_200.0),
        "Minutes after a resume without a pause. The control plane's setting; here for an environment that serves both.";
} }

group! { DiscoverySettings, "Discovery and garbage collection", "What exists in the cloud, and which records are orphans (ADR-014). What operators set in the control plane wins over these." {
    worker_discovery_enabled: bool, ["LCM_WORKER_DISCOVERY_ENABLED", "WORKER_DISCOVERY_ENABLED"], "true", Switch,
        "Whether the cloud is scanned for instances. Without it orphans are not found.";
    discovery_interval: Duration, ["LCM_DISCOVERY_INTERVAL", "DISCOVERY_INTERVAL", "WORKER_DISCOVERY_INTERVAL"], "300", Span::seconds(1.0, DAY),
        "Seconds between two scans.";
    discovery_initial_delay: Duration, ["LCM_DISCOVERY_INITIAL_DELAY", "DISCOVERY_INITIAL_DELAY"], "5", Span::seconds(0.0, 3600.0),
        "Seconds from becoming leader to the first scan.";
    worker_discovery_tag_filter: Vec<(String, Option<String>)>, ["LCM_WORKER_DISCOVERY_TAG_FILTER", "WORKER_DISCOVERY_TAG_FILTER"], "", Tags,
        "Tags that instances must carry, such as cml-managed=true.";
    worker_discovery_ami_filter: Option<String>, ["LCM_WORKER_DISCOVERY_AMI_FILTER", "WORKER_DISCOVERY_AMI_FILTER", "WORKER_DISCOVERY_AMI_NAME"], "", Optional(AMI_PATTERN),
        "Name pattern of the AMI that instances must be made from, such as cisco-cml2.9*.";
    worker_discovery_regions: Vec<String>, ["LCM_WORKER_DISCOVERY_REGIONS", "WORKER_DISCOVERY_REGIONS"], "", List { each: REGION, empty: "(all configured)" },
        "Regions to scan. Nothing means all of AWS_REGION_CONFIGS and the default region.";
    gc_max_terminations_per_pass: Option<usize>, ["LCM_GC_MAX_TERMINATIONS_PER_PASS", "GC_MAX_TERMINATIONS_PER_PASS"], "", Optional(Whole { from: 0, to: 100_000 }),
        "At most this many records are marked terminated after one scan. Nothing means no limit.";
    gc_freeze_from_records: usize, ["LCM_GC_FREEZE_FROM_RECORDS", "GC_FREEZE_FROM_RECORDS"], "3", Whole { from: 1, to: 100_000 },
        "From this many records on, a scan that shows nothing at all freezes its region.";
} }

group! { ElectionSettings, "Leader election", "Who may change the cloud. The leader's key is election_key_prefix/service_name/leader." {
    election_key_prefix: String, ["LCM_ELECTION_KEY_PREFIX", "ELECTION_KEY_PREFIX"], "/lcm", KeyPrefix::MayBeRoot,
        "What the leader's key begins with. Set /elections while the old controller still runs beside this one.";
    service_name: String, ["LCM_SERVICE_NAME"], "worker-controller", SERVICE,
        "The service in the leader's key.";
    leader_shards: usize, ["LCM_LEADER_SHARDS", "LEADER_SHARDS"], "1", Whole { from: 1, to: usize::from(Shards::MAX) },
        "How many parts the fleet is divided into, so that several controllers share it. The same for all of them: see scaling.md.";
    instance_id: String, ["LCM_INSTANCE_ID"], "", INSTANCE,
        "Who this controller is. Must differ between controllers; by default the host's name and a random number.";
    lease_ttl: Duration, ["LCM_LEASE_TTL", "LEASE_TTL"], "15", WholeSeconds(Whole { from: 2, to: 3600 }),
        "Seconds that a leader's lease lives without renewal; it is renewed three times as often.";
    lease_margin: Duration, ["LCM_LEASE_MARGIN", "LEASE_MARGIN"], "2", Span::seconds(0.0, 600.0),
        "Seconds before the end of the lease at which a leader stops acting. Less than half of lease_ttl.";
    retry_interval: Duration, ["LCM_RETRY_INTERVAL", "RETRY_INTERVAL"], "5", Span::seconds(0.1, 3600.0),
        "Seconds between two tries of a standby that cannot watch the leader's key.";
} }

group! { EtcdSettings, "etcd", "Where leaders are elected and changes are announced." {
    etcd_endpoints: Vec<String>, ["LCM_ETCD_ENDPOINTS", "ETCD_ENDPOINTS"], "localhost:2379", Endpoints,
        "Where etcd listens. Set to nothing: mock mode, this controller leads at once.";
    etcd_key_prefix: String, ["LCM_ETCD_KEY_PREFIX", "ETCD_KEY_PREFIX"], "/lcm", KeyPrefix::MayBeRoot,
        "What the control plane's keys begin with: prefix/workers/ is watched too.";
    etcd_username: Option<String>, ["LCM_ETCD_USERNAME", "ETCD_USERNAME"], "", Optional(WORD),
        "User, where etcd asks for one.";
    etcd_password: Option<Secret>, ["LCM_ETCD_PASSWORD", "ETCD_PASSWORD"], "", Optional(Hidden),
        "The user's password.";
    etcd_ca_file: Option<PathBuf>, ["LCM_ETCD_CA_FILE", "ETCD_CA_FILE"], "", Optional(File),
        "Certificates (PEM) that vouch for etcd.";
    etcd_cert_file: Option<PathBuf>, ["LCM_ETCD_CERT_FILE", "ETCD_CERT_FILE"], "", Optional(File),
        "Our certificate (PEM), where etcd asks for one.";
    etcd_key_file: Option<PathBuf>, ["LCM_ETCD_KEY_FILE", "ETCD_KEY_FILE"], "", Optional(File),
        "The private key (PEM) of our certificate.";
} }

group! { WatchSettings, "Watch", "How changes in etcd lead to reconciles at once." {
    watch_enabled: bool, ["LCM_WATCH_ENABLED", "WATCH_ENABLED"], "true", Switch,
        "Whether etcd is watched. Without it changes wait for the next polling cycle.";
    watch_prefix: String, ["LCM_WATCH_PREFIX", "WATCH_PREFIX"], "/workers/", KeyPrefix::BelowRoot,
        "What the watched keys begin with; the next segment is the worker's id.";
    reconnect_delay: Duration, ["LCM_RECONNECT_DELAY", "RECONNECT_DELAY"], "1", Span::seconds(0.01, 3600.0),
        "Seconds before the first reconnect; the n-th waits n times as long.";
    max_reconnect_attempts: u32, ["LCM_MAX_RECONNECT_ATTEMPTS", "MAX_RECONNECT_ATTEMPTS"], "10", Whole { from: 0, to: 10_000 },
        "Failed reconnects after which polling carries on alone, until the next cycle tries again.";
    debounce_seconds: Duration, ["LCM_DEBOUNCE_SECONDS", "DEBOUNCE_SECONDS"], "0.5", Span::seconds(0.0, 60.0),
        "Seconds from the first event for which events are collected.";
} }

group! { ControlPlaneSettings, "Control plane", "The service that owns the records." {
    control_plane_api_url: String, ["LCM_CONTROL_PLANE_API_URL", "CONTROL_PLANE_API_URL"], "http://localhost:8080", Url,
        "Where it listens, without /api/internal.";
    control_plane_api_key: Option<Secret>, ["LCM_CONTROL_PLANE_API_KEY", "CONTROL_PLANE_API_KEY"], "", Optional(Hidden),
        "What is sent as X-API-Key.";
    control_plane_api_timeout: Duration, ["LCM_CONTROL_PLANE_API_TIMEOUT", "CONTROL_PLANE_API_TIMEOUT"], "30", Span::seconds(0.1, 600.0),
        "Seconds that one call may take.";
    control_plane_api_retries: u32, ["LCM_CONTROL_PLANE_API_RETRIES", "CONTROL_PLANE_API_RETRIES"], "3", Whole { from: 0, to: 10 },
        "How often a call that is safe to repeat is repeated.";
    control_plane_events: bool, ["LCM_CONTROL_PLANE_EVENTS", "CONTROL_PLANE_EVENTS"], "false", Switch,
        "Whether events are posted to it as well, so that it shows them among its own. A server from before that call refuses them.";
    event_sink_url: Option<Secret>, ["LCM_EVENT_SINK_URL", "EVENT_SINK_URL"], "", Optional(HiddenUrl),
        "Where CloudEvents are posted. Treated as a secret, because such addresses often carry a token.";
} }

group! { CmlSettings, "CML", "How to talk to the CML on a worker." {
    cml_default_username: String, ["LCM_CML_DEFAULT_USERNAME", "CML_DEFAULT_USERNAME", "CML_WORKER_API_USERNAME"], "admin", WORD,
        "User for workers whose record names none.";
    cml_default_password: Option<Secret>, ["LCM_CML_DEFAULT_PASSWORD", "CML_DEFAULT_PASSWORD", "CML_WORKER_API_PASSWORD"], "", Optional(Hidden),
        "Password for workers whose record holds none.";
    cml_port: u16, ["LCM_CML_PORT", "CML_PORT"], "443", Whole { from: 1, to: u16::MAX },
        "The port it listens on.";
    cml_verify_tls: bool, ["LCM_CML_VERIFY_TLS", "CML_VERIFY_TLS"], "true", Switch,
        "Whether its certificate is verified. Off means that passwords and tokens go to whoever answers.";
    cml_ca_file: Option<PathBuf>, ["LCM_CML_CA_FILE", "CML_CA_FILE"], "", Optional(File),
        "Certificates (PEM) that vouch for it, beside those of the system.";
    cml_timeout: Duration, ["LCM_CML_TIMEOUT", "CML_TIMEOUT"], "10", Span::seconds(0.1, 600.0),
        "Seconds that one call may take.";
} }

group! { AwsSettings, "AWS", "Where workers are launched. Credentials and endpoints come from the standard AWS variables and files." {
    aws_default_region: String, ["LCM_AWS_DEFAULT_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"], "us-east-1", REGION,
        "The region of workers that name none. Where no variable is set, default_region of AWS_REGION_CONFIGS counts.";
    aws_region_configs: RegionConfigs, ["LCM_AWS_REGION_CONFIGS", "AWS_REGION_CONFIGS"], "", Regions,
        "What a launch in each region needs: subnet, security groups, key pair, tags.";
    ami_owners: Vec<String>, ["LCM_AMI_OWNERS", "AMI_OWNERS"], "", List { each: AMI_OWNER, empty: "(anybody)" },
        "Whose AMIs are launched. Name them: otherwise a stranger can publish one with a matching name and a newer date.";
    aws_rate_factor: f64, ["LCM_AWS_RATE_FACTOR", "AWS_RATE_FACTOR"], "1", Number { from: 0.01, to: 1000.0 },
        "How fast AWS is asked, next to its default rates for an account (for reads, to half of them). More than 1 only if AWS raised them; controllers that share a fleet share an account: 1/n for n of them.";
} }

group! { AdminSettings, "Admin server", "Statistics, metrics and health over HTTP. Whoever reaches it may look." {
    admin_host: IpAddr, ["LCM_ADMIN_HOST", "ADMIN_HOST"], "127.0.0.1", Address,
        "Address to listen on. Anything but a loopback address opens it to the network, and needs admin_expose.";
    admin_port: u16, ["LCM_ADMIN_PORT", "ADMIN_PORT"], "8083", Whole { from: 0, to: u16::MAX },
        "Port to listen on; 0 takes any free one.";
    admin_expose: bool, ["LCM_ADMIN_EXPOSE", "ADMIN_EXPOSE"], "false", Switch,
        "Whether others than this machine may reach it. Nobody may change anything there without admin_key.";
    admin_key: Option<Secret>, ["LCM_ADMIN_KEY", "ADMIN_KEY"], "", Optional(Hidden),
        "What a change needs as X-API-Key or bearer token. Nothing means that only this machine may change something.";
} }

group! { LogSettings, "Logs", "What is logged, and how." {
    log_format: LogFormat, ["LCM_LOG_FORMAT"], "people", Words::<LogFormat>::new(),
        "Lines for people, or one JSON object on each line.";
    log_level: LogLevel, ["LCM_LOG_LEVEL"], "info", Words::<LogLevel>::new(),
        "How much this project logs; what it is built on logs warnings and errors.";
    rust_log: Option<String>, ["LCM_RUST_LOG", "RUST_LOG"], "", Optional(DIRECTIVES),
        "Directives such as info,lcm=debug,hyper=warn. Where set, log_level does not count.";
} }

const METRIC_NAME: Text = Text {
    accepted: "letters, digits and _, not a digit first",
    holds: |text| {
        !text.is_empty()
            && !text.starts_with(|first: char| first.is_ascii_digit())
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    },
    empty: NOT_SET,
};

const REGION: Text = Text {
    accepted: "the name of a region, such as us-east-1",
    holds: |text| {
        let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        text.starts_with(|first: char| first.is_ascii_lowercase()) && text.chars().all(fits)
    },
    empty: NOT_SET,
};

const SERVICE: Text = Text {
    accepted: "a name without spaces and slashes",
    holds: |text| !text.is_empty() && !text.contains(|letter: char| letter.is_whitespace() || letter == '/'),
    empty: NOT_SET,
};

const INSTANCE: Text = Text {
    accepted: "a name without spaces, at most 200 letters; or nothing",
    holds: |text| text.len() <= 200 && !text.contains(char::is_whitespace),
    empty: "(generated)",
};

const WORD: Text = Text { accepted: "a name", holds: |text| !text.is_empty(), empty: NOT_SET };

const AMI_PATTERN: Text = Text {
    accepted: "the name of an AMI, with * and ? where anything may stand",
    holds: |text| !text.is_empty() && text.chars().any(|letter| letter != '*'),
    empty: NOT_SET,
};

const AMI_OWNER: Text = Text {
    accepted: "the id of an account, or self, amazon, aws-marketplace",
    holds: |text| {
        let is_account = text.len() == 12 && text.chars().all(|letter| letter.is_ascii_digit());
        is_account || matches!(text, "self" | "amazon" | "aws-marketplace" | "aws-backup-vault")
    },
    empty: NOT_SET,
};

const DIRECTIVES: Text = Text {
    accepted: "target=level, or a level alone, more after commas",
    holds: |text| !text.is_empty(),
    empty: NOT_SET,
};
