//! Builds ports, clients and a worker controller from [`Settings`].
//!
//! No function here makes a call: clients connect on first use.

use std::sync::Arc;

use thiserror::Error;

use crate::admin::{AdminOptions, Exposure};
use crate::controller::election::{ElectionConfig, ElectionConfigError};
use crate::controller::watch::WatchConfig;
use crate::controller::{ControllerConfig, Polling, Shards, StartupConfig};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::secret::Secret;
use crate::ports::{Coordination, Events, Ports, SystemClock};
use crate::providers::aws::{Account, CloudWatch, Ec2, Tuning};
use crate::providers::cml::{CmlClient, CmlOptions, Security};
use crate::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use crate::providers::etcd::{ClientCertificate, Etcd, EtcdOptions, EtcdTls, EtcdUser};
use crate::providers::events::{ControlPlaneEvents, FanoutEvents, HttpEvents, LogEvents, SinkOptions};
use crate::providers::http::SetupError;
use crate::reconciler::CmlDefaults;
use crate::resilience::batch::{BatchSettings, BatchingCompute};
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::workers::controller::{WorkerController, WorkerControllerConfig};
use crate::workers::discovery::DiscoveryConfig;

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
    /// The election settings contradict each other.
    #[error(transparent)]
    Election(#[from] ElectionConfigError),
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

    let key = settings.control_plane.control_plane_api_key.clone().unwrap_or_else(|| Secret::from(""));
    let mut control_plane = ControlPlaneOptions::new(&settings.control_plane.control_plane_api_url, key);
    control_plane.timeout = settings.control_plane.control_plane_api_timeout;
    control_plane.retries.truncate(settings.control_plane.control_plane_api_retries as usize);

    let control_plane = Arc::new(ControlPlaneClient::new(control_plane).map_err(client_error("the control plane"))?);

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
        control_plane,
        events: Arc::new(FanoutEvents::new(sinks)),
        clock: Arc::new(SystemClock),
    })
}

/// Returns the etcd client, or `None` if no endpoints are configured and the controller leads without an election.
///
/// # Errors
/// If the client cannot be created.
pub fn coordination(settings: &Settings) -> Result<Option<Arc<dyn Coordination>>, FromSettingsError> {
    let etcd = &settings.etcd;
    if etcd.is_mock() {
        return Ok(None);
    }
    let mut options = EtcdOptions::new(etcd.urls());
    options.user =
        etcd.etcd_username.clone().zip(etcd.etcd_password.clone()).map(|(name, password)| EtcdUser { name, password });
    let client = etcd.etcd_cert_file.clone().zip(etcd.etcd_key_file.clone());
    let client = client.map(|(certificate_file, key_file)| ClientCertificate { certificate_file, key_file });
    if etcd.etcd_ca_file.is_some() || client.is_some() {
        options.tls = Some(EtcdTls { ca_file: etcd.etcd_ca_file.clone(), client, server_name: None });
    }
    Ok(Some(Arc::new(Etcd::new(options).map_err(FromSettingsError::Etcd)?)))
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
        },
        // The range was checked when the setting was read.
        shards: Shards::new(election.leader_shards).unwrap_or_default(),
        watch: watch.watch_enabled.then(|| WatchConfig {
            debounce: watch.debounce_seconds,
            reconnect_delay: watch.reconnect_delay,
            max_reconnect_attempts: watch.max_reconnect_attempts,
            ..WatchConfig::new(settings.watch_prefixes())
        }),
        discovery: settings.discovery.worker_discovery_enabled.then(|| discovery_config(settings)),
        metrics_interval: reconciliation.metrics_poll_interval,
        startup: StartupConfig {
            delay: startup.startup_reconcile_delay,
            limit: startup.startup_reconcile_enabled.then_some(startup.startup_reconcile_timeout),
        },
        cml: cml_defaults(settings),
    }
}

/// Returns the configuration of discovery, whether or not the controller has it enabled.
pub fn discovery_config(settings: &Settings) -> DiscoveryConfig {
    DiscoveryConfig {
        interval: settings.discovery.discovery_interval,
        initial_delay: settings.discovery.discovery_initial_delay,
        regions: settings.discovery_regions(),
        filter: settings.discovery_filter(),
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
    Ok(WorkerController::new(ports, settings.policy(), coordination, controller_config(settings), telemetry)?)
}
