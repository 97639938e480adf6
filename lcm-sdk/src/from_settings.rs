//! Builds ports, clients and a worker controller from [`Settings`].
//!
//! No function here makes a call: clients connect on first use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::admin::{AdminOptions, Exposure};
use crate::controller::election::ElectionConfig;
use crate::controller::watch::WatchConfig;
use crate::controller::{ControllerConfig, LeaseClock, Polling, Shards, StartupConfig};
use crate::history::{HistoryLimits, HistoryWriter};
use crate::lifecycle::discovery::ForeignInstances;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::secret::Secret;
use crate::ports::{Clock, ControlPlane, Coordination, Events, NotesPlacement, NotesStore, Ports, SystemClock};
use crate::providers::aws::{Account, CloudWatch, Ec2, Tuning};
use crate::providers::cml::{CmlClient, CmlOptions, Security};
use crate::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use crate::providers::etcd::{ClientCertificate, Etcd, EtcdNotes, EtcdOptions, EtcdTls, EtcdUser};
use crate::providers::events::{ControlPlaneEvents, FanoutEvents, HttpEvents, LogEvents, SinkOptions};
use crate::providers::http::SetupError;
use crate::providers::memory::MemoryNotes;
use crate::providers::notes::NotesControlPlane;
use crate::reconciler::{CmlDefaults, Guards};
use crate::resilience::batch::{BatchSettings, BatchingCompute};
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::workers::controller::{WorkerController, WorkerControllerConfig, WorkerControllerError};
use crate::workers::discovery::DiscoveryConfig;

