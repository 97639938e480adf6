//! Settings of a controller, read from environment variables.
//!
//! One table defines the name, variables, default, accepted values and description of every setting. The reader,
//! `--print-settings` and `docs/settings.md` are derived from it.
//!
//! ```
//! use lcm_sdk::settings::Settings;
//!
//! let settings = Settings::from_map([("RECONCILE_INTERVAL", "10"), ("cml_default_password", "hunter2")])?;
//! assert_eq!(settings.reconciliation.reconcile_interval.as_secs(), 10);
//! assert_eq!(settings.policy().consistency_window.as_secs(), 120);
//! assert!(!format!("{settings:?} {}", settings.report()).contains("hunter2"));
//!
//! let error = Settings::from_map([("MIN_WORKERS", "-1"), ("LEASE_TTL", "soon")]).unwrap_err();
//! assert_eq!(error.problems.len(), 2);
//! assert!(error.to_string().contains(r#"MIN_WORKERS="-1" is not accepted; accepted: a whole number from 0 to"#));
//! # Ok::<(), lcm_sdk::settings::SettingsError>(())
//! ```

mod error;
mod original;
mod parse;
mod reader;
mod report;
mod table;

pub use error::{Problem, SettingsError, Warning};
pub use reader::Origin;
pub use report::{Report, Setting, SettingValue};
pub use table::{
    AdminSettings, AwsSettings, CmlSettings, ControlPlanePolicySettings, ControlPlaneSettings, DiscoverySettings,
    ElectionSettings, EtcdSettings, HistorySettings, LifecycleSettings, LogFormat, LogLevel, LogSettings,
    NotesSettings, ReconciliationSettings, ScaleDownSettings, StartupSettings, WatchSettings,
};

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use crate::lifecycle::backoff::Backoff;
use crate::lifecycle::capabilities::ControlPlaneGeneration;
use crate::lifecycle::instance::ImageOwners;
use crate::lifecycle::policy::{ExternalStopPolicy, OrphanPolicy, Policy, ScaleDownPolicy};
use crate::lifecycle::region::RegionConfigs;
use crate::ports::{DiscoveryFilter, NotesPlacement};
use parse::NOT_SET;
use reader::Reader;