/// Shortest age at which the notes of an ended worker are deleted.
const NOTES_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Valid settings that do not make a working controller.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FromSettingsError {
    /// A client cannot be created, because of an unreadable certificate file for example.
    #[error("cannot create the client for {service}: {source}")]
    Client {
        /// Service that the client would call.
        service: &'static str,
        /// Error of the client.
        source: SetupError,
    },
    /// The etcd client cannot be created.
    #[error("cannot create the client for etcd: {0}")]
    Etcd(CallFailure),
    /// The history cannot be written.
    #[error("cannot write a history to {directory}: {source}")]
    History {
        /// The directory that the settings name.
        directory: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The settings of the controller contradict each other.
    #[error(transparent)]
    Controller(#[from] WorkerControllerError),
}

/// Returns ports for the services that the settings name. AWS is configured by its standard variables and files.
///
/// # Errors
/// If a client cannot be created.
pub async fn ports(settings: &Settings, telemetry: &Telemetry) -> Result<Ports, FromSettingsError> {
    ports_with(settings, Account::from_environment(tuning(settings), telemetry).await, telemetry)
}

/// Returns ports for a fake cloud: AWS at `aws_url`, signed with fake credentials. The environment is not read.
///
/// # Errors
/// If a client cannot be created.
#[cfg(feature = "testing")]
pub fn ports_for_fake_cloud(
    settings: &Settings,
    aws_url: &str,
    telemetry: &Telemetry,
) -> Result<Ports, FromSettingsError> {
    let account = Account::with_endpoint(aws_url, "fake", &Secret::from("fake"), tuning(settings), telemetry);
    ports_with(settings, account, telemetry)
}

/// Returns the configuration of an AWS [`Account`].
pub fn tuning(settings: &Settings) -> Tuning {
    let aws = &settings.aws;
    Tuning { image_owners: aws.ami_owners.clone(), rate_factor: aws.aws_rate_factor, ..Tuning::default() }
}

/// Returns ports that use the given AWS account; [`tuning`] returns its configuration.
///
/// # Errors
/// If a client cannot be created.
pub fn ports_with(settings: &Settings, account: Account, telemetry: &Telemetry) -> Result<Ports, FromSettingsError> {
    let client_error = |service| move |source| FromSettingsError::Client { service, source };
    let ec2 = Arc::new(Ec2::new(account.clone()));

    let security = match (&settings.cml.cml_ca_file, settings.cml.cml_verify_tls) {
        (_, false) => Security::Unverified,
        (Some(file), true) => Security::VerifiedWith(file.clone()),
        (None, true) => Security::Verified,
    };
    let cml = CmlOptions {
        security,
        port: settings.cml.cml_port,
        timeout: settings.cml.cml_timeout,
        ..CmlOptions::default()
    };

    let control_plane = control_plane_client(settings)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);

    let mut sinks: Vec<Arc<dyn Events>> = vec![Arc::new(LogEvents)];
    if settings.control_plane.control_plane_events {
        sinks.push(Arc::new(ControlPlaneEvents::new(Arc::clone(&control_plane))));
    }
    if let Some(url) = &settings.control_plane.event_sink_url {
        let sink = HttpEvents::new(SinkOptions::new(url.clone())).map_err(client_error("the event sink"))?;
        sinks.push(Arc::new(sink));
    }
    Ok(Ports {
        compute: Arc::new(BatchingCompute::new(ec2, BatchSettings::default(), telemetry.clone())),
        metrics: Arc::new(CloudWatch::new(account)),
        cml: Arc::new(CmlClient::new(cml).map_err(client_error("CML"))?),
        control_plane: with_notes(settings, control_plane, Arc::clone(&clock))?,
        events: Arc::new(FanoutEvents::new(sinks)),
        clock,
    })
}

/// Returns the control plane with the notes of its workers, for a program that needs no other service.
///
/// # Errors
/// If a client cannot be created.
pub fn control_plane(settings: &Settings) -> Result<Arc<dyn ControlPlane>, FromSettingsError> {
    with_notes(settings, control_plane_client(settings)?, Arc::new(SystemClock))
}

fn control_plane_client(settings: &Settings) -> Result<Arc<ControlPlaneClient>, FromSettingsError> {
    let key = settings.control_plane.control_plane_api_key.clone().unwrap_or_else(|| Secret::from(""));
    let mut control_plane = ControlPlaneOptions::new(&settings.control_plane.control_plane_api_url, key);
    control_plane.authorities.clone_from(&settings.control_plane.control_plane_ca_file);
    control_plane.metrics_interval = Some(settings.reconciliation.metrics_poll_interval);
    control_plane.generation = settings.control_plane.control_plane_generation;
    control_plane.timeout = settings.control_plane.control_plane_api_timeout;
    control_plane.retries.truncate(settings.control_plane.control_plane_api_retries as usize);
    let client = ControlPlaneClient::new(control_plane);
    client.map(Arc::new).map_err(|source| FromSettingsError::Client { service: "the control plane", source })
}

/// Returns the control plane with the notes of its workers where the settings keep them.
///
/// # Errors
/// If the etcd client cannot be created.
pub fn with_notes(
    settings: &Settings,
    control_plane: Arc<dyn ControlPlane>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn ControlPlane>, FromSettingsError> {
    let placement = settings.notes.notes_store;
    let in_memory = || Ok(Arc::new(MemoryNotes::default()) as Arc<dyn NotesStore>);
    let store = match (placement, etcd_options(settings)) {
        (NotesPlacement::Memory | NotesPlacement::Record, _) | (_, None) => in_memory(),
        (NotesPlacement::Auto | NotesPlacement::Etcd, Some(options)) => {
            let notes = EtcdNotes::new(&options, &settings.notes.notes_prefix);
            notes.map(|notes| Arc::new(notes) as Arc<dyn NotesStore>).map_err(FromSettingsError::Etcd)
        }
    };
    let retention = settings.scale_down.scale_down_cooldown_seconds.max(NOTES_RETENTION);
    let notes = NotesControlPlane::new(control_plane, store?, clock);
    Ok(Arc::new(notes.with_placement(placement).with_retention(retention)))
}

/// Returns the etcd client, or `None` if no endpoints are configured and the controller leads without an election.
///
/// # Errors
/// If the client cannot be created.
pub fn coordination(settings: &Settings) -> Result<Option<Arc<dyn Coordination>>, FromSettingsError> {
    let Some(options) = etcd_options(settings) else { return Ok(None) };
    Ok(Some(Arc::new(Etcd::new(options).map_err(FromSettingsError::Etcd)?)))
}

/// Returns the options of the etcd client, or `None` without endpoints.
fn etcd_options(settings: &Settings) -> Option<EtcdOptions> {
    let etcd = &settings.etcd;
    if etcd.is_mock() {
        return None;
    }
    let mut options = EtcdOptions::new(etcd.urls());
    options.user =
        etcd.etcd_username.clone().zip(etcd.etcd_password.clone()).map(|(name, password)| EtcdUser { name, password });
    let client = etcd.etcd_cert_file.clone().zip(etcd.etcd_key_file.clone());
    let client = client.map(|(certificate_file, key_file)| ClientCertificate { certificate_file, key_file });
    if etcd.etcd_ca_file.is_some() || client.is_some() {
        options.tls = Some(EtcdTls { ca_file: etcd.etcd_ca_file.clone(), client, server_name: None });
    }
    Some(options)
}

/// Returns the configuration of the worker controller.
pub fn controller_config(settings: &Settings) -> WorkerControllerConfig {
    let (reconciliation, startup) = (&settings.reconciliation, &settings.startup);
    let (election, watch) = (&settings.election, &settings.watch);
    WorkerControllerConfig {
        controller: ControllerConfig {
            interval: reconciliation.reconcile_interval,
            polling: if reconciliation.reconcile_polling_enabled { Polling::Enabled } else { Polling::Disabled },
            initial_delay: reconciliation.initial_delay,
            max_concurrent: reconciliation.max_concurrent,
            timeout: reconciliation.reconcile_timeout,
            backoff: settings.policy().backoff,
            grace: reconciliation.shutdown_grace,
            ..ControllerConfig::default()
        },
        election: ElectionConfig {
            key: settings.leader_key(),
            identity: election.instance_id.clone(),
            ttl: election.lease_ttl,
            margin: election.lease_margin,
            retry_interval: election.retry_interval,
            clock: LeaseClock::default(),
        },
        // The range was checked when the setting was read.
        shards: Shards::new(election.leader_shards).unwrap_or_default(),
        watch: watch.watch_enabled.then(|| WatchConfig {
            debounce: watch.debounce_seconds,
            reconnect_delay: watch.reconnect_delay,
            max_reconnect_attempts: watch.max_reconnect_attempts,
            ..WatchConfig::new(settings.watch_prefixes())
        }),
        request_prefixes: settings.watch_prefixes(),
        discovery: settings.discovery.worker_discovery_enabled.then(|| discovery_config(settings)),
        metrics_interval: reconciliation.metrics_poll_interval,
        startup: StartupConfig {
            delay: startup.startup_reconcile_delay,
            limit: startup.startup_reconcile_enabled.then_some(startup.startup_reconcile_timeout),
        },
        cml: cml_defaults(settings),
        history: None,
        guards: Guards::default(),
    }
}

/// Returns the writer of the history, if the settings name a directory.
///
/// # Errors
/// If the directory cannot be created.
pub fn history(settings: &Settings) -> Result<Option<HistoryWriter>, FromSettingsError> {
    let settings = &settings.history;
    let Some(directory) = &settings.history_dir else { return Ok(None) };
    let limits = HistoryLimits {
        max_bytes: settings.history_max_mb << 20,
        max_age: Duration::from_secs_f64(settings.history_max_days * 86_400.0),
        sample: settings.history_sample,
    };
    let writer = HistoryWriter::new(directory, limits);
    writer.map(Some).map_err(|source| FromSettingsError::History { directory: directory.clone(), source })
}

/// Returns the configuration of discovery, whether or not the controller has it enabled.
pub fn discovery_config(settings: &Settings) -> DiscoveryConfig {
    DiscoveryConfig {
        interval: settings.discovery.discovery_interval,
        initial_delay: settings.discovery.discovery_initial_delay,
        regions: settings.discovery_regions(),
        filter: settings.discovery_filter(),
        foreign: match settings.discovery.adopt_foreign {
            true => ForeignInstances::Import,
            false => ForeignInstances::Report,
        },
        ..DiscoveryConfig::default()
    }
}

/// Returns the CML credentials for workers whose record has none.
pub fn cml_defaults(settings: &Settings) -> CmlDefaults {
    CmlDefaults {
        username: settings.cml.cml_default_username.clone(),
        password: settings.cml.cml_default_password.clone().unwrap_or_else(|| Secret::from("")),
    }
}

/// Returns the address and access rules of the admin server.
pub fn admin_options(settings: &Settings) -> AdminOptions {
    let admin = &settings.admin;
    AdminOptions {
        address: (admin.admin_host, admin.admin_port).into(),
        exposure: if admin.admin_expose { Exposure::Network } else { Exposure::LoopbackOnly },
        key: admin.admin_key.clone(),
    }
}

/// Returns a worker controller with the ports of [`ports`].
///
/// # Errors
/// If a client cannot be created, or the election settings contradict each other.
pub async fn worker_controller(settings: &Settings) -> Result<WorkerController, FromSettingsError> {
    let telemetry = Telemetry::new(&settings.reconciliation.metric_prefix);
    let ports = ports(settings, &telemetry).await?;
    let coordination = coordination(settings)?;
    let config = controller_config(settings).with_history(history(settings)?);
    Ok(WorkerController::new(ports, settings.policy(), coordination, config, telemetry)?)
}