macro_rules! settings {
    ($( $(#[$doc:meta])* $field:ident: $group:ty, )+) => {
        /// All settings, grouped by concern. Safe to log: secrets are redacted.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct Settings {
            $( $(#[$doc])* pub $field: $group, )+
            origins: BTreeMap<&'static str, Origin>,
            warnings: Vec<Warning>,
        }

        impl Settings {
            fn read(reader: &mut Reader) -> Option<Self> {
                $( let $field = <$group>::read(reader); )+
                Some(Self { $( $field: $field?, )+ origins: BTreeMap::new(), warnings: Vec::new() })
            }

            /// Returns the table of all settings.
            pub fn table() -> Vec<Setting> {
                [$( <$group>::settings() ),+].concat()
            }

            /// Returns every setting with its value and the origin of that value.
            pub fn report(&self) -> Report {
                Report { settings: [$( self.$field.values(&self.origins) ),+].concat() }
            }
        }
    };
}

settings! {
    /// Polling, retries and concurrency of reconciles.
    reconciliation: ReconciliationSettings,
    /// Reconcile of all workers on becoming leader.
    startup: StartupSettings,
    /// Policy of the decisions about one worker.
    lifecycle: LifecycleSettings,
    /// Idle detection, and the conditions for stopping an idle worker.
    scale_down: ScaleDownSettings,
    /// Scans of EC2 for instances and orphaned records.
    discovery: DiscoverySettings,
    /// Leader election and leases.
    election: ElectionSettings,
    /// Connection to etcd.
    etcd: EtcdSettings,
    /// Watch on etcd that reconciles changed workers at once.
    watch: WatchSettings,
    /// The service that owns the records.
    control_plane: ControlPlaneSettings,
    /// Place of the notes of LCM about workers.
    notes: NotesSettings,
    /// Settings of the control plane, which have no effect here.
    control_plane_policy: ControlPlanePolicySettings,
    /// Connection to the CML server of a worker.
    cml: CmlSettings,
    /// Regions and images of new workers.
    aws: AwsSettings,
    /// Statistics, metrics and health over HTTP.
    admin: AdminSettings,
    /// Files with the decisions of this process and their input.
    history: HistorySettings,
    /// Format and level of the logs.
    logs: LogSettings,
}

impl Settings {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Returns all problems at once.
    pub fn from_env() -> Result<Self, SettingsError> {
        // The names of all settings are UTF-8.
        Self::from_variables(std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))))
    }

    /// Reads the given variables. The environment of the process is not read.
    ///
    /// # Errors
    /// Returns all problems at once.
    pub fn from_map<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, SettingsError> {
        Self::from_variables(variables.into_iter().map(|(name, value)| (name.into(), value.into().into())))
    }

    /// Returns the reference of all settings in Markdown, as in `docs/settings.md`.
    pub fn reference() -> String {
        report::reference(&Self::table())
    }

    /// Returns probable mistakes in the environment that do not prevent a start.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the policy for decisions.
    pub fn policy(&self) -> Policy {
        let (lifecycle, scale_down) = (&self.lifecycle, &self.scale_down);
        Policy {
            consistency_window: lifecycle.consistency_window,
            provisioning_timeout: lifecycle.provisioning_timeout,
            external_stop_policy: lifecycle.external_stop_policy,
            resurrect_terminated: lifecycle.resurrect_terminated,
            max_session_retries: lifecycle.max_session_retries,
            drain_settle: lifecycle.drain_settle,
            max_drain_tries: lifecycle.max_drain_tries,
            metrics_interval: self.reconciliation.metrics_poll_interval,
            idle_detection_interval: scale_down.idle_detection_interval,
            license_poll_interval: lifecycle.license_poll_interval,
            license_timeout: lifecycle.license_timeout,
            scale_down: ScaleDownPolicy {
                enabled: scale_down.scale_down_enabled,
                min_workers: scale_down.min_workers,
                cooldown: scale_down.scale_down_cooldown_seconds,
                look_ahead: scale_down.scale_down_look_ahead,
            },
            orphans: OrphanPolicy { max_terminations_per_pass: self.discovery.gc_max_terminations_per_pass },
            backoff: Backoff {
                base: self.reconciliation.backoff_base,
                multiplier: self.reconciliation.backoff_multiplier,
                max: self.reconciliation.max_backoff,
            },
            regions: RegionConfigs {
                default_region: Some(self.aws.aws_default_region.clone()),
                regions: self.aws.aws_region_configs.regions.clone(),
            },
            aws_account_id: self.aws.aws_account_id.clone(),
        }
    }

    /// Returns the etcd key of the leader's lease.
    pub fn leader_key(&self) -> String {
        format!("{}/{}/leader", self.election.election_key_prefix, self.election.service_name)
    }

    /// Returns the etcd prefixes to watch, each with a trailing slash: `watch_prefix`, and the control plane's.
    pub fn watch_prefixes(&self) -> Vec<String> {
        let own = format!("{}/", self.watch.watch_prefix);
        let control_plane = format!("{}/workers/", self.etcd.etcd_key_prefix);
        if own == control_plane { vec![own] } else { vec![own, control_plane] }
    }

    /// Returns whether a variable or file sets a setting, by its name in lower case.
    pub fn is_set(&self, name: &str) -> bool {
        self.origins.get(name).is_some_and(|origin| *origin != Origin::Default)
    }

    /// Returns whether the notes' keys are apart from the watched keys and the leader's.
    fn notes_are_apart(&self) -> bool {
        let notes = format!("{}/workers/", self.notes.notes_prefix);
        let is_apart = |other: &String| !notes.starts_with(other.as_str()) && !other.starts_with(&notes);
        self.watch_prefixes().iter().chain([&self.leader_key()]).all(is_apart)
    }

    /// Returns the regions to scan: `worker_discovery_regions`, else all configured regions and the default region.
    pub fn discovery_regions(&self) -> Vec<String> {
        if !self.discovery.worker_discovery_regions.is_empty() {
            return self.discovery.worker_discovery_regions.clone();
        }
        let configured = self.aws.aws_region_configs.regions.keys();
        let all: BTreeSet<&String> = configured.chain([&self.aws.aws_default_region]).collect();
        all.into_iter().cloned().collect()
    }

    /// Returns the filter for the instances of a scan.
    pub fn discovery_filter(&self) -> DiscoveryFilter {
        DiscoveryFilter {
            ami_name_pattern: self.discovery.worker_discovery_ami_filter.clone(),
            tags: self.discovery.worker_discovery_tag_filter.clone(),
        }
    }

    fn from_variables(variables: impl IntoIterator<Item = (String, OsString)>) -> Result<Self, SettingsError> {
        let mut reader = Reader::new(variables);
        let settings = Self::read(&mut reader);
        reader.find_misspellings();
        match settings {
            Some(mut settings) => {
                settings.complete(&mut reader);
                settings.check(&mut reader);
                if !reader.problems.is_empty() {
                    return Err(SettingsError { problems: reader.problems });
                }
                (settings.origins, settings.warnings) = (reader.origins, reader.warnings);
                Ok(settings)
            }
            None => Err(SettingsError { problems: reader.problems }),
        }
    }

    /// Sets the values that depend on more than one variable.
    fn complete(&mut self, reader: &mut Reader) {
        if self.election.instance_id.is_empty() {
            let host = reader.variable("HOSTNAME").map(str::to_owned).or_else(host_name).unwrap_or_default();
            let is_plain = |character: &char| character.is_ascii_alphanumeric() || "-._".contains(*character);
            let host: String = host.chars().filter(is_plain).take(64).collect();
            let host = if host.is_empty() { &self.election.service_name } else { &host };
            self.election.instance_id = format!("{host}-{:08x}", rand::random::<u32>());
            reader.origins.insert("instance_id", Origin::Generated);
        }
        if reader.origins.get("aws_default_region") == Some(&Origin::Default)
            && let Some(region) = self.aws.aws_region_configs.default_region.clone().filter(|name| !name.is_empty())
        {
            self.aws.aws_default_region = region;
            if let Some(origin) = reader.origins.get("aws_region_configs").cloned() {
                reader.origins.insert("aws_default_region", origin);
            }
        }
    }

    /// Reports settings that contradict each other as problems, and risky values as warnings.
    fn check(&self, reader: &mut Reader) {
        let (reconciliation, etcd, election) = (&self.reconciliation, &self.etcd, &self.election);
        let grows = reconciliation.backoff_base <= reconciliation.max_backoff;
        let fits = election.lease_margin * 2 < election.lease_ttl;
        let certified = etcd.etcd_cert_file.is_some() == etcd.etcd_key_file.is_some();
        let signed_in = etcd.etcd_username.is_some() == etcd.etcd_password.is_some();
        let closed = self.admin.admin_host.to_canonical().is_loopback() || self.admin.admin_expose;
        let writes_desired = self.control_plane.control_plane_generation != ControlPlaneGeneration::Original;
        let stops = self.lifecycle.external_stop_policy != ExternalStopPolicy::Respect || writes_desired;
        let rules = [
            (grows, "BACKOFF_BASE", "MAX_BACKOFF", "the first wait must not be longer than the longest"),
            (fits, "LEASE_MARGIN", "LEASE_TTL", "the margin must be less than half of the lease"),
            (certified, "ETCD_CERT_FILE", "ETCD_KEY_FILE", "set both or neither"),
            (
                closed,
                "ADMIN_HOST",
                "ADMIN_EXPOSE",
                "an address that is not loopback opens the admin server to the network; ADMIN_EXPOSE=true says that this is meant",
            ),
            (
                stops,
                "EXTERNAL_STOP_POLICY",
                "CONTROL_PLANE_GENERATION",
                "the policy respect writes a desired status, which the control plane 'original' does not store; use restart",
            ),
            (signed_in, "ETCD_USERNAME", "ETCD_PASSWORD", "set both or neither"),
            (
                self.notes_are_apart(),
                "NOTES_PREFIX",
                "WATCH_PREFIX",
                "notes must not be under a watched prefix or the leader's key: each note would be reported as a change of its worker",
            ),
            (
                self.notes.notes_store != NotesPlacement::Etcd || !etcd.is_mock(),
                "NOTES_STORE",
                "ETCD_ENDPOINTS",
                "notes in etcd need its endpoints",
            ),
        ];
        let broken = rules.into_iter().filter(|(holds, ..)| !holds);
        let contradiction = |(_, first, second, rule)| Problem::Contradiction { first, second, rule };
        reader.problems.extend(broken.map(contradiction));

        let (regions, default) = (&self.aws.aws_region_configs.regions, &self.aws.aws_default_region);
        if !regions.is_empty() && !regions.contains_key(default) {
            reader.warnings.push(Warning::DefaultRegionNotConfigured { region: default.clone() });
        }
        if etcd.etcd_endpoints.is_empty() {
            reader.warnings.push(Warning::MockMode);
        }
        match self.notes.notes_store {
            NotesPlacement::Memory => reader.warnings.push(Warning::NotesInMemory),
            NotesPlacement::Auto if etcd.is_mock() => reader.warnings.push(Warning::NotesInMemory),
            NotesPlacement::Auto | NotesPlacement::Record | NotesPlacement::Etcd => {}
        }
        if self.discovery.worker_discovery_enabled && self.discovery_filter().is_empty() {
            reader.warnings.push(Warning::NothingImported);
        }
        if !self.cml.cml_verify_tls {
            reader.warnings.push(Warning::CmlNotVerified);
        }
        let owned = self.control_plane_policy.values(&reader.origins).into_iter();
        reader.warnings.extend(owned.filter(|row| row.value != NOT_SET).filter_map(|row| match row.origin {
            Origin::Variable(variable) => Some(Warning::OwnedByControlPlane { variable }),
            Origin::Default | Origin::File { .. } | Origin::Generated => None,
        }));
        if self.aws.ami_owners == ImageOwners::Any {
            reader.warnings.push(Warning::AnyImageOwner);
        }
    }
}

impl EtcdSettings {
    /// Returns the endpoints as URLs. An endpoint without a scheme uses TLS if certificates are configured.
    pub fn urls(&self) -> Vec<String> {
        let tls = self.etcd_ca_file.is_some() || self.etcd_cert_file.is_some();
        let scheme = if tls { "https" } else { "http" };
        let url = |endpoint: &String| {
            if endpoint.contains("://") { endpoint.clone() } else { format!("{scheme}://{endpoint}") }
        };
        self.etcd_endpoints.iter().map(url).collect()
    }

    /// Returns whether no endpoints are configured, so that this controller leads without an election.
    pub fn is_mock(&self) -> bool {
        self.etcd_endpoints.is_empty()
    }
}

fn host_name() -> Option<String> {
    ["/proc/sys/kernel/hostname", "/etc/hostname"].iter().find_map(|path| std::fs::read_to_string(path).ok())
}
